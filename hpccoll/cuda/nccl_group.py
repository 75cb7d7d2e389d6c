"""Collectives by NCCL: :func:`join` makes ranks an :class:`NcclGroup`, which queues calls.

A call is queued behind the caller's work on its stream, and before what comes there afterwards.
The host does not wait for it; but NCCL connects in its first calls, which wait on the host until
the peers come. Who may call, and what becomes of work that does not end, is decided above.

The functions of :data:`QUEUES` take a call of :mod:`hpccoll.calls` as MPI has it to what NCCL has:
one count for all blocks, a place of its own for what is in place, and no gather, scatter or
alltoall, which are sends and receives in one group.

:class:`Shares` say which ranks combine what of an allreduce with other nodes:

    nccl+rails     rank 0 | rank 1 | rank 2 | rank 3, and the rest
    nccl+leader    rank 0: all of it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mpi4py import MPI

from hpccoll.arrays.kernels import operator_of
from hpccoll.cuda.nccl import OPERATORS, introduce, nccl_library, obstacle, type_name


class Shares(NamedTuple):
    """Which elements of an allreduce are whose, between its two halves.

    Attributes:
        each: elements of every rank's share, in the order of ranks.
        rest: elements behind all shares.
        owner: the rank that has the rest, too.
    """

    each: int
    rest: int
    owner: int

    @classmethod
    def of(cls, count: int, size: int, leader: bool) -> Shares:
        """Equal shares, the last rank's with what is left over; or all for the first rank.

        >>> Shares.of(10, 4, False), Shares.of(10, 4, True)
        (Shares(each=2, rest=2, owner=3), Shares(each=0, rest=10, owner=0))
        """
        return cls(0, count, 0) if leader else cls(*divmod(count, size), size - 1)

    def elements(self, rank: int) -> range:
        """The elements of a rank's share."""
        return range(rank * self.each, (rank + 1) * self.each + self.rest * (rank == self.owner))


class NcclGroup:
    """One rank's side of an NCCL communicator.

    Args:
        nccl: CuPy's module of NCCL.
        nccl_rank: this rank's NCCL communicator.
        device: the GPU that it is for.

    Attributes:
        rank, size: of this rank, of all of them.
    """

    def __init__(self, nccl: Any, nccl_rank: Any, device: Any):
        self.nccl, self.nccl_rank, self.device = nccl, nccl_rank, device
        self.rank, self.size = nccl_rank.rank_id(), nccl_rank.size()

    def queue(self, call: Any, stream: Any) -> None:
        """Queue a call on a stream of this GPU."""
        one = call.sink or call.source
        if one is not None and one.count:
            with self.device:
                QUEUES[call.name](self, call, stream)

    def scatter_sum(self, call: Any, stream: Any, leader: bool) -> range:
        """Queue the first half of an allreduce: each rank gets the result of its share.

        Shares lie in their place in the result, so that nothing is copied.

        Args:
            call: the allreduce.
            stream: of this GPU.
            leader: whether the first rank's share is all of it.

        Returns:
            Which elements this rank's share is.
        """
        shares = self.shares(call, leader)
        kinds, mine = self.elements(call), shares.elements(self.rank)
        with self.device, self.together():
            if shares.each:
                self.nccl_rank.reduceScatter(at(call.source), at(call.sink, mine.start),
                                             shares.each, *kinds, stream.ptr)
            if shares.rest:
                end = shares.each * self.size
                self.nccl_rank.reduce(at(call.source, end), at(call.sink, end), shares.rest,
                                      *kinds, shares.owner, stream.ptr)
        return mine

    def gather_parts(self, call: Any, stream: Any, leader: bool) -> None:
        """Queue the second half: each rank gets the shares of all."""
        shares = self.shares(call, leader)
        kind, mine = self.elements(call)[0], shares.elements(self.rank)
        with self.device, self.together():
            if shares.each:
                self.nccl_rank.allGather(at(call.sink, mine.start), at(call.sink), shares.each,
                                         kind, stream.ptr)
            if shares.rest:
                end = at(call.sink, shares.each * self.size)
                self.nccl_rank.broadcast(end, end, shares.rest, kind, shares.owner, stream.ptr)

    def shares(self, call: Any, leader: bool) -> Shares:
        """Whose the elements of an allreduce are, between its two halves."""
        return Shares.of(_count(call.sink), self.size, leader)

    def check(self) -> None:
        """Raise what NCCL has found out since the last look, such as a link that is down."""
        self.nccl_rank.check_async_error()

    def abort(self) -> None:
        """End all that is queued, whatever other ranks do; the group is of no use afterwards."""
        self.nccl_rank.abort()

    def free(self) -> None:
        """Give NCCL's resources back; all that was queued has ended."""
        self.nccl_rank.destroy()

    def elements(self, call: Any) -> tuple[int, int]:
        """NCCL's type and operator of a call that reduces."""
        operator = operator_of(call.op) if call.op is not None else None
        if operator is None:
            raise TypeError(f"{call.name} with a user-defined operator")
        return (getattr(self.nccl, type_name(call.dtype) or ""),
                getattr(self.nccl, OPERATORS[operator.name]))

    @property
    def bytes(self) -> int:
        """NCCL's type of what is only moved."""
        return int(self.nccl.NCCL_UINT8)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Calls of NCCL's that are one: none waits for another."""
        self.nccl.groupStart()
        try:
            yield
        finally:
            self.nccl.groupEnd()


def at(buffer: Any, start: int = 0) -> int:
    """The address of an element of a buffer; 0 where this rank has none."""
    if buffer is None:
        return 0
    return int(buffer.array.data.ptr + (buffer.displs[0] + start) * buffer.array.itemsize)


def _allreduce(group: NcclGroup, call: Any, stream: Any) -> None:
    sink, kinds = call.sink, group.elements(call)
    group.nccl_rank.allReduce(at(call.source), at(sink), _count(sink), *kinds, stream.ptr)


def _reduce(group: NcclGroup, call: Any, stream: Any) -> None:
    group.nccl_rank.reduce(at(call.source), at(call.sink), _count(call.source),
                              *group.elements(call), call.root, stream.ptr)


def _bcast(group: NcclGroup, call: Any, stream: Any) -> None:
    where = at(call.sink)
    group.nccl_rank.broadcast(where, where, _count(call.sink), group.bytes, call.root,
                                 stream.ptr)


def _allgather(group: NcclGroup, call: Any, stream: Any) -> None:
    each = _count(call.sink) // group.size
    source = at(call.source, group.rank * each if call.in_place else 0)
    group.nccl_rank.allGather(source, at(call.sink), each, group.bytes, stream.ptr)


def _reduce_scatter(group: NcclGroup, call: Any, stream: Any) -> None:
    each, sink = _count(call.source) // group.size, call.sink
    # In place, NCCL wants the result where this rank's block was, and MPI at the beginning.
    mine = group.rank * each if call.in_place else 0
    group.nccl_rank.reduceScatter(at(call.source), at(sink, mine), each, *group.elements(call),
                                     stream.ptr)
    if mine and sink is not None:
        first = sink.displs[0]
        with stream:
            sink.array[first:first + each] = sink.array[first + mine:first + mine + each]


def _gather(group: NcclGroup, call: Any, stream: Any) -> None:
    with group.together():
        if call.sink is not None:
            each = _count(call.sink) // group.size
            for peer in range(group.size):
                if not (call.in_place and peer == group.rank):
                    group.nccl_rank.recv(at(call.sink, peer * each), each, group.bytes, peer,
                                            stream.ptr)
        if not call.in_place:
            group.nccl_rank.send(at(call.source), _count(call.source), group.bytes, call.root,
                                    stream.ptr)


def _scatter(group: NcclGroup, call: Any, stream: Any) -> None:
    with group.together():
        if call.source is not None:
            each = _count(call.source) // group.size
            for peer in range(group.size):
                if not (call.in_place and peer == group.rank):
                    group.nccl_rank.send(at(call.source, peer * each), each, group.bytes, peer,
                                            stream.ptr)
        if not call.in_place:
            group.nccl_rank.recv(at(call.sink), _count(call.sink), group.bytes, call.root,
                                    stream.ptr)


def _alltoall(group: NcclGroup, call: Any, stream: Any) -> None:
    source, sink = call.source, call.sink
    if source is not None and sink is not None and source.load is not None:
        with stream:  # in place: what is sent has to be out of the way, in memory of this stream
            source = sink._replace(array=sink.array.copy())
    each = _count(sink) // group.size
    with group.together():
        for peer in range(group.size):
            group.nccl_rank.send(at(source, peer * each), each, group.bytes, peer, stream.ptr)
            group.nccl_rank.recv(at(sink, peer * each), each, group.bytes, peer, stream.ptr)


def _count(buffer: Any) -> int:
    return int(buffer.count) if buffer is not None else 0


#: What queues the calls of a method.
QUEUES: Mapping[str, Callable[[NcclGroup, Any, Any], None]] = {
    "allreduce": _allreduce, "reduce": _reduce, "bcast": _bcast, "allgather": _allgather,
    "reduce_scatter_block": _reduce_scatter, "alltoall": _alltoall, "gather": _gather,
    "scatter": _scatter}


def join(whole: MPI.Intracomm, part: MPI.Intracomm, device: Any, meet: Callable[[bool], None]
         ) -> NcclGroup | str:
    """Make an NCCL communicator of the ranks of ``part``; collective over ``whole``.

    Args:
        whole: who has to agree: all of them make one, or nobody does.
        part: the ranks of this one.
        device: the GPU of this rank.
        meet: waits until all ranks of ``whole`` are done with connecting, not for long where this
            one has failed: NCCL lets none go while one has failed before it came.

    Returns:
        The group; or why there is none, the same on all ranks of ``whole``.
    """
    why_not = obstacle(whole.allgather(introduce(device)))
    if why_not:
        return why_not
    nccl, group, problem, number = nccl_library(), None, "", None
    try:
        number = nccl.get_unique_id() if part.Get_rank() == 0 else None
    except Exception as error:
        problem = _told(error)
    number = part.bcast(number)
    try:
        if number is not None:
            with device:
                group = NcclGroup(nccl, nccl.NcclCommunicator(
                    part.Get_size(), number, part.Get_rank()), device)
    except Exception as error:
        problem = _told(error)
    try:
        meet(bool(problem))
    except BaseException:
        if group is not None:
            group.abort()
        raise
    failed = [(rank, told) for rank, (made, told) in enumerate(
        whole.allgather((group is not None, problem))) if not made]
    if group is not None and not failed:
        return group
    if group is not None:
        group.abort()
    rank, told = next((one for one in failed if one[1]), failed[0])
    return f"rank {rank}: {told or 'it has got no NCCL communicator'}"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
