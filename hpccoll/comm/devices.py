"""Device arrays of a communicator: the methods that use the package ``cuda``.

    DeviceWays       data paths for device arrays, registered memory
    DeviceMessages   point-to-point messages of memory that the MPI library cannot move, with the
                     methods of device_messages
    run_by_nccl      runs a blocking call by NCCL
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, overload

import numpy
from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.comm.methods import Method
from hpccoll.config import ANY_P, AUTO, NCCL, NONE, OFF
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.errors.mpi import error_handler_of
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from hpccoll.calls.call import Call
    from hpccoll.calls.facts import CallFacts
    from hpccoll.cuda import RegisteredCall
    from hpccoll.runtime.context import Context
    from hpccoll.runtime.planning.choice import Choice
    from hpccoll.runtime.planning.plan import Plan

#: Maximum cached choices across nodes.
MOST_CHOICES = 256


class DeviceWays(Base):
    """Communicator with data paths for devices."""

    @property
    def ways(self) -> str:
        """Data paths for device arrays between pairs of ranks, and why others are unavailable.

        The first access is collective, and takes seconds if there are devices. Afterwards
        ``explain`` shows them, too.
        """
        from hpccoll.cuda import Ways, describe_ways
        with self._check_alive().call_guard:
            reports = self._private().service(Ways).look()
            return "".join(f"{line}\n" for line in describe_ways(reports))

    @property
    def moves_device_memory(self) -> bool:
        """True if the MPI library moves device memory; the first access takes seconds."""
        from hpccoll.cuda import mpi_moves_device_memory
        return mpi_moves_device_memory()

    def _known_ways(self) -> str:
        """Return the lines for ``explain``: empty before the first access to :attr:`ways`."""
        from hpccoll.cuda import DeviceMemory, Ways, describe_ways
        context = existing_context(self)
        if context is None or context.freed:
            return ""
        reports, memory = context.service(Ways).reports, context.existing_service(DeviceMemory)
        devices = reports is not None and any(each.device for each in reports)
        shown = describe_ways(reports or ()) if devices else []
        if memory is not None:
            shown.append("arrays of comm.empty(xp=cupy or torch): " + (
                f"not registered, {memory.problem}" if memory.problem else
                "read in place, by CUDA IPC"))
        return "\nDevice arrays:\n" + "".join(f"  {line}\n" for line in shown) if shown else ""

    @overload
    def empty(self, shape: int | Sequence[int], dtype: Any = ...) -> numpy.ndarray: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: Any = ..., *, xp: Any) -> Any: ...
    def empty(self, shape: int | Sequence[int], dtype: Any = float, *, xp: Any = numpy) -> Any:
        """Create an array in registered memory, which other ranks of the node read in place.

        ``xp`` is ``numpy``; or ``cupy`` or ``torch`` for memory of the current GPU, read by CUDA
        IPC. ``torch`` makes a CUDA tensor; ``dtype`` may be one of PyTorch's.

        Collective; every rank may pass a different shape. The memory stays allocated until the
        communicator is freed, so create such arrays once, not in a loop. Afterwards they are
        ordinary arrays and stay valid. They are ordinary from the start if the node has no shared
        memory, or if too little of it is free (a ``RuntimeWarning`` reports that).

        Raises:
            ArgumentError: a negative or malformed shape; ``xp`` differs between ranks of a node,
                or a rank of the node has no GPU for it.
            ArgumentTypeError: elements that are Python objects.
        """
        from hpccoll.arrays.shapes import element_count
        from hpccoll.cuda import element_type
        from hpccoll.transport.shm.mapping import DIRECTORY
        lifetime = self._check_usable()
        dtype, sized = element_type(xp, dtype)
        sized, count = element_count(shape, sized)
        nbytes = count * sized.itemsize

        def make() -> Any:
            node = context.node
            self._check_alike(xp)
            if xp is not numpy:
                return registered_array(self, shape, dtype, nbytes, xp)
            if node is None or not node.local:
                return numpy.zeros(shape, dtype)
            region = node.allocate(nbytes)
            return region and region.mine.view(sized).reshape(shape)

        with lifetime.call_guard:
            context = self._private()
            array = context.library.run_after_meeting(make, Description("empty"))()
        if array is None:
            warnings.warn(f"hpccoll: array is not registered: no space for {nbytes} bytes in "
                          f"{DIRECTORY}; free space there", RuntimeWarning, stacklevel=2)
            return numpy.zeros(shape, dtype)
        return array

    @overload
    def zeros(self, shape: int | Sequence[int], dtype: Any = ...) -> numpy.ndarray: ...
    @overload
    def zeros(self, shape: int | Sequence[int], dtype: Any = ..., *, xp: Any) -> Any: ...
    def zeros(self, shape: int | Sequence[int], dtype: Any = float, *, xp: Any = numpy) -> Any:
        """Create an array of zeros in registered memory; see :meth:`empty`."""
        array = self.empty(shape, dtype, xp=xp)
        array[...] = 0
        return array

    def _registered_memory(self, nbytes: int) -> Any:
        """Return registered device memory as bytes; or why there is none, the same on all ranks."""
        from hpccoll.cuda import DeviceMemory
        context = self._private()
        registered = context.service(DeviceMemory)
        memory = registered.allocate(nbytes)
        if registered.scratch is not None and not context.scratch_bytes:
            context.use_registered()
            self._check_alive().forget_calls()  # their plans have other segments
        return memory

    def _check_alike(self, xp: Any) -> None:
        """Raise an error unless ``xp`` is the same on all ranks of the node; collective."""
        from hpccoll.cuda import missing_device, module_name
        from hpccoll.units import ranks_text
        name = module_name(xp)
        node = self._private().node
        mine = self.Get_rank(), (name, missing_device(xp) if name in ("cupy", "torch") else "")
        ranks = dict(node.comm.allgather(mine) if node is not None else [mine])
        if len({one for one, _ in ranks.values()}) > 1:
            kinds = {kind: [rank for rank, (one, _) in ranks.items() if one == kind]
                     for kind, _ in dict.fromkeys(ranks.values())}
            text = ", ".join(f"{kind} on {ranks_text(ranks)}" for kind, ranks in kinds.items())
            raise ArgumentError("xp", f"differs between ranks of the node: {text}",
                                "pass the same xp on all ranks of the node")
        if name not in ("numpy", "cupy", "torch"):
            raise ArgumentError("xp", f"is {name}", "pass numpy, cupy or torch")
        for rank, problem in ((rank, why) for rank, (_, why) in ranks.items() if why):
            raise ArgumentError("xp", f"is {name}, but rank {rank} has no GPU: {problem}",
                                "pass numpy, or run on nodes with GPUs")


def registered_array(comm: DeviceWays, shape: int | Sequence[int], dtype: Any, nbytes: int,
                     xp: Any) -> Any:
    """Return an array in registered device memory; without such memory, warn and use ordinary."""
    from hpccoll.cuda import device_namespace, module_name
    torch = module_name(xp) == "torch"
    number = xp.cuda.current_device() if torch else None
    with device_namespace().cuda.Device(number):
        memory = comm._registered_memory(nbytes)
    if not isinstance(memory, str):
        array = xp.as_tensor(memory, device=f"cuda:{memory.device.id}") if torch else memory
        return array.view(dtype).reshape(shape)
    if comm.Get_size() > 1:
        warnings.warn(f"hpccoll: the array is not registered: {memory}", RuntimeWarning,
                      stacklevel=3)
    return xp.empty(shape, dtype=dtype, **({"device": f"cuda:{number}"} if torch else {}))


def on_registered_memory(comm: Base, method: Method, args: tuple[Any, ...]
                         ) -> tuple[Call, RegisteredCall] | None:
    """Return a blocking call on registered device memory; ``None`` for other memory.

    Wrong arguments also give ``None``; the resolver then raises the error.
    """
    from hpccoll.calls.native import NativeOnly
    from hpccoll.cuda import DeviceMemory, RegisteredCall, as_resident, queue_of
    context = comm._context
    memory = context.existing_service(DeviceMemory) if context is not None else None
    if memory is None or memory.scratch is None or comm._config.determinism == ANY_P:
        return None
    specs = [as_resident(arg) for arg in args]
    if not _any_resident(specs):
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
    """Run a call on registered memory; return False if it needs too much scratch."""
    from hpccoll.runtime.execution.executor import drive
    from hpccoll.runtime.planning.planner import prepare_registered
    execution = prepare_registered(context, call, plan, made)
    if execution is None:
        return False
    try:
        drive(execution, context.timeouts)
        made.finish()
    except BaseException as error:
        try:
            context.abandon(execution, error)
        finally:
            made.settle()  # after all ranks have been notified, so that no rank starts a read
        raise
    return True


def run_by_nccl(comm: Base, method: Method, args: tuple[Any, ...], preference: Choice | None,
                gives_way: bool
                ) -> str:
    """Run a blocking call by NCCL; ``gives_way`` if the environment selected NCCL.

    Without a request for NCCL all ranks pass device arrays, and the rules decide.

    Returns:
        The reason why NCCL does not run it; empty if it did.

    Raises:
        ArgumentError: ``comm.using`` selected NCCL, which cannot run the call; or only this rank
            may have the reason why it cannot.
    """
    from hpccoll.calls.facts import facts_of
    from hpccoll.calls.native import NativeOnly
    from hpccoll.comm.promise import device_place, learn_other_paths
    from hpccoll.comm.uncached.conditions import conditions_of, record_choice
    from hpccoll.cuda import Nccl, as_resident, queue_of
    from hpccoll.ir.collectives import COLLECTIVES
    from hpccoll.runtime.planning.call_hash import describe_native
    from hpccoll.tune.choose import choose, obstacle

    promised = preference is None or not preference.is_queued
    specs, elsewhere = [as_resident(arg) for arg in args], (
        f"rank {comm.Get_rank()} passes memory that is not on a GPU of CuPy")
    if not _any_resident(specs):
        return elsewhere
    call, problem = None, None
    try:
        with error_handler_of(comm):
            call = method.resolve(comm.Get_size(), comm.Get_rank(), *specs)
    except NativeOnly as error:
        problem = error
    where = queue_of(specs)
    if promised and where is not None:
        comm._device_place = device_place(comm, where.device, _across(comm))
    if call is None:
        # All ranks have the same operator and elements, but only this one may have derived types.
        lone = promised and comm._device_place is not None and (
            comm._device_place.nccl and not COLLECTIVES[method.collective].reduces)
        if (gives_way or promised) and not lone:
            return str(problem)
        name = NCCL if preference is None or promised else preference.name
        raise ArgumentError("algorithm",
                            f"{name} cannot run this {method.title} on rank "
                            f"{comm.Get_rank()}: {problem}", "choose another algorithm"
                            ) from problem
    if where is None:
        return elsewhere
    facts, conditions = facts_of(call), conditions_of(comm, method)
    choice = choose(facts, conditions, comm._known_place())
    if choice is None or not choice.is_queued:
        if promised or preference is None:
            return learn_other_paths(comm)
        return obstacle(preference, facts, conditions)  # selected by the environment: fall back
    name = choice.name
    ranks = comm._private().service(Nccl).ranks(name, where.device, _across(comm))
    if isinstance(ranks, str):
        return ranks
    if where.device.id != ranks.group.device.id:
        raise ArgumentError("sendbuf", f"is on GPU {where.device.id}, but NCCL uses GPU "
                                       f"{ranks.group.device.id} for this communicator",
                            "use one GPU for all calls of a communicator")
    record_choice(comm, method, call, choice)
    if comm._always:
        comm._compare(describe_native(call, method.name)._replace(algorithm=name))
    ranks.run(call, where, describe_native(call, call.name)._replace(algorithm=name))
    if promised and not where.shared:
        ranks.finish(where)
    return ""


def _across(comm: Base) -> Any:
    """Return the allreduce between nodes."""
    from hpccoll.cuda import AcrossNodes

    config = comm._config
    return AcrossNodes(partial(comm._unobserved_class(), determinism=NONE, tuning=OFF,
                               contract=config.contract, checksums=config.checksums,
                               timeout=config.timeout), _algorithm_across)


def nccl_problem(comm: MPI.Intracomm, name: str) -> str:
    """Return why these ranks cannot use NCCL; empty if they can or have not tried."""
    from hpccoll.cuda import Nccl

    context = existing_context(comm)
    return context.service(Nccl).reasons.get(name, "") if context is not None else ""


def _any_resident(specs: Sequence[Any]) -> bool:
    from hpccoll.cuda import Resident
    return any(isinstance(part, Resident) for spec in specs
               for part in (spec if isinstance(spec, list) else [spec]))


def _algorithm_across(call: Call, size: int, nbytes: int) -> str:
    from hpccoll.calls.facts import facts_of
    return choose_across_nodes(facts_of(call), size, nbytes)


@lru_cache(MOST_CHOICES)
def choose_across_nodes(facts: CallFacts, size: int, nbytes: int) -> str:
    """Return the algorithm for a part of an allreduce across ``size`` nodes."""
    from hpccoll.tune.choose import Conditions, instead_of_native
    choice = instead_of_native(facts._replace(nbytes=nbytes), Conditions(size),
                               "it uses several nodes")
    return choice.name if choice is not None else AUTO


class DeviceMessages(Base):
    """Point-to-point messages of device memory."""


# Without CuPy there are no device arrays, and messages must cost the same as in mpi4py: the check
# takes 75 to 310 ns. The path finder looks for files and imports nothing.
if PathFinder.find_spec("cupy") is not None:
    from hpccoll.comm.device_messages import message_methods
    for each, method in message_methods().items():
        setattr(DeviceMessages, each, method)
