"""The communicator that calls use unless they are told another one."""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import CommunicatorError, MpiLibraryError


@functools.cache
def world() -> Any:
    """The ``hpccoll.Comm`` of all ranks that calls use by default.

    A duplicate of ``MPI.COMM_WORLD``, made once: JAX runs calls on threads of its own, where
    messages of the program on the same communicator would mix with theirs. The first use is
    collective.

    Raises:
        MpiLibraryError: MPI was not initialised for calls from several threads.
    """
    _check_threads()
    return Comm(MPI.COMM_WORLD.Dup())


def communicator(comm: MPI.Intracomm | None) -> Any:
    """The communicator of a call: the given one as an ``hpccoll.Comm``, or :func:`world`.

    Raises:
        CommunicatorError: not an intracommunicator, or a null one.
        MpiLibraryError: MPI was not initialised for calls from several threads.
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
    """A dictionary that lives as long as a communicator, for all objects that wrap it."""
    found: Any = comm.Get_attr(_key())
    if found is None:
        found = {}
        comm.Set_attr(_key(), found)
    return found


@functools.cache
def _key() -> int:
    return MPI.Comm.Create_keyval()
