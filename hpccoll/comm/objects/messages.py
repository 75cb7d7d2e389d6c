"""Messages of objects between the ranks of a private communicator.

Pairs of ranks have prepared frames (:mod:`hpccoll.comm.objects.wire`), which use shared memory
inside a node. Data that does not fit into a frame follows it.

Every call is counted in this rank's log, like other blocking calls. Every frame carries the
number and the call hash of its call. A rank that receives a frame of another call raises a
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
    HASH,
    LONG,
    RemoteError,
    decode,
    encode,
    memory_for,
)
from hpccoll.errors import ForeignMessage, cause_of
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.context import Context
from hpccoll.runtime.events.call_log import OBJECTS
from hpccoll.runtime.execution.compiled import exchange_plan
from hpccoll.runtime.execution.executor import TRIES
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.runtime.progress.waiting import WaitTimer
from hpccoll.runtime.ranks import OBJECTS_TAG
from hpccoll.transport import Batch, MessageSpec
from hpccoll.transport.call_hashes import HASH_BITS

#: Tags on the private communicator, of frames and of the data after them; blocking collectives use
#: lower ones, nonblocking higher ones.
TAG, MORE_TAG = OBJECTS_TAG, OBJECTS_TAG + 1
#: Bits of a call's number that frames carry above its call hash.
LAST_NUMBER = 0xFFFF
#: Largest number of cached calls, by collective, operator and root.
MOST_CALLS = 1024


class ObjectCall(NamedTuple):
    """Properties of a lower-case call that every rank must agree on.

    Attributes:
        description: the collective, operator and root.
        call_hash: the call hash of its frames; 0 if calls are not compared.
        begins, ends: record its start and its end in this rank's log.
    """

    description: Description
    call_hash: int
    begins: Callable[[], Any]
    ends: Callable[[], Any]


class ObjectMessages:
    """Sends and receives objects on the private communicator of a context."""

    #: Tag of blocking calls, for the guard.
    tag = 0

    def __init__(self, context: Context):
        self.context, self.rank, self.size = context, context.rank, context.size
        self.channels: dict[tuple[int, str], FrameMessage] = {}
        self.pairs: dict[int, FramePair] = {}
        #: Memory and messages for arrays to and from a rank, by rank, type and shape.
        self.arrays: dict[tuple[int, bytes], ArrayPair] = {}
        #: Frame that is copied to its send buffer.
        self.frame = bytearray(FRAME)
        self.tries = TRIES if context.limits.spins else 1
        self.peer = -1
        #: Current call, and all calls so far, by collective, operator and root.
        self.calls: dict[tuple[str, str, int | None], ObjectCall] = {}
        self.call: ObjectCall
        #: Number and call hash in the frames of the current call.
        self.call_hash = bytes(8)
        #: Error while this rank wrote a message of the current call.
        self.error: RemoteError | None = None
        #: Messages of the current call that did not fit into a frame.
        self.requests: list[MPI.Request] = []
        #: Memory of messages that were in flight at an error.
        self.abandoned: list[tuple[Any, ...]] = []

    @property
    def title(self) -> str:
        """Name of the current call, for messages."""
        return self.call.description.collective

    def call_of(self, name: str, operator: str = "", root: int | None = None) -> ObjectCall:
        """Return the call of a method with its properties that every rank must agree on."""
        description = Description(f"{name}{OBJECTS}", operator=operator,
                                  root="" if root is None else str(root))
        guard = self.context.guard
        call_hash = guard.call_hash(description)
        begins, ends = (action[0] if action else _nothing for action in (
            guard.opening(call_hash, 0), guard.end_callback(call_hash, 0)))
        return ObjectCall(description, call_hash, begins, ends)

    def begin(self) -> None:
        """Record the start of the current call.

        Raises:
            HpccollError: another rank has failed in this or an earlier call; names it and the
                cause.
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
        """Set the number and call hash for the frames of the current call."""
        call_hash = self.call.call_hash
        if call_hash:
            call_hash |= (self.context.guard.number & LAST_NUMBER) << HASH_BITS
        self.call_hash = call_hash.to_bytes(8, "little")

    def select(self, name: str, op: Any = None, root: int | None = None) -> None:
        """Set the current call, by collective, operator and root."""
        key = name, "" if op is None else operator_name(op), root
        call = self.calls.get(key)
        if call is None:
            if len(self.calls) >= MOST_CALLS:
                self.calls.clear()
            call = self.calls[key] = self.call_of(*key)
        self.call = call

    def encode(self, frame: bytearray, value: Any) -> tuple[Any, RemoteError | None]:
        """Write an object and the call hash of the call into a frame; see :func:`wire.encode`."""
        frame[HASH:] = self.call_hash
        return encode(frame, value, self.rank)

    def check(self, frame: bytearray, source: int) -> None:
        """Raise an error unless a received frame belongs to the current call.

        Raises:
            ContractError: names the ranks and the properties that differ.
        """
        if frame[HASH:] != self.call_hash:
            error = ForeignMessage(source, self.rank)
            self._judge(error)
            raise error

    def send(self, value: Any, dest: int) -> None:
        """Send an object to a rank."""
        for test in self.begin_send(value, dest):
            self.wait(test, dest)

    def begin_send(self, value: Any, dest: int) -> Sequence[Callable[..., bool]]:
        """Start to send an object to a rank; it is sent when all returned tests are true."""
        data, error = self.encode(self.frame, value)
        if error is not None:
            self.error = error
        tests = [test for test, _ in self.send_frame(self.frame, dest)]
        return tests if data is None else [*tests, self.send_bytes(data, dest)]

    def send_frame(self, frame: bytearray, dest: int
                   ) -> Sequence[tuple[Callable[..., bool], int]]:
        """Start to send a frame to a rank; return the tests for its completion, and the rank."""
        message = self.channels.get((dest, SEND)) or self.channel(dest, SEND)
        message.frame[:] = frame
        if message.compiled_plan is not None:
            message.compiled_plan.run(message.address, 0)
            return ()
        message.batch.start()
        return (message.batch.test, dest),

    def send_bytes(self, data: Any, dest: int) -> Callable[..., bool]:
        """Start to send data that did not fit into a frame; return a test for completion."""
        self.requests.append(self.context.comm.Isend([data, MPI.BYTE], dest, MORE_TAG))
        return self.requests[-1].Test

    def begin_receive(self, memory: Any, source: int) -> Callable[..., bool]:
        """Start to receive data that did not fit into a frame; return a test for completion."""
        self.requests.append(self.context.comm.Irecv([memory, MPI.BYTE], source, MORE_TAG))
        return self.requests[-1].Test

    def receive_bytes(self, memory: Any, source: int) -> None:
        """Receive data that did not fit into a frame."""
        self.wait(self.begin_receive(memory, source), source)

    def receive_frame(self, source: int) -> bytearray:
        """Receive a frame of the current call from a rank."""
        message = self.channels.get((source, RECV)) or self.channel(source, RECV)
        if message.compiled_plan is not None:
            message.compiled_plan.run(0, message.address)
        else:
            message.batch.start()
            self.wait(message.batch.test, source)
        self.check(message.frame, source)
        return message.frame

    def receive(self, source: int, sending: Sequence[Callable[..., bool]] = ()) -> Any:
        """Receive an object from a rank, and complete the sends to it."""
        value = self.receive_rest(self.receive_frame(source), source)
        for test in sending:
            self.wait(test, source)
        return value

    def receive_rest(self, frame: bytearray, source: int) -> Any:
        """Return the object of a received frame, after receiving the data that follows."""
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
        """Prepare the frames to and from a rank, for one exchange."""
        frame, arriving = bytearray(FRAME), bytearray(FRAME)
        pair = self.pairs[peer] = FramePair(frame, arriving, *self.both_ways(peer, frame, arriving))
        return pair

    def array_pair(self, array: numpy.ndarray, peer: int) -> ArrayPair:
        """Prepare memory for an exchange of arrays like the given one with a rank."""
        mine, other = numpy.empty_like(array), numpy.empty_like(array)
        return ArrayPair(mine, other, *self.both_ways(peer, mine.reshape(-1).view("u1"),
                                                      other.reshape(-1).view("u1")))

    def both_ways(self, peer: int, sent: Any, arriving: Any
                  ) -> tuple[Batch, Any, tuple[int, int]]:
        """Return a batch for an exchange with a rank, a plan or None, and its addresses."""
        return (*self.prepare((SEND, peer, sent), (RECV, peer, arriving)),
                (MPI.Get_address(sent), MPI.Get_address(arriving)))

    def prepare(self, *messages: tuple[str, int, Any]) -> tuple[Batch, Any]:
        """Prepare one exchange of messages with a rank; return a batch, and a plan if possible.

        Args:
            messages: kind, peer and memory of each message.
        """
        postings = [MessageSpec(kind == SEND, peer, numpy.frombuffer(memory, "u1"))
                    for kind, peer, memory in messages]
        return (self.context.endpoint.batch(postings, TAG, True),
                exchange_plan(self.context, postings, TAG,
                              partial(self.resume, postings[0].peer)))

    def resume(self, peer: int, test: Callable[[], bool]) -> None:
        """Wait for a compiled plan, whose test polls for some time; see :meth:`wait`."""
        self.peer = peer
        watch = WaitTimer(self, *self.context.timeouts)
        try:
            while not test():  # it sleeps
                PROGRESS.step()
                watch.look()
        except BaseException as error:
            self._judge(error)
            raise

    def wait(self, test: Callable[..., bool], peer: int) -> None:
        """Wait for a message.

        Raises:
            CollectiveTimeout: it has not arrived within ``HPCCOLL_TIMEOUT`` seconds.
        """
        for _ in range(self.tries):
            if test():
                return
        self.peer = peer
        watch = WaitTimer(self, *self.context.timeouts, self.context.limits.spins)
        try:
            wait_until(test, watch)
        except BaseException as error:
            self._judge(error)
            raise

    def _judge(self, error: BaseException) -> None:
        """Report an error to the other ranks; raise the exception for the caller if it differs."""
        # Messages may still arrive: the batches keep their memory alive.
        self.abandoned.append((self.channels, self.pairs, self.arrays, self.requests))
        self.channels, self.pairs, self.arrays, self.requests = {}, {}, {}, []
        diagnosis = self.context.fail(error, self.title)
        if diagnosis is not error:
            raise diagnosis from cause_of(error)

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return the round and the peers that this rank waits for, for reports."""
        return 0, (self.peer,)

    def free(self) -> None:
        """Free the prepared messages."""
        for message in self.channels.values():
            message.batch.free()
        for pair in self.pairs.values():
            pair.batch.free()
        self.channels, self.pairs = {}, {}
        self.drop_arrays()

    def drop_arrays(self) -> None:
        """Free the prepared messages for arrays."""
        for pair in self.arrays.values():
            pair.batch.free()
        self.arrays = {}


class FrameMessage(NamedTuple):
    """Frame with its batch and, if possible, its compiled plan, to or from one rank."""

    frame: bytearray
    batch: Batch
    compiled_plan: Any
    address: int


class FramePair(NamedTuple):
    """Frames to and from a rank, with the batch and, if possible, a compiled plan."""

    frame: bytearray
    arriving: bytearray
    batch: Batch
    compiled_plan: Any
    addresses: tuple[int, int]


class ArrayPair(NamedTuple):
    """Arrays to and from a rank, with batch and compiled plan like :class:`FramePair`."""

    frame: numpy.ndarray
    arriving: numpy.ndarray
    batch: Batch
    compiled_plan: Any
    addresses: tuple[int, int]


def operator_name(op: Any) -> str:
    """Return MPI's name of an operator; all user-defined operators have the same name."""
    known = operator_of(op) if isinstance(op, MPI.Op) else None
    return known.name if known is not None else USER


def _nothing() -> None:
    """Do nothing."""
