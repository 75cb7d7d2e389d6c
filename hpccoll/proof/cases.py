"""Sample block sizes of the proof, and each rank's program lowered for them.

All sizes are proved by :mod:`hpccoll.proof.slots`. Lowering is proved on samples that differ in
kind: one element per block, all different, some empty, in place and not, cut into segments and
not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpccoll.ir.collectives import Collective, block_counts, slot_keys
from hpccoll.ir.extents import Segment, SlotLayout, alias, pack_extents
from hpccoll.ir.lowering import segments
from hpccoll.ir.schedule import Program, Schedule

#: From this number of ranks on, lowering is proved on one sample of block sizes instead of six.
LARGE = 128
#: Maximum number of blocks for a sample with different sizes of all blocks.
FEW = 8


class BlockSizes(NamedTuple):
    """One choice of block sizes to prove.

    Attributes:
        size_of: elements of a block, by its key.
        keys: number of block keys.
        in_place: True for ``MPI.IN_PLACE``.
        segment: maximum elements of a block in a segment; 0 for one segment.
    """

    size_of: Callable[[int], int]
    keys: int
    in_place: bool = False
    segment: int = 0


def cases(schedule: Schedule, collective: Collective) -> list[BlockSizes]:
    """Return sample block sizes: one element each, all different, some empty, in segments."""
    n = schedule.nblocks if collective.payload == "vector" else schedule.size
    keys = n * n if collective.payload == "pairs" else n
    one = BlockSizes(lambda key: 1, keys)
    if collective.payload == "none" or schedule.size >= LARGE:
        return [one]
    sizes: list[Callable[[int], int]]
    if schedule.uniform:
        sizes = [lambda key: 0, lambda key: 3]
    else:
        sizes = [lambda key: key + 1] if keys <= FEW else []
        sizes += [_cut(2 * n + 1, n)] if collective.payload == "vector" else []
        sizes.append(mixed_sizes)
    segmented = BlockSizes(lambda key: 3, keys, segment=2)
    samples = [one, *(BlockSizes(size_of, keys) for size_of in sizes), segmented]
    if collective.in_place:
        samples += [BlockSizes(sizes[-1], keys, in_place=True), segmented._replace(in_place=True)]
    return samples


def _cut(count: int, nblocks: int) -> Callable[[int], int]:
    return block_counts(count, nblocks).__getitem__


def mixed_sizes(key: int) -> int:
    """Return sizes of 0 to 3 elements without a pattern; the first blocks have 3, 0, 2 and 1."""
    return (3, 0, 2, 1)[key] if key < 4 else (key * 2654435761 >> 9) % 4


def similar_sizes(sizes: Sequence[int], in_place: bool = False,
                  segmented: bool = False) -> BlockSizes:
    """Return small similar sizes: the same blocks are empty, and unequal ones stay unequal.

    Lowering packs for empty or distant blocks, and depends on no other property of sizes, so a
    proof for these is one for the given ones.

    >>> list(map(similar_sizes([700, 0, 699, 700]).size_of, range(4)))
    [2, 0, 1, 2]
    """
    ranks = {size: 1 + number % FEW for number, size in enumerate(sorted(set(sizes) - {0}))}
    small = [ranks.get(size, 0) for size in sizes]
    return BlockSizes(small.__getitem__, len(sizes), in_place, int(segmented))


def most_scratch_blocks(schedule: Schedule) -> int:
    """Return the blocks of scratch that the lowered program of any rank needs for a segment.

    In place and not; blocks do not touch, so those that are sent together are packed.
    """
    collective, cut = schedule.collective, 2
    case = BlockSizes(lambda key: 2 * cut, 1, segment=cut)
    samples = [case, case._replace(in_place=True)] if collective.in_place else [case]
    return max(-(-each.program.scratch // cut) for rank in range(schedule.size)
               for sample in samples
               for each in lower_all(schedule, collective, rank, sample))


def lower_all(schedule: Schedule, collective: Collective, rank: int, case: BlockSizes,
              program: Program | None = None) -> list[Segment]:
    """Lower one rank's program for every segment of a case, as a plan would."""
    keys = slot_keys(collective, rank, schedule.size, schedule.root, schedule.nblocks)
    places = {buffer: pack_extents(buffer, [case.size_of(key) for key in held])
              for buffer, held in keys.items()}
    if case.in_place:
        alias(collective.in_place, places, rank, schedule.root)
    longest = max(map(case.size_of, range(case.keys)), default=0)
    return segments(schedule.program(rank) if program is None else program,
                    SlotLayout(places, case.size_of), longest, case.segment)
