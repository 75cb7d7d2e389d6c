"""Pinned host memory: a copy that is queued does not keep it alive."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from support.gpu.tasks import CudaError


class Pinned(bytearray):
    """Pinned host memory, as ``cupy.cuda.alloc_pinned_memory`` gives it."""

    held: Counter[str]
    nbytes = 0

    def __del__(self) -> None:
        if self.nbytes:
            self.held["pinned"] -= self.nbytes


def reach(array: numpy.ndarray) -> tuple[Callable[[], numpy.ndarray], bool]:
    """How a copy reaches host memory when its turn comes, and whether that is pinned."""
    base: Any = array
    while isinstance(base, numpy.ndarray):
        base = base.base
    base = getattr(base, "obj", base)
    if not isinstance(base, Pinned):
        return lambda: array, False
    owner, dtype, shape = weakref.ref(base), array.dtype, array.shape
    offset = array.ctypes.data - numpy.frombuffer(base, "u1").ctypes.data

    def reached() -> numpy.ndarray:
        memory = owner()
        if memory is None:
            raise CudaError("pinned memory was given back before a copy was done with it")
        return numpy.frombuffer(memory, dtype, array_size(shape), offset).reshape(shape)

    return reached, True


def array_size(shape: Sequence[int]) -> int:
    """How many elements an array of this shape has."""
    return int(numpy.prod(shape, dtype=int))
