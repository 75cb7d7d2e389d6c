"""Plans: one rank's program lowered onto concrete counts, ready to be run again and again.

A plan knows element ranges, not addresses; :mod:`hpccoll.run` puts it onto memory. Plans are
pure functions of (schedule, rank, layout, segment), so every rank makes the matching one
without talking.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from hpccoll.collective import IN, OUT, block_counts
from hpccoll.lower import Extent, Lane, Layout, alias, lanes, packed
from hpccoll.schedule import Schedule

#: Segments in flight at once: one travels while another is reduced.
DEPTH = 2
#: Bytes of a cache line: what is copied best begins with one.
LINE = 64


class Plan(NamedTuple):
    """What one rank does for one call shape.

    Attributes:
        schedule: the proved object this was lowered from.
        lanes: one lowered program per segment.
        depth: segments in flight at once; each has scratch of its own.
        scratch: elements of scratch per segment in flight.
        messages: messages sent and received in all.
    """

    schedule: Schedule
    lanes: tuple[Lane, ...]
    depth: int
    scratch: int
    messages: int


def make(schedule: Schedule, rank: int, layout: Layout, longest: int, segment: int) -> Plan:
    """Lower a schedule for one rank; ``segment`` is in elements of a block, 0 for whole."""
    made = tuple(lanes(schedule.program(rank), layout, longest, segment))
    return Plan(schedule, made, min(DEPTH, len(made)),
                max(lane.program.scratch for lane in made),
                sum(len(phase.messages) for lane in made for phase in lane.program.phases))


def segment_elements(itemsize: int, longest: int, segment_bytes: int, shared: bool) -> int:
    """Elements of a block per segment; 0 when one segment suffices.

    Segments are evened out only when every rank knows the longest block (``shared``): two
    ranks must cut the block they exchange at the same places.
    """
    most = max(segment_bytes // itemsize, 1)
    if longest <= most:
        return 0
    if not shared:
        return most
    even, unit = -(-longest // -(-longest // most)), max(LINE // itemsize, 1)
    return min(-(-even // unit) * unit, most)


def vector_layout(schedule: Schedule, rank: int, count: int, in_place: bool,
                  offsets: tuple[int, int] = (0, 0), unit: int = 1) -> tuple[Layout, int]:
    """Layout of a vector of ``count`` elements, and its longest block.

    Blocks of a long vector begin at multiples of ``unit`` elements.
    """
    if count < unit * schedule.nblocks:
        unit = 1
    whole, rest = divmod(count, unit)
    counts = [unit * each for each in block_counts(whole, schedule.nblocks)]
    counts[-1] += rest
    places = {IN: packed(IN, counts, base=offsets[0]), OUT: packed(OUT, counts, base=offsets[1])}
    if in_place:
        alias(schedule.collective.in_place, places, rank, schedule.root)
    return Layout(places, counts.__getitem__), max(counts)


def block_layout(schedule: Schedule, rank: int, counts: Sequence[int], in_place: bool,
                 displs: Sequence[int] | None = None, base: int = 0,
                 offset: int = 0) -> tuple[Layout, int]:
    """Layout of one block per rank, and its longest block.

    The buffer that holds all blocks has them at ``displs``, or packed from ``base``; the
    buffer that holds this rank's own block has it at ``offset``.
    """
    name = schedule.collective.name
    whole, own = (IN, OUT) if name in ("reduce_scatter", "scatter") else (OUT, IN)
    places = {whole: packed(whole, counts, displs, base), own: [Extent(own, offset, counts[rank])]}
    if in_place:
        alias(schedule.collective.in_place, places, rank, schedule.root)
    if schedule.collective.rooted and rank != schedule.root:
        del places[whole]
    return Layout(places, counts.__getitem__), max(counts)


def pair_layout(sendcounts: Sequence[int], recvcounts: Sequence[int], sdispls: Sequence[int],
                rdispls: Sequence[int]) -> tuple[Layout, int]:
    """Layout of one block per destination and source, and the longest block of this rank.

    Scratch slots, which only algorithms for uniform blocks use, have the size of block 0.
    """
    places = {IN: packed(IN, sendcounts, sdispls),
              OUT: packed(OUT, recvcounts, rdispls)}
    size = sendcounts[0] if len(sendcounts) else 0
    return Layout(places, lambda key: size), max(*sendcounts, *recvcounts, 0)
