"""The blocking upper-case collectives of mpi4py, served by hpccoll where it can.

Every method has mpi4py's name, parameters and meaning. Arguments are checked before any
message is sent; what hpccoll does not serve goes to the native method unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.calls import resolve
from hpccoll.calls.specification import NativeOnly, is_staged, native_form, staged
from hpccoll.comm.cache import NATIVE_SHAPE, Shape, Shapes
from hpccoll.comm.lifetime import Lifetime
from hpccoll.comm.recall import Recalling, counted
from hpccoll.errors.mpi import DeadCommunicatorError
from hpccoll.runtime.choice import Choice
from hpccoll.runtime.context import Context, context_of
from hpccoll.runtime.executor import drive
from hpccoll.runtime.planner import plan_for, prepare
from hpccoll.tune.choose import choose, native_below
from hpccoll.tune.determinism import check_served
from hpccoll.tune.loading import Tuned, load
from hpccoll.tune.online import Trial
from hpccoll.tune.rules import place_of
from hpccoll.tune.table import Curves, Fingerprint

#: The methods of the MPI library. ``super()`` would find the same ones, a third of a
#: microsecond later.
native = MPI.Intracomm


class Blocking(Recalling):
    """Mixin: the 17 blocking collectives. Mixed into subclasses of ``MPI.Intracomm``.

    Six begin with a look at what :class:`hpccoll.comm.cache.Shapes` knows of small calls. It is spelled
    out in each: a function for all would cost what it saves (decision 0024).
    """

    def Barrier(self) -> None:
        """Wait until every rank has entered the barrier."""
        shape = self._shapes.get(("barrier",))
        if shape is NATIVE_SHAPE:
            native.Barrier(self)
        elif shape is None or not self._prepared((shape, None, None)):
            self._serve(native.Barrier, "barrier")

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Send the root's buffer to every rank."""
        end, dtype, _, size = self._shapes.below["bcast"]
        if (end and type(buf) is ndarray and buf.nbytes < end and buf.dtype is dtype
                and buf.base is None and type(root) is int and 0 <= root < size):
            native.Bcast(self, buf, root)
            return
        served = type(root) is int and self._again("bcast", None, buf, root)
        if served is NATIVE_SHAPE:
            native.Bcast(self, buf, root)
        elif not served:
            self._serve(native.Bcast, "bcast", buf, root)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Combine every rank's buffer at the root."""
        end, dtype, known, size = self._shapes.below["reduce"]
        if (end and type(sendbuf) is ndarray and sendbuf.nbytes < end and sendbuf.dtype is dtype
                and op is known and type(root) is int and 0 <= root < size
                and sendbuf.base is None
                and (recvbuf is None or type(recvbuf) is ndarray
                     and recvbuf.nbytes == sendbuf.nbytes and recvbuf.dtype is dtype
                     and recvbuf.base is None and recvbuf is not sendbuf)):
            native.Reduce(self, sendbuf, recvbuf, op, root)
            return
        served = type(root) is int and self._again("reduce", sendbuf, recvbuf, (id(op), root))
        if served is NATIVE_SHAPE:
            native.Reduce(self, sendbuf, recvbuf, op, root)
        elif not served:
            self._serve(native.Reduce, "reduce", sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer on every rank."""
        end, dtype, known, _ = self._shapes.below["allreduce"]
        if (end and type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and sendbuf.nbytes == recvbuf.nbytes < end and sendbuf.dtype is dtype
                and recvbuf.dtype is dtype and op is known and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf):
            native.Allreduce(self, sendbuf, recvbuf, op)
            return
        served = self._again("allreduce", sendbuf, recvbuf, id(op))
        if served is NATIVE_SHAPE:
            native.Allreduce(self, sendbuf, recvbuf, op)
        elif not served:
            self._serve(native.Allreduce, "allreduce", sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of ranks 0 to this one."""
        served = self._again("scan", sendbuf, recvbuf, id(op))
        if served is NATIVE_SHAPE:
            native.Scan(self, sendbuf, recvbuf, op)
        elif not served:
            self._serve(native.Scan, "scan", sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of the ranks before this one; rank 0 gets nothing."""
        served = self._again("exscan", sendbuf, recvbuf, id(op))
        if served is NATIVE_SHAPE:
            native.Exscan(self, sendbuf, recvbuf, op)
        elif not served:
            self._serve(native.Exscan, "exscan", sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give each rank one of p equal blocks."""
        end, dtype, known, size = self._shapes.below["reduce_scatter_block"]
        if (end and type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and recvbuf.nbytes * size == sendbuf.nbytes < end and sendbuf.dtype is dtype
                and recvbuf.dtype is dtype and op is known and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf):
            native.Reduce_scatter_block(self, sendbuf, recvbuf, op)
            return
        served = self._again("reduce_scatter_block", sendbuf, recvbuf, id(op))
        if served is NATIVE_SHAPE:
            native.Reduce_scatter_block(self, sendbuf, recvbuf, op)
        elif not served:
            self._serve(native.Reduce_scatter_block, "reduce_scatter_block", sendbuf, recvbuf, op)

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None,
                       op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give rank i a block of ``recvcounts[i]`` elements."""
        extra = counted(op, recvcounts)
        served = extra is not None and self._again("reduce_scatter", sendbuf, recvbuf, extra)
        if served is NATIVE_SHAPE:
            native.Reduce_scatter(self, sendbuf, recvbuf, recvcounts, op)
        elif not served:
            self._serve(native.Reduce_scatter, "reduce_scatter", sendbuf, recvbuf, recvcounts, op)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collect one equal block from every rank on every rank."""
        end, dtype, _, size = self._shapes.below["allgather"]
        if (end and type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and sendbuf.nbytes * size == recvbuf.nbytes < end and sendbuf.dtype is dtype
                and recvbuf.dtype is dtype and sendbuf.base is None and recvbuf.base is None
                and sendbuf is not recvbuf):
            native.Allgather(self, sendbuf, recvbuf)
            return
        served = self._again("allgather", sendbuf, recvbuf, None)
        if served is NATIVE_SHAPE:
            native.Allgather(self, sendbuf, recvbuf)
        elif not served:
            self._serve(native.Allgather, "allgather", sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collect one block of any size from every rank on every rank."""
        served = self._again("allgatherv", sendbuf, recvbuf, None)
        if served is NATIVE_SHAPE:
            native.Allgatherv(self, sendbuf, recvbuf)
        elif not served:
            self._serve(native.Allgatherv, "allgatherv", sendbuf, recvbuf)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect one equal block from every rank at the root."""
        served = type(root) is int and self._again("gather", sendbuf, recvbuf, root)
        if served is NATIVE_SHAPE:
            native.Gather(self, sendbuf, recvbuf, root)
        elif not served:
            self._serve(native.Gather, "gather", sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect one block of any size from every rank at the root."""
        self._serve(native.Gatherv, "gatherv", sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Deal the root's buffer out in equal blocks."""
        served = type(root) is int and self._again("scatter", sendbuf, recvbuf, root)
        if served is NATIVE_SHAPE:
            native.Scatter(self, sendbuf, recvbuf, root)
        elif not served:
            self._serve(native.Scatter, "scatter", sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Deal the root's buffer out in blocks of any size."""
        self._serve(native.Scatterv, "scatterv", sendbuf, recvbuf, root)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one equal block from every rank to every rank."""
        end, dtype, _, size = self._shapes.below["alltoall"]
        if (end and type(sendbuf) is ndarray and type(recvbuf) is ndarray
                and sendbuf.nbytes == recvbuf.nbytes < end and not recvbuf.size % size
                and sendbuf.dtype is dtype and recvbuf.dtype is dtype and sendbuf.base is None
                and recvbuf.base is None and sendbuf is not recvbuf):
            native.Alltoall(self, sendbuf, recvbuf)
            return
        served = self._again("alltoall", sendbuf, recvbuf, None)
        if served is NATIVE_SHAPE:
            native.Alltoall(self, sendbuf, recvbuf)
        elif not served:
            self._serve(native.Alltoall, "alltoall", sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block of any size from every rank to every rank."""
        served = self._again("alltoallv", sendbuf, recvbuf, None)
        if served is NATIVE_SHAPE:
            native.Alltoallv(self, sendbuf, recvbuf)
        elif not served:
            self._serve(native.Alltoallv, "alltoallv", sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block of any size and type from every rank to every rank."""
        served = self._again("alltoallw", sendbuf, recvbuf, None)
        if served is NATIVE_SHAPE:
            native.Alltoallw(self, sendbuf, recvbuf)
        elif not served:
            self._serve(native.Alltoallw, "alltoallw", sendbuf, recvbuf)

    # -- how they are served -----------------------------------------------------------------
    def _serve(self, method: Callable, name: str, *args: Any) -> None:
        """Check the arguments, choose, and run ours or the native method."""
        call, choice = self._decide(name, *args)
        if choice is not None and choice.trial is not None:
            self._try(choice.trial, getattr(Blocking, name.capitalize()), args)
            return
        if choice is None or choice.is_native:
            if choice is not None:
                place = self._remember(name, name, args, NATIVE_SHAPE)
                if place is not None:
                    self._note_small(name, call)
            _call_native(method, self, name, spelled(call, args))
            return
        context = self._private()
        plan = plan_for(context, call, choice)
        place = None if resolve.is_loaded(call) else self._remember(name, name, args, Shape())
        known = place is not None and place in context.seen
        execution = prepare(context, call, plan, repeated=known)
        try:
            drive(execution, context.config.timeout, context.config.report)
        except BaseException:
            context.abandon(execution)
            raise
        if known and execution.repeated:
            context.prepared.keep(place, execution)
            self._repeated(name, args, execution)
        elif place is not None:
            context.seen.keep(place, True)
        if call.sink is not None and call.sink.store is not None:
            call.sink.store()

    def _note_small(self, name: str, call: resolve.Call) -> None:
        """Note up to how many bytes calls like this one, which the native method serves, are so.

        What it depends on is known to every rank, so below that all ranks choose native, whichever
        way they come to it.
        """
        if name not in self._shapes.below:
            return
        dtype, size, context = (call.sink or call.source).dtype, self.Get_size(), self._context
        if dtype is None:
            return
        wish, _ = self._wish(call, name)
        end = native_below(call.collective, size, wish, self._life.tuned,
                           self._config.determinism, context and place_of(context))
        self._shapes.small(name, end, dtype, call.op, size)

    def _try(self, trial: Trial, method: Callable, args: tuple) -> None:
        """Make the call again, for the candidate whose turn it is, as if it had always served."""
        context, shapes = self._private(), self._shapes
        self._shapes = trial.shapes.setdefault(trial.place[1], Shapes())
        try:
            trial.run(context.comm, context.config.timeout, context.config.report,
                      lambda: method(self, *args))
        finally:
            self._shapes = shapes

    def _decide(self, name: str, *args: Any) -> tuple[resolve.Call | None, Choice | None]:
        """Resolve a call and choose; ``(None, None)`` when only mpi4py can serve it."""
        tuned = self._tuned()  # first: whatever a rank finds in its arguments, all ranks do it
        call, determinism = self._resolve(name, *args), self._config.determinism
        check_served(call, name, args, determinism)
        return call, call and choose(call, self.Get_size(), *self._wish(call, name), tuned,
                                     determinism, lambda: place_of(self._private()))

    def _tuned(self) -> Tuned | None:
        """Measured times, if there are any; the first call of a communicator looks for them."""
        self._check_alive()
        life = self._life
        if life.tuned is None and self.Get_size() > 1:
            life.tuned = load(self, self._config.tuning, self._private, self._probe)
        return life.tuned

    def _probe(self, context: Context, machine: Fingerprint, path: str
               ) -> tuple[Curves, str, list[str]]:
        """Measure in this job; for a class that is not made for one kind of communicators."""
        raise NotImplementedError

    def _resolve(self, name: str, *args: Any) -> resolve.Call | None:
        """Check the arguments of a call; ``None`` when only mpi4py can serve it."""
        self._check_alive()
        try:
            return getattr(resolve, name)(self.Get_size(), self.Get_rank(), *args)
        except NativeOnly:
            return None

    def _wish(self, call: resolve.Call, *methods: str) -> tuple[Choice | None, bool]:
        """What the user wants for a call, and whether the environment says so."""
        for method in (*methods, call.collective):
            if method in self._wishes:
                return self._wishes[method], False
        chosen = self._config.algorithm.get(call.collective)
        return chosen and Choice(*chosen), True

    def _private(self) -> Context:
        """This communicator's private state; the first call is collective."""
        if self._context is None or self._context.freed:
            self._context = context_of(self, self._config, self._layout)
        return self._context

    def _check_alive(self) -> None:
        """Raise a ``CommunicatorError`` unless the communicator can be used."""
        life = self._life
        if life is None and self != MPI.COMM_NULL:
            # Dup and its like make instances before they have a handle: this is the first look.
            life = self._life = Lifetime.of(self)
        if life is None or life.freed:
            raise DeadCommunicatorError("the communicator is null or was freed; "
                                        "make a new hpccoll.Comm")


def spelled(call: resolve.Call | None, args: tuple) -> tuple:
    """The arguments as the MPI library wants them: one buffer given twice means in place."""
    if call is None:
        return args
    if call.in_place and args[0] is args[1]:
        args = MPI.IN_PLACE, *args[1:]
    return tuple(map(native_form, args)) if resolve.lacks_mpi_type(call) else args


def _call_native(method: Callable, comm: MPI.Intracomm, name: str, args: tuple) -> None:
    """Call the native method, on host copies of device memory that it cannot reach."""
    if not any(map(is_staged, args)):
        method(comm, *args)
        return
    written = 0 if name == "bcast" else 1
    places = [staged(arg, "buffer", index == written) if is_staged(arg) else (arg, None)
              for index, arg in enumerate(args)]
    method(comm, *(arg for arg, _ in places))
    for _, store in places:
        if store is not None:
            store()
