"""Check for an installed Keras 3 with a backend, with clear errors."""

from __future__ import annotations

import importlib

from hpccoll.errors import FrameworkError


def require_keras() -> None:
    """Raise unless Keras 3 can be imported.

    Raises:
        FrameworkError: Keras is not installed, too old, or its backend is missing.
    """
    try:
        version = importlib.import_module("keras").__version__
    except ImportError as error:
        if (error.name or "keras").split(".")[0] == "keras":
            raise FrameworkError("keras", "is not installed") from None
        raise FrameworkError(
            "keras", f"cannot import its backend ({error}): set KERAS_BACKEND to 'jax', 'torch' or "
                     "'tensorflow'", extra="keras,jax") from error
    if int(version.split(".")[0]) < 3:
        raise FrameworkError("keras", f"version {version} is installed, 3 or later is required")
