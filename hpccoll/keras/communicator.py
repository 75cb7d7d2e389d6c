"""The communicator that is used unless another one is given."""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from hpccoll import Comm


@functools.cache
def world() -> Any:
    """The ``hpccoll.Comm`` of all ranks: a duplicate of ``MPI.COMM_WORLD``, made once.

    The first use is collective. ``world().rank`` and ``world().size`` are what a script shards
    its data by.
    """
    return Comm(MPI.COMM_WORLD.Dup())


def communicator(comm: MPI.Intracomm | None) -> Any:
    """The given communicator as an ``hpccoll.Comm``, or :func:`world`."""
    if comm is None:
        return world()
    return comm if isinstance(comm, Comm) else Comm(comm)
