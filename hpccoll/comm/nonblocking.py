"""The nonblocking upper-case collectives of mpi4py.

Without a wish the MPI library serves them, whose progress needs no help from Python. A wish -
``comm.using(iallreduce="ring")``, ``comm.using(allreduce="ring")``, ``HPCCOLL_ALGORITHM`` -
makes hpccoll run them; see :mod:`hpccoll.comm.requests` for how they progress.

The first such call on a communicator is collective and waits for the other ranks, because it
makes the private communicator; later ones only post messages. Where progress is a thread's, as
it is by default, and the MPI library was not initialised with ``MPI.THREAD_MULTIPLE``, the library
serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.calls.resolve import Call
from hpccoll.calls.specification import is_staged
from hpccoll.comm.blocking import Blocking, native, spelled
from hpccoll.comm.cache import NATIVE_SHAPE
from hpccoll.comm.recall import counted
from hpccoll.comm.requests import Request
from hpccoll.config import AUTO, NATIVE, THREAD
from hpccoll.errors import ArgumentError, BufferArgumentError
from hpccoll.runtime.choice import Choice
from hpccoll.runtime.planner import plan_for, prepare
from hpccoll.runtime.progress import Operation, can_progress
from hpccoll.tune.choose import choose
from hpccoll.tune.determinism import applies, check_served, excludes_native


class Nonblocking(Blocking):
    """Mixin: the 17 nonblocking collectives."""

    def Ibarrier(self) -> MPI.Request:
        """Begin to wait until every rank has entered the barrier."""
        if self._shapes.get(("ibarrier",)) is NATIVE_SHAPE:
            return native.Ibarrier(self)
        return self._begin("barrier", native.Ibarrier)

    def Ibcast(self, buf: Any, root: int = 0) -> MPI.Request:
        """Begin to send the root's buffer to every rank."""
        if type(root) is int and self._again("ibcast", None, buf, root):
            return native.Ibcast(self, buf, root)
        return self._begin("bcast", native.Ibcast, buf, root)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM,
                root: int = 0) -> MPI.Request:
        """Begin to combine every rank's buffer at the root."""
        if type(root) is int and self._again("ireduce", sendbuf, recvbuf, (id(op), root)):
            return native.Ireduce(self, sendbuf, recvbuf, op, root)
        return self._begin("reduce", native.Ireduce, sendbuf, recvbuf, op, root)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Begin to combine every rank's buffer on every rank."""
        if self._again("iallreduce", sendbuf, recvbuf, id(op)):
            return native.Iallreduce(self, sendbuf, recvbuf, op)
        return self._begin("allreduce", native.Iallreduce, sendbuf, recvbuf, op)

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Begin to combine the buffers of ranks 0 to this one."""
        if self._again("iscan", sendbuf, recvbuf, id(op)):
            return native.Iscan(self, sendbuf, recvbuf, op)
        return self._begin("scan", native.Iscan, sendbuf, recvbuf, op)

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Begin to combine the buffers of the ranks before this one."""
        if self._again("iexscan", sendbuf, recvbuf, id(op)):
            return native.Iexscan(self, sendbuf, recvbuf, op)
        return self._begin("exscan", native.Iexscan, sendbuf, recvbuf, op)

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any,
                              op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Begin to combine every rank's buffer, one of p equal blocks to each rank."""
        if self._again("ireduce_scatter_block", sendbuf, recvbuf, id(op)):
            return native.Ireduce_scatter_block(self, sendbuf, recvbuf, op)
        return self._begin("reduce_scatter_block", native.Ireduce_scatter_block, sendbuf,
                           recvbuf, op)

    def Ireduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None,
                        op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Begin to combine every rank's buffer, ``recvcounts[i]`` elements to rank i."""
        extra = counted(op, recvcounts)
        if extra is not None and self._again("ireduce_scatter", sendbuf, recvbuf, extra):
            return native.Ireduce_scatter(self, sendbuf, recvbuf, recvcounts, op)
        return self._begin("reduce_scatter", native.Ireduce_scatter, sendbuf, recvbuf, recvcounts,
                           op)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to collect one equal block from every rank on every rank."""
        if self._again("iallgather", sendbuf, recvbuf, None):
            return native.Iallgather(self, sendbuf, recvbuf)
        return self._begin("allgather", native.Iallgather, sendbuf, recvbuf)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to collect one block of any size from every rank on every rank."""
        if self._again("iallgatherv", sendbuf, recvbuf, None):
            return native.Iallgatherv(self, sendbuf, recvbuf)
        return self._begin("allgatherv", native.Iallgatherv, sendbuf, recvbuf)

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to collect one equal block from every rank at the root."""
        if type(root) is int and self._again("igather", sendbuf, recvbuf, root):
            return native.Igather(self, sendbuf, recvbuf, root)
        return self._begin("gather", native.Igather, sendbuf, recvbuf, root)

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to collect one block of any size from every rank at the root."""
        return self._begin("gatherv", native.Igatherv, sendbuf, recvbuf, root)

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to deal the root's buffer out in equal blocks."""
        if type(root) is int and self._again("iscatter", sendbuf, recvbuf, root):
            return native.Iscatter(self, sendbuf, recvbuf, root)
        return self._begin("scatter", native.Iscatter, sendbuf, recvbuf, root)

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to deal the root's buffer out in blocks of any size."""
        return self._begin("scatterv", native.Iscatterv, sendbuf, recvbuf, root)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to send one equal block from every rank to every rank."""
        if self._again("ialltoall", sendbuf, recvbuf, None):
            return native.Ialltoall(self, sendbuf, recvbuf)
        return self._begin("alltoall", native.Ialltoall, sendbuf, recvbuf)

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to send one block of any size from every rank to every rank."""
        if self._again("ialltoallv", sendbuf, recvbuf, None):
            return native.Ialltoallv(self, sendbuf, recvbuf)
        return self._begin("alltoallv", native.Ialltoallv, sendbuf, recvbuf)

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to send one block of any size and type from every rank to every rank."""
        if self._again("ialltoallw", sendbuf, recvbuf, None):
            return native.Ialltoallw(self, sendbuf, recvbuf)
        return self._begin("alltoallw", native.Ialltoallw, sendbuf, recvbuf)

    # -- how they are served -----------------------------------------------------------------
    def _begin(self, name: str, method_of_mpi: Callable, *args: Any) -> MPI.Request:
        """Check the arguments, and begin ours, if it was wished for, or the native one."""
        method = f"i{name}"
        call = self._resolve(name, *args)
        check_served(call, method, args, self._config.determinism)
        choice = call and self._wished(call, method)
        if choice is None:
            refuse_staged(name, args)
            if call is not None:
                self._remember(method, name, args, NATIVE_SHAPE)
            return method_of_mpi(self, *spelled(call, args))
        context = self._private()
        plan = plan_for(context, call, choice)
        execution = prepare(context, call, plan, context.next_tag(), own_scratch=True)
        return Request(Operation(context, execution, call, call.sink and call.sink.store,
                              self._config.progress == THREAD))

    def _wished(self, call: Call, method: str) -> Choice | None:
        """What the user wants to run a call that may not wait; ``None`` for native.

        Raises:
            ArgumentError: ``comm.using`` asked for what cannot serve the call, or a promise
                cannot be kept.
        """
        wish, from_environment = self._wish(call, method, call.name)
        determinism = self._config.determinism
        able = can_progress(self._config.progress)
        bound = self.Get_size() > 1 and excludes_native(determinism, call)
        if bound and not able:
            argument, what = (("determinism", f"'{determinism}' cannot be kept in {method}")
                              if applies(determinism, call) else
                              ("op", f"only hpccoll can combine this type in {method}"))
            raise ArgumentError(argument, f"{what}: MPI was initialised without "
                                          "MPI.THREAD_MULTIPLE",
                                "ask mpi4py.rc for it, choose progress='calls', or call the "
                                "blocking collective")
        if not bound and (wish is None or not able or (
                isinstance(wish.algorithm, str) and wish.algorithm in (AUTO, NATIVE))):
            return None
        choice = choose(call, self.Get_size(), wish, from_environment, None, determinism)
        if choice.is_native:
            return None
        if method.startswith("i") and call.learn is not None and not (
                isinstance(choice.algorithm, str)
                and ALGORITHMS[call.collective][choice.algorithm].own_blocks):
            if from_environment:
                return None
            raise ArgumentError("algorithm", f"{choice.algorithm} cannot serve this {method}: only "
                                             "the root knows all counts, and asking it would wait",
                                f"choose linear, '{AUTO}' or '{NATIVE}'")
        return choice


def refuse_staged(name: str, args: tuple) -> None:
    """Raise for device memory that the MPI library would have to move and cannot.

    Raises:
        BufferArgumentError: the remedy is to let hpccoll run the collective.
    """
    if any(map(is_staged, args)):
        raise BufferArgumentError("buffer", "is device memory, and this MPI library cannot move it",
                                  f"choose an algorithm, as in comm.using({name}=...)")
