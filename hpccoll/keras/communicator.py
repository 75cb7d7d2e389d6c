"""Default communicator."""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from hpccoll import Comm


@functools.cache
def world() -> Any:
    """Return the ``hpccoll.Comm`` of all ranks, a cached duplicate of ``MPI.COMM_WORLD``.

    The first use is collective. Scripts shard their data by ``world().rank`` and ``world().size``.
    """
    return Comm(MPI.COMM_WORLD.Split(0, MPI.COMM_WORLD.Get_rank()))


def communicator(comm: MPI.Intracomm | None) -> Any:
    """Return the given communicator as an ``hpccoll.Comm``, or :func:`world`."""
    if comm is None:
        return world()
    return comm if isinstance(comm, Comm) else Comm(comm)
