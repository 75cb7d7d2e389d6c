"""Messages of objects between the ranks of a private communicator.

Pairs of ranks have prepared frames (:mod:`hpccoll.comm.objects.wire`), which go through shared
memory inside a node. What does not fit into a frame follows it.

Every call is counted in this rank's log, as other blocking calls are. Every frame carries the
number and the stamp of its call. A rank that receives a frame of another call raises a
``ContractError``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.kernels import operator_of
from hpccoll.calls.facts import USER
from hpccoll.comm.objects.wire import (
    FRAME,
    LONG,
    STAMP,
    RemoteError,
    decode,
    encode,
    memory_for,
)
from hpccoll.errors import ForeignMessage, cause_of
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.context import OBJECTS_TAG, Context
from hpccoll.runtime.events.log import OBJECTS
from hpccoll.runtime.execution.compiled import exchange_tape
from hpccoll.runtime.execution.executor import TRIES
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.runtime.progress.waiting import Watch
from hpccoll.transport import Batch, Posting
from hpccoll.transport.stamps import STAMP_BITS

#: Tags on the private communicator, of frames and of what follows them; blocking collectives use
#: lower ones, nonblocking higher ones.
TAG, MORE_TAG = OBJECTS_TAG, OBJECTS_TAG + 1
#: The bits of a call's number that frames carry above its stamp.
LAST_NUMBER = 0xFFFF
#: Calls that are kept, by collective, operator and root.
MOST_CALLS = 1024


class ObjectCall(NamedTuple):
    """A lower-case call as every rank must make it.

    Attributes:
        description: collective, operator and root.
        stamp: of its frames; 0 where calls are not compared.
        begins, ends: record in this rank's log that it begins, and that it has ended.
    """

    description: Description
    stamp: int
    begins: Callable[[], Any]
    ends: Callable[[], Any]


class ObjectMessages:
    """Sends and receives objects on the private communicator of a context."""

    #: That of blocking calls, for the guard.
    tag = 0

    def __init__(self, context: Context):
        self.context, self.rank, self.size = context, context.rank, context.size
        self.channels: dict[tuple[int, str], FrameMessage] = {}
        self.pairs: dict[int, FramePair] = {}
        #: Memory for arrays to and from a rank, and what exchanges them, by rank, type and shape.
        self.arrays: dict[tuple[int, bytes], ArrayPair] = {}
        #: A frame that is copied to where it is sent from.
        self.frame = bytearray(FRAME)
        self.tries = TRIES if context.limits.spins else 1
        self.peer = -1
        #: The present call, and all calls so far, by collective, operator and root.
        self.calls: dict[tuple[str, str, int | None], ObjectCall] = {}
        self.call: ObjectCall
        #: What the frames of the present call carry.
        self.stamp = bytes(8)
        #: What failed while this rank wrote a message of the present call.
        self.error: RemoteError | None = None
        #: Messages of the present call that did not fit into a frame.
        self.requests: list[MPI.Request] = []
        #: Memory of messages that an error left in flight.
        self.abandoned: list[tuple[Any, ...]] = []

    @property
    def title(self) -> str:
        """The present call, for messages to people."""
        return self.call.description.collective

    def call_of(self, name: str, operator: str = "", root: int | None = None) -> ObjectCall:
        """The call of a method as every rank must make it."""
        description = Description(f"{name}{OBJECTS}", operator=operator,
                                  root="" if root is None else str(root))
        guard = self.context.guard
        stamp = guard.stamp(description) if guard is not None else 0
        actions = (guard.opening(stamp, 0), guard.closing(stamp, 0)) if guard else (None, None)
        begins, ends = (action[0] if action else _nothing for action in actions)
        return ObjectCall(description, stamp, begins, ends)

    def begin(self) -> None:
        """Record that the present call begins.

        Raises:
            HpccollError: another rank has failed in it, or before; says which one and why.
        """
        self.requests.clear()
        self.error = None
        try:
            self.call.begins()
        except BaseException as error:
            self._judge(error)
            raise
        self.mark()

    def mark(self) -> None:
        """Number and stamp the frames of the present call."""
        stamp, guard = self.call.stamp, self.context.guard
        if stamp and guard is not None:
            stamp |= (guard.number & LAST_NUMBER) << STAMP_BITS
        self.stamp = stamp.to_bytes(8, "little")

    def select(self, name: str, op: Any = None, root: int | None = None) -> None:
        """Make a call the present one, by collective, operator and root."""
        key = name, "" if op is None else operator_name(op), root
        call = self.calls.get(key)
        if call is None:
            if len(self.calls) >= MOST_CALLS:
                self.calls.clear()
            call = self.calls[key] = self.call_of(*key)
        self.call = call

    def encode(self, frame: bytearray, value: Any) -> tuple[Any, RemoteError | None]:
        """Write an object and the stamp of the call into a frame; see :func:`wire.encode`."""
        frame[STAMP:] = self.stamp
        return encode(frame, value, self.rank)

    def check(self, frame: bytearray, source: int) -> None:
        """Raise unless a frame that has arrived is of the present call.

        Raises:
            ContractError: names the ranks that differ, and in what.
        """
        if frame[STAMP:] != self.stamp:
            error = ForeignMessage(source, self.rank)
            self._judge(error)
            raise error

    def send(self, value: Any, dest: int) -> None:
        """Send an object to a rank."""
        for test in self.begin_send(value, dest):
            self.wait(test, dest)

    def begin_send(self, value: Any, dest: int) -> Sequence[Callable[..., bool]]:
        """Begin to send an object to a rank; it is sent when all returned tests are true."""
        data, error = self.encode(self.frame, value)
        if error is not None:
            self.error = error
        tests = [test for test, _ in self.send_frame(self.frame, dest)]
        return tests if data is None else [*tests, self.send_bytes(data, dest)]

    def send_frame(self, frame: bytearray, dest: int
                   ) -> Sequence[tuple[Callable[..., bool], int]]:
        """Send a frame to a rank; it may not have left yet: tests for that, and the rank."""
        message = self.channels.get((dest, SEND)) or self.channel(dest, SEND)
        message.frame[:] = frame
        if message.tape is not None:
            message.tape.run(message.address, 0)
            return ()
        message.batch.start()
        return (message.batch.test, dest),

    def send_bytes(self, data: Any, dest: int) -> Callable[..., bool]:
        """Begin to send what did not fit into a frame; returns a test for its end."""
        self.requests.append(self.context.comm.Isend([data, MPI.BYTE], dest, MORE_TAG))
        return self.requests[-1].Test

    def begin_receive(self, memory: Any, source: int) -> Callable[..., bool]:
        """Begin to receive what did not fit into a frame; returns a test for its end."""
        self.requests.append(self.context.comm.Irecv([memory, MPI.BYTE], source, MORE_TAG))
        return self.requests[-1].Test

    def receive_bytes(self, memory: Any, source: int) -> None:
        """Receive what did not fit into a frame."""
        self.wait(self.begin_receive(memory, source), source)

    def receive_frame(self, source: int) -> bytearray:
        """Receive a frame of the present call from a rank."""
        message = self.channels.get((source, RECV)) or self.channel(source, RECV)
        if message.tape is not None:
            message.tape.run(0, message.address)
        else:
            message.batch.start()
            self.wait(message.batch.test, source)
        self.check(message.frame, source)
        return message.frame

    def receive(self, source: int, sending: Sequence[Callable[..., bool]] = ()) -> Any:
        """Receive an object from a rank, and finish what is being sent to it."""
        value = self.receive_rest(self.receive_frame(source), source)
        for test in sending:
            self.wait(test, source)
        return value

    def receive_rest(self, frame: bytearray, source: int) -> Any:
        """The object of a frame that has arrived; what follows the frame is received first."""
        data = memory_for(frame) if frame[0] == LONG else None
        if data is not None:
            self.receive_bytes(data, source)
        return decode(frame, data, self.rank)

    def channel(self, peer: int, kind: str) -> FrameMessage:
        """Prepare the frame to or from a rank."""
        frame = bytearray(FRAME)
        message = FrameMessage(frame, *self.prepare((kind, peer, frame)), MPI.Get_address(frame))
        self.channels[peer, kind] = message
        return message

    def pair(self, peer: int) -> FramePair:
        """Prepare the frames to and from a rank that move together."""
        frame, arriving = bytearray(FRAME), bytearray(FRAME)
        pair = self.pairs[peer] = FramePair(frame, arriving, *self.both_ways(peer, frame, arriving))
        return pair

    def array_pair(self, array: numpy.ndarray, peer: int) -> ArrayPair:
        """Prepare memory for arrays like one, to and from a rank, that move together."""
        mine, other = numpy.empty_like(array), numpy.empty_like(array)
        return ArrayPair(mine, other, *self.both_ways(peer, mine.reshape(-1).view("u1"),
                                                      other.reshape(-1).view("u1")))

    def both_ways(self, peer: int, sent: Any, arriving: Any
                  ) -> tuple[Batch, Any, tuple[int, int]]:
        """What exchanges memory with a rank: a batch, a tape if there is one, addresses for it."""
        return (*self.prepare((SEND, peer, sent), (RECV, peer, arriving)),
                (MPI.Get_address(sent), MPI.Get_address(arriving)))

    def prepare(self, *messages: tuple[str, int, Any]) -> tuple[Batch, Any]:
        """Prepare messages to and from one rank that move together: a batch, a tape if possible.

        Args:
            messages: kind, peer and memory of each.
        """
        postings = [Posting(kind == SEND, peer, numpy.frombuffer(memory, "u1"))
                    for kind, peer, memory in messages]
        return (self.context.endpoint.batch(postings, TAG, True),
                exchange_tape(self.context, postings, TAG,
                              partial(self.attend, postings[0].peer)))

    def attend(self, peer: int, test: Callable[[], bool]) -> None:
        """Wait for a tape, which tests for some time at once; see :meth:`wait`."""
        self.peer = peer
        watch = Watch(self, *self.context.bounds)
        try:
            while not test():
                PROGRESS.once()
                watch.look()
        except BaseException as error:
            self._judge(error)
            raise

    def wait(self, test: Callable[..., bool], peer: int) -> None:
        """Wait for a message.

        Raises:
            CollectiveTimeout: it has not come for ``HPCCOLL_TIMEOUT`` seconds.
        """
        for _ in range(self.tries):
            if test():
                return
        self.peer = peer
        watch = Watch(self, *self.context.bounds, self.context.limits.spins)
        try:
            while not test():
                watch.idle()
        except BaseException as error:
            self._judge(error)
            raise

    def _judge(self, error: BaseException) -> None:
        """Tell the others of an error; raise what the caller is to get, if it is another one."""
        # Messages may still come: their memory, which these hold, must stay.
        self.abandoned.append((self.channels, self.pairs, self.arrays, self.requests))
        self.channels, self.pairs, self.arrays, self.requests = {}, {}, {}, []
        verdict = self.context.fail(error, self.title)
        if verdict is not error:
            raise verdict from cause_of(error)

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers that this rank waits for, for reports."""
        return 0, (self.peer,)

    def free(self) -> None:
        """Give the prepared messages back."""
        for message in self.channels.values():
            message.batch.free()
        for pair in self.pairs.values():
            pair.batch.free()
        self.channels, self.pairs = {}, {}
        self.drop_arrays()

    def drop_arrays(self) -> None:
        """Give the messages back that are prepared for arrays."""
        for pair in self.arrays.values():
            pair.batch.free()
        self.arrays = {}


class FrameMessage(NamedTuple):
    """A frame, and what sends it to or receives it from one rank: a tape where there is one."""

    frame: bytearray
    batch: Batch
    tape: Any
    address: int


class FramePair(NamedTuple):
    """A frame to a rank, one from it, and what moves both: a tape where there is one."""

    frame: bytearray
    arriving: bytearray
    batch: Batch
    tape: Any
    addresses: tuple[int, int]


class ArrayPair(NamedTuple):
    """An array to a rank, one from it, and what moves both; as :class:`FramePair`."""

    frame: numpy.ndarray
    arriving: numpy.ndarray
    batch: Batch
    tape: Any
    addresses: tuple[int, int]


def operator_name(op: Any) -> str:
    """MPI's name of an operator; that of a user's own one says nothing of which."""
    known = operator_of(op) if isinstance(op, MPI.Op) else None
    return known.name if known is not None else USER


def _nothing() -> None:
    """Do nothing."""
