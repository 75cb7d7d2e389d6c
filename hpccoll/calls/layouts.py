"""Layouts: the positions of the blocks of a call in its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT, block_counts
from hpccoll.ir.extents import Extent, SlotLayout, alias, pack_extents
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.sizes import maximum


def vector_layout(schedule: Schedule, rank: int, count: int, in_place: bool,
                  offsets: tuple[int, int] = (0, 0), unit: int = 1) -> tuple[SlotLayout, int]:
    """Return the layout of a vector of ``count`` elements, and its longest block.

    Blocks of a long vector start at multiples of ``unit`` elements.
    """
    counts = vector_counts(count, schedule.nblocks, unit)
    return split_layout(schedule, rank, counts, in_place, offsets), max(counts)


def vector_counts(count: int, nblocks: int, unit: int) -> list[int]:
    """Cut a vector of ``count`` elements into blocks; see :func:`vector_layout`."""
    if count < unit * nblocks:
        unit = 1
    whole, rest = divmod(count, unit)
    counts = [unit * each for each in block_counts(whole, nblocks)]
    counts[-1] += rest
    return counts


def split_layout(schedule: Schedule, rank: int, counts: Sequence[int], in_place: bool,
                 offsets: tuple[int, int] = (0, 0)) -> SlotLayout:
    """Return the layout of a vector that consists of blocks of these sizes."""
    places = {IN: pack_extents(IN, counts, base=offsets[0]),
              OUT: pack_extents(OUT, counts, base=offsets[1])}
    if in_place:
        alias(schedule.collective.in_place, places, rank, schedule.root)
    return SlotLayout(places, counts.__getitem__)


def block_layout(schedule: Schedule, rank: int, counts: Sequence[int], in_place: bool,
                 displs: Sequence[int] | None = None, base: int = 0,
                 offset: int = 0) -> tuple[SlotLayout, int]:
    """Return the layout of one block per rank, and its longest block.

    The buffer that holds all blocks has them at ``displs``, or packed from ``base``; the
    buffer that holds this rank's own block has it at ``offset``.
    """
    name = schedule.collective.name
    whole, own = (IN, OUT) if name in ("reduce_scatter", "scatter") else (OUT, IN)
    places = {whole: pack_extents(whole, counts, displs, base),
              own: [Extent(own, offset, counts[rank])]}
    if in_place:
        alias(schedule.collective.in_place, places, rank, schedule.root)
    if schedule.collective.rooted and rank != schedule.root:
        del places[whole]
    return SlotLayout(places, counts.__getitem__), reduce(maximum, counts)


def pair_layout(schedule: Schedule, rank: int, sendcounts: Sequence[int],
                recvcounts: Sequence[int], sdispls: Sequence[int], rdispls: Sequence[int]
                ) -> tuple[SlotLayout, int]:
    """Return the layout of one block per destination and source, and this rank's longest block.

    A rank knows only the sizes of the blocks that it sends and receives. Scratch can have these
    sizes; if all blocks have the same size, scratch can hold any block.
    """
    size = len(sendcounts)

    def scratch(key: int) -> int:
        source, sink = divmod(key, size)
        if schedule.uniform:
            return sendcounts[0]
        if rank not in (source, sink):
            raise ScheduleError(f"scratch has the size of the block from rank {source} to rank "
                                f"{sink}, which this rank does not have",
                                schedule=schedule.title, rank=rank)
        return sendcounts[sink] if source == rank else recvcounts[source]

    places = {IN: pack_extents(IN, sendcounts, sdispls),
              OUT: pack_extents(OUT, recvcounts, rdispls)}
    return SlotLayout(places, scratch), max(*sendcounts, *recvcounts, 0)
