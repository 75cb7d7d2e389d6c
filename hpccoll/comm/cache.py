"""What a communicator has learnt of its calls: who serves which, and on which arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from numpy import ndarray

_address, _IN_PLACE = MPI.Get_address, MPI.IN_PLACE

#: Methods whose small calls are told by their bytes.
SMALL = "bcast", "reduce", "allreduce", "reduce_scatter_block", "allgather", "alltoall"
#: Bytes, type, operator and ranks where no such calls are known.
NONE_SO_FAR: tuple[int, Any, MPI.Op | None, int] = 0, None, None, 0


class Shape:
    """A call shape that hpccoll serves; equal to itself only."""


class Shapes(dict):
    """What a communicator has learnt of calls: the shape of each, by what it depends on.

    Attributes:
        repeats: by the ``id`` of an output, what was prepared for it last: method, what else the
            call depended on, a test for its arrays, execution.
        below: by method, what small calls the native method serves, as :meth:`small` has noted.
    """

    def __init__(self):
        super().__init__()
        self.repeats: dict[int, tuple] = {}
        self.below = dict.fromkeys(SMALL, NONE_SO_FAR)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.repeats.clear()
        self.below = dict.fromkeys(SMALL, NONE_SO_FAR)

    def small(self, method: str, end: int, dtype: Any, op: MPI.Op | None, size: int) -> None:
        """Note that the native method serves calls below so many bytes, on ``size`` ranks.

        All of them, but only these are known to be good calls: on elements of this type, with this
        operator.
        """
        if end > 1:  # there is more than calls of nothing
            self.below[method] = end, dtype, op, size


#: The shape of all calls that the native method serves.
NATIVE_SHAPE = Shape()


def same_arrays(sendbuf: Any, recvbuf: ndarray) -> Callable[[Any, Any], bool]:
    """Tells whether a call has the same arrays again, in the same form."""
    output, dtype = weakref.ref(recvbuf), recvbuf.dtype
    if sendbuf is _IN_PLACE:
        return lambda source, sink: (output() is sink and source is _IN_PLACE
                                     and sink.dtype is dtype and sink.flags.carray)
    input_, kind = weakref.ref(sendbuf), sendbuf.dtype
    return lambda source, sink: (
        output() is sink and input_() is source and sink.dtype is dtype and source.dtype is kind
        and sink.flags.carray and source.flags.c_contiguous)


def same_memory(sendbuf: Any, recvbuf: ndarray) -> Callable[[Any, Any], bool]:
    """Tells whether a call has arrays of the same form in the same memory again."""
    where, nbytes, dtype = _address(recvbuf), recvbuf.nbytes, recvbuf.dtype
    if sendbuf is _IN_PLACE:
        return lambda source, sink: (
            type(sink) is ndarray and source is _IN_PLACE and sink.dtype is dtype
            and sink.nbytes == nbytes and sink.flags.carray and _address(sink) == where)
    start, size, kind = _address(sendbuf), sendbuf.nbytes, sendbuf.dtype
    return lambda source, sink: (
        type(sink) is ndarray and type(source) is ndarray
        and sink.dtype is dtype and source.dtype is kind
        and sink.nbytes == nbytes and source.nbytes == size
        and sink.flags.carray and source.flags.c_contiguous
        and _address(sink) == where and _address(source) == start)
