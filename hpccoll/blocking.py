"""The blocking upper-case collectives of mpi4py, served by hpccoll where it can.

Every method has mpi4py's name, parameters and meaning. Arguments are checked before any
message is sent; what hpccoll does not serve goes to the native method unchanged.
"""

from __future__ import annotations

from typing import Any, Callable

from mpi4py import MPI
from numpy import ndarray

from hpccoll import calls
from hpccoll.buffers import NativeOnly, is_staged, staged
from hpccoll.config import Config
from hpccoll.engine import plan_for, prepare
from hpccoll.life import Life
from hpccoll.mpi_errors import DeadCommunicatorError
from hpccoll.private import State, state_of
from hpccoll.run import drive, run_prepared
from hpccoll.topology import Topology
from hpccoll.tune.choose import Choice, choose
from hpccoll.tune.tuned import Tuned, load

_address, _IN_PLACE = MPI.Get_address, MPI.IN_PLACE


class Shape:
    """A call shape that hpccoll serves: arrays of these sizes and types; equal to itself only."""


#: Methods that look for an earlier call like theirs: (sendbuf, recvbuf[, op]), or (buf, root).
REPEATABLE = ("bcast", "allreduce", "scan", "exscan", "reduce_scatter_block", "allgather",
              "alltoall")
#: The shape of all calls that the native method serves.
NATIVE_SHAPE = Shape()


class Blocking:
    """Mixin: the 17 blocking collectives. Mixed into subclasses of ``MPI.Intracomm``."""

    # ``Dup`` and ``Clone`` make instances without calling ``__init__``, hence class defaults.
    _config: Config
    _life: Life | None = None
    _state: State | None = None
    _layout: Topology | None = None
    _wishes: dict[str, Choice] = {}
    _shapes: dict[tuple, Shape]

    def Barrier(self) -> None:
        """Wait until every rank has entered the barrier."""
        self._serve("barrier", super().Barrier)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Send the root's buffer to every rank."""
        if not self._repeat("bcast", super().Bcast, None, buf, root):
            self._serve("bcast", super().Bcast, buf, root)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Combine every rank's buffer at the root."""
        self._serve("reduce", super().Reduce, sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer on every rank."""
        if not self._repeat("allreduce", super().Allreduce, sendbuf, recvbuf, op):
            self._serve("allreduce", super().Allreduce, sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of ranks 0 to this one."""
        if not self._repeat("scan", super().Scan, sendbuf, recvbuf, op):
            self._serve("scan", super().Scan, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of the ranks before this one; rank 0 gets nothing."""
        if not self._repeat("exscan", super().Exscan, sendbuf, recvbuf, op):
            self._serve("exscan", super().Exscan, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give each rank one of p equal blocks."""
        if not self._repeat("reduce_scatter_block", super().Reduce_scatter_block, sendbuf,
                            recvbuf, op):
            self._serve("reduce_scatter_block", super().Reduce_scatter_block, sendbuf, recvbuf, op)

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None,
                       op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give rank i a block of ``recvcounts[i]`` elements."""
        self._serve("reduce_scatter", super().Reduce_scatter, sendbuf, recvbuf, recvcounts, op)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collect one equal block from every rank on every rank."""
        if not self._repeat("allgather", super().Allgather, sendbuf, recvbuf, None):
            self._serve("allgather", super().Allgather, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collect one block of any size from every rank on every rank."""
        self._serve("allgatherv", super().Allgatherv, sendbuf, recvbuf)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect one equal block from every rank at the root."""
        self._serve("gather", super().Gather, sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect one block of any size from every rank at the root."""
        self._serve("gatherv", super().Gatherv, sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Deal the root's buffer out in equal blocks."""
        self._serve("scatter", super().Scatter, sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Deal the root's buffer out in blocks of any size."""
        self._serve("scatterv", super().Scatterv, sendbuf, recvbuf, root)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one equal block from every rank to every rank."""
        if not self._repeat("alltoall", super().Alltoall, sendbuf, recvbuf, None):
            self._serve("alltoall", super().Alltoall, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block of any size from every rank to every rank."""
        self._serve("alltoallv", super().Alltoallv, sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block of any size and type from every rank to every rank."""
        self._serve("alltoallw", super().Alltoallw, sendbuf, recvbuf)

    # -- how they are served -----------------------------------------------------------------
    def _serve(self, name: str, native: Callable, *args: Any) -> None:
        """Check the arguments, choose, and run ours or the native method."""
        call, choice = self._decide(name, *args)
        if choice is None or choice.is_native:
            if choice is not None:
                self._remember(name, args, NATIVE_SHAPE)
            _call_native(name, native, spelled(call, args))
            return
        state = self._private()
        plan = plan_for(state, call, choice)
        shape, place = self._remember(name, args, Shape())
        known = shape is not None and state.seen.get((shape, place))
        execution = prepare(state, call, plan, repeated=bool(known))
        if shape is not None:
            if known and execution.repeated:
                state.prepared.keep((shape, place), execution)
            state.seen.keep((shape, place), True)
        try:
            drive(execution, state.config.timeout, state.config.report)
        except BaseException:
            state.abandon(execution)
            raise
        if call.sink is not None and call.sink.store is not None:
            call.sink.store()

    def _decide(self, name: str, *args: Any) -> tuple[calls.Call | None, Choice | None]:
        """Resolve a call and choose; ``(None, None)`` when only mpi4py can serve it."""
        tuned = self._tuned()  # first: whatever a rank finds in its arguments, all ranks do it
        call = self._resolve(name, *args)
        return call, call and choose(call, self.Get_size(), *self._wish(call, name), tuned)

    def _tuned(self) -> Tuned | None:
        """Measured times, if there are any; the first call of a communicator looks for them."""
        self._check_alive()
        life = self._life
        if life.tuned is None and self.Get_size() > 1:
            life.tuned = load(self, self._config.tuning, self._private)
        return life.tuned

    def _resolve(self, name: str, *args: Any) -> calls.Call | None:
        """Check the arguments of a call; ``None`` when only mpi4py can serve it."""
        self._check_alive()
        try:
            return getattr(calls, name)(self.Get_size(), self.Get_rank(), *args)
        except NativeOnly:
            return None

    def _wish(self, call: calls.Call, *methods: str) -> tuple[Choice | None, bool]:
        """What the user wants for a call, and whether the environment says so."""
        for method in (*methods, call.collective):
            if method in self._wishes:
                return self._wishes[method], False
        chosen = self._config.algorithm.get(call.collective)
        return chosen and Choice(*chosen), True

    def _repeat(self, name: str, native: Callable, sendbuf: Any, recvbuf: Any,
                extra: Any) -> bool:
        """Serve a call like an earlier one at once; tell whether that was possible.

        A call counts as like an earlier one when its arrays have the same sizes and types
        (then native serves it again) and lie at the same addresses (then the prepared
        execution does).
        """
        key = _shape_key(name, sendbuf, recvbuf, extra)
        if key is None:
            return False
        shape = self._shapes.get(key)
        if shape is None:
            return False
        place = _place(sendbuf, recvbuf)
        if shape is NATIVE_SHAPE:
            if _overlap(place, key):
                return False
            if name == "bcast":
                native(recvbuf, extra)
            elif extra is None:
                native(sendbuf, recvbuf)
            else:
                native(sendbuf, recvbuf, extra)
            return True
        state = self._state
        execution = state.prepared.get((shape, place))
        if execution is None or state.freed:
            return False
        config = state.config
        try:
            if len(execution.plan.lanes) == 1:
                run_prepared(execution, config.timeout, config.report)
            else:
                drive(execution, config.timeout, config.report)
        except BaseException:
            state.abandon(execution)
            raise
        return True

    def _remember(self, name: str, args: tuple, shape: Shape):
        """Note under which shape a call was served; its shape and place, if it can repeat."""
        if name not in REPEATABLE:
            return None, None
        sendbuf, recvbuf, extra = (None, *args) if name == "bcast" else (*args, None)[:3]
        key = _shape_key(name, sendbuf, recvbuf, extra)
        # An alltoall in place works on a copy made for the call, which is gone afterwards.
        if key is None or name == "alltoall" and type(sendbuf) is not ndarray:
            return None, None
        return self._shapes.setdefault(key, shape), _place(sendbuf, recvbuf)

    def _private(self) -> State:
        """This communicator's private state; the first call is collective."""
        if self._state is None or self._state.freed:
            self._state = state_of(self, self._config, self._layout)
        return self._state

    def _check_alive(self) -> None:
        """Raise a ``CommunicatorError`` unless the communicator can be used."""
        life = self._life
        if life is None and self != MPI.COMM_NULL:
            # Dup and its like make instances before they have a handle: this is the first look.
            life = self._life = Life.of(self)
        if life is None or life.freed:
            raise DeadCommunicatorError("the communicator is null or was freed; "
                                        "make a new hpccoll.Comm")


def spelled(call: calls.Call | None, args: tuple) -> tuple:
    """The arguments as the MPI library wants them: one buffer given twice means in place."""
    if call is not None and call.in_place and args[0] is args[1]:
        return MPI.IN_PLACE, *args[1:]
    return args


def _call_native(name: str, native: Callable, args: tuple) -> None:
    """Call the native method, on host copies of device memory that it cannot reach."""
    if not any(map(is_staged, args)):
        native(*args)
        return
    written = 0 if name == "bcast" else 1
    places = [staged(arg, "buffer", index == written) if is_staged(arg) else (arg, None)
              for index, arg in enumerate(args)]
    native(*(arg for arg, _ in places))
    for _, store in places:
        if store is not None:
            store()


def _shape_key(name: str, sendbuf: Any, recvbuf: Any, extra: Any) -> tuple | None:
    """What two calls must share to be served alike; ``None`` for unusual buffers."""
    if type(recvbuf) is not ndarray or not recvbuf.flags.carray:
        return None
    if type(extra) is MPI.Op:
        extra = extra.handle
    if type(sendbuf) is ndarray:
        if not sendbuf.flags.c_contiguous:
            return None
        return (name, extra, recvbuf.nbytes, recvbuf.dtype, sendbuf.nbytes, sendbuf.dtype)
    if sendbuf is None or sendbuf is _IN_PLACE:
        return (name, extra, recvbuf.nbytes, recvbuf.dtype)
    return None


def _place(sendbuf: Any, recvbuf: Any) -> tuple:
    """Where the arrays of a call lie."""
    if type(sendbuf) is ndarray:
        return _address(recvbuf), _address(sendbuf)
    return (_address(recvbuf),)


def _overlap(place: tuple, key: tuple) -> bool:
    """Tell whether the two arrays of a call share memory."""
    if len(place) == 1:
        return False
    (sink, source), (_, _, nbytes, _, sent, _) = place, key
    return sink < source + sent and source < sink + nbytes
