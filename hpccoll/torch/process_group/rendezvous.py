"""How ranks that MPI started find each other for torch: ``mpi://``."""

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

#: The scheme of ``init_method``.
SCHEME = "mpi"
#: How long ranks wait for each other, if nobody says.
TIMEOUT = timedelta(minutes=30)


def init_process_group(backend: str = "hpccoll", **options: Any) -> None:
    """Make torch's default process group of all ranks of ``MPI.COMM_WORLD``.

    No variable has to be set. It is ``torch.distributed.init_process_group`` with
    ``init_method="mpi://"``.

    Args:
        backend: any of torch's, ``"gloo"`` for instance: the ranks are MPI's all the same.
        options: what ``torch.distributed.init_process_group`` takes.

    Raises:
        MpiLibraryError: no MPI library can be loaded, or the launcher is another one's.
        ProcessGroupError: the processes were not started by MPI.
    """
    distributed.init_process_group(backend, **{"init_method": f"{SCHEME}://", **options})


def register_handler() -> None:
    """Make ``mpi://`` known to torch."""
    with suppress(RuntimeError):  # it is known
        distributed.register_rendezvous_handler(SCHEME, meet)


def meet(url: str, timeout: timedelta = TIMEOUT, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """The handler of ``mpi://``: a store on rank 0's host, this rank, and the number of ranks.

    Collective over ``MPI.COMM_WORLD``.

    Raises:
        ProcessGroupError: torch was told another rank or number of ranks, or has other launchers.
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
            f"use mpiexec -n {started} python ..., or srun, instead of torchrun")
    host = _host_of_first(comm)
    store = None
    if comm.rank == 0:
        store = distributed.TCPStore(host, 0, comm.size, True, timeout, wait_for_workers=False)
    port = comm.bcast(store and store.port)
    if store is None:
        store = distributed.TCPStore(host, port, comm.size, False, timeout)
    yield store, comm.rank, comm.size


def _world() -> MPI.Intracomm:
    """All ranks, without what ``hpccoll run`` may have put in their place."""
    from mpi4py import MPI

    from hpccoll import Comm  # tells clearly where there is no MPI library
    return MPI.Intracomm(Comm(MPI.COMM_WORLD))


def _host_of_first(comm: MPI.Intracomm) -> str:
    """The name under which all ranks reach rank 0's host."""
    from mpi4py import MPI
    hosts = comm.allgather(MPI.Get_processor_name())
    return "localhost" if len(Counter(hosts)) == 1 else hosts[0]
