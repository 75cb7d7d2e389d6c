"""Post: objects between the ranks of a private communicator, combined on the way.

Every pair of ranks that needs it has frames prepared (:mod:`hpccoll.comm.objects.wire`), which go through
shared memory inside a node. What does not fit into a frame follows it; arrays of one form that two
ranks exchange have memory and messages of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.comm.objects.wire import (
    CONTAINERS,
    FRAME,
    IMMUTABLE,
    LONG,
    ROOM,
    Failure,
    are_alike,
    form_of,
    fresh,
    is_plain,
    landing,
    read,
    write,
)
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.context import OBJECTS_TAG, Context
from hpccoll.runtime.executor import TRIES
from hpccoll.runtime.waiting import Watch
from hpccoll.transport import Batch, Posting

#: Tags on the private communicator, of frames and of what follows them; blocking collectives use
#: lower ones, nonblocking higher ones.
TAG, MORE_TAG = OBJECTS_TAG, OBJECTS_TAG + 1
#: Arrays of up to so many bytes are exchanged, and combined on both sides.
SHARED = 64 << 10
#: Forms of arrays for which exchanges are kept prepared.
MOST_FORMS = 16
#: What the predefined operators do to two arrays of one dtype and shape.
UFUNCS = {MPI.SUM.handle: numpy.add, MPI.PROD.handle: numpy.multiply,
          MPI.BAND.handle: numpy.bitwise_and, MPI.BOR.handle: numpy.bitwise_or,
          MPI.BXOR.handle: numpy.bitwise_xor}

Operator = Callable[[Any, Any], Any]


class ObjectExchange:
    """Sends and receives objects on the private communicator of a state."""

    def __init__(self, context: Context):
        self.context, self.rank, self.size = context, context.rank, context.size
        self.channels: dict[tuple[int, str], FrameMessage] = {}
        self.pairs: dict[int, FramePair] = {}
        #: Memory for arrays to and from a rank, and what exchanges them, by rank and form.
        self.arrays: dict[tuple, tuple[numpy.ndarray, numpy.ndarray, Batch]] = {}
        self.tries = TRIES if context.limits.spins else 1
        self.title, self.peer = "", -1
        self.failure: Failure | None = None

    def combine(self, obj: Any, op: Operator) -> Any:
        """Combine everybody's object along a binomial tree; the result is at rank 0."""
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

    def spread(self, obj: Any, op: MPI.Op) -> tuple[Any, bool]:
        """Combine the objects of a power of two of ranks, and tell whether all have the result.

        Partners at doubling distances exchange frames, and both combine what they hold: groups of
        ranks twice as large hold one value then. What is not small, or of a class of its own,
        only goes to the first rank of the new group, as in :meth:`combine`. That is seen by
        everybody, since every frame says whether its sender's group still holds its value
        together.
        """
        value, rank, distance, together = obj, self.rank, 1, self.exchangeable(obj, op)
        while distance < self.size:
            partner, first = rank ^ distance, not rank % distance
            pair = self.pairs.get(partner) or self.pair(partner)
            data, given = None, first and rank > partner
            if together or given:
                data, failure = write(pair.frame, value, rank)
                if failure is not None:
                    value, self.failure = failure, failure if given else self.failure
                together = together and (data is None or type(value) in (numpy.ndarray, Failure))
            pair.frame[ROOM] = together
            pair.batch.start()
            if not pair.batch.test(self.tries):
                self.wait(pair.batch.test, partner)
            together = bool(together and pair.arriving[ROOM])
            swap = together and data is not None and are_alike(pair.frame, pair.arriving)
            rest = None if swap or not (together or given) else self.send_rest(data, partner)
            if together or first and not given:
                if not together:
                    value = self.own(value, obj, op)
                elif value is obj and type(obj) in CONTAINERS:
                    value = read(pair.frame, None, rank)  # the result may share what it contains
                if swap:
                    arrived, into = self.swap(pair, value, partner), numpy.empty_like(value)
                else:
                    arrived = into = self.receive_rest(pair.arriving, partner)
                operands = (value, arrived) if rank < partner else (arrived, value)
                value = self.apply(op, *operands, into=into)
                # Once together, a group stays so when a rank fails, or the others would be left.
                together = together and (value is into or type(value) is Failure
                                         or self.exchangeable(value, op))
            else:
                value = None
            if rest is not None:
                self.wait(rest.Test, partner)
            distance *= 2
        return value, together

    def swap(self, pair: FramePair, array: numpy.ndarray, partner: int) -> numpy.ndarray:
        """Exchange arrays that are alike; the other one is valid until the next exchange."""
        form = partner, form_of(pair.frame)
        parts = self.arrays.get(form)
        if parts is None:
            if len(self.arrays) >= MOST_FORMS:
                self.drop_arrays()
            mine, other = numpy.empty_like(array), numpy.empty_like(array)
            parts = self.arrays[form] = mine, other, self.batch(
                (SEND, partner, mine.reshape(-1)), (RECV, partner, other.reshape(-1)))
        mine, other, batch = parts
        mine[...] = array
        batch.start()
        if not batch.test(self.tries):
            self.wait(batch.test, partner)
        return other

    def exchangeable(self, value: Any, op: MPI.Op) -> bool:
        """Tell whether a value, if it is small, may be combined by every rank for itself."""
        kind = type(value)
        return kind in IMMUTABLE or kind in CONTAINERS or (
            kind is numpy.ndarray and value.nbytes <= SHARED and _ufunc(op) is not None
            and is_plain(value))

    def own(self, value: Any, obj: Any, op: Operator) -> Any:
        """The value, copied if it is the caller's object and the operator may change or keep it."""
        if value is obj and type(obj) not in IMMUTABLE and not (
                type(obj) is numpy.ndarray and _ufunc(op)):
            return fresh(obj, self.rank)
        return value

    def prefix(self, obj: Any, op: Operator, inclusive: bool) -> Any:
        """Exchange the values of whole groups with partners at doubling distances."""
        rank = self.rank
        # A function may change its operands, so each value goes into one call only.
        own = (lambda value: value) if type(op) is MPI.Op else (lambda value: fresh(value, rank))
        total = fresh(obj, rank)
        result, started = own(total), inclusive
        for distance in (1 << i for i in range((self.size - 1).bit_length())):
            partner = rank ^ distance
            if partner >= self.size:
                continue
            arrived = self.receive(partner, self.begin(total, partner))
            if rank < partner:
                total = self.apply(op, total, arrived)
                continue
            result = self.apply(op, own(arrived), result) if started else own(arrived)
            total = self.apply(op, arrived, total)
            started = True
        return self.result(None if rank == 0 and not inclusive else result)

    def result(self, value: Any) -> Any:
        """The value, unless something failed on the way to it."""
        failure = value if type(value) is Failure else self.failure
        if failure is not None:
            failure.throw(self.rank)
        return value

    def apply(self, op: Operator, left: Any, right: Any, into: Any = None) -> Any:
        """``op(left, right)``, or the failure that prevents it.

        The memory of ``into``, one of them, may be used again for the result: its pages are there.
        """
        if type(left) is Failure or type(right) is Failure:
            return left if type(left) is Failure else right
        try:
            if (type(into) is type(right) is type(left) is numpy.ndarray
                    and right.dtype is left.dtype and right.shape == left.shape):
                ufunc = _ufunc(op)
                if ufunc is not None and is_plain(into):
                    return ufunc(left, right, out=into)
            return op(left, right)
        except Exception as error:
            return Failure(error, self.rank)

    def send(self, value: Any, to: int) -> None:
        """Send an object to a rank."""
        for test in self.begin(value, to):
            self.wait(test, to)

    def begin(self, value: Any, to: int) -> Sequence[Callable[..., bool]]:
        """Begin to send an object to a rank; what has to become true for that to be done."""
        frame, batch = self.channels.get((to, SEND)) or self.channel(to, SEND)
        data, failure = write(frame, value, self.rank)
        batch.start()
        if failure is not None:
            self.failure = failure
        rest = self.send_rest(data, to)
        return (batch.test,) if rest is None else (batch.test, rest.Test)

    def send_rest(self, data: Any, to: int) -> MPI.Request | None:
        """Begin to send what did not fit into a frame, if there is anything."""
        return None if data is None else self.context.comm.Isend([data, MPI.BYTE], to, MORE_TAG)

    def receive(self, frm: int, sending: Sequence[Callable[..., bool]] = ()) -> Any:
        """Receive an object from a rank, and finish what is being sent to it."""
        frame, batch = self.channels.get((frm, RECV)) or self.channel(frm, RECV)
        batch.start()
        self.wait(batch.test, frm)
        value = self.receive_rest(frame, frm)
        for test in sending:
            self.wait(test, frm)
        return value

    def receive_rest(self, frame: bytearray, frm: int) -> Any:
        """The object of a frame that has arrived; what follows the frame is received first."""
        data = landing(frame) if frame[0] == LONG else None
        if data is not None:
            self.wait(self.context.comm.Irecv([data, MPI.BYTE], frm, MORE_TAG).Test, frm)
        return read(frame, data, self.rank)

    def channel(self, peer: int, kind: str) -> FrameMessage:
        """Prepare the frame to or from a rank."""
        frame = bytearray(FRAME)
        made = FrameMessage(frame, self.batch((kind, peer, frame)))
        self.channels[peer, kind] = made
        return made

    def pair(self, peer: int) -> FramePair:
        """Prepare the frames to and from a rank that move together."""
        frame, arriving = bytearray(FRAME), bytearray(FRAME)
        made = FramePair(frame, arriving, self.batch((SEND, peer, frame), (RECV, peer, arriving)))
        self.pairs[peer] = made
        return made

    def batch(self, *messages: tuple[str, int, Any]) -> Batch:
        """Prepare messages that move together, by kind, peer and memory."""
        return self.context.endpoint.batch(
            [Posting(kind == SEND, peer, numpy.frombuffer(memory, "u1"))
             for kind, peer, memory in messages], TAG, True)

    def wait(self, test: Callable[..., bool], peer: int) -> None:
        """Wait for a message.

        Raises:
            CollectiveTimeout: it has not come for ``HPCCOLL_TIMEOUT`` seconds.
        """
        for _ in range(self.tries):
            if test():
                return
        self.peer, config = peer, self.context.config
        watch = Watch(self, config.timeout, config.report, self.context.limits.spins)
        try:
            while not test():
                watch.idle()
        except BaseException:
            # The message may still come: its memory, which these hold, must stay.
            self.context.abandoned += [test, self.channels, self.pairs, self.arrays]
            self.channels, self.pairs, self.arrays = {}, {}, {}
            raise

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers this rank waits for, for messages to people."""
        return 0, (self.peer,)

    def free(self) -> None:
        """Give the prepared messages back."""
        for prepared in (*self.channels.values(), *self.pairs.values()):
            prepared.batch.free()
        self.channels, self.pairs = {}, {}
        self.drop_arrays()

    def drop_arrays(self) -> None:
        """Give the messages back that are prepared for arrays of some forms."""
        for _, _, batch in self.arrays.values():
            batch.free()
        self.arrays = {}


class FrameMessage(NamedTuple):
    """A frame, and what sends it to or receives it from one rank."""

    frame: bytearray
    batch: Batch


class FramePair(NamedTuple):
    """A frame to a rank, one from it, and what moves both."""

    frame: bytearray
    arriving: bytearray
    batch: Batch


def _ufunc(op: Operator) -> numpy.ufunc | None:
    return UFUNCS.get(op.handle) if type(op) is MPI.Op else None
