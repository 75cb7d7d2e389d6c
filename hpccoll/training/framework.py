"""Frameworks, for their interfaces: the check of the installed one, the default communicator."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import FrameworkError, MpiLibraryError
from hpccoll.training import arguments


def require(name: str, oldest: str = "0", extra: str = "", remedy: str = "") -> Any:
    """Return the module of a framework; ``extra`` of this package installs it."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or name).split(".")[0] == name:
            raise FrameworkError(name, "is not installed", extra) from None
        raise FrameworkError(name, f"cannot be imported ({error}){remedy}", extra) from error
    found = module.__version__
    if [int(part) for part in re.findall(r"\d+", found)[:2]] < [*map(int, oldest.split("."))]:
        raise FrameworkError(name, f"version {found} is installed, {oldest} or later is required",
                             extra)
    return module


@functools.cache
def world() -> Any:
    """Return the default ``hpccoll.Comm`` of all ranks; scripts shard data by its rank and size.

    A duplicate of ``MPI.COMM_WORLD``, created once: frameworks run calls on their own threads, and
    the program's messages on the same communicator could match theirs. The first use is collective.

    Raises:
        MpiLibraryError: MPI was not initialised with ``MPI.THREAD_MULTIPLE``.
    """
    return communicator(arguments.private_copy(MPI.COMM_WORLD))


def communicator(comm: MPI.Comm | None) -> Any:
    """Return the given communicator as an ``hpccoll.Comm``, or :func:`world`."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise MpiLibraryError(
            "MPI was initialised without MPI.THREAD_MULTIPLE, which the threads of frameworks "
            "require", "keep mpi4py.rc.thread_level at 'multiple', its default, and use an MPI "
                       "library that provides it")
    if comm is None:
        return world()
    return comm if isinstance(comm, Comm) else Comm(arguments.communicator("comm", comm))
