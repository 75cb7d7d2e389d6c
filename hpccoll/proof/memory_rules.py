"""Memory rules: messages and segments in flight must not conflict.

Transports move the messages of a round, and of several segments, in any order and at any time. So
no two messages may overlap in memory unless both only read it, and a local step must not overwrite
its own input before it has read that input.

:func:`check_slots` checks programs as written, by slot, which is valid for all block sizes.
:func:`check_memory` checks lowered ones, by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from hpccoll.errors import ProofError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Segment, shift_scratch
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.order import Waits, pasts
from hpccoll.ir.schedule import COPY, RECV, SEND, Span, Step

#: A message, as written or lowered.
Posted = TypeVar("Posted", Step, Message)
#: An element of the input or the output: buffer and index.
Cell = tuple[str, int]


class Fault(Protocol):
    """Callback that makes an error with schedule, rank, round and step."""

    def __call__(self, problem: str, rank: int | None = None, round: int | None = None,
                 step: object = None) -> ProofError: ...


class SlotMap(NamedTuple):
    """Aliases between the slots of a rank.

    Attributes:
        where: by buffer, the buffer with the same memory, and its first slot in that buffer.
        spoiled: slots of ``in`` that overlap ``out``, for some block sizes.
    """

    where: Mapping[str, tuple[str, int]]
    spoiled: range = range(0)

    def areas(self, span: Span) -> list[tuple[str, int, int]]:
        """Return the memory of a span: buffer, first slot, and the slot after the last."""
        buffer, first = self.where[span.buffer]
        areas = [(buffer, first + span.start, first + span.stop)]
        if self.spoiled and span.buffer == OUT:
            areas.append((IN, self.spoiled.start, self.spoiled.stop))
        return [area for area in areas if area[1] < area[2] and not span.empty]


def check_slots(rank: int, number: int, steps: Sequence[Step], slots: SlotMap, fault: Fault
                ) -> None:
    """Check the steps of one round, as written.

    The slots that a receive writes belong to it until the round is over: no other message may use
    them, except a receive-and-reduce that is written after it, and it names each once. The two
    sides of a local step are the same slots, or disjoint. The result of a network operation may
    replace the rank's contribution to the same operation.
    """
    used: list[tuple[str, int, int, str, Step]] = []
    plain: list[tuple[Step, list[tuple[str, int, int]]]] = []
    reducing: list[tuple[Step, list[tuple[str, int, int]]]] = []
    for step in steps:
        if step.kind == SEND:
            used += [(*area, SEND, step) for span in step.spans for area in slots.areas(span)]
        elif step.kind != RECV:
            _check_sides(rank, number, step, slots, fault)
        elif step.side:
            areas = [area for span in step.spans for area in slots.areas(span)]
            if len(step.spans) > 1:
                _check_apart(rank, number, [(*area, RECV, step) for area in areas], fault)
            reducing.append((step, areas))
        else:
            areas = [area for span in step.spans for area in slots.areas(span)]
            for earlier, others in reducing:
                if any(_meet(one, other) for one in areas for other in others):
                    raise fault(_USED.format(earlier), rank, number, step)
            plain.append((step, areas))
    used += [(*area, RECV, step) for step, areas in plain for area in areas]
    replaced = _network_inputs([step for step in steps if not step.side], lambda step: [
        (buffer, slot) for span in step.spans for buffer, start, stop in slots.areas(span)
        for slot in range(start, stop)])
    if replaced:
        used = [use for use in used if use[4] not in replaced]
    if plain and len(used) > 1:
        _check_apart(rank, number, used, fault)


def check_lanes(rank: int, rounds: Sequence[Sequence[Step]], waits: Waits, slots: SlotMap,
                fault: Fault) -> None:
    """Check that conflicting rounds wait for each other."""
    marks = _Marks(waits)
    for number, steps in enumerate(rounds):
        marks.begin(number)
        for step in steps:
            if step.kind == COPY and all(slots.areas(here) == slots.areas(there)
                                         for here, there in zip(step.spans, step.source)):
                continue  # in place, the input is already there
            writes = step.kind != SEND
            for spans, changed in ((step.spans, writes), (step.source, False)):
                for span in spans:
                    for buffer, start, stop in slots.areas(span):
                        other = marks.use(((buffer, slot) for slot in range(start, stop)), changed)
                        if other is not None:
                            raise fault(_APART.format(other), rank, number, step)


#: Error texts of a round that conflicts with another one.
_APART = "uses memory of round {} without waiting for it"


class _Marks:
    """Of every memory cell, the round that wrote it last and those that have read it since.

    Rounds come in the order written, each after all that it waits for. A round that waits for the
    last writer has waited for earlier ones, or an error was found.
    """

    def __init__(self, waits: Waits):
        self.pasts = pasts(waits)
        self.written: dict[Cell, int] = {}
        self.read: dict[Cell, list[int]] = {}
        self.number = self.past = 0

    def begin(self, number: int) -> None:
        """Start the next round."""
        self.number, self.past = number, self.pasts[number] | 1 << number

    def use(self, cells: Iterable[Cell], writes: bool) -> int | None:
        """Access some cells; return a conflicting round that is not waited for."""
        for cell in cells:
            last = self.written.get(cell, self.number)
            if not self.past >> last & 1:
                return last
            readers = self.read.setdefault(cell, [])
            if writes:
                for reader in readers:
                    if not self.past >> reader & 1:
                        return reader
                readers.clear()
                self.written[cell] = self.number
            elif self.number not in readers[-1:]:
                readers.append(self.number)
        return None


#: Error texts of a message that conflicts with another one.
_USED = "uses memory of '{}' of the same round"


def _meet(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _network_inputs(messages: Sequence[Posted], memory: Callable[[Posted], object]) -> list[Posted]:
    """Return sends to network operations whose results clearly replace them."""
    ends: dict[InNetwork, list[Posted]] = {}
    for message in messages:
        if isinstance(message.peer, InNetwork):
            ends.setdefault(message.peer, []).append(message)
    return [out for held in ends.values() if len(held) == 2
            for out, into in (held, held[::-1])
            if (out.kind, into.kind) == (SEND, RECV) and memory(out) == memory(into)]


def _check_sides(rank: int, number: int, step: Step, slots: SlotMap, fault: Fault) -> None:
    """Check that the sides of a local step are the same memory, or disjoint."""
    for here, there in zip(step.spans, step.source):
        for i, one in enumerate(slots.areas(here)):
            for other in slots.areas(there):
                if (one != other or i) and _meet(one, other):
                    raise fault("overwrites a part of what it reads", rank, number, step)


def _check_apart(rank: int, number: int, used: Sequence[tuple[str, int, int, str, object]],
                 fault: Fault) -> None:
    """Check that no receive overlaps another message in memory."""
    furthest: dict[tuple[str, str], tuple[int, object]] = {}
    for buffer, start, stop, kind, message in sorted(used, key=lambda use: use[:4]):
        for seen in (RECV, SEND):
            end, other = furthest.get((buffer, seen), (0, message))
            if start < end and RECV in (kind, seen):
                raise fault(_USED.format(other), rank, number, message)
        furthest[buffer, kind] = max(furthest.get((buffer, kind), (0, message)), (stop, message),
                                     key=lambda each: each[0])


def check_memory(programs: Sequence[Sequence[Segment]], fault: Fault) -> None:
    """Check all ranks' segments."""
    for rank, segments in enumerate(programs):
        touched: list[tuple[set[Cell], set[Cell]]] = []
        for segment in segments:
            for number, phase in enumerate(segment.program.phases):
                _check_messages(rank, number, phase.messages, fault)
                for step in (*phase.before, *phase.after):
                    _check_local(rank, number, step, fault)
            if segment.program.waits:
                _check_phases(rank, segment.program, fault)
            if len(segments) > 1:
                touched.append(_accessed_cells(segment))
        for i, (reads, writes) in enumerate(touched):
            for other_reads, other_writes in touched[:i]:
                if writes & (other_reads | other_writes) or other_writes & reads:
                    raise fault("two segments use the same memory", rank)


def _check_messages(rank: int, number: int, messages: Sequence[Message], fault: Fault) -> None:
    replaced = _network_inputs(messages, lambda message: message.extent)
    _check_apart(rank, number, [(e.buffer, e.offset, e.offset + e.count, message.kind, message)
                                for message in messages for e in [message.extent]
                                if e.count and message not in replaced], fault)


def _check_local(rank: int, number: int, step: Local, fault: Fault) -> None:
    """Check that the operands of a local step have one size, and are equal or disjoint."""
    into = step.into
    for operand in step.operands:
        if operand.count != into.count:
            raise fault("has operands of different sizes", rank, number, step)
        apart = abs(operand.offset - into.offset)
        if 0 < apart < into.count and operand.buffer == into.buffer:
            raise fault("overwrites a part of what it reads", rank, number, step)


def _check_phases(rank: int, program: LoweredProgram, fault: Fault) -> None:
    """Check phases like :func:`check_lanes`, landing space included."""
    marks = _Marks(program.waits)
    for number, phase in enumerate(program.phases):
        marks.begin(number)
        used: list[tuple[Extent, bool, object]] = [
            (message.extent, message.kind == RECV, message) for message in phase.messages]
        for step in (*phase.before, *phase.after):
            used += [(operand, False, step) for operand in step.operands]
            used.append((step.into, True, step))
        for (buffer, start, count), writes, what in used:
            other = marks.use(((buffer, cell) for cell in range(start, start + count)), writes)
            if other is not None:
                raise fault(_APART.format(program.round_of(other)), rank,
                            program.round_of(number), what)


def _accessed_cells(segment: Segment) -> tuple[set[Cell], set[Cell]]:
    """Return the cells that a segment reads and writes, except its own scratch."""
    reads: set[Cell] = set()
    writes: set[Cell] = set()
    for phase in segment.program.phases:
        for kind, _, extent in phase.messages:
            _mark(writes if kind == RECV else reads, shift_scratch(extent, segment.shift))
        for step in (*phase.before, *phase.after):
            _mark(writes, shift_scratch(step.into, segment.shift))
            for operand in step.operands:
                _mark(reads, shift_scratch(operand, segment.shift))
    return reads, writes


def _mark(cells: set[Cell], extent: Extent) -> None:
    if extent.buffer != TMP:
        cells.update((extent.buffer, i) for i in range(extent.offset, extent.offset + extent.count))
