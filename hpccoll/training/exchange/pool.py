"""Fusion buffers: arrays one behind the other in registered memory, in the order they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.training.arrays import dtype_of
from hpccoll.training.buckets import ArraySpec, Bucket


class Pool:
    """One vector for each type of elements.

    The order of arrays may change, the memory stays: a bucket is a slice of it, and so are several
    buckets of one type that follow each other.

    Args:
        comm: makes the memory; collective.
        specs: all arrays.
        order: in which they lie in it.
        device: the arrays are CuPy's, and so is the memory.
    """

    def __init__(self, comm: Any, specs: Sequence[ArraySpec], order: Sequence[int],
                 device: bool = False):
        self.specs = specs
        counts: dict[str, int] = {}
        for spec in specs:
            counts[spec.dtype] = counts.get(spec.dtype, 0) + spec.count
        self.vectors = {dtype: vector(comm, count, dtype, device)
                        for dtype, count in sorted(counts.items())}
        self.lay(order)

    def lay(self, order: Sequence[int]) -> None:
        """Put the arrays into this order; what is in them now is no longer theirs."""
        self.starts = [0] * len(self.specs)
        ends = dict.fromkeys(self.vectors, 0)
        for index in order:
            spec = self.specs[index]
            self.starts[index] = ends[spec.dtype]
            ends[spec.dtype] += spec.count
        self.views = [self._view(index) for index in range(len(self.specs))]

    def _view(self, index: int) -> Any:
        spec, start = self.specs[index], self.starts[index]
        return self.vectors[spec.dtype][start:start + spec.count].reshape(spec.shape)

    def values(self, bucket: Bucket) -> Any:
        """The elements of a bucket whose arrays follow each other."""
        start = self.starts[bucket.members[0]]
        return self.vectors[bucket.dtype][start:start + bucket.count]


def vector(comm: Any, count: int, dtype: str, device: bool = False) -> Any:
    """Memory for a vector: registered where it is the host's; collective."""
    if device:
        import cupy
        return cupy.empty(count, dtype_of(dtype))
    empty = getattr(comm, "empty", numpy.empty)
    return empty(count, dtype_of(dtype))
