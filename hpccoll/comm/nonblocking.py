"""Nonblocking upper-case collectives of mpi4py.

By default the MPI library runs them, because its progress needs no help from Python. A user choice
(``comm.using(iallreduce="ring")``, ``comm.using(allreduce="ring")``, ``HPCCOLL_ALGORITHM``) makes
hpccoll run them; see :mod:`hpccoll.comm.requests` for their progress.

Such a call only posts messages. The setup of the communicator waits for all ranks, so only a
blocking collective does it. Before that the MPI library runs nonblocking calls despite a choice,
unless it cannot: deterministic sums, types that it lacks, device memory. With progress in a thread,
the default, the library also runs all of them without ``MPI.THREAD_MULTIPLE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.comm.methods import methods_of
from hpccoll.comm.recognition import recognise_calls
from hpccoll.ir.methods import NONBLOCKING

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

#: The methods in the order of the table.
(IBARRIER, IBCAST, IREDUCE, IALLREDUCE, ISCAN, IEXSCAN, IREDUCE_SCATTER_BLOCK, IREDUCE_SCATTER,
 IALLGATHER, IALLGATHERV, IGATHER, IGATHERV, ISCATTER, ISCATTERV, IALLTOALL, IALLTOALLV, IALLTOALLW
 ) = methods_of(NONBLOCKING)


class NonblockingMixin(Base):
    """Implements the 17 nonblocking collectives."""

    @recognise_calls
    def Ibarrier(self) -> MPI.Request:
        """Start a barrier of all ranks."""
        served = self._cache.get(IBARRIER)
        return served(self) if served is not None else self._serve(IBARRIER, ())

    @recognise_calls
    def Ibcast(self, buf: BufSpec, root: int = 0) -> MPI.Request:
        """Start to send the root's buffer to every rank."""
        return self._call(IBCAST, buf, root)

    @recognise_calls
    def Ireduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: MPI.Op = MPI.SUM,
                root: int = 0) -> MPI.Request:
        """Start to combine every rank's buffer at the root."""
        return self._call(IREDUCE, sendbuf, recvbuf, op, root)

    @recognise_calls
    def Iallreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM
                  ) -> MPI.Request:
        """Start to combine every rank's buffer on every rank."""
        return self._call(IALLREDUCE, sendbuf, recvbuf, op)

    @recognise_calls
    def Iscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM
             ) -> MPI.Request:
        """Start to combine the buffers of ranks 0 to this one."""
        return self._call(ISCAN, sendbuf, recvbuf, op)

    @recognise_calls
    def Iexscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM
               ) -> MPI.Request:
        """Start to combine the buffers of the ranks before this one."""
        return self._call(IEXSCAN, sendbuf, recvbuf, op)

    @recognise_calls
    def Ireduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB,
                              op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start to combine every rank's buffer, one of p equal blocks to each rank."""
        return self._call(IREDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op)

    @recognise_calls
    def Ireduce_scatter(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec,
                        recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
                       ) -> MPI.Request:
        """Start to combine every rank's buffer, ``recvcounts[i]`` elements to rank i."""
        return self._call(IREDUCE_SCATTER, sendbuf, recvbuf, recvcounts, op)

    @recognise_calls
    def Iallgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> MPI.Request:
        """Start to collect one equal block from every rank on every rank."""
        return self._call(IALLGATHER, sendbuf, recvbuf)

    @recognise_calls
    def Iallgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> MPI.Request:
        """Start to collect one block of any size from every rank on every rank."""
        return self._call(IALLGATHERV, sendbuf, recvbuf)

    @recognise_calls
    def Igather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0
               ) -> MPI.Request:
        """Start to collect one equal block from every rank at the root."""
        return self._call(IGATHER, sendbuf, recvbuf, root)

    @recognise_calls
    def Igatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0
                ) -> MPI.Request:
        """Start to collect one block of any size from every rank at the root."""
        return self._call(IGATHERV, sendbuf, recvbuf, root)

    @recognise_calls
    def Iscatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0
                ) -> MPI.Request:
        """Start to distribute the root's buffer in equal blocks."""
        return self._call(ISCATTER, sendbuf, recvbuf, root)

    @recognise_calls
    def Iscatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0
                 ) -> MPI.Request:
        """Start to distribute the root's buffer in blocks of any size."""
        return self._call(ISCATTERV, sendbuf, recvbuf, root)

    @recognise_calls
    def Ialltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> MPI.Request:
        """Start to send one equal block from every rank to every rank."""
        return self._call(IALLTOALL, sendbuf, recvbuf)

    @recognise_calls
    def Ialltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> MPI.Request:
        """Start to send one block of any size from every rank to every rank."""
        return self._call(IALLTOALLV, sendbuf, recvbuf)

    def Ialltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> MPI.Request:
        """Start to send one block of any size and type from every rank to every rank."""
        return self._call(IALLTOALLW, sendbuf, recvbuf)
