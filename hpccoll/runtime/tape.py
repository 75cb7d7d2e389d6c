"""Tapes: a lowered program as a flat array of instructions, for an executor that only has to loop.

Each instruction is ``WIDTH`` words of 64 bits: what to do, the phase it belongs to, and operands.

    copy    into, from, bytes               move bytes
    reduce  form, into, left, right, n      into = left op right, on n elements
    send    channel, from, bytes            copy into the channel's next cell, announce it there
    flush                                   wait for cells for what has not been sent yet
    take    channel, landing, bytes         wait for the channel's next message
    taken   channel                         the sender may use that message's cell again
    note    where, what                     note this moment, see hpccoll/runtime/moments.py
    end

An address is a base and an offset in bytes: input, output, scratch, or the cell of the message
that was taken last. So a tape belongs to a call of some sizes, not to arrays. ``landing`` is where
the program wants a message that its steps use in the cell; nothing is written there. ``form`` is
0, but in chains of reductions of 16-bit floats: there it says which operands are taken from the
accumulator, and where the result goes (:class:`Form`).

:func:`encode` makes tapes, :func:`decode` makes the program of a tape again, and
``tests/unit/runtime/test_tape.py`` proves that both say the same for every algorithm.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple, cast

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.dataflow import consumers, links
from hpccoll.ir.extents import (
    Extent,
    Local,
    Lowered,
    Message,
    Phase,
    Segment,
    overlap,
    shifted,
    within,
)
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.moments import Activity, Noting, activity_of

#: Words of an instruction.
WIDTH = 8
#: Where the cell of a message is, as one more buffer of a program.
CELL = "cell"
#: What running a tape comes to at its end; ``_tape.h`` has the same number.
DONE = 0
#: What an address is relative to, by its number in the bits above the offset.
BASES = IN, OUT, TMP, CELL
OFFSET_BITS = 48


class Instruction(IntEnum):
    """What an instruction does."""

    END = 0
    COPY = 1
    REDUCE = 2
    SEND = 3
    FLUSH = 4
    TAKE = 5
    TAKEN = 6
    NOTE = 7


class Form(IntFlag):
    """What a reduction does with the accumulator; ``_half.h`` has the same numbers."""

    LEFT = 1
    RIGHT = 2
    HELD = 4
    ROUNDED = 8


class Way(NamedTuple):
    """A channel that a tape uses: to (``SEND``) or from (``RECV``) a peer.

    ``slot`` says how far its tag is from the first one: segments use those of a plan in turn.
    """

    kind: str
    peer: int
    slot: int = 0


class Code(NamedTuple):
    """A tape, before it is put onto channels.

    Attributes:
        words: of all instructions, one after the other.
        ways: the channels, in the order in which instructions number them.
        longest: bytes of its longest message.
        held: elements that its accumulator has to hold.
    """

    words: array[int]
    ways: tuple[Way, ...]
    longest: int
    held: int = 0

    def steps(self) -> Iterator[tuple[int, ...]]:
        """The words of each instruction."""
        for start in range(0, len(self.words), WIDTH):
            yield tuple(self.words[start:start + WIDTH])

    def phase(self, index: int) -> int:
        """The phase that an instruction belongs to."""
        return self.words[index * WIDTH + 1]


def encode(program: Lowered, itemsize: int, places: int, chains: bool = False) -> Code | None:
    """Make the tape of a lowered program; see :func:`encode_segments`."""
    return encode_segments((Segment(program, 0),), 1, itemsize, places, chains)


def encode_segments(segments: Sequence[Segment], depth: int, itemsize: int, places: int,
                    chains: bool = False, noting: Noting | None = None) -> Code | None:
    """Make the tape of all segments of a plan, one after the other.

    Phases are numbered through. All segments use the same scratch: nothing of one is needed when
    the next one begins.

    Args:
        segments: what one rank does.
        depth: segments that have channels of their own, in turn.
        itemsize: bytes of an element.
        places: messages that a rank may have under way to another.
        chains: results that the next step uses are held in an accumulator, where that is allowed.
        noting: where moments are noted, if anywhere.

    Returns:
        ``None`` where more messages of one rank arrive in a phase than there are places, or where
        a reduction's result overlaps an operand in part.
    """
    writer, number = _Writer(itemsize, noting), 0
    for index, (program, shift) in enumerate(segments):
        writer.shift, writer.slot = shift, index % depth
        for local, phase in enumerate(program.phases):
            writer.place = index, local
            senders = Counter(message.peer for message in phase.messages if message.kind == RECV)
            if any(count > places for count in senders.values()):
                return None
            if any(_overlaps_in_part(step) for step in (*phase.before, *phase.after)):
                return None
            writer.phase(number, phase, program.landing, chains and local in program.single_block)
            number += 1
    writer.put(Instruction.END, max(number - 1, 0))
    return Code(writer.words, tuple(writer.ways), writer.longest, writer.held)


def _forms(steps: Sequence[Local], chains: bool) -> Iterator[int]:
    """The forms of the local steps before or after the messages of a phase."""
    for step, link in zip(steps, links(steps)):
        form = 0
        if chains and step.right is not None:
            form = Form.LEFT * link.left | Form.RIGHT * link.right
            if link.held:
                form |= Form.HELD | Form.ROUNDED * link.rounded
        yield int(form)


def _overlaps_in_part(step: Local) -> bool:
    return step.right is not None and any(
        operand != step.into and overlap(operand, step.into) for operand in step.operands)


class _Writer:
    """Instructions so far."""

    def __init__(self, itemsize: int, noting: Noting | None):
        self.itemsize, self.longest, self.held = itemsize, 0, 0
        self.shift = self.slot = 0
        self.noting, self.place = noting, (0, 0)
        self.words: array[int] = array("q")
        self.ways: dict[Way, int] = {}

    def put(self, operation: Instruction, phase: int, *operands: int) -> None:
        self.words.extend((operation, phase, *operands, *[0] * (WIDTH - 2 - len(operands))))

    def note(self, number: int, activity: Activity) -> None:
        """Note that this rank goes over to something, where somebody wants to know."""
        if self.noting is not None:
            self.put(Instruction.NOTE, number, *self.noting.words(*self.place, activity))

    def phase(self, number: int, phase: Phase, space: int, chains: bool) -> None:
        """One phase: steps, messages to send, messages to take with what uses them, steps."""
        if phase.before:
            self.note(number, activity_of(phase.before))
        for step, form in zip(phase.before, _forms(phase.before, chains)):
            self.step(number, step, form)
        # Uses of one message after the other are the steps of the phase, in their order.
        forms = _forms(phase.after, chains)
        sends = [message for message in phase.messages if message.kind == SEND]
        if sends:
            self.note(number, Activity.SENDING)
        for message in sends:
            self.put(Instruction.SEND, number, self.way(message), self.address(message.extent),
                     self.nbytes(message))
        uses = consumers(phase, space) if phase.after else None
        for index, message in enumerate(phase.messages):
            if message.kind == RECV:
                way, landing = self.way(message), message.extent
                self.note(number, Activity.WAITING)
                self.put(Instruction.TAKE, number, way, self.address(landing), self.nbytes(message))
                steps = uses[index] if uses else ()
                self.note(number, activity_of(steps))
                if not steps:
                    self.put(Instruction.COPY, number, self.address(landing),
                             self.address(landing, landing), self.nbytes(message))
                for step in steps:
                    self.step(number, step, next(forms), landing)
                self.put(Instruction.TAKEN, number, way)
        if sends:
            self.note(number, Activity.DRAINING)
            self.put(Instruction.FLUSH, number)
        after = phase.after if uses is None else ()
        if after:
            self.note(number, activity_of(after))
        for step in after:
            self.step(number, step, next(forms))

    def step(self, number: int, step: Local, form: int, landing: Extent | None = None) -> None:
        """A local step; operands in ``landing`` are in the cell instead."""
        into, left = self.address(step.into), self.address(step.left, landing)
        if step.right is None:
            self.put(Instruction.COPY, number, into, left, step.into.count * self.itemsize)
        else:
            self.put(Instruction.REDUCE, number, form, into, left,
                     self.address(step.right, landing), step.into.count)
            if form & Form.HELD:
                self.held = max(self.held, step.into.count)

    def address(self, extent: Extent, landing: Extent | None = None) -> int:
        """An extent's address; relative to the cell where it is part of ``landing``."""
        base, offset = BASES.index(extent.buffer), shifted(extent, self.shift).offset
        if landing is not None and within(extent, landing):
            base, offset = BASES.index(CELL), extent.offset - landing.offset
        return base << OFFSET_BITS | offset * self.itemsize

    def nbytes(self, message: Message) -> int:
        """Bytes of a message."""
        nbytes = message.extent.count * self.itemsize
        self.longest = max(self.longest, nbytes)
        return nbytes

    def way(self, message: Message) -> int:
        """The number of a message's channel."""
        peer = cast(int, message.peer)  # plans with other peers are refused before they come here
        return self.ways.setdefault(Way(message.kind, peer, self.slot), len(self.ways))


def decode(code: Code, itemsize: int, chains: Collection[int] = ()) -> tuple[Phase, ...]:
    """Make the program of a tape, in the :func:`normal_form`.

    Args:
        code: the tape.
        itemsize: bytes of an element.
        chains: the phases in which results are held in an accumulator.

    Raises:
        ValueError: these instructions are no tape.
    """
    reader = _Reader(code, itemsize)
    for step in code.steps():
        reader.read(*step)
    if not reader.ended or reader.landing is not None:
        raise ValueError("the tape has no end")
    for number, (phase, forms) in enumerate(zip(reader.phases(), reader.forms)):
        if forms != [form for steps in (phase.before, phase.after)
                     for form in _forms(steps, number in chains)]:
            raise ValueError("a chain that the program has not")
    if max((step.into.count for phase, forms in zip(reader.phases(), reader.forms)
            for step, form in zip((*phase.before, *phase.after), forms) if form & Form.HELD),
           default=0) != code.held:
        raise ValueError("an accumulator of another size")
    return normal_form(reader.phases())


def normal_form(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Phases as every executor runs them: what is sent comes first, in the order of the program.

    Without messages there is no border between the steps before and after them.
    """
    return tuple(
        Phase(phase.before, tuple(sorted(phase.messages, key=lambda message: message.kind != SEND)),
              phase.after) if phase.messages else Phase((*phase.before, *phase.after), (), ())
        for phase in phases)


class _Reader:
    """The phases of a tape so far."""

    def __init__(self, code: Code, itemsize: int):
        self.code, self.itemsize = code, itemsize
        self.parts: list[tuple[list[Local], list[Message], list[Local]]] = []
        self.forms: list[list[int]] = []
        self.landing: Extent | None = None
        self.way: int | None = None
        self.unsent = self.landed = self.used = self.ended = False
        self.readers: dict[int, tuple[int, Callable[..., None]]] = {
            Instruction.END: (0, self.end), Instruction.COPY: (3, self.copy),
            Instruction.REDUCE: (5, self.reduce), Instruction.SEND: (3, self.send),
            Instruction.FLUSH: (0, self.flush), Instruction.TAKE: (3, self.take),
            Instruction.TAKEN: (1, self.taken), Instruction.NOTE: (2, self.note)}

    def phases(self) -> list[Phase]:
        return [Phase(tuple(before), tuple(messages), tuple(after))
                for before, messages, after in self.parts]

    def read(self, operation: int, number: int, *operands: int) -> None:
        """Read one instruction."""
        if operation not in self.readers:
            raise ValueError("an unknown instruction")
        used, reader = self.readers[operation]
        first, last = not self.parts, len(self.parts) - 1
        follows = number == last + 1 and operation != Instruction.END
        if self.ended or number < 0 or any(operands[used:]) or not (
                number == last or follows or first and operation == Instruction.END and not number):
            raise ValueError("an instruction in the wrong place")
        if follows:
            if self.unsent or self.landing is not None:
                raise ValueError("a phase that was not finished")
            self.parts.append(([], [], []))
            self.forms.append([])
        reader(*operands[:used])

    def copy(self, into: int, source: int, nbytes: int) -> None:
        count = self._count(nbytes)
        if self.landing is not None and self._extent(into, count) == self.landing and (
                _base(into) != CELL):
            if source != BASES.index(CELL) << OFFSET_BITS or self.landed:
                raise ValueError("a message lands twice, or not as a whole")
            self.landed = True
            return
        self._step(Local(self._extent(into, count), self._extent(source, count)), into)

    def reduce(self, form: int, into: int, left: int, right: int, count: int) -> None:
        self._step(Local(*(self._extent(each, count) for each in (into, left, right))), into, form)

    def _step(self, step: Local, into: int, form: int = 0) -> None:
        if _base(into) == CELL:
            raise ValueError("a result in a cell")
        before, messages, after = self.parts[-1]
        if self.unsent and self.landing is None:
            raise ValueError("a step before everything is sent")
        (after if messages else before).append(step)
        self.forms[-1].append(form)

    def send(self, way: int, source: int, nbytes: int) -> None:
        messages = self.parts[-1][1]
        if any(message.kind == RECV for message in messages):
            raise ValueError("a message that is sent too late")
        messages.append(Message(SEND, self._way(way, SEND).peer,
                                self._extent(source, self._count(nbytes))))
        self.unsent = True

    def flush(self) -> None:
        if not self.unsent or self.landing is not None:
            raise ValueError("nothing was sent")
        self.unsent = False

    def take(self, way: int, landing: int, nbytes: int) -> None:
        if self.landing is not None:
            raise ValueError("two messages at once")
        peer = self._way(way, RECV).peer
        extent = self._extent(landing, self._count(nbytes))
        self.parts[-1][1].append(Message(RECV, peer, extent))
        self.landing, self.way, self.landed, self.used = extent, way, False, False

    def taken(self, way: int) -> None:
        if self.landing is None or way != self.way or not (self.landed or self.used):
            raise ValueError("a message is given back that was not taken")
        if self.parts[-1][1][-1].peer != self._way(way, RECV).peer:
            raise ValueError("a message is given back to another rank")
        self.landing = None

    def note(self, where: int, what: int) -> None:
        """Nothing of the program."""

    def end(self) -> None:
        if self.unsent:
            raise ValueError("an end before everything is sent")
        self.ended = True

    def _way(self, number: int, kind: str) -> Way:
        if not 0 <= number < len(self.code.ways) or self.code.ways[number].kind != kind:
            raise ValueError("a channel that the tape has not")
        return self.code.ways[number]

    def _count(self, nbytes: int) -> int:
        if nbytes < 0 or nbytes % self.itemsize:
            raise ValueError("a part of an element")
        return nbytes // self.itemsize

    def _extent(self, address: int, count: int) -> Extent:
        base, start = _base(address), self._count(address & ((1 << OFFSET_BITS) - 1))
        if base != CELL:
            return Extent(base, start, count)
        if self.landing is None or start + count > self.landing.count:
            raise ValueError("a message that is not there")
        self.used = True
        return Extent(self.landing.buffer, self.landing.offset + start, count)


def _base(address: int) -> str:
    if not 0 <= address >> OFFSET_BITS < len(BASES):
        raise ValueError("an address of nothing")
    return BASES[address >> OFFSET_BITS]
