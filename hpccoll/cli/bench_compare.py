"""``hpccoll bench compare``: comparison of two records of ``hpccoll bench --json``.

Starts no MPI. Exit status: 0, 1 for a regression, 2 for bad options, 3 if the native times differ
too much for a comparison.
"""

from __future__ import annotations

import sys

import click

from hpccoll.cli.options import PERCENT
from hpccoll.cli.ranks import WRONG
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
def command(old: str, new: str, collectives: tuple[str, ...], tolerance: float, full: bool) -> None:
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
