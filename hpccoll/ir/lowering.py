"""Lowering: one rank's program on concrete block sizes, as messages and local operations.

What comes out is what runs: element ranges of three buffers, one message per step, packing
where a step's memory is not contiguous, landing space for reductions. Proofs work on this
form, so that nothing between the proof and the wire is taken on trust.

Two things happen on the way:

* **First touch.** A copy from ``in`` is not carried out but remembered; until the slot is
  written, readers read ``in`` directly, and the first reduction takes it as an operand.
  Most algorithms thus never copy their input.
* **Empty messages vanish.** A step whose blocks hold no elements is dropped; sender and
  receiver agree because they agree on the sizes. A step written without any span (a
  barrier's token) is always sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import COPY, LEFT, RECV, SEND, Program, Span, Step


class Extent(NamedTuple):
    """``count`` elements from ``offset`` of one buffer."""

    buffer: str
    offset: int
    count: int

    def __str__(self) -> str:
        return f"{self.buffer}<{self.offset}+{self.count}>"


class Message(NamedTuple):
    """A contiguous message to (``SEND``) or from (``RECV``) a peer."""

    kind: str
    peer: int
    extent: Extent

    def __str__(self) -> str:
        return f"{self.kind} {self.peer} {self.extent}"


class Local(NamedTuple):
    """``into = left`` (a copy), or ``into = left op right``; all three of equal count."""

    into: Extent
    left: Extent
    right: Extent | None = None

    def __str__(self) -> str:
        return f"{self.into} <- {self.left}" + (f" op {self.right}" if self.right else "")


class Phase(NamedTuple):
    """One round: local work, then all messages at once, then local work."""

    before: tuple[Local, ...]
    messages: tuple[Message, ...]
    after: tuple[Local, ...]


class Lowered(NamedTuple):
    """One rank's phases, and the elements of scratch they need.

    Scratch from ``landing`` on is space where messages land or are packed: what is there is
    used in the same phase and never again. In the phases ``simple``, by number, every step reduces
    one block; what is true of their local steps is true for every layout of the blocks.
    """

    phases: tuple[Phase, ...]
    scratch: int
    landing: int
    simple: frozenset[int] = frozenset()


class SlotLayout(NamedTuple):
    """Where the slots of ``in`` and ``out`` lie, and how large a scratch block is.

    ``places[buffer][slot]`` is the slot's extent; with ``MPI.IN_PLACE`` the places of one
    buffer name extents of the other, so that aliasing is visible to lowering and proof.
    """

    places: Mapping[str, Sequence[Extent]]
    scratch: Callable[[int], int]


def packed(buffer: str, counts: Sequence[int], displs: Sequence[int] | None = None,
           base: int = 0) -> list[Extent]:
    """Lay slots of the given counts one after the other, or at the given displacements."""
    if displs is not None:
        return [Extent(buffer, base + d, c) for d, c in zip(displs, counts)]
    places, offset = [], base
    for count in counts:
        places.append(Extent(buffer, offset, count))
        offset += count
    return places


def alias(kind: str, places: dict[str, list[Extent]], rank: int, root: int) -> None:
    """Make the places of ``in`` and ``out`` share memory the way ``MPI.IN_PLACE`` does."""
    if kind == "same" and OUT in places and IN in places:
        places[IN] = places[OUT]
    elif kind == "own" and OUT in places:
        places[IN] = [places[OUT][rank]]
    elif kind == "front":
        places[IN] = [Extent(OUT, e.offset, e.count) for e in places[IN]]
    elif kind == "root" and rank == root:
        places[OUT] = [places[IN][root]]


def lower(program: Program, layout: SlotLayout) -> Lowered:
    """Turn a program into phases on concrete extents.

    Raises:
        ScheduleError: a step names a slot that does not exist, or writes the input.
    """
    lowering = _Lowering(program, layout)
    phases, simple = [], []
    for steps in program.rounds:
        phase = lowering.phase(steps)
        if any(phase):
            if all(span.stop - span.start == 1 for step in steps if step.side
                   for span in step.spans):
                simple.append(len(phases))
            phases.append(phase)
    leftover = lowering.settle()
    if leftover:
        phases.append(Phase((), (), tuple(leftover)))
    return Lowered(tuple(phases), lowering.scratch, lowering.base, frozenset(simple))


class _Lowering:
    """State of one lowering: where slots are, and which copies are still only remembered."""

    def __init__(self, program: Program, layout: SlotLayout):
        self.places = dict(layout.places)
        self.places[TMP] = packed(TMP, [layout.scratch(b) for b in program.scratch])
        self.base = sum(e.count for e in self.places[TMP])
        self.scratch = self.base
        self.written = {e.buffer for e in self.places.get(OUT, ())} | {OUT, TMP}
        self.remembered: dict[tuple[str, int], Extent] = {}

    def place(self, span: Span) -> Sequence[Extent]:
        places = self.places.get(span.buffer)
        if places is None or not 0 <= span.start <= span.stop <= len(places):
            held = 0 if places is None else len(places)
            raise ScheduleError(f"{span} does not exist: this rank has {held} slots there")
        return places[span.start:span.stop]

    def readable(self, spans: Sequence[Span]) -> list[Extent]:
        """Extents that hold the current content of the spans, slot by slot."""
        if not self.remembered:
            return [e for span in spans for e in self.place(span)]
        return [self.remembered.get((span.buffer, slot), extent)
                for span in spans
                for slot, extent in zip(range(span.start, span.stop), self.place(span))]

    def writable(self, spans: Sequence[Span]) -> list[Extent]:
        """Extents to write; whatever was remembered for these slots is out of date."""
        for span in spans:
            if span.buffer == IN:
                raise ScheduleError(f"{span} is written, but the input is read-only")
            if self.remembered:
                for slot in range(span.start, span.stop):
                    self.remembered.pop((span.buffer, slot), None)
        return [e for span in spans for e in self.place(span)]

    def phase(self, steps: Sequence[Step]) -> Phase:
        before, messages, after = [], [], []
        self.landing = self.base
        local = [s for s in steps if s.kind not in (SEND, RECV)]
        self.arriving = {(span.buffer, slot) for step in steps if step.kind == RECV
                         for span in step.spans for slot in range(span.start, span.stop)
                         } if self.remembered else set()
        # Sends read before receives overwrite what is remembered: they are posted together.
        sends = [self.send(s, before) if s.kind == SEND else None for s in steps]
        for step, ready in zip(steps, sends):
            if step.kind == RECV:
                ready = self.receive(step, after)
            if ready is not None:
                messages.append(ready)
        for step in local:
            after += self.copy(step) if step.kind == COPY else self.combine(step)
        self.scratch = max(self.scratch, self.landing)
        return Phase(tuple(before), tuple(messages), tuple(after))

    def land(self, count: int) -> Extent:
        extent = Extent(TMP, self.landing, count)
        self.landing += count
        return extent

    def send(self, step: Step, before: list[Local]) -> Message | None:
        extents = joined(self.readable(step.spans))
        if len(extents) > 1 and self.remembered:
            extents = self.carried_out(step, before) or extents
        if len(extents) > 1:
            pack = self.land(sum(e.count for e in extents))
            before += [Local(into, e) for into, e in zip(slices(pack, extents), extents)]
            extents = [pack]
        return message(step, extents)

    def carried_out(self, step: Step, before: list[Local]) -> list[Extent]:
        """Carry remembered copies out where that makes the message contiguous, or nothing.

        Otherwise one remembered slot among many (a gather's own block) would have the whole
        message packed. Slots that this round also receives must stay as they are.
        """
        slots = [(span.buffer, slot) for span in step.spans
                 for slot in range(span.start, span.stop)]
        own = [e for span in step.spans for e in self.place(span)]
        if len(joined(own)) != 1 or not self.arriving.isdisjoint(slots):
            return []
        before += fused([Local(place, self.remembered.pop(slot))
                         for slot, place in zip(slots, own) if slot in self.remembered])
        return joined(own)

    def receive(self, step: Step, after: list[Local]) -> Message | None:
        if not step.side:
            extents = joined(self.writable(step.spans))
            if len(extents) > 1:
                pack = self.land(sum(e.count for e in extents))
                after += [Local(e, part) for e, part in zip(extents, slices(pack, extents))]
                extents = [pack]
            return message(step, extents)
        mine = self.readable(step.spans)
        into = self.writable(step.spans)
        pack = self.land(sum(e.count for e in into))
        after += reductions(into, slices(pack, into), mine, step.side)
        return message(step, [pack] if pack.count or not step.spans else [])

    def copy(self, step: Step) -> list[Local]:
        source, = step.source
        span, = step.spans
        extents = self.readable(step.source)
        into = self.writable(step.spans)
        done = []
        for slot, (here, there) in enumerate(zip(into, extents, strict=True), span.start):
            if here == there:
                continue
            if there.buffer not in self.written:
                self.remembered[span.buffer, slot] = there
            else:
                done.append(Local(here, there))
        return fused(done)

    def combine(self, step: Step) -> list[Local]:
        arriving = self.readable(step.source)
        mine = self.readable(step.spans)
        return list(reductions(self.writable(step.spans), arriving, mine, step.side))

    def settle(self) -> list[Local]:
        """Carry out the remembered copies that the caller will look at."""
        return fused([Local(self.places[buffer][slot], extent)
                      for (buffer, slot), extent in self.remembered.items() if buffer == OUT])


def message(step: Step, extents: list[Extent]) -> Message | None:
    """The step's message; ``None`` where its blocks are empty on both sides."""
    if extents:
        return Message(step.kind, step.peer, extents[0])
    return None if step.spans else Message(step.kind, step.peer, Extent(TMP, 0, 0))


def reductions(into, arriving, mine, side: str) -> list[Local]:
    """``into = arriving op mine`` or ``mine op arriving``, slot by slot, joined where adjacent."""
    left, right = (arriving, mine) if side == LEFT else (mine, arriving)
    return fused([Local(*extents) for extents in zip(into, left, right, strict=True)])


def joined(extents: Sequence[Extent]) -> list[Extent]:
    """Merge neighbours that are adjacent in memory and drop empty ones."""
    merged: list[Extent] = []
    for extent in extents:
        if not extent.count:
            continue
        if merged and follows(merged[-1], extent):
            extent = Extent(extent.buffer, merged[-1].offset, merged.pop().count + extent.count)
        merged.append(extent)
    return merged


def fused(locals_: Sequence[Local]) -> list[Local]:
    """Merge local operations that continue each other in all operands; drop empty ones."""
    merged: list[Local] = []
    for step in locals_:
        if not step.into.count:
            continue
        if merged and all((a is None and b is None) or (a and b and follows(a, b))
                          for a, b in zip(merged[-1], step)):
            count = merged[-1].into.count + step.into.count
            step = Local(*(e and Extent(e.buffer, e.offset, count) for e in merged.pop()))
        merged.append(step)
    return merged


def follows(one: Extent, other: Extent) -> bool:
    """Tell whether the second extent starts where the first one ends."""
    return one.buffer == other.buffer and one.offset + one.count == other.offset


def slices(pack: Extent, extents: Sequence[Extent]) -> list[Extent]:
    """Cut a contiguous extent into pieces of the given extents' counts."""
    return packed(pack.buffer, [e.count for e in extents], base=pack.offset)


class Segment(NamedTuple):
    """One segment of a plan: a lowered program, and how far to shift ``in`` and ``out``."""

    program: Lowered
    shift: int


def segments(program: Program, layout: SlotLayout, longest: int, segment: int) -> list[Segment]:
    """Cut every block into segments of at most ``segment`` elements, and lower each segment.

    A segment is the same program on a slice of every block. Segments whose blocks have the
    same sizes share one lowering and differ only by the shift.

    Args:
        longest: elements of the longest block on any rank; says how many segments there are.
        segment: elements of a block per segment; 0 for a single segment.
    """
    step = segment or max(longest, 1)
    shared: dict[tuple, tuple[Lowered, int]] = {}
    made = []
    for start in range(0, max(longest, 1), step):
        cut = SlotLayout({b: [clipped(e, start, step) for e in extents]
                      for b, extents in layout.places.items()},
                     lambda key, start=start: clipped(Extent(TMP, 0, layout.scratch(key)),
                                                      start, step).count)
        sizes = tuple(tuple(e.count for e in extents) for extents in cut.places.values())
        sizes += (tuple(map(cut.scratch, set(program.scratch))),)
        if sizes not in shared:
            shared[sizes] = lower(program, cut), start
        lowered, first = shared[sizes]
        made.append(Segment(lowered, start - first))
    return made


def clipped(extent: Extent, start: int, length: int) -> Extent:
    """The part of a block that belongs to the segment ``[start, start + length)``."""
    return Extent(extent.buffer, extent.offset + start,
                  min(max(extent.count - start, 0), length))


def shifted(extent: Extent, shift: int) -> Extent:
    """The extent in the memory of another segment: scratch is the segment's own."""
    if not shift or extent.buffer == TMP:
        return extent
    return Extent(extent.buffer, extent.offset + shift, extent.count)


def consumers(phase: Phase, space: int) -> list[list[Local]] | None:
    """The local steps that use each message of a phase, if messages can be used in place.

    A transport that can read a message where it lies may run these steps on arrival, in this
    order, instead of receiving the message first. That is safe when all local work of the
    phase consumes messages, in the order of the messages, from landing space that nobody looks
    at later, and writes nothing that a message of the phase is sent from or received into.

    Args:
        space: where landing space begins, see :class:`Lowered`.

    Returns:
        One list per message, or ``None`` where messages must be received first.
    """
    used: list[list[Local]] = [[] for _ in phase.messages]
    last = 0
    for step in phase.after:
        owners = [i for i, (kind, _, extent) in enumerate(phase.messages)
                  if kind == RECV and any(meets(o, extent) for o in step[1:] if o)]
        if len(owners) != 1 or owners[0] < last:
            return None
        last, = owners
        landing = phase.messages[last].extent
        if landing.buffer != TMP or landing.offset < space:
            return None
        operands = [o for o in step[1:] if o]
        mine = [o for o in operands if not within(o, landing)]
        if len(mine) == len(operands) or len(operands) == 2 and not mine:
            return None
        if any(meets(extent, step.into) or kind == RECV and any(meets(extent, o) for o in mine)
               for kind, _, extent in phase.messages):
            return None
        used[last].append(step)
    return used


def fused_with_next(steps: Sequence[Local]) -> list[bool]:
    """Tell of every local step of a phase whether the next one goes on with its result.

    Such steps form a chain, ``x = a op b; x = x op c; y = d op x``, in which a result may be
    passed on before it is rounded - in the simple phases of :class:`Lowered`, so that the layout
    does not decide about rounding.
    """
    found = [False] * len(steps)
    for index, (step, after) in enumerate(zip(steps, steps[1:])):
        if step.right and after.right:
            others = [operand for operand in after[1:] if operand != step.into]
            found[index] = len(others) == 1 and not meets(others[0], step.into)
    return found


def meets(one: Extent, other: Extent) -> bool:
    """Tell whether two extents share an element."""
    return (one.buffer == other.buffer and one.offset < other.offset + other.count
            and other.offset < one.offset + one.count)


def within(inner: Extent, outer: Extent) -> bool:
    """Tell whether an extent lies inside another one."""
    return (inner.buffer == outer.buffer and outer.offset <= inner.offset
            and inner.offset + inner.count <= outer.offset + outer.count)
