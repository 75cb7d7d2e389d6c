"""The plan of buckets: which arrays travel together, and in which order.

A plan is a pure function of arrays and limits, so ranks that know the same arrays have the same,
and the simulator has that of a real run. Arrays become ready in some order; a bucket is closed when
it holds enough, and the first is small, to start early (PyTorch DDP's: Li et al., VLDB 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpccoll.units import byte_count

#: Bytes of the first bucket, and the most of the others: those of PyTorch's DDP.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
#: The least of the others, and how many there are where neither limit says otherwise.
LEAST_BUCKET_BYTES, BUCKETS = 1 << 20, 32


@dataclass(frozen=True)
class ArraySpec:
    """An array that is exchanged in every step.

    Attributes:
        name: unique, for people and for what ranks tell each other.
        shape: of the array.
        dtype: name of its type, such as ``"float32"`` or ``"bfloat16"``.
        itemsize: bytes of an element.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    itemsize: int = 4

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.count * self.itemsize


@dataclass(frozen=True)
class Bucket:
    """Arrays that travel together, one behind the other.

    Attributes:
        members: indices of the arrays, in the order in which they lie in the bucket.
        starts: element at which each begins.
        count: elements of all.
        dtype: of all.
        nbytes: bytes of all.
    """

    members: tuple[int, ...]
    starts: tuple[int, ...]
    count: int
    dtype: str
    nbytes: int


def fitting_bucket_bytes(specs: Iterable[ArraySpec]) -> int:
    """Bytes of buckets that suit arrays: few enough to cost little, many enough to overlap.

    The last bucket has no backward pass left to hide behind, so it is a small part of all bytes.

    >>> fitting_bucket_bytes([ArraySpec("weight", (1 << 20, 100))]) >> 10
    12800
    """
    total = sum(spec.nbytes for spec in specs)
    return min(max(total // BUCKETS, LEAST_BUCKET_BYTES), BUCKET_BYTES) if total else BUCKET_BYTES


def plan_buckets(specs: Sequence[ArraySpec], bucket_bytes: int | str = BUCKET_BYTES,
                 first_bucket_bytes: int | str = FIRST_BUCKET_BYTES,
                 order: Iterable[int] | None = None) -> tuple[Bucket, ...]:
    """Put arrays into buckets, in the order in which the buckets are sent.

    A bucket is closed when it holds as many bytes as its limit; arrays of one type only share it.

    Args:
        specs: the arrays.
        bucket_bytes, first_bucket_bytes: limits, as numbers or ``"25M"``; 0 gives every array a
            bucket of its own.
        order: indices of the arrays as they become ready; by default from the last to the first,
            as a backward pass makes them.

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
