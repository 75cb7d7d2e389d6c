"""Whether the frameworks are here, and in which versions; says so before anything else fails."""

from __future__ import annotations

import re
from importlib import metadata

from hpccoll.errors import FrameworkError

#: The oldest JAX that has all public names used here.
OLDEST_JAX = (0, 5)


def require_jax() -> None:
    """Raise unless a JAX is installed that can be served.

    Raises:
        FrameworkError: none, or one that is too old.
    """
    found = _version("jax")
    if tuple(int(number) for number in re.findall(r"\d+", found)[:2]) < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        raise FrameworkError("jax", f"version {found} is installed, {oldest} or later is required")


def require_optax() -> None:
    """Raise unless optax is installed.

    Raises:
        FrameworkError: it is not.
    """
    _version("optax", extra="jax")


def _version(package: str, extra: str = "") -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise FrameworkError(package, "is not installed", extra) from None
