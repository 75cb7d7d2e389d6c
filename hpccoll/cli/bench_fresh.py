"""``hpccoll bench fresh``: calls of new sizes, new communicators, and their memory.

Exit status: as of ``hpccoll bench``.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click
from rich.console import Console

from hpccoll.cli.bench import JSON
from hpccoll.cli.options import check_outputs, open_output
from hpccoll.cli.ranks import (
    INTERRUPTED,
    WRONG,
    Progress,
    RankCommand,
    abort,
    agree_on_rank_0,
    ignore_progress,
    stoppable,
)
from hpccoll.machine.launcher import require_mpi


@click.command("bench fresh", cls=RankCommand)
@JSON
def command(json_path: str | None) -> None:
    """Measure calls of sizes not seen before, and communicators used once.

    \b
    mpiexec -n 4 hpccoll bench fresh
    """
    with ExitStack() as stack:
        # Before MPI starts: afterwards no rank may exit alone.
        stopped = stack.enter_context(stoppable())
        MPI = require_mpi(steps=True)
        from hpccoll.cli import terminal
        from hpccoll.tools.bench import fresh

        comm = MPI.COMM_WORLD
        agree_on_rank_0(comm, lambda: check_outputs(json_path, None))
        try:
            progress: Progress = ignore_progress
            console: Console | None = None
            file = None
            if comm.Get_rank() == 0:
                console, bar = terminal.screen(True)
                progress = terminal.progress_callback(stack.enter_context(bar))
                file = (stack.enter_context(open_output(json_path))
                        if json_path is not None else None)
            outcome = fresh.run(comm, console, file, stopped, progress)
        except Exception as error:
            abort(comm, error)
    sys.exit(WRONG if outcome.failures else INTERRUPTED if outcome.interrupted else 0)
