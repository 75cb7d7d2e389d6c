"""Small calls: told by their bytes, before anything else is looked at (decision 0024).

Below some number of bytes *every* call of a method is the MPI library's. For the six most common
methods a test says whether a call is such a one: of arrays that own their memory, with elements of the type
and with the operator of a call that was checked before. Everything else goes the usual way, and so
does what is wrong with a call.

A test is a closure over its limits, and the largest part of what hpccoll adds to the smallest calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI
from numpy import ndarray

#: ``test(*arguments)`` of a method.
Test = Callable[..., bool]


def never(*args: Any) -> bool:
    """No call is known to be small."""
    return False


def bcast(end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int) -> Test:
    """The test of ``Bcast(buf, root)``."""
    def small(buf: Any, root: Any) -> bool:
        return (type(buf) is ndarray and buf.nbytes < end and buf.dtype is dtype
                and buf.base is None and type(root) is int and 0 <= root < size)
    return small


def reduce(end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int) -> Test:
    """The test of ``Reduce(sendbuf, recvbuf, op, root)``."""
    def small(sendbuf: Any, recvbuf: Any, given: Any, root: Any) -> bool:
        return (type(sendbuf) is ndarray and sendbuf.nbytes < end and sendbuf.dtype is dtype
                and given is op and type(root) is int and 0 <= root < size
                and sendbuf.base is None
                and (recvbuf is None or type(recvbuf) is ndarray
                     and recvbuf.nbytes == sendbuf.nbytes and recvbuf.dtype is dtype
                     and recvbuf.base is None and recvbuf is not sendbuf))
    return small


def allreduce(end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int) -> Test:
    """The test of ``Allreduce(sendbuf, recvbuf, op)``."""
    return _reduction(end, dtype, op, 1)


def reduce_scatter_block(end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int) -> Test:
    """The test of ``Reduce_scatter_block(sendbuf, recvbuf, op)``."""
    return _reduction(end, dtype, op, size)


def allgather(end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int) -> Test:
    """The test of ``Allgather(sendbuf, recvbuf)``."""
    return _exchange(end, dtype, size, size)


def alltoall(end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int) -> Test:
    """The test of ``Alltoall(sendbuf, recvbuf)``."""
    return _exchange(end, dtype, 1, size)


def _reduction(end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, parts: int) -> Test:
    """Of what goes in, one of so many ``parts`` comes out."""
    def small(sendbuf: Any, recvbuf: Any, given: Any) -> bool:
        return (type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and recvbuf.nbytes * parts == sendbuf.nbytes < end and sendbuf.dtype is dtype
                and recvbuf.dtype is dtype and given is op and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf)
    return small


def _exchange(end: int, dtype: numpy.dtype[Any], times: int, size: int) -> Test:
    """So many ``times`` what goes in comes out, a block for each rank."""
    def small(sendbuf: Any, recvbuf: Any) -> bool:
        return (type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and sendbuf.nbytes * times == recvbuf.nbytes < end and not recvbuf.size % size
                and sendbuf.dtype is dtype and recvbuf.dtype is dtype and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf)
    return small


class SmallCalls:
    """The test of each method; all say no until a threshold is known."""

    def __init__(self) -> None:
        self.bcast: Test = never
        self.reduce: Test = never
        self.allreduce: Test = never
        self.reduce_scatter_block: Test = never
        self.allgather: Test = never
        self.alltoall: Test = never

    def learn(self, method: str, end: int, dtype: numpy.dtype[Any], op: MPI.Op | None,
              size: int) -> None:
        """Calls of a method below so many bytes are native, whatever their type and operator.

        Only this type and this operator have been checked, so only such calls are told by their
        bytes.

        Args:
            method: one of :data:`TESTS`.
            end: bytes of the larger buffer; exclusive.
            dtype, op, size: of a checked call, and ranks of its communicator.
        """
        if end > 1:  # there is more than calls of nothing
            setattr(self, method, TESTS[method](end, dtype, op, size))


#: Methods with a size threshold, and what makes their test.
TESTS: dict[str, Callable[[int, numpy.dtype[Any], MPI.Op | None, int], Test]] = {
    "bcast": bcast, "reduce": reduce, "allreduce": allreduce,
    "reduce_scatter_block": reduce_scatter_block, "allgather": allgather, "alltoall": alltoall}
