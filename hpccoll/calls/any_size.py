"""Calls of one form and any size: which calls differ only in the sizes of their blocks.

The blocks of a call follow from its sizes in one of four ways, a *cut*:

    VECTOR    an even cut of a vector of n elements, as in Allreduce
    UNIFORM   blocks of n elements each, as in Allgather
    COUNTED   one count per rank, the same list on all ranks, as in Allgatherv
    UNKNOWN   counts that not all ranks have, as in Gatherv; the MPI library runs these calls
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from hpccoll.calls import layouts
from hpccoll.calls.call import Call, is_loaded
from hpccoll.calls.resolve import blocks_call, pairs_call, vector_call
from hpccoll.calls.specification import Buffer
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.extents import SlotLayout
from hpccoll.ir.methods import UNKNOWN_COUNTS
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.sizes import Size
from hpccoll.machine.limits import LINE

#: Cuts; ``_any_size.c`` has the same numbers.
VECTOR, UNIFORM, COUNTED, UNKNOWN = range(4)
#: Extents of an argument: not read; elements per unit of n; all blocks or more; this rank's block;
#: blocks by its own counts. ``_any_size.c`` has the same numbers.
ANY, SCALED, ALL, OWN, PARTS = range(5)
#: No limit of a number of elements.
NO_LIMIT = 1 << 40


class Sides(NamedTuple):
    """Extents of input and output, in this order.

    Attributes:
        extents: their extents.
        scales: elements per unit of n, for the extent ``SCALED``.
        elements: bytes of a caller's element.
    """

    extents: tuple[int, int]
    scales: tuple[int, int]
    elements: tuple[int, int]


class Blocks(NamedTuple):
    """Blocks of calls of one form.

    Attributes:
        number: of blocks.
        unit: number of elements that divides all blocks but the last.
        least, end: smallest n with such blocks that are not empty, and the first n above them.
    """

    number: int
    unit: int
    least: int
    end: int


def cut_of(call: Call, size: int) -> int | None:
    """Return the cut of a call; ``None`` if its buffers have gaps, or a block is empty."""
    if is_loaded(call) or not call.key:
        return None
    if call.name in UNKNOWN_COUNTS:
        return UNKNOWN if call.name != "alltoallw" else None
    kind = COLLECTIVES[call.collective].payload
    if kind == "vector":
        count, offsets = call.key
        return VECTOR if count and offsets == (0, 0) else None
    if kind == "pairs":
        sent, received, *displs = call.key
        same = len({*sent, *received}) == 1 and sent[0]
        return UNIFORM if same and all(map(_is_packed, (sent, received), displs)) else None
    counts, displs, base, offset = call.key
    if base or offset or min(counts) < 1 or not (displs is None or _is_packed(counts, displs)):
        return None
    return COUNTED if call.name in ("allgatherv", "reduce_scatter") else UNIFORM


def _is_packed(counts: Sequence[int], displs: Sequence[int]) -> bool:
    """Return True if the blocks follow each other from 0 on."""
    return tuple(displs) == (0, *accumulate(counts[:-1]))


def sides_of(call: Call, cut: int, size: int) -> Sides | None:
    """Return what the arguments of a call hold; ``None`` for elements of unknown size."""
    buffers = call.source, call.sink
    elements = [one.dtype.itemsize if one is not None and one.dtype is not None else 0
                for one in buffers]
    if any(one is not None and not element for one, element in zip(buffers, elements)):
        return None
    if call.name == "bcast" or call.in_place:
        return _one_side(call, cut, size, max(elements))
    extents, scales = [ANY, ANY], [1, 1]
    for side, one in enumerate(buffers):
        if one is not None:
            extents[side], scales[side] = _extent(call, cut, size, side)
    return Sides((extents[0], extents[1]), (scales[0], scales[1]),
                 (elements[0] or 1, elements[1] or 1))


def _one_side(call: Call, cut: int, size: int, element: int) -> Sides | None:
    """Return the same for a call with one buffer, which is its output in the signature."""
    if cut == UNKNOWN:
        return None
    if cut == COUNTED:
        return Sides((ANY, ALL), (1, 1), (1, element))
    rooted = call.collective in ("gather", "scatter")
    if rooted:  # the root's other argument is MPI.IN_PLACE
        whole = 1 if call.collective == "gather" else 0
        scales = (size, 1) if whole == 0 else (1, size)
        extents = (SCALED, ANY) if whole == 0 else (ANY, SCALED)
        return Sides(extents, scales, (element, element))
    return Sides((ANY, SCALED), (1, 1 if cut == VECTOR else size), (1, element))


def _extent(call: Call, cut: int, size: int, side: int) -> tuple[int, int]:
    """Return the extent and the scale of one of two buffers."""
    if cut == VECTOR:
        return SCALED, 1
    whole = side == (0 if call.collective in ("reduce_scatter", "scatter") else 1)
    if cut == UNIFORM:
        return SCALED, size if whole or call.collective == "alltoall" else 1
    if cut == COUNTED:
        return (ALL if whole else OWN), 1
    return (PARTS if whole or call.collective == "alltoall" else OWN), 1


def counts_of(call: Call, cut: int) -> Sequence[int]:
    """Return the sizes from which the blocks of a call follow: n alone, or one per rank."""
    first: Any = call.key[0]
    return (first,) if cut == VECTOR else first if cut == COUNTED else first[:1]


def with_counts(call: Call, cut: int, counts: Sequence[int], size: int) -> Call:
    """Return the call of this form with other sizes, on the buffers of this one."""
    def resize(one: Buffer | None, count: int) -> Buffer | None:
        return one and one._replace(counts=[count], displs=[0])

    if cut == VECTOR:
        return vector_call(call.name, resize(call.source, counts[0]),
                           resize(call.sink, counts[0]), call.op, call.root, call.in_place)
    each = list(counts) * (size if cut == UNIFORM else 1)
    source, sink = resize(call.source, sum(each)), resize(call.sink, sum(each))
    if call.collective == "alltoall" and source is not None and sink is not None:
        displs = [i * each[0] for i in range(size)]
        return pairs_call(call.name, source, sink, each, each, displs, displs, sum(each), True)
    displs = call.key[1] and [0, *accumulate(each[:-1])]
    return blocks_call(call.name, source, sink, each, displs, call.op, call.root,
                       call.in_place)


def blocks_of(cut: int, counts: Sequence[int], nblocks: int, reduces: bool) -> Blocks:
    """Return the blocks of a call with these counts; ``nblocks`` is that of its schedule."""
    if cut != VECTOR:
        return Blocks(len(counts), 1, len(counts), NO_LIMIT)
    aligned = 1 if reduces or nblocks == 1 else LINE
    if counts[0] < aligned * nblocks:  # short vectors are cut at any element
        return Blocks(nblocks, 1, nblocks, aligned * nblocks)
    return Blocks(nblocks, aligned, aligned * nblocks, NO_LIMIT)


def symbols_of(cut: int, number: int, segments: int) -> tuple[list[Any], Any]:
    """Return the sizes of blocks of any size, and of a segment; see :mod:`hpccoll.ir.sizes`.

    The symbols are what the last segment has of each block, and then the elements that each other
    segment has of it.
    """
    symbols = [Size.of(block if cut != UNIFORM else 0) for block in range(number)]
    step = Size.of(number if cut != UNIFORM else 1)
    return [block + (segments - 1) * step for block in symbols], step


def layout_of(call: Call, cut: int, schedule: Schedule, rank: int, size: int, blocks: Any
              ) -> SlotLayout:
    """Return the layout of a call with blocks of these sizes."""
    if cut == VECTOR:
        return layouts.split_layout(schedule, rank, blocks, call.in_place)
    if call.collective == "alltoall":
        displs = [block * i for i, block in enumerate(blocks)]
        return layouts.pair_layout(schedule, rank, blocks, blocks, displs, displs)[0]
    return layouts.block_layout(schedule, rank, blocks, call.in_place)[0]
