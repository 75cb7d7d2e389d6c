"""Objects between the ranks of a private communicator, combined on the way.

Pairs of ranks have prepared frames (:mod:`hpccoll.comm.objects.wire`), which go through shared
memory inside a node. What does not fit into a frame follows it. Arrays of one type and shape that
two ranks exchange have memory and messages of their own.

The algorithms here are no schedules; docs/decisions/0030 says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.comm.objects.wire import (
    CONTAINERS,
    FLOAT,
    FRAME,
    IMMUTABLE,
    INT,
    LONG,
    ROOM,
    RemoteError,
    copy_of,
    decode,
    encode,
    is_plain,
    memory_for,
    same_type_and_shape,
    type_and_shape,
)
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.compiled import BUILT, swap_tape
from hpccoll.runtime.context import OBJECTS_TAG, Context
from hpccoll.runtime.executor import TRIES
from hpccoll.runtime.progress import PROGRESS
from hpccoll.runtime.waiting import Watch
from hpccoll.transport import Batch, Posting

if BUILT:
    from hpccoll.runtime import _tape

#: Tags on the private communicator, of frames and of what follows them; blocking collectives use
#: lower ones, nonblocking higher ones.
TAG, MORE_TAG = OBJECTS_TAG, OBJECTS_TAG + 1
#: Arrays of up to so many bytes are exchanged, and combined on both sides.
SHARED = 64 << 10
#: Types and shapes of arrays for which exchanges are kept prepared.
MOST_SHAPES = 16
#: What the predefined operators do to two arrays of one dtype and shape.
UFUNCS = {MPI.SUM.handle: numpy.add, MPI.PROD.handle: numpy.multiply,
          MPI.BAND.handle: numpy.bitwise_and, MPI.BOR.handle: numpy.bitwise_or,
          MPI.BXOR.handle: numpy.bitwise_xor}

Operator = Callable[[Any, Any], Any]


class ObjectExchange:
    """Sends, receives and combines objects on the private communicator of a context."""

    def __init__(self, context: Context):
        self.context, self.rank, self.size = context, context.rank, context.size
        self.channels: dict[tuple[int, str], FrameMessage] = {}
        self.pairs: dict[int, FramePair] = {}
        #: Memory for arrays to and from a rank, and what exchanges them, by rank, type and shape.
        self.arrays: dict[tuple[int, bytes], ArrayPair] = {}
        self.tries = TRIES if context.limits.spins else 1
        self.title, self.peer = "", -1
        #: What failed while this rank wrote a message of the present call.
        self.error: RemoteError | None = None
        #: Memory of messages that a timeout left in flight.
        self.abandoned: list[tuple[Any, ...]] = []

    def numbers(self) -> Any:
        """What combines numbers in machine code, as :meth:`doubling_allreduce` does.

        ``None`` where there is none, which other ranks need not know.
        """
        rounds, distance = [], 1
        while distance < self.size:
            pair = self.pairs.get(self.rank ^ distance) or self.pair(self.rank ^ distance)
            if pair.tape is None:
                return None
            rounds.append((pair.tape, *pair.addresses, not self.rank & distance))
            distance *= 2
        return _tape.Numbers(tuple(rounds), FLOAT, INT, ROOM, self, self.context.entrance)

    def binomial_reduce(self, obj: Any, op: Operator) -> Any:
        """Combine the objects of all ranks along a binomial tree; the result is at rank 0."""
        value, mask, rank = obj, 1, self.rank
        while mask < self.size:
            if rank & mask:
                self.send(value, rank - mask)
                return None
            if rank + mask < self.size:
                arrived = self.receive(rank + mask)
                value = self.apply(op, self.own(value, obj, op), arrived, into=arrived)
            mask *= 2
        return value

    def doubling_allreduce(self, obj: Any, op: MPI.Op, distance: int = 1,
                           exchanged: bool = False) -> tuple[Any, bool]:
        """Combine the objects of a power of two of ranks by recursive doubling.

        Partners at doubling distances exchange frames, and both combine what they hold: then groups
        of twice as many ranks hold one value. A value that is large, or of a user's class, only
        goes to the first rank of the new group, as in :meth:`binomial_reduce`. All ranks see that:
        every frame says whether its sender's group still holds its value together.

        Args:
            obj, op: what is combined, and how.
            distance: of the first round; at others than 1, the groups hold numbers together.
            exchanged: the frames of the first round have been exchanged.

        Returns:
            The result, and whether all ranks have it; if not, rank 0 does.
        """
        value, rank, together = obj, self.rank, self.exchangeable(obj, op)
        while distance < self.size:
            partner, first = rank ^ distance, not rank % distance
            pair = self.pairs.get(partner) or self.pair(partner)
            data, given = None, first and rank > partner
            if (together or given) and not exchanged:
                data, error = encode(pair.frame, value, rank)
                if error is not None:
                    value, self.error = error, error if given else self.error
                together = together and (data is None
                                         or type(value) in (numpy.ndarray, RemoteError))
            if not exchanged:
                pair.frame[ROOM] = together
                self.exchange(pair, partner)
            exchanged = False
            together = bool(together and pair.arriving[ROOM])
            swap = together and data is not None and same_type_and_shape(pair.frame, pair.arriving)
            rest = None if swap or not (together or given) else self.send_rest(data, partner)
            if together or first and not given:
                if not together:
                    value = self.own(value, obj, op)
                elif value is obj and type(obj) in CONTAINERS:
                    value = decode(pair.frame, None, rank)  # the result may share what it contains
                if swap:
                    arrived, into = self.swap(pair, value, partner), numpy.empty_like(value)
                else:
                    arrived = into = self.receive_rest(pair.arriving, partner)
                operands = (value, arrived) if rank < partner else (arrived, value)
                value = self.apply(op, operands[0], operands[1], into)
                # Once together, a group stays so when a rank fails, or the others would be left.
                together = together and (value is into or type(value) is RemoteError
                                         or self.exchangeable(value, op))
            else:
                value = None
            if rest is not None:
                self.wait(rest.Test, partner)
            distance *= 2
        return value, together

    def exchange(self, pair: FramePair | ArrayPair, partner: int) -> None:
        """Exchange the frames, or the arrays, of a pair."""
        if pair.tape is not None:
            pair.tape.run(*pair.addresses)
            return
        pair.batch.start()
        if not pair.batch.test(self.tries):
            self.wait(pair.batch.test, partner)

    def swap(self, pair: FramePair, array: numpy.ndarray, partner: int) -> numpy.ndarray:
        """Exchange arrays of one type and shape; the result is valid until the next exchange."""
        key = partner, type_and_shape(pair.frame)
        parts = self.arrays.get(key)
        if parts is None:
            if len(self.arrays) >= MOST_SHAPES:
                self.drop_arrays()
            parts = self.arrays[key] = self.array_pair(array, partner)
        parts.frame[...] = array
        self.exchange(parts, partner)
        return parts.arriving

    def exchangeable(self, value: Any, op: MPI.Op) -> bool:
        """Tell whether a value that fits into a frame may be combined by every rank for itself."""
        kind = type(value)
        return kind in IMMUTABLE or kind in CONTAINERS or (
            kind is numpy.ndarray and value.nbytes <= SHARED and _ufunc(op) is not None
            and is_plain(value))

    def own(self, value: Any, obj: Any, op: Operator) -> Any:
        """The value, copied if it is the caller's object and the operator may change or keep it."""
        if value is obj and type(obj) not in IMMUTABLE and not (
                type(obj) is numpy.ndarray and _ufunc(op)):
            return copy_of(obj, self.rank)
        return value

    def doubling_scan(self, obj: Any, op: Operator, inclusive: bool) -> Any:
        """Combine the objects of lower ranks by recursive doubling; raises a rank's error."""
        rank = self.rank
        # A function may change its operands, so each value goes into one call only.
        copied = type(op) is not MPI.Op
        total = copy_of(obj, rank)
        result, started = copy_of(total, rank) if copied else total, inclusive
        for distance in (1 << i for i in range((self.size - 1).bit_length())):
            partner = rank ^ distance
            if partner >= self.size:
                continue
            arrived = self.receive(partner, self.begin(total, partner))
            if rank < partner:
                total = self.apply(op, total, arrived)
                continue
            operand = copy_of(arrived, rank) if copied else arrived
            result = self.apply(op, operand, result) if started else operand
            total = self.apply(op, arrived, total)
            started = True
        return self.result(None if rank == 0 and not inclusive else result)

    def result(self, value: Any) -> Any:
        """The value; raises the exception of the rank that could not make it, if there was one."""
        error = value if type(value) is RemoteError else self.error
        if error is not None:
            error.throw(self.rank)
        return value

    def apply(self, op: Operator, left: Any, right: Any, into: Any = None) -> Any:
        """``op(left, right)``, or the error that prevents it.

        The result may take the memory of ``into``, one of the two, whose pages are there already.
        """
        if type(left) is RemoteError or type(right) is RemoteError:
            return left if type(left) is RemoteError else right
        try:
            if (type(into) is type(right) is type(left) is numpy.ndarray
                    and right.dtype is left.dtype and right.shape == left.shape):
                ufunc = _ufunc(op)
                if ufunc is not None and is_plain(into):
                    return ufunc(left, right, out=into)
            return op(left, right)
        except Exception as error:
            return RemoteError(error, self.rank)

    def send(self, value: Any, dest: int) -> None:
        """Send an object to a rank."""
        for test in self.begin(value, dest):
            self.wait(test, dest)

    def begin(self, value: Any, dest: int) -> Sequence[Callable[..., bool]]:
        """Begin to send an object to a rank; it is sent when all returned tests are true."""
        frame, batch = self.channels.get((dest, SEND)) or self.channel(dest, SEND)
        data, error = encode(frame, value, self.rank)
        batch.start()
        if error is not None:
            self.error = error
        rest = self.send_rest(data, dest)
        return (batch.test,) if rest is None else (batch.test, rest.Test)

    def send_rest(self, data: Any, dest: int) -> MPI.Request | None:
        """Begin to send what did not fit into a frame, if there is anything."""
        return None if data is None else self.context.comm.Isend([data, MPI.BYTE], dest, MORE_TAG)

    def receive(self, source: int, sending: Sequence[Callable[..., bool]] = ()) -> Any:
        """Receive an object from a rank, and finish what is being sent to it."""
        frame, batch = self.channels.get((source, RECV)) or self.channel(source, RECV)
        batch.start()
        self.wait(batch.test, source)
        value = self.receive_rest(frame, source)
        for test in sending:
            self.wait(test, source)
        return value

    def receive_rest(self, frame: bytearray, source: int) -> Any:
        """The object of a frame that has arrived; what follows the frame is received first."""
        data = memory_for(frame) if frame[0] == LONG else None
        if data is not None:
            self.wait(self.context.comm.Irecv([data, MPI.BYTE], source, MORE_TAG).Test, source)
        return decode(frame, data, self.rank)

    def channel(self, peer: int, kind: str) -> FrameMessage:
        """Prepare the frame to or from a rank."""
        frame = bytearray(FRAME)
        message = FrameMessage(frame, self.batch((kind, peer, frame)))
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
        return (self.batch((SEND, peer, sent), (RECV, peer, arriving)),
                swap_tape(self.context, peer, (sent, arriving), TAG, partial(self.attend, peer)),
                (MPI.Get_address(sent), MPI.Get_address(arriving)))

    def batch(self, *messages: tuple[str, int, Any]) -> Batch:
        """Prepare messages that move together, by kind, peer and memory."""
        return self.context.endpoint.batch(
            [Posting(kind == SEND, peer, numpy.frombuffer(memory, "u1"))
             for kind, peer, memory in messages], TAG, True)

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
            # The message may still come: its memory, which these hold, must stay.
            self.abandoned.append((test, self.channels, self.pairs, self.arrays))
            self.channels, self.pairs, self.arrays = {}, {}, {}
            self._judge(error)
            raise

    def _judge(self, error: BaseException) -> None:
        """Tell the others of an error; raise what the caller is to get, if it is another one."""
        verdict = self.context.fail(error, self.title, tag=TAG)
        if verdict is not error:
            raise verdict from error

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
    """A frame, and what sends it to or receives it from one rank."""

    frame: bytearray
    batch: Batch


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


def _ufunc(op: Operator) -> numpy.ufunc | None:
    return UFUNCS.get(op.handle) if type(op) is MPI.Op else None
