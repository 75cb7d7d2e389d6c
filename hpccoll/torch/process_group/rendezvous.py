"""Rendezvous ``mpi://`` of torch for ranks that MPI started."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

from torch import distributed

from hpccoll.errors import ProcessGroupError

if TYPE_CHECKING:
    from mpi4py import MPI

#: URL scheme of ``init_method``.
SCHEME = "mpi"
#: Default time-out of the rendezvous.
TIMEOUT = timedelta(minutes=30)


def init_process_group(backend: str = "hpccoll", **options: Any) -> None:
    """Initialise torch's default process group of all ranks of ``MPI.COMM_WORLD``.

    Equals ``torch.distributed.init_process_group`` with ``init_method="mpi://"``; no environment
    variable is needed.

    Args:
        backend: any backend of torch, for example ``"gloo"``; the ranks are those of MPI.
        options: further arguments of ``torch.distributed.init_process_group``.

    Raises:
        MpiLibraryError: no MPI library can be loaded, or the launcher belongs to another one.
        ProcessGroupError: the processes were not started by MPI.
    """
    distributed.init_process_group(backend, **{"init_method": f"{SCHEME}://", **options})


def register_handler() -> None:
    """Register ``mpi://`` in torch."""
    with suppress(RuntimeError):  # already registered
        distributed.register_rendezvous_handler(SCHEME, meet)


def meet(url: str, timeout: timedelta = TIMEOUT, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield a store on rank 0's host, this rank, and the number of ranks.

    Collective over ``MPI.COMM_WORLD``.

    Raises:
        ProcessGroupError: torch's rank or number of ranks differs, or torch uses another launcher.
    """
    comm = _world()
    launched = {"rank": comm.rank, "world_size": comm.size}
    asked = {name: int(text[0]) for name, text in parse_qs(urlparse(url).query).items()
             if name in launched and int(text[0]) >= 0}
    if any(launched[name] != number for name, number in asked.items()):
        raise ProcessGroupError(f"mpi:// reads rank and world_size from MPI, {launched}, but got "
                                f"{asked}; omit them")
    started = int(os.environ.get("WORLD_SIZE", comm.size))
    if comm.size == 1 and started > 1:
        raise ProcessGroupError(
            f"WORLD_SIZE is {started}, but MPI has one rank: mpiexec did not start the processes; "
            f"use mpiexec -n {started} hpccoll run train.py, or srun, instead of torchrun")
    host = _host_of_first(comm)
    store = None
    if comm.rank == 0:
        store = distributed.TCPStore(host, 0, comm.size, True, timeout, wait_for_workers=False)
    port = comm.bcast(store and store.port)
    if store is None:
        store = distributed.TCPStore(host, port, comm.size, False, timeout)
    yield store, comm.rank, comm.size


def _world() -> MPI.Intracomm:
    """Return MPI's world communicator, also if ``hpccoll run`` has replaced it."""
    from mpi4py import MPI

    from hpccoll import Comm  # raises a clear error without an MPI library
    return MPI.Intracomm(Comm(MPI.COMM_WORLD))


def _host_of_first(comm: MPI.Intracomm) -> str:
    """Return the host name of rank 0 for all ranks."""
    from mpi4py import MPI
    hosts = comm.allgather(MPI.Get_processor_name())
    return "localhost" if len(Counter(hosts)) == 1 else hosts[0]
