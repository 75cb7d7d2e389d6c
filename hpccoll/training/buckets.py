"""Bucket plans: the arrays of each bucket and the order of buckets.

A plan is a pure function of arrays and limits: ranks with the same arrays have the same plan, and
so has the simulator. Arrays become ready in a given order; a bucket is closed when it reaches its
limit. The first bucket is small, to start early (as in PyTorch DDP: Li et al., VLDB 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpccoll.units import byte_count

#: Limit of the first bucket and largest limit of the others in bytes, as in PyTorch's DDP.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
#: Smallest limit of the others in bytes, and the number of buckets if neither limit applies.
LEAST_BUCKET_BYTES, BUCKETS = 1 << 20, 32


@dataclass(frozen=True)
class ArraySpec:
    """Specification of an array that is exchanged in every step.

    Attributes:
        name: unique name, for messages and for negotiation between ranks.
        shape: shape of the array.
        dtype: name of its dtype, such as ``"float32"`` or ``"bfloat16"``.
        itemsize: bytes of an element.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    itemsize: int = 4

    def __str__(self) -> str:
        return f"{self.name} of {self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * self.itemsize


@dataclass(frozen=True)
class Bucket:
    """Arrays that are reduced together, contiguous in one vector.

    Attributes:
        members: indices of the arrays, in bucket order.
        starts: offset of each array in elements.
        count: total number of elements.
        dtype: common dtype.
        nbytes: total size in bytes.
    """

    members: tuple[int, ...]
    starts: tuple[int, ...]
    count: int
    dtype: str
    nbytes: int


def fitting_bucket_bytes(specs: Iterable[ArraySpec]) -> int:
    """Return a bucket limit in bytes for arrays: few buckets, but enough for overlap.

    The last bucket cannot overlap with the backward pass, so it must be a small part of all bytes.

    >>> fitting_bucket_bytes([ArraySpec("weight", (1 << 20, 100))]) >> 10
    12800
    """
    total = sum(spec.nbytes for spec in specs)
    return min(max(total // BUCKETS, LEAST_BUCKET_BYTES), BUCKET_BYTES) if total else BUCKET_BYTES


def plan_buckets(specs: Sequence[ArraySpec], bucket_bytes: int | str = BUCKET_BYTES,
                 first_bucket_bytes: int | str = FIRST_BUCKET_BYTES,
                 order: Iterable[int] | None = None) -> tuple[Bucket, ...]:
    """Assign arrays to buckets, in the order in which the buckets are sent.

    A bucket is closed when it reaches its limit; all its arrays have one dtype.

    Args:
        bucket_bytes, first_bucket_bytes: limits, as numbers or ``"25M"``; 0 gives each array its
            own bucket.
        order: indices of the arrays in the order in which they become ready; by default from last
            to first, as in a backward pass.

    >>> sizes = [ArraySpec(name, (count,)) for name, count in (("a", 100), ("b", 10), ("c", 10))]
    >>> [bucket.members for bucket in plan_buckets(sizes, 400, 80)]
    [(2, 1), (0,)]
    """
    limits = {True: byte_count("first_bucket_bytes", first_bucket_bytes),
              False: byte_count("bucket_bytes", bucket_bytes)}
    buckets: list[Bucket] = []
    open_: dict[str, list[int]] = {}
    held: dict[str, int] = {}

    def close(dtype: str) -> None:
        members = open_.pop(dtype)
        starts, count = [], 0
        for index in members:
            starts.append(count)
            count += specs[index].count
        buckets.append(Bucket(tuple(members), tuple(starts), count, dtype, held.pop(dtype)))

    for index in reversed(range(len(specs))) if order is None else order:
        dtype = specs[index].dtype
        open_.setdefault(dtype, []).append(index)
        held[dtype] = held.get(dtype, 0) + specs[index].nbytes
        if held[dtype] >= limits[not buckets]:
            close(dtype)
    for dtype in list(open_):
        close(dtype)
    return tuple(buckets)
