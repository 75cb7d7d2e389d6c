"""Fusion buffers: arrays in contiguous registered memory, in the order of sending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.training.arrays import dtype_of
from hpccoll.training.buckets import ArraySpec, Bucket


class FusionBuffer:
    """One vector for each dtype, of device memory if ``device``; creation is collective.

    The order of arrays may change without new memory. A bucket is a slice of the vector, and so are
    consecutive buckets of one dtype.
    """

    def __init__(self, comm: Any, specs: Sequence[ArraySpec], order: Sequence[int],
                 device: bool = False):
        self.specs = specs
        counts: dict[str, int] = {}
        for spec in specs:
            counts[spec.dtype] = counts.get(spec.dtype, 0) + spec.count
        self.vectors = {dtype: allocate_vector(comm, count, dtype, device)
                        for dtype, count in sorted(counts.items())}
        self.assign(order)

    def assign(self, order: Sequence[int]) -> None:
        """Assign the memory to arrays in this order; contents become undefined."""
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
        """Return the elements of a bucket as a view; its arrays must be contiguous."""
        start = self.starts[bucket.members[0]]
        return self.vectors[bucket.dtype][start:start + bucket.count]


def allocate_vector(comm: Any, count: int, dtype: str, device: bool = False) -> Any:
    """Allocate a vector, in registered memory if it is host memory; collective."""
    if device:
        import cupy
        return cupy.empty(count, dtype_of(dtype))
    empty = getattr(comm, "empty", numpy.empty)
    return empty(count, dtype_of(dtype))
