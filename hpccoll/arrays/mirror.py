"""Host arrays and their counterparts on a device: for who fills and looks at data on the host."""

from __future__ import annotations

import importlib
from typing import Any

import numpy

from hpccoll.arrays.device import is_served


def use_device(number: int) -> str:
    """Make one of the visible devices current, in turn by this number; why there is none, if so."""
    if not is_served():
        return "CuPy is not installed"
    cupy = device_namespace()
    try:
        cupy.cuda.Device(number % cupy.cuda.runtime.getDeviceCount()).use()
    except Exception as error:  # whatever the driver says, also that there are none
        return f"no device: {type(error).__name__}: {error}"
    return ""


def device_namespace() -> Any:
    """The module of device arrays."""
    return importlib.import_module("cupy")


def push(host: numpy.ndarray, there: Any) -> None:
    """Copy values to the device."""
    there.set(host)


def fetch(there: Any, host: numpy.ndarray) -> None:
    """Copy values from the device."""
    there.get(out=host)


def wait() -> None:
    """Wait for the current stream."""
    cupy = device_namespace()
    cupy.cuda.get_current_stream().synchronize()
