"""Tapes: a lowered program as a flat array of instructions, for an executor that only has to loop.

Each instruction is ``WIDTH`` words of 64 bits: what to do, the phase it belongs to, and operands.

    copy    into, from, bytes               move bytes
    reduce  form, into, left, right, n      into = left op right, on n elements
    send    channel, from, bytes            copy into the channel's next cell, announce it there
    flush                                   wait for cells for what has not been sent yet
    take    channel, landing, bytes         wait for the channel's next message
    taken   channel                         the sender may use that message's cell again
    note    where, what                     note this moment, see hpccoll/runtime/events/moments.py
    post    way, at, bytes                  a message of the next batch, to or from another node
    start   batch                           start the messages posted since the last batch
    await   batch                           wait until all messages of that batch are complete
    end

Messages to other nodes are MPI's, of which the executor knows nothing: it stops at ``start`` and at
``await``, for Python to see to the batch (``remote``), and goes on behind it.
``post`` only says what is in a batch.

An address is a base and an offset in bytes: input, output, scratch, or the cell of the message
that was taken last. So a tape belongs to a call of some sizes, not to arrays. ``landing`` is where
the program wants a message that its steps use in the cell; nothing is written there. ``form`` is
0, but in chains of reductions of 16-bit floats: there it says which operands are taken from the
accumulator, and where the result goes (:class:`Form`).

:func:`encode` makes tapes. ``tests/support/decoding.py`` makes the program of a tape again, and
``tests/unit/runtime/execution/test_tape.py`` proves that both say the same for every algorithm.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
from hpccoll.runtime.events.moments import Activity, Noting, activity_of

#: Words of an instruction.
WIDTH = 8
#: Where the cell of a message is, as one more buffer of a program.
CELL = "cell"
#: What running a tape comes to at its end, and at a batch; ``_tape.h`` has the same numbers.
DONE, REMOTE = 0, 3
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
    POST = 8
    START = 9
    AWAIT = 10


class Form(IntFlag):
    """What a reduction does with the accumulator; ``_half.h`` has the same numbers."""

    LEFT = 1
    RIGHT = 2
    HELD = 4
    ROUNDED = 8


class Way(NamedTuple):
    """How a tape's messages go: to (``SEND``) or from (``RECV``) a peer.

    ``slot`` says how far their tag is from the first one: segments use those of a plan in turn.
    """

    kind: str
    peer: int
    slot: int = 0


class Code(NamedTuple):
    """A tape, before it is put onto channels.

    Attributes:
        words: of all instructions, one after the other.
        ways: the channels, in the order in which instructions number them.
        longest: bytes of the longest message in one of them.
        held: elements that its accumulator has to hold.
        far: the ways of messages to and from other nodes, numbered by themselves.
    """

    words: array[int]
    ways: tuple[Way, ...]
    longest: int
    held: int = 0
    far: tuple[Way, ...] = ()

    def steps(self) -> Iterator[tuple[int, ...]]:
        """The words of each instruction."""
        for start in range(0, len(self.words), WIDTH):
            yield tuple(self.words[start:start + WIDTH])

    def phase(self, index: int) -> int:
        """The phase that an instruction belongs to."""
        return self.words[index * WIDTH + 1]

    def batches(self) -> list[list[RemoteMessage]]:
        """The messages of each batch."""
        batches: list[list[RemoteMessage]] = []
        posted: list[RemoteMessage] = []
        for operation, _, number, address, nbytes, *_ in self.steps():
            if operation == Instruction.POST:
                posted.append(RemoteMessage(self.far[number], address, nbytes))
            elif operation == Instruction.START:
                batches.append(posted)
                posted = []
        return batches


class RemoteMessage(NamedTuple):
    """A message to or from another node: its way, where it lies or lands, its bytes."""

    way: Way
    address: int
    nbytes: int


def split_address(address: int) -> tuple[str, int]:
    """What an address is relative to, and how many bytes from there it is.

    Raises:
        ValueError: it is relative to nothing.
    """
    if not 0 <= address >> OFFSET_BITS < len(BASES):
        raise ValueError("an address of nothing")
    return BASES[address >> OFFSET_BITS], address & ((1 << OFFSET_BITS) - 1)


def encode(program: Lowered, itemsize: int, places: int, chains: bool = False,
           far: Collection[int] = ()) -> Code | None:
    """Make the tape of a lowered program; see :func:`encode_segments`."""
    return encode_segments((Segment(program, 0),), 1, itemsize, places, chains, far)


def encode_segments(segments: Sequence[Segment], depth: int, itemsize: int, places: int,
                    chains: bool = False, far: Collection[int] = (),
                    noting: Noting | None = None) -> Code | None:
    """Make the tape of all segments of a plan, one after the other.

    Phases are numbered through. All segments use the same scratch: nothing of one is needed when
    the next one begins.

    Args:
        segments: what one rank does.
        depth: segments that have channels of their own, in turn.
        itemsize: bytes of an element.
        places: messages that a rank may have under way to another.
        chains: results that the next step uses are held in an accumulator, where that is allowed.
        far: ranks of other nodes, to which messages are MPI's.
        noting: where moments are noted, if anywhere.

    Returns:
        ``None`` where more messages of one rank arrive in a phase than there are places, or where
        a reduction's result overlaps an operand in part.
    """
    writer, number = _Writer(itemsize, far, noting), 0
    for index, (program, shift) in enumerate(segments):
        writer.shift, writer.slot = shift, index % depth
        for local, phase in enumerate(program.phases):
            writer.place = index, local
            senders = Counter(message.peer for message in phase.messages
                              if message.kind == RECV and message.peer not in far)
            if any(count > places for count in senders.values()):
                return None
            if any(_overlaps_in_part(step) for step in (*phase.before, *phase.after)):
                return None
            writer.phase(number, phase, program.landing, chains and local in program.single_block)
            number += 1
    writer.put(Instruction.END, max(number - 1, 0))
    return Code(writer.words, tuple(writer.ways), writer.longest, writer.held, tuple(writer.far))


def forms(steps: Sequence[Local], chains: bool) -> Iterator[int]:
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

    def __init__(self, itemsize: int, far: Collection[int], noting: Noting | None):
        self.itemsize, self.longest, self.held = itemsize, 0, 0
        self.shift = self.slot = self.batches = 0
        self.noting, self.place = noting, (0, 0)
        self.words: array[int] = array("q")
        self.ways: dict[Way, int] = {}
        #: Ranks of other nodes, and the ways to and from them.
        self.others, self.far = far, dict[Way, int]()

    def put(self, operation: Instruction, phase: int, *operands: int) -> None:
        self.words.extend((operation, phase, *operands, *[0] * (WIDTH - 2 - len(operands))))

    def note(self, number: int, activity: Activity) -> None:
        """Note that this rank goes over to something, where somebody wants to know."""
        if self.noting is not None:
            self.put(Instruction.NOTE, number, *self.noting.words(*self.place, activity))

    def phase(self, number: int, phase: Phase, space: int, chains: bool) -> None:
        """One phase: steps, messages to send, messages to take with what uses them, steps.

        Messages of other nodes are started before all others, and waited for behind them.
        """
        if phase.before:
            self.note(number, activity_of(phase.before))
        for step, form in zip(phase.before, forms(phase.before, chains)):
            self.step(number, step, form)
        # Uses of one message after the other are the steps of the phase, in their order.
        following = forms(phase.after, chains)
        remote = [message for message in phase.messages if message.peer in self.others]
        sends = [message for message in phase.messages
                 if message.kind == SEND and message.peer not in self.others]
        if remote or sends:
            self.note(number, Activity.SENDING)
        for message in remote:
            self.put(Instruction.POST, number, self.far_way(message),
                     self.address(message.extent), message.extent.count * self.itemsize)
        if remote:
            self.put(Instruction.START, number, self.batches)
        for message in sends:
            self.put(Instruction.SEND, number, self.way(message), self.address(message.extent),
                     self.nbytes(message))
        # What MPI delivers is never used where it arrives.
        uses = (consumers(phase, space) if phase.after
                and not any(message.kind == RECV for message in remote) else None)
        for index, message in enumerate(phase.messages):
            if message.kind == RECV and message.peer not in self.others:
                way, landing = self.way(message), message.extent
                self.note(number, Activity.WAITING)
                self.put(Instruction.TAKE, number, way, self.address(landing), self.nbytes(message))
                steps = uses[index] if uses else ()
                self.note(number, activity_of(steps))
                if not steps:
                    self.put(Instruction.COPY, number, self.address(landing),
                             self.address(landing, landing), self.nbytes(message))
                for step in steps:
                    self.step(number, step, next(following), landing)
                self.put(Instruction.TAKEN, number, way)
        if sends:
            self.note(number, Activity.DRAINING)
            self.put(Instruction.FLUSH, number)
        if remote:
            self.note(number, Activity.WAITING)
            self.put(Instruction.AWAIT, number, self.batches)
            self.batches += 1
        after = phase.after if uses is None else ()
        if after:
            self.note(number, activity_of(after))
        for step in after:
            self.step(number, step, next(following))

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

    def far_way(self, message: Message) -> int:
        """The number of the way of a message to or from another node."""
        peer = cast(int, message.peer)  # as above
        return self.far.setdefault(Way(message.kind, peer, self.slot), len(self.far))
