"""Rules for memory that messages may be using: a round's messages and segments keep apart.

Transports move the messages of a round, and of several segments, in any order and at any time.
So no two of them may meet in memory unless both only read it, and a local step must not overwrite
a part of what it still reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hpccoll.errors import ProofError
from hpccoll.ir.collectives import TMP
from hpccoll.ir.extents import Extent, Local, Message, Segment, shifted
from hpccoll.ir.schedule import RECV, SEND

#: An element of the input or the output: the buffer and the place in it.
Cell = tuple[str, int]


class Fault(Protocol):
    """Makes the error that names the schedule, and the rank, round and step at fault."""

    def __call__(self, problem: str, rank: int | None = None, round: int | None = None,
                 step: object = None) -> ProofError: ...


def check_memory(programs: Sequence[Sequence[Segment]], fault: Fault) -> None:
    """Check all ranks' segments.

    Raises:
        ProofError: two messages of a round, or two segments, meet in memory that one writes.
    """
    for rank, segments in enumerate(programs):
        touched: list[tuple[set[Cell], set[Cell]]] = []
        for segment in segments:
            for number, phase in enumerate(segment.program.phases):
                _check_messages(rank, number, phase.messages, fault)
                for step in (*phase.before, *phase.after):
                    _check_local(rank, number, step, fault)
            if len(segments) > 1:
                touched.append(_touched(segment))
        for i, (reads, writes) in enumerate(touched):
            for other_reads, other_writes in touched[:i]:
                if writes & (other_reads | other_writes) or other_writes & reads:
                    raise fault("two segments use the same memory", rank)


def _check_messages(rank: int, number: int, messages: Sequence[Message], fault: Fault) -> None:
    spans = sorted((e.buffer, e.offset, e.offset + e.count, message.kind, message)
                   for message in messages for e in [message.extent] if e.count)
    furthest: dict[tuple[str, str], tuple[int, Message]] = {}
    for buffer, start, stop, kind, message in spans:
        for seen in (RECV, SEND):
            end, other = furthest.get((buffer, seen), (0, message))
            if start < end and RECV in (kind, seen):
                raise fault(f"uses memory that '{other}' of the same round is using",
                            rank, number, message)
        furthest[buffer, kind] = max(furthest.get((buffer, kind), (0, message)), (stop, message))


def _check_local(rank: int, number: int, step: Local, fault: Fault) -> None:
    """A local step works on memory of one size, and in place or apart, not in between."""
    into = step.into
    for operand in step.operands:
        if operand.count != into.count:
            raise fault("has operands of different sizes", rank, number, step)
        apart = abs(operand.offset - into.offset)
        if 0 < apart < into.count and operand.buffer == into.buffer:
            raise fault("overwrites a part of what it reads", rank, number, step)


def _touched(segment: Segment) -> tuple[set[Cell], set[Cell]]:
    """Cells that a segment reads and writes; its scratch is its own."""
    reads: set[Cell] = set()
    writes: set[Cell] = set()
    for phase in segment.program.phases:
        for kind, _, extent in phase.messages:
            _mark(writes if kind == RECV else reads, shifted(extent, segment.shift))
        for step in (*phase.before, *phase.after):
            _mark(writes, shifted(step.into, segment.shift))
            for operand in step.operands:
                _mark(reads, shifted(operand, segment.shift))
    return reads, writes


def _mark(cells: set[Cell], extent: Extent) -> None:
    if extent.buffer != TMP:
        cells.update((extent.buffer, i) for i in range(extent.offset, extent.offset + extent.count))
