"""Calls of a communicator before its set-up, which the MPI library runs.

Set-up takes some milliseconds and some memory, as long as a few dozen of these calls, and many
communicators are used for a few calls. All ranks make the same calls, so all set up at the same
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from hpccoll.config import ALWAYS, NONE
from hpccoll.machine.limits import FIRST_CALLS
from hpccoll.runtime.attributes import existing_context

if TYPE_CHECKING:
    from hpccoll.comm.base import Base

#: Reasons of the choice of such calls.
FIRST = f"one of the first {FIRST_CALLS} calls of a communicator; the next one sets it up"
BARE = "the library has no communicator left for the set-up of this one"


def precedes_setup(comm: Base) -> bool:
    """Return True if the next blocking call may precede set-up; the same on all ranks.

    ``COMM_WORLD`` is set up by its first call: there is one, and its requests are monitored from
    then on.
    """
    if comm._context is not None:  # fast: every collective of objects asks
        return False
    lifetime = comm._lifetime
    done = lifetime is not None and (lifetime.first_calls >= FIRST_CALLS or lifetime.freed)
    return not done and comm != MPI.COMM_WORLD and needs_no_setup(comm)


def needs_no_setup(comm: Base) -> bool:
    """Return True if a communicator is not set up, and no option requires that."""
    config = comm._config
    return (existing_context(comm) is None and comm.Get_size() > 1 and comm._layout is None
            and config.determinism == NONE and not config.checksums
            and config.contract != ALWAYS and not config.check and not comm._device)


def first_by_mpi4py(comm: Base) -> bool:
    """Return True if mpi4py runs the next call; the same on all ranks.

    Not if a program has replaced ``MPI.pickle`` by something that has no bytes, such as JSON.
    """
    try:
        return precedes_setup(comm) and MPI.pickle.loads(MPI.pickle.dumps(b"")) == b""
    except Exception:
        return False
