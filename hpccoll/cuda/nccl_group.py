"""Collectives by NCCL: :func:`join` creates an :class:`NcclGroup`, which queues calls.

A call is queued on the caller's stream, after earlier and before later work. The host does not wait
for it, but NCCL connects in its first calls, which block the host until the peers call too. Callers
of this module control access, and handle work that does not complete.

The functions of :data:`QUEUES` convert a call of :mod:`hpccoll.calls` from MPI's form to NCCL's:
one count for all blocks, and other addresses for in-place data. NCCL has no gather, scatter,
alltoall or blocks of different sizes: these are sends and receives in one group.

:class:`Shares` divides an allreduce between the ranks that combine it with other nodes:

    nccl+rails     rank 0 | rank 1 | rank 2 | rank 3, and the rest
    nccl+leader    rank 0: all elements
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mpi4py import MPI

from hpccoll.arrays.kernels import operator_of
from hpccoll.cuda.nccl import OPERATORS, introduce, nccl_library, obstacle, type_name

#: Address and bytes of the memory for each rank.
Transfers = Mapping[int, tuple[int, int]]


class Shares(NamedTuple):
    """Division of the elements of an allreduce between ranks, between its two halves.

    Attributes:
        each: elements of every rank's share, in the order of ranks.
        rest: elements after all shares.
        owner: the rank that also has the rest.
    """

    each: int
    rest: int
    owner: int

    @classmethod
    def of(cls, count: int, size: int, leader: bool) -> Shares:
        """Return equal shares, with the rest for the last rank; or all for the first rank.

        >>> Shares.of(10, 4, False), Shares.of(10, 4, True)
        (Shares(each=2, rest=2, owner=3), Shares(each=0, rest=10, owner=0))
        """
        return cls(0, count, 0) if leader else cls(*divmod(count, size), size - 1)

    def elements(self, rank: int) -> range:
        """Return the elements of a rank's share."""
        return range(rank * self.each, (rank + 1) * self.each + self.rest * (rank == self.owner))


class NcclGroup:
    """NCCL communicator of one rank.

    Args:
        nccl: CuPy's module of NCCL.
        nccl_rank: this rank's NCCL communicator.
        device: its GPU.

    Attributes:
        rank, size: this rank and the number of ranks.
    """

    def __init__(self, nccl: Any, nccl_rank: Any, device: Any):
        self.nccl, self.nccl_rank, self.device = nccl, nccl_rank, device
        self.rank, self.size = nccl_rank.rank_id(), nccl_rank.size()

    def queue(self, call: Any, stream: Any) -> None:
        """Queue a call on a stream of this GPU."""
        if any(one is not None and one.count for one in (call.source, call.sink)):
            with self.device:
                QUEUES[call.name](self, call, stream)

    def scatter_sum(self, call: Any, stream: Any, leader: bool) -> range:
        """Queue the first half of an allreduce: each rank gets the result of its share.

        Shares are at their final addresses in the result, so that nothing is copied.

        Args:
            call: the allreduce.
            stream: a stream of this GPU.
            leader: True if the first rank's share is the whole vector.

        Returns:
            The elements of this rank's share.
        """
        shares = self.shares(call, leader)
        kinds, mine = self.elements(call), shares.elements(self.rank)
        with self.device, self.group_calls():
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
        with self.device, self.group_calls():
            if shares.each:
                self.nccl_rank.allGather(at(call.sink, mine.start), at(call.sink), shares.each,
                                         kind, stream.ptr)
            if shares.rest:
                end = at(call.sink, shares.each * self.size)
                self.nccl_rank.broadcast(end, end, shares.rest, kind, shares.owner, stream.ptr)

    def shares(self, call: Any, leader: bool) -> Shares:
        """Return the division of an allreduce between its two halves."""
        return Shares.of(_count(call.sink), self.size, leader)

    def check(self) -> None:
        """Raise asynchronous errors of NCCL since the last check, such as a broken link."""
        self.nccl_rank.check_async_error()

    def abort(self) -> None:
        """Abort all queued work, independent of other ranks; the group is then unusable."""
        self.nccl_rank.abort()

    def free(self) -> None:
        """Free NCCL's resources; all queued work must have completed."""
        self.nccl_rank.destroy()

    def elements(self, call: Any) -> tuple[int, int]:
        """Return NCCL's type and operator of a reduction."""
        operator = operator_of(call.op) if call.op is not None else None
        if operator is None:
            raise TypeError(f"{call.name} with a user-defined operator")
        return (getattr(self.nccl, type_name(call.dtype) or ""),
                getattr(self.nccl, OPERATORS[operator.name]))

    @property
    def bytes(self) -> int:
        """Return NCCL's type for data that is only moved."""
        return int(self.nccl.NCCL_UINT8)

    @contextmanager
    def group_calls(self) -> Iterator[None]:
        """Group NCCL calls, so that none waits for another."""
        self.nccl.groupStart()
        try:
            yield
        finally:
            self.nccl.groupEnd()


def at(buffer: Any, start: int = 0) -> int:
    """Return the address of an element of a buffer; 0 without a buffer."""
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
    # In place, NCCL writes the result at this rank's block, and MPI at the start of the buffer.
    mine = group.rank * each if call.in_place else 0
    group.nccl_rank.reduceScatter(at(call.source), at(sink, mine), each, *group.elements(call),
                                  stream.ptr)
    if mine and sink is not None:
        first = sink.displs[0]
        with stream:
            sink.array[first:first + each] = sink.array[first + mine:first + mine + each]


def _gather(group: NcclGroup, call: Any, stream: Any) -> None:
    _exchange(group, stream, _whole(call.source, [call.root]), _blocks(call.sink, group.size),
              group.rank if call.in_place else None)


def _scatter(group: NcclGroup, call: Any, stream: Any) -> None:
    _exchange(group, stream, _blocks(call.source, group.size), _whole(call.sink, [call.root]),
              group.rank if call.in_place else None)


def _allgatherv(group: NcclGroup, call: Any, stream: Any) -> None:
    blocks, everyone = _blocks(call.sink, group.size), range(group.size)
    mine = (dict.fromkeys(everyone, blocks[group.rank]) if call.in_place
            else _whole(call.source, everyone))
    _exchange(group, stream, mine, blocks, group.rank if call.in_place else None)


def _alltoall(group: NcclGroup, call: Any, stream: Any) -> None:
    source, sink = call.source, call.sink
    if source is not None and sink is not None and source.load is not None:
        with stream:  # in place: the sent data needs separate memory, of this stream
            source = sink._replace(array=sink.array.copy())
    _exchange(group, stream, _blocks(source, group.size), _blocks(sink, group.size))


def _exchange(group: NcclGroup, stream: Any, sends: Transfers, receives: Transfers,
              skipped: int | None = None) -> None:
    """Queue sends and receives as one group, except empty ones and those of the rank ``skipped``.

    NCCL would transfer empty messages as well, to synchronize.
    """
    with group.group_calls():
        for peer in range(group.size):
            for transfer, blocks in ((group.nccl_rank.send, sends),
                                     (group.nccl_rank.recv, receives)):
                address, count = blocks.get(peer, (0, 0))
                if count and peer != skipped:
                    transfer(address, count, group.bytes, peer, stream.ptr)


def _blocks(buffer: Any, size: int) -> Transfers:
    """Return the blocks of a buffer by rank: equal ones unless it has a count for each."""
    if buffer is None:
        return {}
    if len(buffer.counts) == size:
        return {rank: (at(buffer, displ - buffer.displs[0]), count)
                for rank, (count, displ) in enumerate(zip(buffer.counts, buffer.displs,
                                                          strict=True))}
    each = _count(buffer) // size
    return {rank: (at(buffer, rank * each), each) for rank in range(size)}


def _whole(buffer: Any, peers: Iterable[int]) -> Transfers:
    """Return the whole of a buffer of one block for each of the peers."""
    return {} if buffer is None else dict.fromkeys(peers, (at(buffer), _count(buffer)))


def _count(buffer: Any) -> int:
    return int(buffer.count) if buffer is not None else 0


#: Functions that queue calls, by method.
QUEUES: Mapping[str, Callable[[NcclGroup, Any, Any], None]] = {
    "allreduce": _allreduce, "reduce": _reduce, "bcast": _bcast, "allgather": _allgather,
    "reduce_scatter_block": _reduce_scatter, "allgatherv": _allgatherv,
    **dict.fromkeys(("alltoall", "alltoallv", "alltoallw"), _alltoall),
    **dict.fromkeys(("gather", "gatherv"), _gather),
    **dict.fromkeys(("scatter", "scatterv"), _scatter)}


def join(whole: MPI.Intracomm, part: MPI.Intracomm, device: Any, meet: Callable[[bool], None]
         ) -> NcclGroup | str:
    """Create an NCCL communicator of the ranks of ``part``; collective over ``whole``.

    Args:
        whole: ranks that must agree: all of them create one, or none.
        part: the ranks of this communicator.
        device: the GPU of this rank.
        meet: waits until all ranks of ``whole`` have connected, only briefly if this one has
            failed: NCCL blocks the others forever after a rank has failed to connect.

    Returns:
        The group; or an error text, the same on all ranks of ``whole``.
    """
    why_not = obstacle(whole.allgather(introduce(device)))
    if why_not:
        return why_not
    nccl, group, problem, number = nccl_library(), None, "", None
    try:
        number = nccl.get_unique_id() if part.Get_rank() == 0 else None
    except Exception as error:
        problem = _error_text(error)
    number = part.bcast(number)
    try:
        if number is not None:
            with device:
                group = NcclGroup(nccl, nccl.NcclCommunicator(
                    part.Get_size(), number, part.Get_rank()), device)
    except Exception as error:
        problem = _error_text(error)
    try:
        meet(bool(problem))
    except BaseException:
        if group is not None:
            group.abort()
        raise
    failed = [(rank, problem) for rank, (made, problem) in enumerate(
        whole.allgather((group is not None, problem))) if not made]
    if group is not None and not failed:
        return group
    if group is not None:
        group.abort()
    rank, problem = next((one for one in failed if one[1]), failed[0])
    return f"rank {rank}: {problem or 'it has got no NCCL communicator'}"


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
