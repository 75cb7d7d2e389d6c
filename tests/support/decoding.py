"""Decoding: a compiled plan back into the program that it says, or the reason why it says none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hpccoll.ir.extents import Extent, Local, Message, Phase
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.execution.compiled_plan import (
    BASES,
    CELL,
    OFFSET_BITS,
    Code,
    Form,
    Instruction,
    MessageOverlap,
    Way,
    forms,
    split_address,
)


def decode(code: Code, itemsize: int, chains: Collection[int] = (),
           usual: MessageOverlap = MessageOverlap.ALONE) -> tuple[Phase, ...]:
    """Make the program of a compiled plan, in the :func:`normal_form`."""
    reader = _Reader(code, itemsize)
    for step in code.steps():
        reader.read(*step)
    if not reader.ended or reader.landing is not None:
        raise ValueError("the compiled plan has no end")
    for number, (phase, found) in enumerate(zip(reader.phases(), reader.forms)):
        if found != [form for steps in (phase.before, phase.after)
                     for form in forms(steps, number in chains)]:
            raise ValueError("a chain that the program has not")
    for (_, messages, after), ways in zip(reader.parts, reader.sent):
        exchanged = (any(message.kind == RECV for message in messages)
                     and all(step.right is None for step in after))
        if ways - {MessageOverlap.EXCHANGED if exchanged else usual}:
            raise ValueError("a message that is sent in another way")
    if max((step.into.count for phase, found in zip(reader.phases(), reader.forms)
            for step, form in zip((*phase.before, *phase.after), found) if form & Form.HELD),
           default=0) != code.held:
        raise ValueError("an accumulator of another size")
    return normal_form(reader.phases(), reader.far)


def normal_form(phases: Sequence[Phase], far: Collection[int] = ()) -> tuple[Phase, ...]:
    """Phases as every executor runs them: what is sent comes first, in the order of the program."""
    def place(message: Message) -> tuple[bool, bool]:
        return message.kind != SEND, message.peer not in far

    return tuple(
        Phase(phase.before, tuple(sorted(phase.messages, key=place)), phase.after)
        if phase.messages else Phase((*phase.before, *phase.after), (), ())
        for phase in phases)


class _Reader:
    """The phases of a compiled plan so far."""

    def __init__(self, code: Code, itemsize: int):
        self.code, self.itemsize = code, itemsize
        self.parts: list[tuple[list[Local], list[Message], list[Local]]] = []
        self.forms: list[list[int]] = []
        self.sent: list[set[int]] = []
        self.landing: Extent | None = None
        self.way: int | None = None
        self.unsent = self.landed = self.used = self.ended = False
        #: Ranks of other nodes; messages posted since the last batch, batches so far, and whether
        #: one of them is under way, or was in this phase.
        self.far = {way.peer for way in code.remote}
        self.posted = self.batches = 0
        self.under_way = self.awaited = False
        if self.far & {way.peer for way in code.ways}:
            raise ValueError("a rank both near and far")
        self.readers: dict[int, tuple[int, Callable[..., None]]] = {
            Instruction.END: (0, self.end), Instruction.COPY: (3, self.copy),
            Instruction.REDUCE: (5, self.reduce), Instruction.SEND: (5, self.send),
            Instruction.FLUSH: (0, self.flush), Instruction.TAKE: (3, self.take),
            Instruction.TAKEN: (1, self.taken), Instruction.NOTE: (2, self.note),
            Instruction.POST: (3, self.post), Instruction.START: (1, self.start),
            Instruction.AWAIT: (1, self.wait)}

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
        if self.posted and operation not in (Instruction.POST, Instruction.START):
            raise ValueError("a batch that was not started")
        if follows:
            if self.unsent or self.landing is not None or self.under_way:
                raise ValueError("a phase that was not finished")
            self.awaited = False
            self.parts.append(([], [], []))
            self.forms.append([])
            self.sent.append(set())
        reader(*operands[:used])

    def copy(self, into: int, source: int, nbytes: int) -> None:
        count = self._count(nbytes)
        if self.landing is not None and self._extent(into, count) == self.landing and (
                split_address(into)[0] != CELL):
            if source != BASES.index(CELL) << OFFSET_BITS or self.landed:
                raise ValueError("a message lands twice, or not as a whole")
            self.landed = True
            return
        self._step(Local(self._extent(into, count), self._extent(source, count)), into)

    def reduce(self, form: int, into: int, left: int, right: int, count: int) -> None:
        self._step(Local(*(self._extent(each, count) for each in (into, left, right))), into, form)

    def _step(self, step: Local, into: int, form: int = 0) -> None:
        if split_address(into)[0] == CELL:
            raise ValueError("a result in a cell")
        before, messages, after = self.parts[-1]
        if (self.unsent or self.under_way) and self.landing is None:
            raise ValueError("a step before everything is sent")
        (after if messages else before).append(step)
        self.forms[-1].append(form)

    def send(self, way: int, source: int, nbytes: int, empty: int, how: int) -> None:
        messages = self.parts[-1][1]
        if empty:
            raise ValueError("a send with another operand")
        self.sent[-1].add(how)
        if self.awaited or any(message.kind == RECV and message.peer not in self.far
                               for message in messages):
            raise ValueError("a message that is sent too late")
        messages.append(Message(SEND, self._way(way, SEND).peer,
                                self._extent(source, self._count(nbytes))))
        self.unsent = True

    def flush(self) -> None:
        if not self.unsent or self.landing is not None:
            raise ValueError("nothing was sent")
        self.unsent = False

    def take(self, way: int, landing: int, nbytes: int) -> None:
        if self.landing is not None or self.awaited:
            raise ValueError("two messages at once, or one too late")
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

    def post(self, way: int, address: int, nbytes: int) -> None:
        messages = self.parts[-1][1]
        if messages and not self.posted:
            raise ValueError("a batch that is not the first of its phase")
        if not 0 <= way < len(self.code.remote):
            raise ValueError("a way that the compiled plan has not")
        kind, peer, _ = self.code.remote[way]
        messages.append(Message(kind, peer, self._extent(address, self._count(nbytes))))
        self.posted += 1

    def start(self, batch: int) -> None:
        if not self.posted or batch != self.batches:
            raise ValueError("a batch of no messages, or of another number")
        self.batches += 1
        self.posted, self.under_way = 0, True

    def wait(self, batch: int) -> None:
        if not self.under_way or batch != self.batches - 1 or self.unsent or (
                self.landing is not None):
            raise ValueError("a batch that is not under way, or is waited for too early")
        self.under_way, self.awaited = False, True

    def end(self) -> None:
        if self.unsent or self.under_way:
            raise ValueError("an end before everything is sent")
        self.ended = True

    def _way(self, number: int, kind: str) -> Way:
        if not 0 <= number < len(self.code.ways) or self.code.ways[number].kind != kind:
            raise ValueError("a channel that the compiled plan has not")
        return self.code.ways[number]

    def _count(self, nbytes: int) -> int:
        if nbytes < 0 or nbytes % self.itemsize:
            raise ValueError("a part of an element")
        return nbytes // self.itemsize

    def _extent(self, address: int, count: int) -> Extent:
        base, offset = split_address(address)
        start = self._count(offset)
        if base != CELL:
            return Extent(base, start, count)
        if self.landing is None or start + count > self.landing.count:
            raise ValueError("a message that is not there")
        self.used = True
        return Extent(self.landing.buffer, self.landing.offset + start, count)
