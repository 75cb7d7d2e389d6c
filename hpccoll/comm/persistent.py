"""The persistent upper-case collectives of mpi4py.

Without a wish the MPI library serves them; see :mod:`hpccoll.comm.nonblocking` for wishes. Ours are
prepared once, down to MPI's own persistent messages, and may be started in another order on
every rank, as MPI allows. Making one may wait for the other ranks; starting one never does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.calls.resolve import Call, is_loaded
from hpccoll.calls.specification import is_staged, lasting
from hpccoll.comm.blocking import spelled
from hpccoll.comm.nonblocking import Nonblocking, refuse_staged
from hpccoll.comm.requests import Prequest
from hpccoll.config import THREAD
from hpccoll.runtime.choice import Choice
from hpccoll.runtime.context import Context
from hpccoll.runtime.planner import plan_for, prepare
from hpccoll.runtime.progress import PersistentOperation
from hpccoll.tune.determinism import check_served

Info = MPI.Info


class Persistent(Nonblocking):
    """Mixin: the 17 persistent collectives."""

    def Barrier_init(self, info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare a barrier."""
        return self._prepare("barrier", super().Barrier_init, info)

    def Bcast_init(self, buf: Any, root: int = 0, info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send the root's buffer to every rank."""
        return self._prepare("bcast", super().Bcast_init, info, buf, root)

    def Reduce_init(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0,
                    info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer at the root."""
        return self._prepare("reduce", super().Reduce_init, info, sendbuf, recvbuf, op, root)

    def Allreduce_init(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer on every rank."""
        return self._prepare("allreduce", super().Allreduce_init, info, sendbuf, recvbuf, op)

    def Scan_init(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM,
                  info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine the buffers of ranks 0 to this one."""
        return self._prepare("scan", super().Scan_init, info, sendbuf, recvbuf, op)

    def Exscan_init(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM,
                    info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine the buffers of the ranks before this one."""
        return self._prepare("exscan", super().Exscan_init, info, sendbuf, recvbuf, op)

    def Reduce_scatter_block_init(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM,
                                  info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer, one of p equal blocks to each rank."""
        return self._prepare("reduce_scatter_block", super().Reduce_scatter_block_init, info,
                             sendbuf, recvbuf, op)

    def Reduce_scatter_init(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None,
                            op: MPI.Op = MPI.SUM, info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to combine every rank's buffer, ``recvcounts[i]`` elements to rank i."""
        return self._prepare("reduce_scatter", super().Reduce_scatter_init, info, sendbuf,
                             recvbuf, recvcounts, op)

    def Allgather_init(self, sendbuf: Any, recvbuf: Any,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one equal block from every rank on every rank."""
        return self._prepare("allgather", super().Allgather_init, info, sendbuf, recvbuf)

    def Allgatherv_init(self, sendbuf: Any, recvbuf: Any,
                        info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one block of any size from every rank on every rank."""
        return self._prepare("allgatherv", super().Allgatherv_init, info, sendbuf, recvbuf)

    def Gather_init(self, sendbuf: Any, recvbuf: Any, root: int = 0,
                    info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one equal block from every rank at the root."""
        return self._prepare("gather", super().Gather_init, info, sendbuf, recvbuf, root)

    def Gatherv_init(self, sendbuf: Any, recvbuf: Any, root: int = 0,
                     info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to collect one block of any size from every rank at the root."""
        return self._prepare("gatherv", super().Gatherv_init, info, sendbuf, recvbuf, root)

    def Scatter_init(self, sendbuf: Any, recvbuf: Any, root: int = 0,
                     info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to deal the root's buffer out in equal blocks."""
        return self._prepare("scatter", super().Scatter_init, info, sendbuf, recvbuf, root)

    def Scatterv_init(self, sendbuf: Any, recvbuf: Any, root: int = 0,
                      info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to deal the root's buffer out in blocks of any size."""
        return self._prepare("scatterv", super().Scatterv_init, info, sendbuf, recvbuf, root)

    def Alltoall_init(self, sendbuf: Any, recvbuf: Any,
                      info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send one equal block from every rank to every rank."""
        return self._prepare("alltoall", super().Alltoall_init, info, sendbuf, recvbuf)

    def Alltoallv_init(self, sendbuf: Any, recvbuf: Any,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send one block of any size from every rank to every rank."""
        return self._prepare("alltoallv", super().Alltoallv_init, info, sendbuf, recvbuf)

    def Alltoallw_init(self, sendbuf: Any, recvbuf: Any,
                       info: Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Prepare to send one block of any size and type from every rank to every rank."""
        return self._prepare("alltoallw", super().Alltoallw_init, info, sendbuf, recvbuf)

    # -- how they are served -----------------------------------------------------------------
    def _prepare(self, name: str, native: Callable, info: Info, *args: Any) -> MPI.Prequest:
        """Check the arguments, and prepare ours, if it was wished for, or the native one."""
        call = self._resolve(name, *args)
        check_served(call, f"{name}_init", args, self._config.determinism)
        choice = call and self._wished(call, f"{name}_init")
        if choice is None:
            refuse_staged(name, args)
            return native(*spelled(call, args), info=info)
        made: list[MPI.Datatype] = []
        again = None
        if is_loaded(call) or any(map(is_staged, args)):
            # Its input is a copy, which has to be taken again at every start.
            args = tuple(lasting(arg, made) for arg in args)
            again = partial(self._resolve, name, *args)
        return _request(self._private(), call, choice, again, self._config.progress == THREAD, made)


def _request(context: Context, call: Call, choice: Choice, again: Callable[[], Call] | None,
             threaded: bool, made: list[MPI.Datatype]) -> Prequest:
    """The request of a call; ``again``, if given, makes the call anew for every start, from
    datatypes ``made`` for it."""
    plan, tag = plan_for(context, call, choice), context.lasting_tag()

    def fresh() -> tuple:
        new = again()
        return (prepare(context, new, plan, tag, own_scratch=True), new,
                new.sink and new.sink.store, threaded)

    if again is not None:
        return Prequest(context, fresh, lambda: [each.Free() for each in made])

    on_host = (call.sink or call.source) is None or (call.sink or call.source).namespace is numpy
    execution = prepare(context, call, plan, tag, repeated=on_host, own_scratch=True)
    if execution.prepare():
        lasting = PersistentOperation(context, execution, call, threaded)
        return Prequest(context, lambda: (), lasting.free, lasting)
    return Prequest(context, lambda: (execution, call, None, threaded), execution.free)
