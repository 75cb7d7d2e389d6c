"""Checks for installed frameworks and their versions, with clear errors."""

from __future__ import annotations

import re
from importlib import metadata

from hpccoll.errors import FrameworkError

#: Oldest supported JAX, which has all public names used here.
OLDEST_JAX = (0, 5)


def require_jax() -> None:
    """Raise unless a supported JAX is installed.

    Raises:
        FrameworkError: JAX is not installed or too old.
    """
    found = _version("jax")
    if tuple(int(number) for number in re.findall(r"\d+", found)[:2]) < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        raise FrameworkError("jax", f"version {found} is installed, {oldest} or later is required")


def require_optax() -> None:
    """Raise unless optax is installed.

    Raises:
        FrameworkError: optax is not installed.
    """
    _version("optax", extra="jax")


def _version(package: str, extra: str = "") -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise FrameworkError(package, "is not installed", extra) from None
