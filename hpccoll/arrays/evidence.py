"""What this rank finds out about the ways of device data (:mod:`hpccoll.arrays.ways`).

A way that is not looked for is none: every way has a line in :data:`LOOKS`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

from hpccoll.arrays import device
from hpccoll.arrays.ways import AWARE, IPC, NCCL, STAGED, Found, Told


def devices() -> tuple[str, ...]:
    """Addresses of the devices that CuPy sees, the first being the one that is used; none without
    CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return ()
    cupy: Any = importlib.import_module("cupy")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        return tuple(cupy.cuda.runtime.deviceGetPCIBusId(n) for n in range(count))
    except cupy.cuda.runtime.CUDARuntimeError:
        return ()


def _nccl() -> Found:
    return Found(False, "hpccoll does not use NCCL")


def _ipc() -> Found:
    return Found(False, "hpccoll does not read the device memory of peers")


def _mpi() -> Found:
    return device.probed()


def _staged() -> Found:
    return Found(True, "always")


#: Name of a way -> what finds out about it, where there is CuPy and a device.
LOOKS: Mapping[str, Callable[[], Found]] = {
    NCCL.name: _nccl, IPC.name: _ipc, AWARE.name: _mpi, STAGED.name: _staged}


def told(host: int) -> Told:
    """What this rank tells the others, see :class:`hpccoll.arrays.ways.Told`.

    The first time may take seconds: child processes try what could kill this one.
    """
    addresses = devices()
    if not addresses:
        why = "no device is visible" if device.is_served() else "CuPy is not installed"
        return Told(host, "", {name: Found(False, why) for name in LOOKS})
    return Told(host, addresses[0], {name: look() for name, look in LOOKS.items()})


def agreed(comm: MPI.Intracomm, host: int) -> list[Told]:
    """What all ranks of a communicator tell, the same on each of them; collective."""
    return comm.allgather(told(host))
