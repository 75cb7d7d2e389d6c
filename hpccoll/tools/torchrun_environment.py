"""Environment variables of torchrun, set for ranks that MPI started."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from mpi4py import MPI


def set_variables(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set missing variables; collective over ``MPI.COMM_WORLD``.

    Sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and
    ``MASTER_PORT``. The port was free on rank 0's host when it was selected.
    """
    comm = MPI.Intracomm(MPI.COMM_WORLD)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    host = "localhost" if node.size == comm.size else MPI.Get_processor_name()
    host, port = comm.bcast((host, _free_port()) if comm.rank == 0 else None)
    for name, value in {"RANK": comm.rank, "WORLD_SIZE": comm.size, "LOCAL_RANK": node.rank,
                        "LOCAL_WORLD_SIZE": node.size, "MASTER_ADDR": host, "MASTER_PORT": port
                        }.items():
        environ.setdefault(name, str(value))
    node.Free()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
