"""Lowering: one rank's program on concrete block sizes, as messages and local operations.

The output is executed as it is: element ranges of three buffers, one message per step, packing of
steps whose memory is not contiguous, landing space for reductions. Proofs use this form, so that
every transformation before execution is proved.

Lowering has two optimizations:

* **Deferred copies.** A copy from ``in`` is not executed but recorded; until the slot is
  written, readers read ``in`` directly, and the first reduction takes it as an operand.
  Most algorithms thus never copy their input.
* **No empty messages.** A step whose blocks hold no elements is dropped; sender and
  receiver agree because they agree on the sizes. A step written without any span (a
  barrier's token) is always sent.

Sizes may be symbols (:mod:`hpccoll.ir.sizes`): then the result holds for blocks of any size.

In a program with lanes copies are not deferred, because a lane may read a copy of another one. Each
lane has its own landing space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import (
    Extent,
    Local,
    LoweredProgram,
    Message,
    Phase,
    Segment,
    SlotLayout,
    clip,
    merge_parts,
    pack_extents,
    slices,
)
from hpccoll.ir.order import Waits, by_lane, waits
from hpccoll.ir.schedule import COPY, LEFT, RECV, SEND, Program, Span, Step
from hpccoll.ir.sizes import maximum


def lower(program: Program, layout: SlotLayout) -> LoweredProgram:
    """Turn a program into phases on concrete extents.

    Raises:
        ScheduleError: a step names a slot that does not exist, or writes the input.
    """
    lowering = _LoweringState(program, layout)
    phases: list[Phase] = []
    single_block: list[int] = []
    rounds: list[int] = []
    order = waits(program)
    if order:
        return _in_lanes(program, lowering, order)
    for number, steps in enumerate(program.rounds):
        phase = lowering.phase(steps)
        if any(phase):
            if all(span.stop - span.start == 1 for step in steps if step.side
                   for span in step.spans):
                single_block.append(len(phases))
            phases.append(phase)
            rounds.append(number)
    leftover = lowering.settle()
    if leftover:
        phases.append(Phase((), (), tuple(leftover)))
        rounds.append(max(len(program.rounds) - 1, 0))
    return LoweredProgram(tuple(phases), lowering.scratch, lowering.base, frozenset(single_block),
                          tuple(rounds))


def _in_lanes(program: Program, lowering: _LoweringState, order: Waits) -> LoweredProgram:
    """Lower lane by lane, and number the phases in the order of their rounds."""
    lowering.remembers = False
    made: dict[int, Phase] = {}
    for numbers in by_lane(order):
        lowering.landing_base = lowering.scratch
        for number in numbers:
            made[number] = lowering.phase(program.rounds[number])
    phases: list[Phase] = []
    rounds: list[int] = []
    # By round, its phase, or the phases that it waited for if it is empty.
    over: list[tuple[int, ...]] = []
    kept: list[tuple[int, ...]] = []
    for number, others in enumerate(order):
        before = tuple(sorted({phase for other in others for phase in over[other]}))
        if not any(made[number]):
            over.append(before)
            continue
        over.append((len(phases),))
        phases.append(made[number])
        rounds.append(number)
        kept.append(before)
    # No phase is in single_block: chains of lanes would share an accumulator.
    return LoweredProgram(tuple(phases), lowering.scratch, lowering.base, rounds=tuple(rounds),
                          waits=tuple(kept))


class _LoweringState:
    """State of one lowering: extents of slots, and deferred copies."""

    def __init__(self, program: Program, layout: SlotLayout):
        self.places = dict(layout.places)
        self.places[TMP] = pack_extents(TMP, [layout.scratch(b) for b in program.scratch])
        self.base = sum(e.count for e in self.places[TMP])
        self.scratch = self.landing_base = self.base
        #: True if copies of the input are deferred until the slot is written.
        self.remembers = True
        self.written = {e.buffer for e in self.places.get(OUT, ())} | {OUT, TMP}
        self.remembered: dict[tuple[str, int], Extent] = {}

    def place(self, span: Span) -> Sequence[Extent]:
        places = self.places.get(span.buffer)
        if places is None or not 0 <= span.start <= span.stop <= len(places):
            held = 0 if places is None else len(places)
            raise ScheduleError(f"{span} does not exist: this rank has {held} slots there")
        return places[span.start:span.stop]

    def read_extents(self, spans: Sequence[Span]) -> list[Extent]:
        """Return the extents with the current content of the spans, slot by slot."""
        if not self.remembered:
            return [e for span in spans for e in self.place(span)]
        return [self.remembered.get(slot, extent) for span in spans
                for slot, extent in zip(_slots(span), self.place(span))]

    def write_extents(self, spans: Sequence[Span]) -> list[Extent]:
        """Return the extents to write; discard deferred copies of these slots."""
        extents: list[Extent] = []
        for span in spans:
            if span.buffer == IN:
                raise ScheduleError(f"{span} is written, but the input is read-only")
            extents += self.place(span)  # raises if it does not exist: slots can be iterated now
            if self.remembered:
                for slot in _slots(span):
                    self.remembered.pop(slot, None)
        return extents

    def phase(self, steps: Sequence[Step]) -> Phase:
        before: list[Local] = []
        messages: list[Message] = []
        after: list[Local] = []
        self.landing = self.landing_base
        local = [s for s in steps if s.kind not in (SEND, RECV)]
        self.arriving = {slot for step in steps if step.kind == RECV
                         for span in step.spans if self.place(span) for slot in _slots(span)
                         } if self.remembered else set()
        # Sends are resolved before receives discard deferred copies: they are posted together.
        sends = [self.send(s, before) if s.kind == SEND else None for s in steps]
        for step, ready in zip(steps, sends):
            if step.kind == RECV:
                ready = self.receive(step, after)
            if ready is not None:
                messages.append(ready)
        for step in local:
            after += self.copy(step) if step.kind == COPY else self.combine(step)
        self.scratch = maximum(self.scratch, self.landing)
        return Phase(tuple(before), tuple(messages), tuple(after))

    def land(self, count: int) -> Extent:
        """Allocate landing space for a number of elements, until the end of the phase."""
        extent = Extent(TMP, self.landing, count)
        self.landing += count
        return extent

    def send(self, step: Step, before: list[Local]) -> Message | None:
        extents = merge_parts(self.read_extents(step.spans))
        if len(extents) > 1 and self.remembered:
            extents = self.materialise(step, before) or extents
        if len(extents) > 1:
            pack = self.land(sum(e.count for e in extents))
            before += [Local(into, e) for into, e in zip(slices(pack, extents), extents)]
            extents = [pack]
        return message(step, extents)

    def materialise(self, step: Step, before: list[Local]) -> list[Extent]:
        """Execute deferred copies if that makes the message contiguous; else return nothing.

        Otherwise one deferred slot among many (a gather's own block) would cause packing of the
        whole message. Slots that this round also receives must not change.
        """
        slots = [slot for span in step.spans for slot in _slots(span)]
        own = [e for span in step.spans for e in self.place(span)]
        if len(merge_parts(own)) != 1 or not self.arriving.isdisjoint(slots):
            return []
        before += merge_parts([Local(place, self.remembered.pop(slot))
                         for slot, place in zip(slots, own) if slot in self.remembered])
        return merge_parts(own)

    def receive(self, step: Step, after: list[Local]) -> Message | None:
        if not step.side:
            extents = merge_parts(self.write_extents(step.spans))
            if len(extents) > 1:
                pack = self.land(sum(e.count for e in extents))
                after += [Local(e, part) for e, part in zip(extents, slices(pack, extents))]
                extents = [pack]
            return message(step, extents)
        mine = self.read_extents(step.spans)
        into = self.write_extents(step.spans)
        pack = self.land(sum(e.count for e in into))
        after += reductions(into, slices(pack, into), mine, step.side)
        return message(step, [pack] if pack.count or not step.spans else [])

    def copy(self, step: Step) -> list[Local]:
        source, = step.source
        span, = step.spans
        extents = self.read_extents(step.source)
        into = self.write_extents(step.spans)
        copies = []
        for slot, here, there in zip(_slots(span), into, extents, strict=True):
            if here == there:
                continue
            if self.remembers and there.buffer not in self.written:
                self.remembered[slot] = there
            else:
                copies.append(Local(here, there))
        return merge_parts(copies)

    def combine(self, step: Step) -> list[Local]:
        arriving = self.read_extents(step.source)
        mine = self.read_extents(step.spans)
        return reductions(self.write_extents(step.spans), arriving, mine, step.side)

    def settle(self) -> list[Local]:
        """Execute the deferred copies of the caller's buffers."""
        return merge_parts([Local(self.places[buffer][slot], extent)
                      for (buffer, slot), extent in self.remembered.items() if buffer == OUT])


def _slots(span: Span) -> Iterator[tuple[str, int]]:
    return ((span.buffer, slot) for slot in range(span.start, span.stop))


def message(step: Step, extents: list[Extent]) -> Message | None:
    """Return the step's message; ``None`` if its blocks are empty on both sides."""
    if extents:
        return Message(step.kind, step.peer, extents[0])
    return None if step.spans else Message(step.kind, step.peer, Extent(TMP, 0, 0))


def reductions(into: Iterable[Extent], arriving: Iterable[Extent], mine: Iterable[Extent],
               side: str) -> list[Local]:
    """Return ``into = arriving op mine`` or ``mine op arriving``, by slot, adjacent ones joined."""
    left, right = (arriving, mine) if side == LEFT else (mine, arriving)
    return merge_parts(Local(*extents) for extents in zip(into, left, right, strict=True))


def segments(program: Program, layout: SlotLayout, longest: int, segment: int) -> list[Segment]:
    """Cut every block into segments of at most ``segment`` elements, and lower each segment.

    A segment is the same program on a slice of every block. Segments whose blocks have the
    same sizes share one lowering and differ only by the shift.

    Args:
        longest: elements of the longest block on any rank; determines the number of segments.
        segment: elements of a block per segment; 0 for a single segment.
    """
    step = segment or max(longest, 1)
    return cut_into(program, layout, -(-max(longest, 1) // step), step)


def cut_into(program: Program, layout: SlotLayout, number: int, step: int) -> list[Segment]:
    """Cut every block into a number of segments of ``step`` elements; the last has the rest."""
    shared: dict[tuple[tuple[int, ...], ...], tuple[LoweredProgram, int]] = {}
    cut_program = []
    for index in range(number):
        start = index * step
        cut = _cut(layout, start, step if index < number - 1 else None)
        sizes = tuple(tuple(e.count for e in extents) for extents in cut.places.values())
        sizes += (tuple(map(cut.scratch, set(program.scratch))),)
        if sizes not in shared:
            shared[sizes] = lower(program, cut), start
        lowered, first = shared[sizes]
        cut_program.append(Segment(lowered, start - first))
    return cut_program


def _cut(layout: SlotLayout, start: int, length: int | None) -> SlotLayout:
    """Return the layout of a segment of every block: some elements from ``start`` on, or all."""
    def scratch(key: int) -> int:
        return clip(Extent(TMP, 0, layout.scratch(key)), start, length).count

    return SlotLayout({buffer: [clip(extent, start, length) for extent in extents]
                       for buffer, extents in layout.places.items()}, scratch)
