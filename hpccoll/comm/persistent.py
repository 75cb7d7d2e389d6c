"""Persistent upper-case collectives of mpi4py.

By default the MPI library runs them; see :mod:`hpccoll.comm.nonblocking` for user choices. Those of
hpccoll are prepared once, including persistent MPI messages, and may be started in a different
order on every rank, as MPI allows. Their creation compares them between the ranks and waits for the
other ranks; a start never waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.comm.methods import Method, methods_of
from hpccoll.ir.methods import PERSISTENT

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

Info = MPI.Info
#: The methods in the order of the table.
(BARRIER_INIT, BCAST_INIT, REDUCE_INIT, ALLREDUCE_INIT, SCAN_INIT, EXSCAN_INIT,
 REDUCE_SCATTER_BLOCK_INIT, REDUCE_SCATTER_INIT, ALLGATHER_INIT, ALLGATHERV_INIT, GATHER_INIT,
 GATHERV_INIT, SCATTER_INIT, SCATTERV_INIT, ALLTOALL_INIT, ALLTOALLV_INIT, ALLTOALLW_INIT
 ) = methods_of(PERSISTENT)


class PersistentMixin(Base):
    """Implements the 17 persistent collectives."""

    def Barrier_init(self, info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare a barrier."""
        return self._prepare(BARRIER_INIT, info)

    def Bcast_init(self, buf: BufSpec, root: int = 0, info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send the root's buffer to every rank."""
        return self._prepare(BCAST_INIT, info, buf, root)

    def Reduce_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: MPI.Op = MPI.SUM,
                    root: int = 0, info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer at the root."""
        return self._prepare(REDUCE_INIT, info, sendbuf, recvbuf, op, root)

    def Allreduce_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer on every rank."""
        return self._prepare(ALLREDUCE_INIT, info, sendbuf, recvbuf, op)

    def Scan_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM,
                  info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine the buffers of ranks 0 to this one."""
        return self._prepare(SCAN_INIT, info, sendbuf, recvbuf, op)

    def Exscan_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM,
                    info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine the buffers of the ranks before this one."""
        return self._prepare(EXSCAN_INIT, info, sendbuf, recvbuf, op)

    def Reduce_scatter_block_init(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB,
                                  op: MPI.Op = MPI.SUM, info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer, one of p equal blocks to each rank."""
        return self._prepare(REDUCE_SCATTER_BLOCK_INIT, info,
                             sendbuf, recvbuf, op)

    def Reduce_scatter_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec,
                            recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM,
                            info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer, ``recvcounts[i]`` elements to rank i."""
        return self._prepare(REDUCE_SCATTER_INIT, info, sendbuf,
                             recvbuf, recvcounts, op)

    def Allgather_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one equal block from every rank on every rank."""
        return self._prepare(ALLGATHER_INIT, info, sendbuf, recvbuf)

    def Allgatherv_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV,
                        info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one block of any size from every rank on every rank."""
        return self._prepare(ALLGATHERV_INIT, info, sendbuf, recvbuf)

    def Gather_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0,
                    info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one equal block from every rank at the root."""
        return self._prepare(GATHER_INIT, info, sendbuf, recvbuf, root)

    def Gatherv_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0,
                     info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one block of any size from every rank at the root."""
        return self._prepare(GATHERV_INIT, info, sendbuf, recvbuf, root)

    def Scatter_init(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0,
                     info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to distribute the root's buffer in equal blocks."""
        return self._prepare(SCATTER_INIT, info, sendbuf, recvbuf, root)

    def Scatterv_init(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0,
                      info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to distribute the root's buffer in blocks of any size."""
        return self._prepare(SCATTERV_INIT, info, sendbuf, recvbuf, root)

    def Alltoall_init(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB,
                      info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send one equal block from every rank to every rank."""
        return self._prepare(ALLTOALL_INIT, info, sendbuf, recvbuf)

    def Alltoallv_init(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send one block of any size from every rank to every rank."""
        return self._prepare(ALLTOALLV_INIT, info, sendbuf, recvbuf)

    def Alltoallw_init(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send one block of any size and type from every rank to every rank."""
        return self._prepare(ALLTOALLW_INIT, info, sendbuf, recvbuf)

    # -- implementation ----------------------------------------------------------------------
    def _prepare(self, method: Method, info: Info, *args: Any) -> MPI.Prequest:
        """Check the arguments; prepare the user's algorithm or the native method."""
        from hpccoll.comm.uncached.persistent import create_request
        with self._check_alive().call_guard:
            return create_request(self, method, info, args)
