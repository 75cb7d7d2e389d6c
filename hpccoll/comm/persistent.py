"""Persistent upper-case collectives of mpi4py.

By default the MPI library runs them; see :mod:`hpccoll.comm.nonblocking` for user choices. Those of
hpccoll are prepared once, including persistent MPI messages, and may be started in a different
order on every rank, as MPI allows. Their creation compares them between the ranks and waits for the
other ranks; a start never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

from hpccoll.calls.call import Call, is_loaded
from hpccoll.calls.datatypes import with_own_datatypes
from hpccoll.calls.facts import CallFacts
from hpccoll.calls.memory import is_staged
from hpccoll.comm.base import Base, native_arguments, reject_staged
from hpccoll.comm.methods import (
    ALLGATHER_INIT,
    ALLGATHERV_INIT,
    ALLREDUCE_INIT,
    ALLTOALL_INIT,
    ALLTOALLV_INIT,
    ALLTOALLW_INIT,
    BARRIER_INIT,
    BCAST_INIT,
    EXSCAN_INIT,
    GATHER_INIT,
    GATHERV_INIT,
    REDUCE_INIT,
    REDUCE_SCATTER_BLOCK_INIT,
    REDUCE_SCATTER_INIT,
    SCAN_INIT,
    SCATTER_INIT,
    SCATTERV_INIT,
    Method,
)
from hpccoll.comm.preferences import check_preference
from hpccoll.comm.promise import check_promise
from hpccoll.comm.requests import Prequest
from hpccoll.config import THREAD
from hpccoll.guard.pending_calls import keep_prepared
from hpccoll.runtime.context import Context
from hpccoll.runtime.events.logger import served_by
from hpccoll.runtime.execution.compiled import compiled_plan_for
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.execution.executor import PreparedRun
from hpccoll.runtime.planning.call_hash import describe_native
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.planner import plan_for, prepare, with_counts
from hpccoll.runtime.progress.operations import PersistentOperation
from hpccoll.tune.choose import fallback

if BUILT:
    from hpccoll.runtime.execution.compiled_operations import CompiledOperation

Info = MPI.Info


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
        with self._check_alive().call_guard:
            check_promise(method, args, self._device)
            return self._create_request(method, info, args)

    def _create_request(self, method: Method, info: Info, args: tuple[Any, ...]) -> MPI.Prequest:
        check_preference(self, method, args)
        call = self._resolve(method, args)
        choice = None
        if call is not None:
            facts, choice = self._choose(method, call)
            preference = self._preference(method)[0]
            if (preference is not None and preference.is_auto and not choice.is_native
                    and not self._private().has_channels):
                # The measured times assume separate channels, which are allocated only once.
                choice = fallback(facts, self._conditions(method))
        self._log_choice(method, call, choice)
        if self._guards:
            # MPI allows the creation of a request to wait for other ranks, but never its start.
            self._compare(call and describe_native(call, method.title)._replace(
                collective=method.title, algorithm=served_by(choice)), method.title)
        if call is None or choice is None or choice.is_native:
            reject_staged(method, args)
            request = method.serve_native(self, *native_arguments(call, args), info=info)
            guard = self._known_guard()
            return (guard.watch_persistent(request, args, method.name) if guard
                    else keep_prepared(request, args))
        one = call.sink or call.source
        if not is_loaded(call) and (one is None or one.namespace is numpy) and not any(
                map(is_staged, args)):
            return self._request(call, facts, choice)
        # Every start must copy its input again, or wait again for the work of its device.
        datatypes: list[MPI.Datatype] = []
        args = tuple(with_own_datatypes(arg, datatypes) for arg in args)
        return self._copying_request(call, choice, partial(self._resolve, method, args), datatypes)

    def _request(self, call: Call, facts: CallFacts, choice: Choice) -> Prequest:
        """Return the request of a call whose messages use its memory directly."""
        context, threaded = self._private(), self._config.progress == THREAD
        tag, call = context.persistent_tag(), with_counts(context, call, choice)
        plan = plan_for(context, call, choice.in_segments(context.request_segment(facts, tag)))
        compiled_plan = (compiled_plan_for(context, call, plan, tag, False)
                         if self._calls is not None else None)
        if compiled_plan is not None:
            started = CompiledOperation(context, compiled_plan, call, None, threaded)
            return Prequest(context, lambda: (), free_with_tag(context, tag, started.free),
                            started)
        execution = prepare(context, call, plan, tag, repeated=True, own_scratch=True)
        if execution.prepare():
            operation = PersistentOperation(context, PreparedRun(execution), call, threaded)
            return Prequest(context, lambda: (), free_with_tag(context, tag, operation.free),
                            operation)
        return Prequest(context, lambda: (execution, call, None, threaded),
                        free_with_tag(context, tag, execution.free))

    def _copying_request(self, call: Call, choice: Choice, again: Callable[[], Call | None],
                         datatypes: list[MPI.Datatype]) -> Prequest:
        """Return the request of a call on copies; ``again`` resolves the call at every start.

        ``datatypes`` were created for the call, and are freed with the request.
        """
        context, threaded = self._private(), self._config.progress == THREAD
        plan, tag = plan_for(context, with_counts(context, call, choice), choice), (
            context.persistent_tag())

        def fresh() -> tuple[Any, ...]:
            new = again() or call
            return (prepare(context, new, plan, tag, own_scratch=True), new,
                    new.sink and new.sink.store, threaded)

        return Prequest(context, fresh, free_with_tag(context, tag, partial(_free, datatypes)))


def _free(datatypes: list[MPI.Datatype]) -> None:
    for datatype in datatypes:
        datatype.Free()


def free_with_tag(context: Context, tag: int, free: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that frees a request's resources and its tag."""
    def free_all() -> None:
        free()
        context.release_tag(tag)
    return free_all
