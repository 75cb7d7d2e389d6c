"""Small calls: recognised by their bytes, before anything else is looked at (decision 0024).

Below some number of bytes *every* call of a method is the MPI library's. For the six most common
methods a closure serves such calls: on arrays that own their memory, with elements of the type
and with the operator of a call that was checked before. Everything else goes the usual way, and so
does what is wrong with a call.

A closure is the largest part of what hpccoll adds to the smallest calls, so each is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI
from numpy import ndarray

#: ``serve(comm, *arguments)``: serves a small call; tells whether it was one.
Small = Callable[..., bool]
#: What serves such a call: the MPI library's method, or what notes it too.
Native = Callable[..., Any]
#: Makes it, of: what serves; bytes of the larger buffer (exclusive), type, operator, number of
#: ranks, this rank.
Maker = Callable[[Native, int, numpy.dtype[Any], "MPI.Op | None", int, int], Small]


def bcast(native: Native, end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int,
          rank: int) -> Small:
    """Serves ``Bcast(buf, root)``."""
    def serve(comm: MPI.Intracomm, buf: Any, root: Any) -> bool:
        if (type(buf) is ndarray and buf.nbytes < end and buf.dtype is dtype
                and buf.base is None and type(root) is int and 0 <= root < size):
            native(comm, buf, root)
            return True
        return False
    return serve


def reduce(native: Native, end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int,
           rank: int) -> Small:
    """Serves ``Reduce(sendbuf, recvbuf, op, root)``."""
    def serve(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, given: MPI.Op, root: Any
              ) -> bool:
        if (type(sendbuf) is ndarray and sendbuf.nbytes < end and sendbuf.dtype is dtype
                and given is op and type(root) is int and 0 <= root < size
                and sendbuf.base is None
                and (recvbuf is None and root != rank or type(recvbuf) is ndarray
                     and recvbuf.nbytes == sendbuf.nbytes and recvbuf.dtype is dtype
                     and recvbuf.base is None and recvbuf is not sendbuf)):
            native(comm, sendbuf, recvbuf, given, root)
            return True
        return False
    return serve


def allreduce(native: Native, end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int,
              rank: int) -> Small:
    """Serves ``Allreduce(sendbuf, recvbuf, op)``."""
    def serve(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, given: MPI.Op) -> bool:
        if (type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and sendbuf.nbytes == recvbuf.nbytes < end and sendbuf.dtype is dtype
                and recvbuf.dtype is dtype and given is op and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf):
            native(comm, sendbuf, recvbuf, given)
            return True
        return False
    return serve


def reduce_scatter_block(native: Native, end: int, dtype: numpy.dtype[Any], op: MPI.Op | None,
                         size: int, rank: int) -> Small:
    """Serves ``Reduce_scatter_block(sendbuf, recvbuf, op)``."""
    def serve(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, given: MPI.Op) -> bool:
        if (type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and recvbuf.nbytes * size == sendbuf.nbytes < end and sendbuf.dtype is dtype
                and recvbuf.dtype is dtype and given is op and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf):
            native(comm, sendbuf, recvbuf, given)
            return True
        return False
    return serve


def allgather(native: Native, end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int,
              rank: int) -> Small:
    """Serves ``Allgather(sendbuf, recvbuf)``."""
    def serve(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any) -> bool:
        if (type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and sendbuf.nbytes * size == recvbuf.nbytes < end and sendbuf.dtype is dtype
                and recvbuf.dtype is dtype and sendbuf.base is None and recvbuf.base is None
                and sendbuf is not recvbuf):
            native(comm, sendbuf, recvbuf)
            return True
        return False
    return serve


def alltoall(native: Native, end: int, dtype: numpy.dtype[Any], op: MPI.Op | None, size: int,
             rank: int) -> Small:
    """Serves ``Alltoall(sendbuf, recvbuf)``."""
    def serve(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any) -> bool:
        if (type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and sendbuf.nbytes == recvbuf.nbytes < end and not recvbuf.size % size
                and sendbuf.dtype is dtype and recvbuf.dtype is dtype and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf):
            native(comm, sendbuf, recvbuf)
            return True
        return False
    return serve


#: Methods with a size threshold, and what makes the closure of each.
MAKERS: dict[str, Maker] = {
    "bcast": bcast, "reduce": reduce, "allreduce": allreduce,
    "reduce_scatter_block": reduce_scatter_block, "allgather": allgather, "alltoall": alltoall}
