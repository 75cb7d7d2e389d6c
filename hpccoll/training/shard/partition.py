"""Ownership of elements: pure functions of the arrays and the number of ranks.

Arrays are contiguous in groups, and each group has one part for each rank, so a reduce-scatter of
any group is balanced. Parts differ by at most one element. The ranks with one extra element rotate
from group to group, so whole shards also differ by at most one element. There is no padding, and a
rank may own no elements.

    stages 0-2     the buckets of :func:`~hpccoll.training.buckets.plan_buckets`
    stage 3        one group for each unit (the arrays of a layer) and dtype, and one for each dtype
                   with all arrays that are too small for a gather: they stay whole
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.training.buckets import ArraySpec, Bucket, plan_buckets

#: Unit index of groups whose arrays are never released.
WHOLE = -1


def part_sizes(count: int, size: int, turn: int = 0) -> tuple[int, ...]:
    """Return the part sizes of a group; ranks from ``turn`` on have one extra element.

    >>> part_sizes(8, 3), part_sizes(2, 3, turn=2)
    ((3, 3, 2), (1, 0, 1))
    """
    each, more = divmod(count, size)
    return tuple(each + ((rank - turn) % size < more) for rank in range(size))


class ShardGroup(NamedTuple):
    """Arrays in one vector that is partitioned over the ranks."""

    bucket: Bucket
    counts: tuple[int, ...]
    unit: int = WHOLE

    def part(self, rank: int) -> slice:
        """Return the slice of elements that a rank owns."""
        start = sum(self.counts[:rank])
        return slice(start, start + self.counts[rank])

    def pieces(self, mine: slice) -> list[tuple[int, slice, slice]]:
        """Map a slice of the vector to slices of the arrays.

        Returns:
            For each overlapping array: its index, its slice, and the slice relative to ``mine``.
        """
        touched = []
        ends = (*self.bucket.starts[1:], self.bucket.count)
        for index, start, end in zip(self.bucket.members, self.bucket.starts, ends):
            low, high = max(start, mine.start), min(end, mine.stop)
            if low < high:
                touched.append((index, slice(low - start, high - start),
                                slice(low - mine.start, high - mine.start)))
        return touched


def plan_groups(specs: Sequence[ArraySpec], size: int, bucket_bytes: int, first_bucket_bytes: int,
                units: Sequence[Sequence[int]] | None = None, persistent: int = 0
                ) -> tuple[ShardGroup, ...]:
    """Assign arrays to groups, in the order in which a backward pass completes them.

    Args:
        specs: the arrays, in the order of a forward pass.
        size: number of ranks.
        bucket_bytes, first_bucket_bytes: limits of a bucket, without units.
        units: indices of the arrays that are used together, in the order of a forward pass.
        persistent: arrays of fewer elements stay whole, with units.
    """
    if units is None:
        chosen = [(bucket, WHOLE) for bucket in plan_buckets(specs, bucket_bytes,
                                                             first_bucket_bytes)]
    else:
        small = {index for index, spec in enumerate(specs) if spec.count < persistent}
        chosen = []
        for unit in reversed(range(len(units))):
            large = [index for index in reversed(units[unit]) if index not in small]
            chosen += [(bucket, unit) for bucket in plan_buckets(specs, sys.maxsize, sys.maxsize,
                                                              large)]
        chosen += [(bucket, WHOLE)
                   for bucket in plan_buckets(specs, sys.maxsize, sys.maxsize,
                                              sorted(small, reverse=True))]
    groups, turn = [], 0
    for bucket, unit in chosen:
        groups.append(ShardGroup(bucket, part_sizes(bucket.count, size, turn), unit))
        turn = (turn + bucket.count) % size
    return tuple(groups)


def check_units(units: Sequence[Sequence[int]], count: int) -> None:
    """Check that each array is in exactly one unit."""
    named = sorted(index for unit in units for index in unit)
    if named != list(range(count)):
        odd = sorted({index for index in named if named.count(index) > 1}
                     | (set(named) ^ set(range(count))))
        raise ArgumentError("units", f"arrays {', '.join(map(str, odd))} are missing, duplicate or "
                                     f"out of range ({count} arrays)",
                            "assign every array to exactly one unit")
