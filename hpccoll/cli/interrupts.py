"""Ctrl-C in a command that has nothing to show yet, on one rank or many."""

from __future__ import annotations

import sys
from time import sleep

import click

from hpccoll.cli.ranks import INTERRUPTED
from hpccoll.machine.launcher import launched

#: Seconds that the first rank has to say that it was interrupted before another one aborts all.
MOMENT = 0.5


def interrupted(command: str) -> int:
    """Say that Ctrl-C ended a command that knows nothing by then; return the exit status.

    Ranks that it found elsewhere may wait for this one, and it for them where MPI ends: on several
    ranks the job is aborted.
    """
    if launched()[0] <= 0:
        click.echo(f"hpccoll: {command}: interrupted", err=True)
    else:
        sleep(MOMENT)
    MPI = sys.modules.get("mpi4py.MPI")
    if (MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized()
            and MPI.COMM_WORLD.Get_size() > 1):
        MPI.COMM_WORLD.Abort(INTERRUPTED)
    return INTERRUPTED
