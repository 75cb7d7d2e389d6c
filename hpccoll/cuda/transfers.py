"""Transfers: what a program needs of a buffer that lies elsewhere, and what it makes of it.

Such a buffer's data is brought through a *window*, memory with room for the elements that a
segment of the plan touches, and no others. An element that a phase reads before any has written it
is loaded before that phase; one that is written is stored after the last phase that writes it. So
a message can leave before all of the input is there, and a result goes back while others are still
on their way.

Copies cost as much as they are many, so those of phases that follow each other are put together
until they have a fair size.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy

from hpccoll.ir.extents import Extent, Lowered, Phase
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.machine.limits import LINE

#: Elements of the buffer, from one to before another.
Range = tuple[int, int]


class Transfers(NamedTuple):
    """The transfers of one program and one buffer, in elements of the program's first segment.

    Attributes:
        starts: of the ranges of the buffer that it touches, apart from each other, in order.
        places: where each of them lies in a window.
        count: elements of a window.
        loads: groups of ranges that are copied into the window together, in this order.
        needs: for each phase, the groups that must have been loaded before it.
        stores: groups of ranges that are copied back together.
        gives: for each phase, the group that it is one of the last to write; -1 for none.
        shares: for each group of ``stores``, how many phases write it last.
        anywhere: phases may run in another order than that of their numbers.
    """

    starts: tuple[int, ...]
    places: tuple[int, ...]
    count: int  # type: ignore[assignment]  # NumPy's word; tuple.count is not used
    loads: tuple[tuple[Range, ...], ...]
    needs: tuple[tuple[int, ...], ...]
    stores: tuple[tuple[Range, ...], ...]
    gives: tuple[int, ...]
    shares: tuple[int, ...]
    anywhere: bool

    def place(self, start: int) -> int:
        """Where an element lies in a window; one that the program touches."""
        part = bisect_right(self.starts, start) - 1
        return self.places[part] + start - self.starts[part]


@functools.lru_cache(maxsize=64)
def transfers(program: Lowered, names: Collection[str], itemsize: int, fair: int) -> Transfers:
    """The transfers of a program for a buffer that it knows by some names.

    Args:
        program, itemsize: what runs, on elements of so many bytes.
        names: of :mod:`hpccoll.ir.collectives`, both where input and output are one.
        fair: bytes of copies that are enough for a start of their own.
    """
    found = [(number, writes, extent.offset, extent.offset + extent.count)
             for number, phase in enumerate(program.phases)
             for writes, extent in _accesses(phase) if extent.buffer in names and extent.count]
    edges = sorted({edge for *_, start, stop in found for edge in (start, stop)})
    index = {edge: number for number, edge in enumerate(edges)}
    cells = max(len(edges) - 1, 0)
    #: Of each piece between two edges: who reads it before anybody writes, and who writes it last.
    first, last, seen = (numpy.full(cells, -1), numpy.full(cells, -1),
                         numpy.zeros(cells, dtype=bool))
    for number, writes, start, stop in found:
        here = slice(index[start], index[stop])
        if writes:
            last[here] = number
        else:
            first[here][~seen[here]] = number
        seen[here] = True
    number, least = len(program.phases), -(-fair // itemsize)
    # Where phases have no order, everything is there before any of them, and leaves after all.
    anywhere = bool(program.waits)
    needs, loads = _grouped(first, edges, number, 0 if anywhere else least)
    gives, stores = _grouped(last, edges, number, 0 if anywhere else least)
    unit, starts, places, count = max(LINE // itemsize, 1), [], [], 0
    for start, stop in _ranges(seen, edges):
        starts.append(start)
        places.append(count)
        count += -(-(stop - start) // unit) * unit
    everything = tuple(range(len(loads)))
    return Transfers(
        tuple(starts), tuple(places), count, loads,
        tuple(everything if anywhere else (group,) if group >= 0 else () for group in needs),
        stores, gives, tuple(gives.count(group) for group in range(len(stores))), anywhere)


def _accesses(phase: Phase) -> Iterator[tuple[bool, Extent]]:
    """What a phase reads and writes, in order; True for what it writes."""
    for steps, messages in (phase.before, phase.messages), (phase.after, ()):
        for step in steps:
            yield from ((False, operand) for operand in step.operands)
            yield True, step.into
        # Messages are under way together, so what is sent is not what arrives.
        yield from ((False, extent) for kind, _, extent in messages if kind == SEND)
        yield from ((True, extent) for kind, _, extent in messages if kind == RECV)


def _grouped(phases: numpy.ndarray, edges: Sequence[int], number: int, least: int
             ) -> tuple[tuple[int, ...], tuple[tuple[Range, ...], ...]]:
    """Put pieces together in the order of their phases, until there are ``least`` elements.

    Returns:
        The group of each phase, -1 for none, and the ranges of each group; 0 for ``least`` makes
        one group.
    """
    sizes = numpy.diff(edges) if len(edges) > 1 else numpy.zeros(0, int)
    group_of, groups = [-1] * number, list[tuple[Range, ...]]()
    members, held = numpy.zeros(len(phases), dtype=bool), 0
    for phase in sorted({int(each) for each in phases if each >= 0}):
        group_of[phase] = len(groups)
        mine = phases == phase
        members |= mine
        held += int(sizes[mine].sum())
        if least and held >= least:
            groups.append(tuple(_ranges(members, edges)))
            members, held = numpy.zeros(len(phases), dtype=bool), 0
    if held:
        groups.append(tuple(_ranges(members, edges)))
    return tuple(group_of), tuple(groups)


def _ranges(members: numpy.ndarray, edges: Sequence[int]) -> Iterator[Range]:
    """The pieces that are marked, joined where they adjoin."""
    marks = numpy.flatnonzero(numpy.diff(members, prepend=False, append=False))
    yield from ((edges[start], edges[stop])
                for start, stop in zip(marks[::2].tolist(), marks[1::2].tolist()))
