"""``hpccoll bench overlap``: overlap of nonblocking collectives with computation.

Exit status: as of ``hpccoll bench``.
"""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from hpccoll.cli.bench import JSON, MEASUREMENT, SECTIONS, measure, with_options
from hpccoll.cli.options import OneOf, open_output
from hpccoll.cli.ranks import RankCommand


@click.command("bench overlap", cls=RankCommand, sections=SECTIONS)
@with_options(*MEASUREMENT, JSON)
@click.option("--work", "works", multiple=True, type=OneOf(["numpy", "python", "asleep"]),
              default=("numpy", "python"), show_default=True, metavar="KIND",
              help="Overlapped work: numpy, which releases the interpreter lock; python, which "
                   "does not; or asleep, which leaves a processor idle. Repeatable.")
@click.option("--tests", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="Calls of Test during the computation.")
def command(works: tuple[str, ...], tests: int, json_path: str | None, **given: Any) -> None:
    """Measure how much of nonblocking COLLECTIVE (allreduce, ..., or all) hides behind work.

    \b
    mpiexec -n 2 hpccoll bench overlap allreduce
    mpiexec -n 2 hpccoll bench overlap bcast --algorithm chain --work asleep
    """
    def run(comm: Any, options: Any, console: Console | None, *course: Any) -> Any:
        from hpccoll.tools.bench import overlap, records

        reports = [] if console is None else [overlap.OverlapTable(console)]
        hidden = overlap.run(comm, options, tests, reports, tuple(dict.fromkeys(works)), *course)
        if json_path is not None and console is not None:
            with open_output(json_path) as file:
                records.write(file, hidden.environment, settings=options.as_data(),
                              complete=not hidden.interrupted, results=[],
                              overlap=overlap.as_data(hidden))
        return hidden

    measure("bench overlap", given, run, json_path)
