"""Compiled plans: lowered programs as flat arrays of instructions for the compiled executor.

Each instruction is ``WIDTH`` words of 64 bits: the operation, its phase, and operands.

    copy    into, from, bytes               copy bytes
    reduce  form, into, left, right, n      into = left op right, on n elements
    send    channel, from, bytes, -, how    announce a message in the channel: in its next cell, or
                                            where it is if a read is faster; see ``MessageOverlap``
    flush                                   wait until all messages of the phase are in their cells
                                            or have been read
    take    channel, landing, bytes         wait for the channel's next message
    taken   channel                         release that message's cell to the sender
    note    where, what                     record this moment, see runtime/events/phase_events.py
    post    way, at, bytes                  add a message with another node to the next batch
    start   batch                           start the messages posted since the last batch
    await   batch                           wait until all messages of that batch are complete
    end

Messages to other nodes use MPI. The executor stops at ``start`` and at ``await``, Python handles
the batch (``remote``), and the executor continues after it. ``post`` only declares a message of a
batch.

An address is a base (input, output, scratch, or the cell of the last message taken) and an offset
in bytes. So a compiled plan depends on the sizes of a call, not on its arrays. ``landing`` is the
program's address of a message whose steps use it in the cell; nothing is written there. ``form`` is
0 outside chains of reductions of 16-bit floats. In a chain it selects the operands that are read
from the accumulator, and the destination of the result (:class:`Form`).

:func:`encode` creates compiled plans. ``tests/support/decoding.py`` decodes them, and
``tests/unit/runtime/execution/test_compiled_plan.py`` proves that decoding is exact for every
algorithm.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple, cast

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.dataflow import consumers, links
from hpccoll.ir.extents import (
    Extent,
    Local,
    LoweredProgram,
    Message,
    Phase,
    Segment,
    is_within,
    overlap,
    shift_scratch,
)
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.ir.sizes import maximum
from hpccoll.runtime.events.phase_events import Activity, PhaseRecorder, activity_of

#: Words of an instruction.
WIDTH = 8
#: Name of the cell of a message, as an additional buffer of a program.
CELL = "cell"
#: Return values of a run at its end, and at a batch; ``_plan.h`` has the same numbers.
DONE, WAITING, REMOTE = 0, 1, 3
#: Bases of addresses, by the number in the bits above the offset.
BASES = IN, OUT, TMP, CELL
OFFSET_BITS = 48


class Instruction(IntEnum):
    """Operation of an instruction."""

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
    """Use of the accumulator in a reduction; ``_half.h`` has the same numbers."""

    LEFT = 1
    RIGHT = 2
    HELD = 4
    ROUNDED = 8


class MessageOverlap(IntEnum):
    """Other messages at the time of one; ``_plan.h`` has the same numbers."""

    #: Other messages of the call are under way.
    PIPELINED = 0
    #: It is the only segment.
    ALONE = 1
    #: This rank receives a message at the same time, and reduces none.
    EXCHANGED = 2


class Way(NamedTuple):
    """Direction of a compiled plan's messages: to (``SEND``) or from (``RECV``) a peer.

    ``slot`` is the offset of their tag from the first one: segments cycle through a plan's tags.
    """

    kind: str
    peer: int
    slot: int = 0


class Code(NamedTuple):
    """Compiled plan before it is bound to channels.

    Attributes:
        words: the words of all instructions, in order.
        ways: the channels, indexed by the numbers in the instructions.
        longest: bytes of the longest message in a channel.
        held: elements of its accumulator.
        remote: the ways of messages to and from other nodes, with their own numbering.
    """

    words: array[int]
    ways: tuple[Way, ...]
    longest: int
    held: int = 0
    remote: tuple[Way, ...] = ()

    def steps(self) -> Iterator[tuple[int, ...]]:
        """Iterate over the words of each instruction."""
        for start in range(0, len(self.words), WIDTH):
            yield tuple(self.words[start:start + WIDTH])

    def phase(self, index: int) -> int:
        """Return the phase of an instruction."""
        return self.words[index * WIDTH + 1]

    def batches(self) -> list[list[RemoteMessage]]:
        """Return the messages of each batch."""
        batches: list[list[RemoteMessage]] = []
        posted: list[RemoteMessage] = []
        for operation, _, number, address, nbytes, *_ in self.steps():
            if operation == Instruction.POST:
                posted.append(RemoteMessage(self.remote[number], address, nbytes))
            elif operation == Instruction.START:
                batches.append(posted)
                posted = []
        return batches


class RemoteMessage(NamedTuple):
    """Message to or from another node: its way, its address and its bytes."""

    way: Way
    address: int
    nbytes: int


def split_address(address: int) -> tuple[str, int]:
    """Split an address into its base and its offset in bytes.

    Raises:
        ValueError: the address has no valid base.
    """
    if not 0 <= address >> OFFSET_BITS < len(BASES):
        raise ValueError("an address of nothing")
    return BASES[address >> OFFSET_BITS], address & ((1 << OFFSET_BITS) - 1)


def encode(program: LoweredProgram, itemsize: int, places: int, chains: bool = False,
           remote: Collection[int] = ()) -> Code | None:
    """Encode a lowered program as a compiled plan; see :func:`encode_segments`."""
    return encode_segments((Segment(program, 0),), 1, itemsize, places, chains, remote)


def encode_segments(segments: Sequence[Segment], depth: int, itemsize: int, places: int,
                    chains: bool = False, remote: Collection[int] = (),
                    noting: PhaseRecorder | None = None) -> Code | None:
    """Encode all segments of a plan as one compiled plan, one after the other.

    Phases have consecutive numbers. All segments use the same scratch: a segment needs no data of
    the one before it.

    Args:
        segments: the segments of one rank.
        depth: number of segments with separate channels; later ones reuse them in turn.
        itemsize: bytes of an element.
        places: messages that a rank may have in flight to another.
        chains: keep results that the next step uses in an accumulator, if that is permitted.
        remote: ranks of other nodes, whose messages use MPI.
        noting: records phases; ``None`` if phases are not traced.

    Returns:
        ``None`` if more messages of one rank arrive in a phase than there are places, or if a
        reduction's result partly overlaps an operand.
    """
    writer = _encode(segments, depth, itemsize, places, chains, remote, noting)
    return writer.code(array("q", writer.words)) if writer is not None else None


def encode_any_size(segments: Sequence[Segment], depth: int, itemsize: int, places: int
                    ) -> Code | None:
    """Encode segments that were lowered for any sizes; some words are a ``Size`` of bytes.

    Raises:
        UndecidedError: the instructions depend on the sizes.
    """
    writer = _encode(segments, depth, itemsize, places, False, (), None)
    return writer.code(writer.words) if writer is not None else None


def _encode(segments: Sequence[Segment], depth: int, itemsize: int, places: int, chains: bool,
            remote: Collection[int], noting: PhaseRecorder | None) -> _Writer | None:
    writer, number = _Writer(itemsize, remote, noting), 0
    writer.alone = len(segments) == 1
    for index, (program, shift) in enumerate(segments):
        writer.shift, writer.slot = shift, index % depth
        for local, phase in enumerate(program.phases):
            writer.place = index, local
            senders = Counter(message.peer for message in phase.messages
                              if message.kind == RECV and message.peer not in remote)
            if any(count > places for count in senders.values()):
                return None
            if any(_overlaps_in_part(step) for step in (*phase.before, *phase.after)):
                return None
            writer.write_phase(number, phase, program.landing, chains
                               and local in program.single_block)
            number += 1
    writer.put(Instruction.END, max(number - 1, 0))
    return writer


def forms(steps: Sequence[Local], chains: bool) -> Iterator[int]:
    """Yield the forms of the local steps before or after the messages of a phase."""
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
    """Writer of instructions."""

    def __init__(self, itemsize: int, remote: Collection[int], noting: PhaseRecorder | None):
        self.itemsize, self.longest, self.held = itemsize, 0, 0
        self.shift = self.slot = self.batches = 0
        self.noting, self.place, self.alone = noting, (0, 0), True
        self.words: list[int] = []
        self.ways: dict[Way, int] = {}
        #: Ranks of other nodes, and the ways of their messages.
        self.remote_ranks, self.remote = remote, dict[Way, int]()

    def code(self, words: Any) -> Code:
        """Return the compiled plan with its words in this form."""
        return Code(words, tuple(self.ways), self.longest, self.held, tuple(self.remote))

    def put(self, operation: Instruction, phase: int, *operands: int) -> None:
        self.words.extend((operation, phase, *operands, *[0] * (WIDTH - 2 - len(operands))))

    def note(self, number: int, activity: Activity) -> None:
        """Write an instruction that records the start of an activity, if phases are traced."""
        if self.noting is not None:
            self.put(Instruction.NOTE, number, *self.noting.words(*self.place, activity))

    def write_phase(self, number: int, phase: Phase, space: int, chains: bool) -> None:
        """Write a phase: steps, sends, receives with the steps that use them, steps.

        Messages of other nodes start before all others, and are waited for after them.
        """
        if phase.before:
            self.note(number, activity_of(phase.before))
        for step, form in zip(phase.before, forms(phase.before, chains)):
            self.step(number, step, form)
        # The uses of the messages, in their order, are the steps of the phase, in their order.
        following = forms(phase.after, chains)
        remote = [message for message in phase.messages if message.peer in self.remote_ranks]
        sends = [message for message in phase.messages
                 if message.kind == SEND and message.peer not in self.remote_ranks]
        if remote or sends:
            self.note(number, Activity.SENDING)
        for message in remote:
            self.put(Instruction.POST, number, self.far_way(message),
                     self.address(message.extent), message.extent.count * self.itemsize)
        if remote:
            self.put(Instruction.START, number, self.batches)
        how = MessageOverlap.ALONE if self.alone else MessageOverlap.PIPELINED
        if (any(message.kind == RECV for message in phase.messages)
                and all(step.right is None for step in phase.after)):
            how = MessageOverlap.EXCHANGED
        for message in sends:
            self.put(Instruction.SEND, number, self.way(message), self.address(message.extent),
                     self.nbytes(message), 0, how)
        # Messages of MPI are never used in place.
        uses = (consumers(phase, space) if phase.after
                and not any(message.kind == RECV for message in remote) else None)
        for index, message in enumerate(phase.messages):
            if message.kind == RECV and message.peer not in self.remote_ranks:
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
        """Write a local step; operands in ``landing`` are read from the cell."""
        into, left = self.address(step.into), self.address(step.left, landing)
        if step.right is None:
            self.put(Instruction.COPY, number, into, left, step.into.count * self.itemsize)
        else:
            self.put(Instruction.REDUCE, number, form, into, left,
                     self.address(step.right, landing), step.into.count)
            if form & Form.HELD:
                self.held = maximum(self.held, step.into.count)

    def address(self, extent: Extent, landing: Extent | None = None) -> int:
        """Return an extent's address; relative to the cell if it is part of ``landing``."""
        base, offset = BASES.index(extent.buffer), shift_scratch(extent, self.shift).offset
        if landing is not None and is_within(extent, landing):
            base, offset = BASES.index(CELL), extent.offset - landing.offset
        return (base << OFFSET_BITS) + offset * self.itemsize

    def nbytes(self, message: Message) -> int:
        """Return the bytes of a message."""
        nbytes = message.extent.count * self.itemsize
        self.longest = maximum(self.longest, nbytes)
        return nbytes

    def way(self, message: Message) -> int:
        """Return the number of a message's channel."""
        peer = cast(int, message.peer)  # plans with other peers are rejected earlier
        return self.ways.setdefault(Way(message.kind, peer, self.slot), len(self.ways))

    def far_way(self, message: Message) -> int:
        """Return the number of the way of a message to or from another node."""
        peer = cast(int, message.peer)  # as above
        return self.remote.setdefault(Way(message.kind, peer, self.slot), len(self.remote))
