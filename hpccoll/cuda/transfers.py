"""Transfers: the copies of a program between a device buffer and its window.

A *window* is memory for exactly the elements that a segment of the plan uses. An element that a
phase reads before any phase has written it is loaded before that phase. A written element is stored
after the last phase that writes it. So a message can be sent before all input is loaded, and a
result is stored while others are still in flight.

Every copy has a fixed cost, so copies of consecutive phases are merged up to a minimum size.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy

from hpccoll.ir.extents import Extent, LoweredProgram, Phase
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.machine.limits import LINE

#: Half-open range of elements of the buffer.
Range = tuple[int, int]


class Transfers(NamedTuple):
    """Transfers of one program and one buffer, in elements of the program's first segment.

    Attributes:
        starts: starts of the disjoint ranges of the buffer that it uses, in order.
        places: offset of each range in a window.
        count: elements of a window.
        loads: groups of ranges that are copied into the window together, in this order.
        needs: for each phase, the groups that must have been loaded before it.
        stores: groups of ranges that are copied back together.
        gives: for each phase, the group that it is among the last to write; -1 for none.
        shares: for each group of ``stores``, the number of phases that write it last.
        anywhere: True if phases may run in any order.
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
        """Return the offset in a window of an element that the program uses."""
        part = bisect_right(self.starts, start) - 1
        return self.places[part] + start - self.starts[part]


@functools.lru_cache(maxsize=64)
def transfers(program: LoweredProgram, names: Collection[str], itemsize: int,
              fair: int) -> Transfers:
    """Return the transfers of a program for a buffer with some names.

    Args:
        program, itemsize: the program, and the bytes of an element.
        names: names of :mod:`hpccoll.ir.collectives`; both if input and output are the same.
        fair: minimum bytes of a separate copy.
    """
    found = [(number, writes, extent.offset, extent.offset + extent.count)
             for number, phase in enumerate(program.phases)
             for writes, extent in _accesses(phase) if extent.buffer in names and extent.count]
    edges = sorted({edge for *_, start, stop in found for edge in (start, stop)})
    index = {edge: number for number, edge in enumerate(edges)}
    cells = max(len(edges) - 1, 0)
    #: For each piece between two edges: the phase that reads it before any write, and the last
    #: writer.
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
    # Without an order of phases, all loads precede all phases, and all stores follow them.
    anywhere = bool(program.waits)
    needs, loads = _merge_pieces(first, edges, number, 0 if anywhere else least)
    gives, stores = _merge_pieces(last, edges, number, 0 if anywhere else least)
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
    """Yield the reads and writes of a phase in order; True for writes."""
    for steps, messages in (phase.before, phase.messages), (phase.after, ()):
        for step in steps:
            yield from ((False, operand) for operand in step.operands)
            yield True, step.into
        # Messages are concurrent, so sent data never depends on received data.
        yield from ((False, extent) for kind, _, extent in messages if kind == SEND)
        yield from ((True, extent) for kind, _, extent in messages if kind == RECV)


def _merge_pieces(phases: numpy.ndarray, edges: Sequence[int], number: int, least: int
                  ) -> tuple[tuple[int, ...], tuple[tuple[Range, ...], ...]]:
    """Merge pieces in the order of their phases, until there are ``least`` elements.

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
    """Yield the selected pieces, with adjacent ones merged."""
    marks = numpy.flatnonzero(numpy.diff(members, prepend=False, append=False))
    yield from ((edges[start], edges[stop])
                for start, stop in zip(marks[::2].tolist(), marks[1::2].tolist()))
