"""Blocking upper-case collectives of mpi4py.

Every method has mpi4py's name, parameters and meaning. Arguments are checked before any message is
sent. Calls that hpccoll does not run go to the native method unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.comm.methods import Method, methods_of
from hpccoll.comm.recognition import recognise_calls
from hpccoll.ir.methods import BLOCKING
from hpccoll.runtime.progress.waiting import progress_once

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

#: The methods in the order of the table.
(BARRIER, BCAST, REDUCE, ALLREDUCE, SCAN, EXSCAN, REDUCE_SCATTER_BLOCK, REDUCE_SCATTER, ALLGATHER,
 ALLGATHERV, GATHER, GATHERV, SCATTER, SCATTERV, ALLTOALL, ALLTOALLV, ALLTOALLW
 ) = methods_of(BLOCKING)


class BlockingMixin(Base):
    """Implements the 17 blocking collectives.

    Each looks the call up in the cache of the compiled executor (:mod:`hpccoll.comm.recognition`),
    then in the Python cache (:meth:`Base._call`), and otherwise resolves it
    (:mod:`hpccoll.comm.uncached`).
    """

    @recognise_calls
    def Barrier(self) -> None:
        """Wait until every rank has entered the barrier."""
        served = self._cache.get(BARRIER)
        if served is not None:
            served(self)
            return
        self._serve(BARRIER, ())
        progress_once()  # a compiled plan of a barrier ends with it, too

    @recognise_calls
    def Bcast(self, buf: BufSpec, root: int = 0) -> None:
        """Send the root's buffer to every rank."""
        self._call(BCAST, buf, root)

    @recognise_calls
    def Reduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: MPI.Op = MPI.SUM,
               root: int = 0) -> None:
        """Combine every rank's buffer at the root."""
        self._call(REDUCE, sendbuf, recvbuf, op, root)

    @recognise_calls
    def Allreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer on every rank."""
        self._call(ALLREDUCE, sendbuf, recvbuf, op)

    @recognise_calls
    def Scan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of ranks 0 to this one."""
        self._call(SCAN, sendbuf, recvbuf, op)

    @recognise_calls
    def Exscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of the ranks before this one; rank 0 gets nothing."""
        self._call(EXSCAN, sendbuf, recvbuf, op)

    @recognise_calls
    def Reduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB,
                             op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give each rank one of p equal blocks."""
        self._call(REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op)

    @recognise_calls
    def Reduce_scatter(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec,
                       recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give rank i a block of ``recvcounts[i]`` elements."""
        self._call(REDUCE_SCATTER, sendbuf, recvbuf, recvcounts, op)

    @recognise_calls
    def Allgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> None:
        """Collect one equal block from every rank on every rank."""
        self._call(ALLGATHER, sendbuf, recvbuf)

    @recognise_calls
    def Allgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> None:
        """Collect one block of any size from every rank on every rank."""
        self._call(ALLGATHERV, sendbuf, recvbuf)

    @recognise_calls
    def Gather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> None:
        """Collect one equal block from every rank at the root."""
        self._call(GATHER, sendbuf, recvbuf, root)

    @recognise_calls
    def Gatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> None:
        """Collect one block of any size from every rank at the root."""
        self._call(GATHERV, sendbuf, recvbuf, root)

    @recognise_calls
    def Scatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Distribute the root's buffer in equal blocks."""
        self._call(SCATTER, sendbuf, recvbuf, root)

    @recognise_calls
    def Scatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Distribute the root's buffer in blocks of any size."""
        self._call(SCATTERV, sendbuf, recvbuf, root)

    @recognise_calls
    def Alltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> None:
        """Send one equal block from every rank to every rank."""
        self._call(ALLTOALL, sendbuf, recvbuf)

    @recognise_calls
    def Alltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> None:
        """Send one block of any size from every rank to every rank."""
        self._call(ALLTOALLV, sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> None:
        """Send one block of any size and type from every rank to every rank."""
        self._call(ALLTOALLW, sendbuf, recvbuf)

    def _serve(self, method: Method, args: tuple[Any, ...]) -> Any:
        """Run an uncached call."""
        from hpccoll.comm.uncached.blocking import serve
        return serve(self, method, args)
