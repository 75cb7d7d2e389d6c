"""Default communicator of calls."""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import CommunicatorError, MpiLibraryError


@functools.cache
def world() -> Any:
    """Return the default ``hpccoll.Comm`` of all ranks.

    A duplicate of ``MPI.COMM_WORLD``, created once: JAX runs calls on its own threads, and the
    program's messages on the same communicator could match theirs. The first use is collective.

    Raises:
        MpiLibraryError: MPI was not initialised with ``MPI.THREAD_MULTIPLE``.
    """
    _check_threads()
    return Comm(MPI.COMM_WORLD.Split(0, MPI.COMM_WORLD.Get_rank()))


def communicator(comm: MPI.Intracomm | None) -> Any:
    """Return the given communicator as an ``hpccoll.Comm``, or :func:`world`.

    Raises:
        CommunicatorError: not an intracommunicator, or null.
        MpiLibraryError: MPI was not initialised with ``MPI.THREAD_MULTIPLE``.
    """
    if comm is None:
        return world()
    _check_threads()
    if comm == MPI.COMM_NULL:
        raise CommunicatorError("the communicator is null; call it only on member ranks")
    return comm if isinstance(comm, Comm) else Comm(comm)


def _check_threads() -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise MpiLibraryError(
            "MPI was initialised without MPI.THREAD_MULTIPLE, which JAX threads "
            "require", "keep mpi4py.rc.thread_level at 'multiple', its default, and use an MPI "
                          "library that provides it")


def kept_with(comm: MPI.Intracomm) -> dict[Any, Any]:
    """Return a dictionary with the lifetime of a communicator, shared by its wrappers."""
    found: Any = comm.Get_attr(_key())
    if found is None:
        found = {}
        comm.Set_attr(_key(), found)
    return found


@functools.cache
def _key() -> int:
    return MPI.Comm.Create_keyval()
