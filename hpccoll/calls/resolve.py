"""Resolvers: check and normalize the arguments of each collective.

Every function takes the arguments of the mpi4py method of that name, checks them before any message
is sent, and returns a :class:`Call` with the collective, its buffers and their blocks. Calls that
only the native implementation supports raise ``NativeOnly``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import index
from typing import Any

from mpi4py import MPI

from hpccoll.arrays.kernels import check_op, not_an_operator, operator_of
from hpccoll.calls import layouts
from hpccoll.calls.call import Call
from hpccoll.calls.datatypes import element_type
from hpccoll.calls.native import NativeOnly
from hpccoll.calls.specification import (
    Buffer,
    buffer_of,
    check_count,
    is_in_place,
    overlap,
    typed_blocks,
)
from hpccoll.cuda import allocator_like, has_kernel, performer
from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError
from hpccoll.errors.mpi import RootError
from hpccoll.ir.methods import METHODS, TABLE
from hpccoll.machine.limits import LINE


def check_root(root: Any, size: int) -> int:
    """Return the root if it is a rank of the communicator.

    Raises:
        RootError, ArgumentTypeError: it is not a rank.
    """
    try:
        number = None if isinstance(root, bool) else index(root)
    except TypeError:
        number = None
    if number is None:
        raise ArgumentTypeError("root", f"expected a rank, got {root!r}")
    if not 0 <= number < size:
        raise RootError("root", f"{number} is not a rank of 0..{size - 1}")
    return number


def barrier(size: int, rank: int) -> Call:
    """Resolve ``Barrier()``."""
    return Call("barrier", "barrier")


def bcast(size: int, rank: int, buf: Any, root: Any) -> Call:
    """Resolve ``Bcast(buf, root)``: the root's buffer is only read."""
    root = check_root(root, size)
    buffer = buffer_of(buf, "buf", writable=rank != root, raw=True)
    return vector_call("bcast", None, buffer, root=root)


def reduce(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: Any, root: Any) -> Call:
    """Resolve ``Reduce(sendbuf, recvbuf, op, root)``."""
    root = check_root(root, size)
    if rank != root:
        _check_operator(op, "reduce")
        source = buffer_of(sendbuf, "sendbuf")
        _check_op(op, source, "reduce")
        return vector_call("reduce", source, None, op, root)
    return _reduction("reduce", sendbuf, recvbuf, op, root)


def allreduce(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Resolve ``Allreduce(sendbuf, recvbuf, op)``."""
    return _reduction("allreduce", sendbuf, recvbuf, op)


def scan(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Resolve ``Scan(sendbuf, recvbuf, op)``."""
    return _reduction("scan", sendbuf, recvbuf, op)


def exscan(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Resolve ``Exscan(sendbuf, recvbuf, op)``; rank 0's result is not written."""
    return _reduction("exscan", sendbuf, recvbuf, op)


def reduce_scatter_block(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Resolve ``Reduce_scatter_block(sendbuf, recvbuf, op)``."""
    _check_operator(op, "reduce_scatter")
    in_place = is_in_place(sendbuf)
    sink = buffer_of(recvbuf, "recvbuf", writable=True, blocks=size if in_place else None)
    each = sink.count // size if in_place else sink.count
    source = sink if in_place else buffer_of(sendbuf, "sendbuf", blocks=size)
    _same(source, sink, size * each, op, "reduce_scatter")
    return blocks_call("reduce_scatter_block", source, sink, [each] * size,
                   op=op, in_place=in_place)


def reduce_scatter(size: int, rank: int, sendbuf: Any, recvbuf: Any, recvcounts: Any,
                   op: Any) -> Call:
    """Resolve ``Reduce_scatter(sendbuf, recvbuf, recvcounts, op)``.

    Without ``recvcounts`` mpi4py collects the counts of all ranks; the native call does that.
    """
    _check_operator(op, "reduce_scatter")
    in_place = is_in_place(sendbuf)
    if recvcounts is None:
        _check_uncounted(sendbuf, recvbuf, op)
        raise NativeOnly("counts are not known")
    try:
        counts = [check_count(c, "recvcounts") for c in recvcounts]
    except TypeError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentTypeError("recvcounts", f"expected {size} counts, got {recvcounts!r}"
                                ) from None
    if len(counts) != size:
        raise ArgumentError("recvcounts", f"{len(counts)} counts for {size} ranks")
    sink = buffer_of(recvbuf, "recvbuf", writable=True)
    source = sink if in_place else buffer_of(sendbuf, "sendbuf")
    expected = sum(counts) if in_place else counts[rank]
    if sink.count != expected:
        raise ArgumentError("recvbuf", f"has {sink.count} elements, recvcounts has {expected}")
    _same(source, sink, sum(counts), op, "reduce_scatter")
    return blocks_call("reduce_scatter", source, sink, counts, op=op,
                   in_place=in_place)


def _check_uncounted(sendbuf: Any, recvbuf: Any, op: Any) -> None:
    """Raise the errors of a reduce-scatter without counts that do not depend on the counts."""
    if is_in_place(sendbuf):
        raise ArgumentTypeError("recvcounts", "is None, and in-place calls cannot infer the counts",
                                "pass one count per rank")
    sink, source = buffer_of(recvbuf, "recvbuf", writable=True), buffer_of(sendbuf, "sendbuf")
    _same(source, sink, None, op, "reduce_scatter")


def allgather(size: int, rank: int, sendbuf: Any, recvbuf: Any) -> Call:
    """Resolve ``Allgather(sendbuf, recvbuf)``."""
    sink = buffer_of(recvbuf, "recvbuf", writable=True, blocks=size, raw=True)
    return _gather_call("allgather", rank, sendbuf, sink, [sink.count // size] * size, None)


def allgatherv(size: int, rank: int, sendbuf: Any, recvbuf: Any) -> Call:
    """Resolve ``Allgatherv(sendbuf, recvbuf)``."""
    sink = buffer_of(recvbuf, "recvbuf", writable=True, vector=True, blocks=size, raw=True)
    return _gather_call("allgatherv", rank, sendbuf, sink, list(sink.counts), sink.displs)


def gather(size: int, rank: int, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
    """Resolve ``Gather(sendbuf, recvbuf, root)``."""
    root = check_root(root, size)
    if rank != root:
        source = buffer_of(sendbuf, "sendbuf", raw=True)
        return blocks_call("gather", source, None, [source.count] * size, root=root)
    sink = buffer_of(recvbuf, "recvbuf", writable=True, blocks=size, raw=True)
    return _gather_call("gather", rank, sendbuf, sink, [sink.count // size] * size, None, root)


def gatherv(size: int, rank: int, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
    """Resolve ``Gatherv(sendbuf, recvbuf, root)``; only the root has all counts."""
    root = check_root(root, size)
    if rank != root:
        source = buffer_of(sendbuf, "sendbuf", raw=True)
        return _call_with_own_count("gatherv", source, None, source.count, root, rank, size)
    sink = buffer_of(recvbuf, "recvbuf", writable=True, vector=True, blocks=size, raw=True)
    call = _gather_call("gatherv", rank, sendbuf, sink, list(sink.counts), sink.displs, root)
    return call._replace(learn=lambda counts: call._replace(learn=None, shared=True))


def scatter(size: int, rank: int, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
    """Resolve ``Scatter(sendbuf, recvbuf, root)``."""
    root = check_root(root, size)
    if rank != root:
        sink = buffer_of(recvbuf, "recvbuf", writable=True, raw=True)
        return blocks_call("scatter", None, sink, [sink.count] * size, root=root)
    source = buffer_of(sendbuf, "sendbuf", blocks=size, raw=True)
    return _scatter_call("scatter", rank, source, recvbuf, [source.count // size] * size, None,
                         root)


def scatterv(size: int, rank: int, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
    """Resolve ``Scatterv(sendbuf, recvbuf, root)``; only the root has all counts."""
    root = check_root(root, size)
    if rank != root:
        sink = buffer_of(recvbuf, "recvbuf", writable=True, raw=True)
        return _call_with_own_count("scatterv", None, sink, sink.count, root, rank, size)
    source = buffer_of(sendbuf, "sendbuf", vector=True, blocks=size, raw=True)
    call = _scatter_call("scatterv", rank, source, recvbuf, list(source.counts), source.displs,
                         root)
    return call._replace(learn=lambda counts: call._replace(learn=None, shared=True))


def alltoall(size: int, rank: int, sendbuf: Any, recvbuf: Any) -> Call:
    """Resolve ``Alltoall(sendbuf, recvbuf)``."""
    sink = buffer_of(recvbuf, "recvbuf", writable=True, blocks=size, raw=True)
    in_place = is_in_place(sendbuf)
    source = _copy_output(sink) if in_place else buffer_of(sendbuf, "sendbuf", blocks=size,
                                                           raw=True)
    if not in_place:
        _same(source, sink, sink.count)
    each = [sink.count // size] * size
    return pairs_call("alltoall", source, sink, each, each,
                  [source.displs[0] + i * each[0] for i in range(size)],
                  [sink.displs[0] + i * each[0] for i in range(size)],
                  nbytes=sink.count, uniform=True)


def alltoallv(size: int, rank: int, sendbuf: Any, recvbuf: Any) -> Call:
    """Resolve ``Alltoallv(sendbuf, recvbuf)``."""
    sink = buffer_of(recvbuf, "recvbuf", writable=True, vector=True, blocks=size,
                   raw=True)
    in_place = is_in_place(sendbuf)
    source = _copy_output(sink) if in_place else buffer_of(sendbuf, "sendbuf", vector=True,
                                                           blocks=size,
                                                    raw=True)
    if not in_place:
        _same(source, sink, None)
    if source.counts[rank] != sink.counts[rank]:
        expected, given = (_amount(one, one.counts[rank], other)
                           for one, other in ((sink, source), (source, sink)))
        raise ArgumentError("recvbuf", f"expects {expected} from this rank, sendbuf has {given}")
    return pairs_call("alltoallv", source, sink, source.counts, sink.counts, source.displs,
                  sink.displs)


def alltoallw(size: int, rank: int, sendbuf: Any, recvbuf: Any) -> Call:
    """Resolve ``Alltoallw(sendbuf, recvbuf)``: blocks of bytes."""
    sink = typed_blocks(recvbuf, "recvbuf", size, True)
    in_place = is_in_place(sendbuf)
    source = _copy_output(sink) if in_place else typed_blocks(sendbuf, "sendbuf", size, False)
    if not in_place:
        _same(source, sink, None)
    if source.counts[rank] != sink.counts[rank]:
        raise ArgumentError("recvbuf", f"expects {sink.counts[rank]} bytes from this rank, sendbuf "
                                       f"has {source.counts[rank]}")
    return pairs_call("alltoallw", source, sink, source.counts, sink.counts, source.displs,
                  sink.displs)


def _itemsize(buffer: Buffer) -> int:
    """Return the bytes of one element."""
    dtype = element_type(buffer.datatype)
    return buffer.datatype.Get_extent()[1] if dtype is None else dtype.itemsize


def _output_or_input(source: Buffer | None, sink: Buffer | None) -> Buffer:
    """Return the output, or the input if this rank has no output; one of them must exist."""
    one = sink or source
    if one is None:
        raise TypeError("a call without buffers")
    return one


def _reduction(name: str, sendbuf: Any, recvbuf: Any, op: Any, root: int = 0) -> Call:
    _check_operator(op, name)
    in_place = is_in_place(sendbuf)
    sink = buffer_of(recvbuf, "recvbuf", writable=True)
    source = sink if in_place else buffer_of(sendbuf, "sendbuf")
    _same(source, sink, sink.count, op, name)
    return vector_call(name, source, sink, op, root, in_place)


def vector_call(name: str, source: Buffer | None, sink: Buffer | None, op: Any = None,
                root: int = 0, in_place: bool = False) -> Call:
    """Return the call of a method on vectors, resolved."""
    one = _output_or_input(source, sink)
    offsets = ((source or one).displs[0], (sink or one).displs[0])
    unit = LINE if op is None else 1
    return Call(name, name, source, sink, one.datatype, op, root, in_place,
                one.count * _itemsize(one), True, (one.count, offsets),
                lambda s, rank: layouts.vector_layout(s, rank, one.count, in_place, offsets,
                                                   unit))


def blocks_call(name: str, source: Buffer | None, sink: Buffer | None, counts: Sequence[int],
                displs: Sequence[int] | None = None, op: Any = None,
                root: int = 0, in_place: bool = False, nbytes: int | None = 0,
                uniform: bool = True) -> Call:
    """Return the call of a method with a block for every rank, resolved."""
    one, collective = _output_or_input(source, sink), METHODS[name]
    whole, own = (source, sink) if collective in ("reduce_scatter", "scatter") else (sink, source)
    # Displacements are relative to the start of the memory, packed blocks to the first block.
    base = whole.displs[0] if whole and displs is None else 0
    offset = own.displs[0] if own else 0
    uniform = uniform and len(set(counts)) == 1
    if nbytes is not None:
        nbytes = sum(counts) * _itemsize(one)
    return Call(name, collective, source, sink, one.datatype, op, root, in_place, nbytes, uniform,
                (tuple(counts), displs and tuple(displs), base, offset),
                lambda s, rank: layouts.block_layout(s, rank, counts, in_place, displs, base,
                                                     offset),
                nbytes is not None)


def pairs_call(name: str, source: Buffer, sink: Buffer, sent: Sequence[int],
               received: Sequence[int], sdispls: Sequence[int], rdispls: Sequence[int],
               nbytes: int | None = None, uniform: bool = False) -> Call:
    """Return the call of a method with a block for every pair of ranks, resolved."""
    return Call(name, METHODS[name], source, sink, sink.datatype, None, 0, False, nbytes, uniform,
                tuple(map(tuple, (sent, received, sdispls, rdispls))),
                lambda s, rank: layouts.pair_layout(s, rank, sent, received, sdispls, rdispls),
                nbytes is not None)


def _gather_call(name: str, rank: int, sendbuf: Any, sink: Buffer, counts: Sequence[int],
                 displs: Sequence[int] | None, root: int = 0) -> Call:
    in_place = is_in_place(sendbuf)
    source = sink if in_place else buffer_of(sendbuf, "sendbuf", raw=True)
    if not in_place and source.count != counts[rank]:
        raise ArgumentError("sendbuf", f"has {_amount(source, source.count, sink)}, recvbuf "
                                       f"expects {_amount(sink, counts[rank], source)} from this "
                                       "rank")
    _same(source, sink, None)
    known = TABLE[name].counts == "all"
    return blocks_call(name, source, sink, counts, displs, root=root,
                   in_place=in_place, nbytes=0 if known else None, uniform=known)


def _scatter_call(name: str, rank: int, source: Buffer, recvbuf: Any, counts: Sequence[int],
                  displs: Sequence[int] | None, root: int) -> Call:
    in_place = is_in_place(recvbuf)
    sink = source if in_place else buffer_of(recvbuf, "recvbuf", writable=True, raw=True)
    if not in_place and sink.count != counts[rank]:
        raise ArgumentError("recvbuf", f"has {_amount(sink, sink.count, source)}, sendbuf has "
                                       f"{_amount(source, counts[rank], sink)} for this rank")
    _same(source, sink, None)
    known = TABLE[name].counts == "all"
    return blocks_call(name, source, sink, counts, displs, root=root, in_place=in_place,
                   nbytes=0 if known else None, uniform=known)


def _same(source: Buffer, sink: Buffer, count: int | None, op: Any = None,
          collective: str = "") -> None:
    """Raise an error unless input and output match in count, are disjoint, and fit.

    The types of a reduction must match, too. Data that only moves is bytes, of any type.
    """
    if collective and not _same_type(source, sink):
        raise ArgumentError("sendbuf", f"has elements of type {source.dtype}, recvbuf of "
                                       f"{sink.dtype}")
    if source.namespace is not sink.namespace:
        raise NativeOnly("host and device buffers in one call")
    if count is not None and source is not sink and source.count != count:
        raise ArgumentError("sendbuf", f"has {_amount(source, source.count, sink)}, recvbuf "
                                       f"expects {_amount(sink, count, source)}")
    if collective:
        _check_op(op, source, collective)
    if source is not sink and overlap(source, sink):
        raise BufferArgumentError("recvbuf", "overlaps sendbuf",
                                  "pass separate memory, or MPI.IN_PLACE as sendbuf")


def _check_operator(op: Any, collective: str) -> None:
    """Raise an error unless ``op`` is an operator; mpi4py would reject it, too."""
    if not isinstance(op, MPI.Op):
        raise not_an_operator(op, collective)


def _check_op(op: Any, buffer: Buffer, collective: str) -> None:
    """Raise an error unless the operator supports the buffer's elements and memory."""
    if buffer.dtype is None:
        raise NativeOnly("only the MPI library knows elements of this type")
    check_op(op, buffer.dtype, collective)
    if not has_kernel(op, buffer.dtype, buffer.namespace):
        raise NativeOnly("only the MPI library can apply this operator to device memory" + (
            "" if operator_of(op) else "; one of hpccoll.Op.Create(..., device=) has a kernel"))


def _call_with_own_count(name: str, source: Buffer | None, sink: Buffer | None, count: int,
                         root: int,
                         rank: int, size: int) -> Call:
    """Return the call of a rank with only its own count, until it receives the others."""
    def learn(counts: Sequence[int]) -> Call:
        if counts[rank] != count:
            used = _output_or_input(source, sink)
            raise ArgumentError("sendbuf" if source else "recvbuf",
                                f"has {_amount(used, count, used)}, the root has "
                                f"{_amount(used, counts[rank], used)} for this rank")
        return blocks_call(name, source, sink, counts, root=root,
                       uniform=False)

    alone = [count if r == rank else 0 for r in range(size)]
    return blocks_call(name, source, sink, alone, root=root, nbytes=None,
                   uniform=False)._replace(learn=learn)


def _copy_output(sink: Buffer) -> Buffer:
    """Return a copy of the output as the input: an in-place alltoall overwrites its data."""
    if sink.staged is not None:
        return sink._replace(store=None)  # the staged host memory is a copy
    place = allocator_like(sink.array, sink.namespace, partial(sink.namespace.empty, dtype="u1"))
    array, perform = place(sink.array.size), performer(sink.array, sink.namespace)

    def load() -> None:
        if sink.load is not None:
            sink.load(once=True)
        copy = array.__setitem__, (..., sink.array)
        if perform is not None:
            perform([copy])  # the first messages are sent without work before them
        else:
            array[...] = sink.array

    return sink._replace(array=array, load=load, store=None)


def _same_type(one: Buffer, other: Buffer) -> bool:
    """Return True if the elements of two buffers have the same known type."""
    # A float64 dtype equals None: NumPy takes that for its default.
    return one.dtype is not None and other.dtype is not None and one.dtype == other.dtype


def _amount(buffer: Buffer, count: int, other: Buffer) -> str:
    """Return a number of elements as text, for messages.

    In bytes if the elements of the ``other`` buffer, with which it is compared, have another type.
    """
    if buffer.dtype is None or not _same_type(buffer, other):
        return f"{count} bytes"
    raw = buffer.dtype != element_type(buffer.datatype)
    return f"{count // buffer.dtype.itemsize if raw else count} elements"
