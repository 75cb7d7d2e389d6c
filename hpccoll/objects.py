"""The lower-case collectives of mpi4py that combine or share Python objects.

``bcast``, ``reduce``, ``allreduce``, ``scan`` and ``exscan`` use messages that describe
themselves (:mod:`hpccoll.parcel`), so no rank needs to know beforehand what the others pass.
Values are combined by calling ``op`` in the order in which mpi4py does, so results are the same
to the last bit: ``reduce`` along a binomial tree to rank 0 (source: mpi4py), lower ranks on the
left; ``scan`` and ``exscan`` by recursive doubling. On a power of two of ranks, that combines the
numbers of an ``allreduce`` as the tree does, but on all ranks at once.

Two things differ from mpi4py. Arrays are not pickled. And an exception in ``op``, or in pickling,
on one rank is raised on every rank whose result depends on it, where mpi4py leaves them waiting.

The other lower-case methods, and all of them on one rank, are mpi4py's own.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import numpy
from mpi4py import MPI

from hpccoll.calls import check_root
from hpccoll.errors import ArgumentTypeError
from hpccoll.parcel import (
    FRAME, IMMUTABLE, LONG, ROOM, Failure, fresh, is_plain, landing, read, write)
from hpccoll.private import State
from hpccoll.run import SPINS, Watch

#: Tag on the private communicator; blocking collectives use lower ones, nonblocking higher ones.
TAG = 15
#: What the predefined operators do to two arrays of one dtype and shape.
UFUNCS = {MPI.SUM.handle: numpy.add, MPI.PROD.handle: numpy.multiply,
          MPI.BAND.handle: numpy.bitwise_and, MPI.BOR.handle: numpy.bitwise_or,
          MPI.BXOR.handle: numpy.bitwise_xor}

Operator = Callable[[Any, Any], Any]


class Objects:
    """Mixin: the lower-case collectives. Mixed into subclasses of ``MPI.Intracomm``."""

    _frame: bytearray | None = None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Send the root's object to every rank."""
        self._check_alive()
        size = self.Get_size()
        if type(root) is not int or not 0 <= root < size:
            root = check_root(root, size)
        return self._share(obj, root, False) if size > 1 else super().bcast(obj, root)

    def reduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM, root: int = 0) -> Any:
        """Combine every rank's object at the root; elsewhere the result is ``None``."""
        post = self._post(op, "reduce")
        root = check_root(root, self.Get_size())
        if post is None:
            return super().reduce(sendobj, op, root)
        value = post.combine(sendobj, op)
        if root:
            if post.rank == 0:
                post.send(value, root)
            elif post.rank == root:
                value = post.receive(0)
        return post.result(value if post.rank == root else None)

    def allreduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine every rank's object on every rank."""
        post = self._post(op, "allreduce")
        if post is None:
            return super().allreduce(sendobj, op)
        # Ranks that share processors pay for every message that wakes one up.
        if (post.size & (post.size - 1) or post.state.crowded
                or not (isinstance(op, MPI.Op) and op.is_predefined)):
            return self._share(post.combine(sendobj, op), 0, True)
        value, everywhere = post.spread(sendobj, op)
        return value if everywhere else self._share(value, 0, True)

    def scan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine the objects of ranks 0 to this one."""
        post = self._post(op, "scan")
        return super().scan(sendobj, op) if post is None else post.prefix(sendobj, op, True)

    def exscan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine the objects of the ranks before this one; ``None`` on rank 0."""
        post = self._post(op, "exscan")
        return super().exscan(sendobj, op) if post is None else post.prefix(sendobj, op, False)

    # -- how they are served -----------------------------------------------------------------
    def _post(self, op: Any, name: str) -> Post | None:
        """What carries the messages of a reduction; ``None`` on one rank.

        Raises:
            ArgumentTypeError: the operator cannot be called.
        """
        self._check_alive()
        if not callable(op):
            raise ArgumentTypeError("op", f"expected an MPI.Op or a function, got {op!r}")
        if self.Get_size() == 1:
            return None
        state = self._private()
        if state.post is None:
            state.post = Post(state)
        state.post.title, state.post.failure = f"{name} of objects", None
        return state.post

    def _share(self, obj: Any, root: int, owned: bool) -> Any:
        """Send the root's object to every rank.

        The root gets a copy, as with mpi4py, unless the object is ours (``owned``).
        """
        native, rank = MPI.Intracomm.Bcast, self.Get_rank()
        frame = self._frame
        if frame is None:
            frame = self._frame = bytearray(FRAME)
        if rank != root:
            native(self, [frame, FRAME, MPI.BYTE], root)
            data = landing(frame) if frame[0] == LONG else None
            if data is not None:
                native(self, [data, MPI.BYTE], root)
            value = read(frame, data, rank)
            if type(value) is Failure:
                value.throw(rank)
            return value
        data, failure = write(frame, obj, rank)
        native(self, [frame, FRAME, MPI.BYTE], root)
        if data is not None:
            native(self, [data, MPI.BYTE], root)
        if failure is not None:
            failure.throw(rank)
        if type(obj) in IMMUTABLE or owned and data is obj:
            return obj
        value = read(frame, data, rank)
        return value.copy() if value is obj else value


class Post:
    """Sends and receives objects on the private communicator of a state."""

    def __init__(self, state: State):
        self.state, self.rank, self.size = state, state.rank, state.size
        self.channels: dict[tuple[int, bool], Channel] = {}
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
                value = self.apply(op, self.own(value, obj, op), arrived, reuse=True)
            mask *= 2
        return value

    def spread(self, obj: Any, op: MPI.Op) -> tuple[Any, bool]:
        """Combine the objects of a power of two of ranks, and tell whether all have the result.

        Partners at doubling distances exchange frames, and both combine what they hold: groups of
        ranks twice as large hold one value then. What is not small, or can change, only goes to
        the first rank of the new group, as in :meth:`combine`. That is seen by everybody, since
        every frame says whether its sender's group still holds its value together.
        """
        value, rank, distance, together = obj, self.rank, 1, type(obj) in IMMUTABLE
        while distance < self.size:
            partner, first = rank ^ distance, not rank % distance
            frame, request = self.channels.get((partner, True)) or self.channel(partner, True)
            data, given = None, first and rank > partner
            if together or given:
                data, failure = write(frame, value, rank)
                self.failure = failure if given and failure is not None else self.failure
            frame[ROOM] = together = together and data is None
            request.Start()
            rest = (self.state.comm.Isend([data, MPI.BYTE], partner, TAG)
                    if given and data is not None else None)
            frame, arriving = self.channels.get((partner, False)) or self.channel(partner, False)
            arriving.Start()
            self.wait(arriving, partner)
            self.wait(request, partner)
            if rest is not None:
                self.wait(rest, partner)
            if together and frame[ROOM]:
                operands = value, read(frame, None, rank)
                value = self.apply(op, *(operands if rank < partner else operands[::-1]))
                together = type(value) in IMMUTABLE
            elif first and not given:
                follows = landing(frame) if frame[0] == LONG else None
                if follows is not None:
                    self.wait(self.state.comm.Irecv([follows, MPI.BYTE], partner, TAG), partner)
                together, value = False, self.apply(
                    op, self.own(value, obj, op), read(frame, follows, rank), reuse=True)
            else:
                together, value = False, None
            distance *= 2
        return value, together

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

    def apply(self, op: Operator, left: Any, right: Any, reuse: bool = False) -> Any:
        """``op(left, right)``, or the failure that prevents it.

        The memory of ``right`` may be used again for the result (``reuse``): its pages are there.
        """
        if type(left) is Failure or type(right) is Failure:
            return left if type(left) is Failure else right
        try:
            if (reuse and type(right) is type(left) is numpy.ndarray and _ufunc(op)
                    and right.dtype is left.dtype and right.shape == left.shape
                    and is_plain(left) and is_plain(right)):
                return _ufunc(op)(left, right, out=right)
            return op(left, right)
        except Exception as error:
            return Failure(error, self.rank)

    def send(self, value: Any, to: int) -> None:
        """Send an object to a rank."""
        for request in self.begin(value, to):
            self.wait(request, to)

    def begin(self, value: Any, to: int) -> Sequence[MPI.Request]:
        """Begin to send an object to a rank."""
        frame, request = self.channels.get((to, True)) or self.channel(to, True)
        data, failure = write(frame, value, self.rank)
        request.Start()
        if failure is not None:
            self.failure = failure
        if data is None:
            return (request,)
        return request, self.state.comm.Isend([data, MPI.BYTE], to, TAG)

    def receive(self, frm: int, sending: Sequence[MPI.Request] = ()) -> Any:
        """Receive an object from a rank, and finish what is being sent to it."""
        frame, request = self.channels.get((frm, False)) or self.channel(frm, False)
        request.Start()
        self.wait(request, frm)
        data = landing(frame) if frame[0] == LONG else None
        if data is not None:
            self.wait(self.state.comm.Irecv([data, MPI.BYTE], frm, TAG), frm)
        for request in sending:
            self.wait(request, frm)
        return read(frame, data, self.rank)

    def channel(self, peer: int, sending: bool) -> Channel:
        """Prepare the frame to or from a rank."""
        frame = bytearray(FRAME)
        init = self.state.comm.Send_init if sending else self.state.comm.Recv_init
        made = Channel(frame, init([frame, FRAME, MPI.BYTE], peer, TAG))
        self.channels[peer, sending] = made
        return made

    def wait(self, request: MPI.Request, peer: int) -> None:
        """Wait for a message.

        Raises:
            CollectiveTimeout: it has not come for ``HPCCOLL_TIMEOUT`` seconds.
        """
        test = request.Test
        for _ in range(SPINS):
            if test():
                return
        self.peer, config = peer, self.state.config
        watch = Watch(self, config.timeout, config.report)
        try:
            while not test():
                watch.idle()
        except BaseException:
            # The message may still come: its memory, which the request holds, must stay.
            self.state.abandoned += [request, self.channels]
            self.channels = {}
            raise

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers this rank waits for, for messages to people."""
        return 0, (self.peer,)

    def free(self) -> None:
        """Give the prepared messages back."""
        for channel in self.channels.values():
            channel.request.Free()
        self.channels = {}


class Channel(NamedTuple):
    """A frame and its persistent message to or from one rank."""

    frame: bytearray
    request: MPI.Prequest


def _ufunc(op: Operator) -> numpy.ufunc | None:
    return UFUNCS.get(op.handle) if type(op) is MPI.Op else None
