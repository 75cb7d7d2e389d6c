"""What a communicator knows of its ranks' devices: ways for data of arrays, registered memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.arrays.device import mpi_moves_device_memory
from hpccoll.arrays.evidence import agreed
from hpccoll.arrays.resident import Resident, queue_of, resident
from hpccoll.arrays.ways import Told, lines
from hpccoll.calls.call import Call
from hpccoll.calls.native import NativeOnly
from hpccoll.comm.base import Base
from hpccoll.comm.methods import Method
from hpccoll.config import ANY_P
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.runtime.context import Context, existing
from hpccoll.runtime.execution.executor import drive
from hpccoll.runtime.execution.registered import DeviceMemory, RegisteredCall
from hpccoll.runtime.planning.plan import Plan
from hpccoll.units import ranks_text


class Ways:
    """What all ranks of a communicator told of the ways of device data.

    Attributes:
        told: by rank; ``None`` where nobody has asked yet.
    """

    def __init__(self, context: Context):
        self.context = context
        self.told: list[Told] | None = None

    def look(self) -> list[Told]:
        """What all ranks tell; the first time is collective."""
        if self.told is None:
            guard = self.context.guard
            ask = guard.attended(agreed) if guard is not None else agreed
            self.told = ask(self.context.comm)
        return self.told

    def free(self) -> None:
        """Nothing: it holds no resources."""


class DeviceWays(Base):
    """Communicators that tell about devices."""

    @property
    def ways(self) -> str:
        """Which ways there are for device arrays between pairs of ranks, and why not the others.

        The first look is collective, and takes seconds where there are devices. Afterwards
        ``explain`` says it, too.
        """
        with self._check_alive().entrance:
            return "\n".join(lines(self._private().service(Ways).look())) + "\n"

    @property
    def moves_device_memory(self) -> bool:
        """Whether the MPI library moves device memory; the first look takes seconds."""
        return mpi_moves_device_memory()

    def _known_ways(self) -> str:
        """What ``explain`` says: nothing before the first look at :attr:`ways`."""
        context = existing(self)
        if context is None or context.freed:
            return ""
        told, memory = context.service(Ways).told, context.registered
        shown = lines(told) if told is not None and any(each.device for each in told) else []
        if memory is not None:
            shown.append("arrays of comm.empty(xp=cupy): " + (
                f"not registered, {memory.problem}" if memory.problem else
                "read in place, by CUDA IPC"))
        return "\nDevice arrays:\n" + "".join(f"  {line}\n" for line in shown) if shown else ""

    def _registered_memory(self, nbytes: int) -> Any:
        """Registered memory of a device, as bytes; or why there is none, the same on all ranks."""
        context = self._private()
        if context.registered is None:
            context.registered = context.service(DeviceMemory)
        return context.registered.allocate(nbytes)

    def _check_alike(self, xp: Any) -> None:
        """Raise an error unless all ranks make an array of one kind of memory; collective."""
        name = getattr(xp, "__name__", type(xp).__name__)
        node = self._private().node
        mine = self.Get_rank(), name
        names = dict(node.comm.allgather(mine) if node is not None else [mine])
        if len(set(names.values())) > 1:
            kinds = {kind: [rank for rank, one in names.items() if one == kind]
                     for kind in dict.fromkeys(names.values())}
            told = ", ".join(f"{kind} on {ranks_text(ranks)}" for kind, ranks in kinds.items())
            raise ArgumentError("xp", f"is not the same on all ranks of the node: {told}",
                                "make the array of one kind of memory on all of them")
        if name not in ("numpy", "cupy"):
            raise ArgumentError("xp", f"is {name}", "pass numpy or cupy")


def registered_array(comm: DeviceWays, shape: int | Sequence[int], dtype: numpy.dtype, nbytes: int,
                     xp: Any) -> Any:
    """An array in registered device memory; an ordinary one, with a warning, if there is none."""
    memory = comm._registered_memory(nbytes)
    if not isinstance(memory, str):
        return memory.view(dtype).reshape(shape)
    if comm.Get_size() > 1:
        warnings.warn(f"hpccoll: the array is not registered: {memory}", RuntimeWarning,
                      stacklevel=3)
    return xp.empty(shape, dtype)


def on_registered_memory(comm: Base, method: Method, args: tuple[Any, ...]
                         ) -> tuple[Call, RegisteredCall] | None:
    """A blocking call whose memory is registered device memory; ``None`` where it is not.

    What is wrong with the arguments is found by whoever resolves them then.
    """
    context = comm._context
    memory = context.registered if context is not None else None
    if memory is None or memory.scratch is None or comm._config.determinism == ANY_P:
        return None
    specs = [resident(arg) for arg in args]
    if not any(isinstance(part, Resident) for spec in specs
               for part in (spec if isinstance(spec, list) else [spec])):
        return None
    try:
        call = method.resolve(comm.Get_size(), comm.Get_rank(), *specs)
        queue = queue_of(specs)
    except (NativeOnly, HpccollError):
        return None
    if queue is None or not memory.holds(call):
        return None
    return call, RegisteredCall(memory, queue)


def run_registered(context: Context, made: RegisteredCall, call: Call, plan: Plan) -> bool:
    """Run a call on registered memory; tell whether it was: it may need too much scratch."""
    execution = made.execution(call, plan)
    if execution is None:
        return False
    try:
        drive(execution, context.bounds)
        made.finish()
    except BaseException as error:
        try:
            context.abandon(execution, error)
        finally:
            made.settle()  # when all have been told, so that nobody begins to read any more
        raise
    return True
