"""Shapes of new arrays."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy

from hpccoll.errors import ArgumentError, ArgumentTypeError


def element_count(shape: Any, dtype: Any) -> tuple[numpy.dtype, int]:
    """Return the dtype of a new array and its number of elements; see ``Comm.empty``."""
    try:
        dtype = numpy.dtype(dtype)
        dims = [operator.index(n) for n in numpy.atleast_1d(numpy.asarray(shape, dtype=object))]
    except (TypeError, ValueError) as error:
        raise ArgumentError("shape", f"cannot create an array of shape {shape!r}, type {dtype!r}",
                            str(error)) from error
    if any(n < 0 for n in dims):
        raise ArgumentError("shape", f"expected dimensions of 0 or more, got {shape!r}")
    if dtype.hasobject:
        raise ArgumentTypeError("dtype", f"processes cannot share {dtype} elements")
    return dtype, math.prod(dims)
