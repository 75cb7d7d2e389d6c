"""Which rank owns which elements: pure functions of the arrays and the number of ranks.

Arrays lie one behind the other in groups, and every group is cut into one part a rank, so that a
reduce-scatter of any group keeps all ranks equally busy. Parts differ by one element at most, and
the ranks whose turn it is to have one more go round from group to group, so that whole shards
differ by one element at most too: no padding, and a rank may own nothing at all.

    stages 0-2     the buckets of :func:`~hpccoll.training.buckets.plan_buckets`
    stage 3        one group for each unit (the arrays of a layer) and type, and one for each type
                   with all arrays that are too small to be worth a gather: they stay whole
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.training.buckets import ArraySpec, Bucket, plan_buckets

#: In whose place a group has no unit: its arrays are never released.
WHOLE = -1


def cut(count: int, size: int, turn: int = 0) -> tuple[int, ...]:
    """Elements of every rank's part of a group; ranks from ``turn`` on have one more.

    >>> cut(8, 3), cut(2, 3, turn=2)
    ((3, 3, 2), (1, 0, 1))
    """
    each, more = divmod(count, size)
    return tuple(each + ((rank - turn) % size < more) for rank in range(size))


class ShardGroup(NamedTuple):
    """Arrays whose elements are one vector, cut over the ranks.

    Attributes:
        bucket: the arrays, and where each begins.
        counts: elements of every rank's part.
        unit: the unit whose arrays these are; :data:`WHOLE` if they are never released.
    """

    bucket: Bucket
    counts: tuple[int, ...]
    unit: int = WHOLE

    @property
    def starts(self) -> tuple[int, ...]:
        """Element at which every rank's part begins."""
        return tuple(accumulate(self.counts[:-1], initial=0))

    def part(self, rank: int) -> slice:
        """The elements that a rank owns."""
        start = sum(self.counts[:rank])
        return slice(start, start + self.counts[rank])

    def pieces(self, mine: slice) -> list[tuple[int, slice, slice]]:
        """Where some elements of the vector lie in the arrays.

        Returns:
            For every array touched: its index, its elements, and their places among ``mine``.
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
                units: Sequence[Sequence[int]] | None = None, persistent: int = 0,
                kinds: Sequence[int] | None = None) -> tuple[ShardGroup, ...]:
    """Put arrays into groups, in the order in which a backward pass completes them.

    Args:
        specs: the arrays, in the order of a forward pass.
        size: number of ranks.
        bucket_bytes, first_bucket_bytes: limits of a bucket, where there are no units.
        units: indices of the arrays that are used together, in the order of a forward pass.
        persistent: arrays of fewer elements stay whole, if there are units.
        kinds: a number for each array, if there are units: arrays of different kinds, such as
            those that are stepped on with different rates, share no group.
    """
    if units is None:
        chosen = [(bucket, WHOLE) for bucket in plan_buckets(specs, bucket_bytes,
                                                             first_bucket_bytes)]
    else:
        small = {index for index, spec in enumerate(specs) if spec.count < persistent}
        chosen = []
        for unit in reversed(range(len(units))):
            large = [index for index in reversed(units[unit]) if index not in small]
            chosen += [(bucket, unit) for bucket in _together(specs, large, kinds)]
        chosen += [(bucket, WHOLE)
                   for bucket in _together(specs, sorted(small, reverse=True), kinds)]
    groups, turn = [], 0
    for bucket, unit in chosen:
        groups.append(ShardGroup(bucket, cut(bucket.count, size, turn), unit))
        turn = (turn + bucket.count) % size
    return tuple(groups)


def _together(specs: Sequence[ArraySpec], order: Sequence[int], kinds: Sequence[int] | None
              ) -> list[Bucket]:
    """One bucket for each type and kind."""
    kind_of = dict.fromkeys(order, 0) if kinds is None else {each: kinds[each] for each in order}
    return [bucket for kind in sorted(set(kind_of.values())) for bucket in plan_buckets(
        specs, sys.maxsize, sys.maxsize, [each for each in order if kind_of[each] == kind])]


def check_units(units: Sequence[Sequence[int]], count: int) -> None:
    """Check that every array is in one unit.

    Raises:
        ArgumentError: one is in none, or in two.
    """
    named = sorted(index for unit in units for index in unit)
    if named != list(range(count)):
        odd = sorted({index for index in named if named.count(index) > 1}
                     | (set(named) ^ set(range(count))))
        raise ArgumentError("units", f"arrays {', '.join(map(str, odd))} are missing, duplicate or "
                                     f"out of range ({count} arrays)",
                            "assign every array to exactly one unit")
