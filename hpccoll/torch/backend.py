"""Registration of the backend in torch, and creation of process groups.

The members of a group exchange their ranks in MPI's world through the group's store, so torch may
number ranks differently, and the default group may have any backend.
"""

from __future__ import annotations

import sys
import zlib
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from hpccoll.errors import ProcessGroupError

if TYPE_CHECKING:
    from hpccoll import Comm

#: Oldest supported version of torch, and message text for older ones.
OLDEST = (2, 4)
NAME = "hpccoll"


def register() -> None:
    """Register the backend in ``torch.distributed``; torch calls this entry point.

    Raises:
        ProcessGroupError: torch is too old.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        raise ProcessGroupError(f"torch {torch.__version__} is too old; install torch "
                                f"{'.'.join(map(str, OLDEST))} or newer")
    if not distributed.is_available():
        raise ProcessGroupError("this torch was built without torch.distributed")
    if NAME.upper() not in distributed.Backend._plugins:
        # torch puts tensors on the last of these devices, so a GPU must be usable. Counting does
        # not start CUDA, unlike is_available(): the program may still select its GPU.
        on_gpu = find_spec("cupy") is not None and torch.cuda.device_count() > 0
        distributed.Backend.register_backend(NAME, create, extended_api=True,
                                             devices=["cpu", "cuda"] if on_gpu else ["cpu"])


def create(opts: Any, options: Any = None) -> Any:
    """Create a group; collective over its members.

    Args:
        opts: torch's ``DistributedBackendOptions``.
        options: torch's ``pg_options``; none are supported.

    Raises:
        MpiLibraryError: no MPI library can be loaded, or the launcher belongs to another one.
        ProcessGroupError: the processes were not started by MPI, MPI does not support threads, or
            other devices have other backends.
    """
    from hpccoll.torch.process_group.group import Group
    _check_alone()
    comm = communicator(opts.store, opts.group_rank, opts.group_size, opts.group_id,
                        opts.timeout.total_seconds())
    return Group(comm, opts.store, opts.group_id or "default", opts.timeout)


def _check_alone() -> None:
    """Raise for a group whose devices have several backends: torch would drop the others.

    The options lack the other backends; a caller has them.

    Raises:
        ProcessGroupError: names them.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back
    backends = getattr(frame and frame.f_locals["backend_config"], "device_backend_map", {})
    others = sorted({str(name) for name in backends.values()} - {NAME})
    if others:
        raise ProcessGroupError(
            f"backend {','.join(f'{device}:{name}' for device, name in backends.items())}: torch "
            f"would use {NAME} for all devices and drop {', '.join(others)}; create a group of "
            f"each, init_process_group('{others[0]}') and new_group(backend='{NAME}')")


def communicator(store: Any, rank: int, size: int, name: str, timeout: float) -> Comm:
    """Return a private communicator of a group's members.

    Args:
        store: store of the group.
        rank, size: torch's rank and number of members.
        name: name of the group.
        timeout: seconds without progress until a collective fails.

    Raises:
        ProcessGroupError: see :func:`create`.
    """
    from mpi4py import MPI

    from hpccoll import Comm
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise ProcessGroupError("MPI was initialised without MPI.THREAD_MULTIPLE, which autograd "
                                "threads require; keep mpi4py.rc.thread_level at 'multiple'")
    world = MPI.Intracomm(MPI.COMM_WORLD)
    if world.size < size:
        raise ProcessGroupError(
            f"torch has {size} ranks, MPI has {world.size}: mpiexec did not start the processes; "
            f"use mpiexec -n {size} hpccoll run train.py, or srun, instead of torchrun or "
            "torch.multiprocessing")
    if world.size == size:
        ranks = world.allgather(rank)
        members = [ranks.index(number) for number in range(size)]
    else:
        store.set(f"mpi/{rank}", str(world.rank))
        members = [int(store.get(f"mpi/{number}")) for number in range(size)]
    if len(set(members)) < size:
        raise ProcessGroupError(f"group {name}: its {size} ranks are MPI ranks "
                                f"{sorted(set(members))}; start one process per rank")
    group = world.group.Incl(members)
    try:
        return Comm(world.Create_group(group, zlib.crc32(name.encode()) % 32768),
                    timeout=timeout)
    finally:
        group.Free()
