"""Which block sizes a proof covers, and each rank's program lowered for them.

A schedule holds for any block sizes; a proof takes samples that differ in kind: one element a
block, none, fewer elements than blocks, uneven ones, in place and not, cut into segments and not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpccoll.errors import ProofError, ScheduleError
from hpccoll.ir.collectives import Collective, block_counts, slot_keys
from hpccoll.ir.extents import Segment, SlotLayout, alias, packed
from hpccoll.ir.lowering import segments
from hpccoll.ir.schedule import Schedule

#: From this many ranks on, one sample of block sizes is proved instead of a dozen.
LARGE = 128


class BlockSizes(NamedTuple):
    """One choice of block sizes to prove.

    Attributes:
        size_of: elements of a block, by its key.
        keys: number of block keys.
        in_place: with ``MPI.IN_PLACE``.
        segment: most elements of a block in a segment; 0 for one segment.
    """

    size_of: Callable[[int], int]
    keys: int
    in_place: bool = False
    segment: int = 0


def cases(schedule: Schedule, collective: Collective) -> list[BlockSizes]:
    """Sample block sizes: one element each first, then none, fewer than blocks, uneven."""
    n = schedule.nblocks if collective.payload == "vector" else schedule.size
    keys = n * n if collective.payload == "pairs" else n
    one = BlockSizes(lambda key: 1, keys)
    if collective.payload == "none" or schedule.size >= LARGE:
        return [one]
    sizes: list[Callable[[int], int]]
    if collective.payload == "vector":
        sizes = [_cut(count, n) for count in {0, 1, n - 1, n + 1, 2 * n + 1} - {n}]
    elif schedule.uniform:
        sizes = [lambda key: 0, lambda key: 3]
    else:
        sizes = [lambda key: (5 * key + 3) % 4, lambda key: 2 * (key == keys - 1)]
    segmented = BlockSizes(lambda key: 3, keys, segment=2)
    samples = [one, *(BlockSizes(size_of, keys) for size_of in sizes), segmented]
    if collective.in_place:
        samples += [one._replace(in_place=True), segmented._replace(in_place=True),
                    BlockSizes(sizes[0], keys, in_place=True)]
    return samples


def _cut(count: int, nblocks: int) -> Callable[[int], int]:
    counts = block_counts(count, nblocks)
    return lambda key: counts[key]


def lower_all(schedule: Schedule, collective: Collective, rank: int,
              case: BlockSizes) -> list[Segment]:
    """Lower one rank's program for every segment of a case, as a plan would."""
    keys = slot_keys(collective, rank, schedule.size, schedule.root, schedule.nblocks)
    places = {buffer: packed(buffer, [case.size_of(key) for key in held])
              for buffer, held in keys.items()}
    if case.in_place:
        alias(collective.in_place, places, rank, schedule.root)
    longest = max(map(case.size_of, range(case.keys)), default=0)
    try:
        return segments(schedule.program(rank), SlotLayout(places, case.size_of), longest,
                        case.segment)
    except ScheduleError as error:
        raise ProofError(str(error), schedule=schedule.title, rank=rank) from error
