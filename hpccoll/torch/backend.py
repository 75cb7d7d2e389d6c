"""How torch gets a process group of ours: the backend's registration, and its maker.

The members of a group find each other's places in MPI's world through the group's store, so that
it does not matter how torch numbers ranks, nor which backend the default group has.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from hpccoll.errors import ProcessGroupError

if TYPE_CHECKING:
    from hpccoll import Comm

#: Oldest version of torch, and what to do about it.
OLDEST = (2, 4)
NAME = "hpccoll"


def register() -> None:
    """Make the backend known to ``torch.distributed``; the entry point, which torch calls itself.

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
        distributed.Backend.register_backend(NAME, create, extended_api=True,
                                             devices=["cpu", "cuda"])


def create(opts: Any, options: Any = None) -> Any:
    """Make a group; all members call.

    Args:
        opts: torch's ``DistributedBackendOptions``.
        options: torch's ``pg_options``; none are known.

    Raises:
        MpiLibraryError: no MPI library can be loaded, or the launcher is another one's.
        ProcessGroupError: the processes were not started by MPI, or MPI was started without
            threads.
    """
    from hpccoll.torch.process_group.group import Group
    comm = communicator(opts.store, opts.group_rank, opts.group_size, opts.group_id,
                        opts.timeout.total_seconds())
    return Group(comm, opts.store, opts.group_id or "default", opts.timeout)


def communicator(store: Any, rank: int, size: int, name: str, timeout: float) -> Comm:
    """A private communicator of a group's members.

    Args:
        store: of the group.
        rank, size: as torch numbers the members.
        name: of the group.
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
            f"use mpiexec -n {size} python ..., or srun, instead of torchrun or "
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
