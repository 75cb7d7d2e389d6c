"""Collectives by NCCL: :func:`join` makes ranks an :class:`NcclGroup`, which queues calls.

A call is queued behind the caller's work on its stream, and before what comes there afterwards.
The host does not wait for it; but NCCL connects in its first calls, which wait on the host until
the peers come. Who may call, and what becomes of work that does not end, is decided above.

The functions of :data:`QUEUES` take a call as MPI has it to what NCCL has: one count for all
blocks, a place of its own for what is in place, and no gather, scatter or alltoall, which are sends
and receives in one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from hpccoll.arrays.kernels import operator_of
from hpccoll.arrays.nccl import OPERATORS, library, type_name
from hpccoll.arrays.nccl_members import introduce, obstacle
from hpccoll.calls.call import Call
from hpccoll.calls.specification import Buffer


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

    def queue(self, call: Call, stream: Any) -> None:
        """Queue a call on a stream of this GPU."""
        one = call.sink or call.source
        if one is not None and one.count:
            with self.device:
                QUEUES[call.name](self, call, stream)

    def scatter_sum(self, call: Call, stream: Any) -> range:
        """Queue the first half of an allreduce: each rank gets the result of a part.

        Parts are equal, and the last rank has what is left over, so that nothing is copied.

        Returns:
            Which elements this rank's part is.
        """
        each, rest = divmod(_count(call.sink), self.size)
        kinds, last, mine = self.elements(call), self.size - 1, self.rank * each
        with self.device, self.together():
            if each:
                self.nccl_rank.reduceScatter(at(call.source), at(call.sink, mine), each, *kinds,
                                             stream.ptr)
            if rest:
                end = each * self.size
                self.nccl_rank.reduce(at(call.source, end), at(call.sink, end), rest, *kinds, last,
                                      stream.ptr)
        return range(mine, mine + each + rest * (self.rank == last))

    def gather_parts(self, call: Call, stream: Any) -> None:
        """Queue the second half: each rank gets the parts of all."""
        each, rest = divmod(_count(call.sink), self.size)
        kind, last, mine = self.elements(call)[0], self.size - 1, self.rank * each
        with self.device, self.together():
            if each:
                self.nccl_rank.allGather(at(call.sink, mine), at(call.sink), each, kind, stream.ptr)
            if rest:
                end = at(call.sink, each * self.size)
                self.nccl_rank.broadcast(end, end, rest, kind, last, stream.ptr)

    def check(self) -> None:
        """Raise what NCCL has found out since the last look, such as a link that is down."""
        self.nccl_rank.check_async_error()

    def abort(self) -> None:
        """End all that is queued, whatever other ranks do; the group is of no use afterwards."""
        self.nccl_rank.abort()

    def free(self) -> None:
        """Give NCCL's resources back; all that was queued has ended."""
        self.nccl_rank.destroy()

    def elements(self, call: Call) -> tuple[int, int]:
        """NCCL's type and operator of a call that reduces."""
        operator = operator_of(call.op) if call.op is not None else None
        if operator is None:
            raise TypeError(f"{call.name} with an operator of the program's")
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


def at(buffer: Buffer | None, start: int = 0) -> int:
    """The address of an element of a buffer; 0 where this rank has none."""
    if buffer is None:
        return 0
    return int(buffer.array.data.ptr + (buffer.displs[0] + start) * buffer.array.itemsize)


def _allreduce(group: NcclGroup, call: Call, stream: Any) -> None:
    sink, kinds = call.sink, group.elements(call)
    group.nccl_rank.allReduce(at(call.source), at(sink), _count(sink), *kinds, stream.ptr)


def _reduce(group: NcclGroup, call: Call, stream: Any) -> None:
    group.nccl_rank.reduce(at(call.source), at(call.sink), _count(call.source),
                              *group.elements(call), call.root, stream.ptr)


def _bcast(group: NcclGroup, call: Call, stream: Any) -> None:
    where = at(call.sink)
    group.nccl_rank.broadcast(where, where, _count(call.sink), group.bytes, call.root,
                                 stream.ptr)


def _allgather(group: NcclGroup, call: Call, stream: Any) -> None:
    each = _count(call.sink) // group.size
    source = at(call.source, group.rank * each if call.in_place else 0)
    group.nccl_rank.allGather(source, at(call.sink), each, group.bytes, stream.ptr)


def _reduce_scatter(group: NcclGroup, call: Call, stream: Any) -> None:
    each, sink = _count(call.source) // group.size, call.sink
    # In place, NCCL wants the result where this rank's block was, and MPI at the beginning.
    mine = group.rank * each if call.in_place else 0
    group.nccl_rank.reduceScatter(at(call.source), at(sink, mine), each, *group.elements(call),
                                     stream.ptr)
    if mine and sink is not None:
        first = sink.displs[0]
        with stream:
            sink.array[first:first + each] = sink.array[first + mine:first + mine + each]


def _gather(group: NcclGroup, call: Call, stream: Any) -> None:
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


def _scatter(group: NcclGroup, call: Call, stream: Any) -> None:
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


def _alltoall(group: NcclGroup, call: Call, stream: Any) -> None:
    source, sink = call.source, call.sink
    if source is not None and sink is not None and source.load is not None:
        with stream:  # in place: what is sent has to be out of the way, in memory of this stream
            source = sink._replace(array=sink.array.copy())
    each = _count(sink) // group.size
    with group.together():
        for peer in range(group.size):
            group.nccl_rank.send(at(source, peer * each), each, group.bytes, peer, stream.ptr)
            group.nccl_rank.recv(at(sink, peer * each), each, group.bytes, peer, stream.ptr)


def _count(buffer: Buffer | None) -> int:
    return int(buffer.count) if buffer is not None else 0


#: What queues the calls of a method.
QUEUES: Mapping[str, Callable[[NcclGroup, Call, Any], None]] = {
    "allreduce": _allreduce, "reduce": _reduce, "bcast": _bcast, "allgather": _allgather,
    "reduce_scatter_block": _reduce_scatter, "alltoall": _alltoall, "gather": _gather,
    "scatter": _scatter}


def join(whole: MPI.Intracomm, part: MPI.Intracomm, device: Any, meet: Callable[[], None]
         ) -> NcclGroup | str:
    """Make an NCCL communicator of the ranks of ``part``; collective over ``whole``.

    Args:
        whole: who has to agree: all of them make one, or nobody does.
        part: the ranks of this one.
        device: the GPU of this rank.
        meet: waits, with bounds, until all ranks of ``whole`` are done with connecting: NCCL lets
            none go while one has failed before it came.

    Returns:
        The group; or why there is none, the same on all ranks of ``whole``.
    """
    why_not = obstacle(whole.allgather(introduce(device)))
    if why_not:
        return why_not
    nccl, group, problem, number = library(), None, "", None
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
        meet()
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
