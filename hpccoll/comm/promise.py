"""Promise that all ranks pass device arrays: ``hpccoll.Comm(comm, device="cuda")``.

Ranks then select a data path by the same rules without an exchange in each call. They exchange the
available paths in the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.config import NCCL
from hpccoll.errors import ArgumentError

if TYPE_CHECKING:
    from hpccoll.comm.base import Base
    from hpccoll.comm.methods import Method
    from hpccoll.runtime.planning.choice import Choice
    from hpccoll.tune.device_rules import DevicePlace

#: Supported devices.
DEVICES = ("cuda",)
#: Arguments that are no memory.
NO_MEMORY = type(None), type(MPI.IN_PLACE), type(MPI.BOTTOM)


def device_promise(device: str) -> str:
    """Return the argument ``device`` of a communicator.

    Raises:
        ArgumentError: unknown, or CuPy is not installed.
    """
    from hpccoll.cuda import has_cupy
    if device not in DEVICES:
        raise ArgumentError.unknown_word("device", device, DEVICES)
    if not has_cupy():
        raise ArgumentError("device", f"is {device!r}, but CuPy is not installed",
                            "install cupy-cuda12x or cupy-cuda13x")
    return device


def check_promise(method: Method, args: Sequence[Any], device: str) -> None:
    """Raise an error for a buffer in host memory if a ``device`` is promised.

    Raises:
        ArgumentError: names the buffer.
    """
    if not device:
        return
    from hpccoll.calls.memory import may_be_device
    for name, spec in zip(method.buffers, args, strict=False):
        one = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
        if not isinstance(one, NO_MEMORY) and not may_be_device(one):
            raise ArgumentError(
                name, f"is in host memory ({type(one).__name__}), but this communicator promises "
                      f"device={device!r}",
                "pass a CuPy array or a CUDA tensor, or use hpccoll.Comm(comm) for host memory")


def is_queued_or_promised(comm: Base, method: Method, preference: Choice | None) -> bool:
    """Return True if NCCL may run a call: by request, or since all ranks pass device arrays."""
    if preference is None or preference.is_auto:
        return bool(comm._device) and comm.Get_size() > 1 and method.name != "barrier"
    return preference.is_queued


def device_place(comm: Base, device: Any, across: Any) -> DevicePlace:
    """Return the data paths of a communicator with device arrays; the first call is collective.

    ``across`` is the allreduce between nodes. The cache of calls is cleared if the paths have
    changed, by ``comm.empty(xp=cupy)`` for example.
    """
    from hpccoll.cuda import DeviceMemory, Nccl  # imported only for NCCL
    from hpccoll.tune.device_rules import DevicePlace

    context, before = comm._private(), comm._device_place
    service, memory = context.service(Nccl), context.existing_service(DeviceMemory)
    turns = service.takes_turns(device)
    # Messages of NCCL have no checksums.
    usable = not comm._config.checksums and not isinstance(
        service.ranks(NCCL, device, across), str)
    place = DevicePlace(usable, turns, memory is not None and memory.scratch is not None,
                        before.mpi if before is not None else None)
    if before is not None and place != before:
        comm.forget_calls()
    return place


def learn_other_paths(comm: Base) -> str:
    """Test once if the MPI library moves device memory on all ranks; return why NCCL is not used.

    Collective: all ranks have the same choice of this call.
    """
    from hpccoll.cuda import AWARE, Ways
    place = comm._device_place
    if place is not None and place.mpi is None:
        reports = comm._private().service(Ways).look()
        comm._device_place = place._replace(mpi=all(
            report.device and report.found[AWARE.name].can for report in reports))
    return "the rules for device arrays select another path"
