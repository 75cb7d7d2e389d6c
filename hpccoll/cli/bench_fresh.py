"""``hpccoll bench fresh``: calls of new sizes, new communicators, and their memory.

Exit status: as of ``hpccoll bench``.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import click
from rich.console import Console

from hpccoll.cli.bench import JSON, run_on_ranks
from hpccoll.cli.options import open_output
from hpccoll.cli.ranks import INTERRUPTED, WRONG, RankCommand


@click.command("bench fresh", cls=RankCommand)
@JSON
def command(json_path: str | None) -> None:
    """Measure calls of sizes not seen before, and communicators used once.

    \b
    mpiexec -n 4 hpccoll bench fresh
    """
    def run(comm: Any, options: None, console: Console | None, *course: Any) -> Any:
        from hpccoll.tools.bench import fresh

        with ExitStack() as stack:
            file = (stack.enter_context(open_output(json_path))
                    if json_path is not None and console is not None else None)
            return fresh.run(comm, console, file, *course)

    outcome = run_on_ranks(lambda comm: None, run, json_path)
    sys.exit(WRONG if outcome.failures else INTERRUPTED if outcome.interrupted else 0)
