"""``hpccoll bench compare``, ``fresh`` and ``overlap``.

``compare`` starts no MPI. Its exit status is 0, 1 for a regression, 2 for bad options, 3 if the
native times differ too much for a comparison. Exit status of the others: as of ``hpccoll bench``.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import click
from rich.console import Console

from hpccoll.cli.bench import JSON, MEASUREMENT, SECTIONS, measure, run_on_ranks, with_options
from hpccoll.cli.options import PERCENT, OneOf, open_output
from hpccoll.cli.ranks import INTERRUPTED, WRONG, RankCommand
from hpccoll.cli.terminal import line_console
from hpccoll.tools.bench import compare, records

#: Exit status if records cannot be compared.
NOT_COMPARABLE = 3


@click.command("bench compare")
@click.argument("old")
@click.argument("new")
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...")
@click.option("--tolerance", type=PERCENT, default=10.0, show_default=True, metavar="PERCENT",
              help="Percentage of slowdown that does not count as a regression.")
@click.option("-f", "--full", is_flag=True, help="All columns.")
def compare_command(old: str, new: str, collectives: tuple[str, ...], tolerance: float,
                    full: bool) -> None:
    """Compare two records of hpccoll bench --json; exit 1 on a regression.

    \b
    hpccoll bench compare before.json after.json
    hpccoll bench compare before.json after.json bcast --tolerance 3
    """
    before, after, part = records.read(old), records.read(new), tolerance / 100
    compared, console = compare.pairs(before, after, collectives), line_console()
    for line in compare.lines(before, after, compared, part, console.width, full):
        console.print(line, soft_wrap=True)
    judged = compare.comparable_cases(before, after, compared, part)
    sys.exit(NOT_COMPARABLE if not judged else
             WRONG if any(pair.has_regressed(part) for pair in judged) else 0)


@click.command("bench fresh", cls=RankCommand)
@JSON
def fresh_command(json_path: str | None) -> None:
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


@click.command("bench overlap", cls=RankCommand, sections=SECTIONS)
@with_options(*MEASUREMENT, JSON)
@click.option("--work", "works", multiple=True, type=OneOf(["numpy", "python", "asleep"]),
              default=("numpy", "python"), show_default=True, metavar="KIND",
              help="Overlapped work: numpy, which releases the interpreter lock; python, which "
                   "does not; or asleep, which leaves a processor idle. Repeatable.")
@click.option("--tests", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="Calls of Test during the computation.")
def overlap_command(works: tuple[str, ...], tests: int, json_path: str | None,
                    **given: Any) -> None:
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
