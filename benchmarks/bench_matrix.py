"""``hpccoll bench`` under several MPI libraries, and one table of ratios.

    python benchmarks/bench_matrix.py allreduce -e env/mpich -e env/openmpi --ranks 2,4

Starts no MPI, but the launchers of the environments. Exit status: 0, 1 where one of them failed, 2
for bad options.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import libraries
from click.core import ParameterSource
from one_process import OneProcess

from hpccoll.cli.bench import COMPARISON, MEASUREMENT, SECTIONS, with_options
from hpccoll.cli.options import report_write_errors
from hpccoll.cli.ranks import WRONG
from hpccoll.units import numbers

NAME = "bench_matrix"


@click.command(NAME, cls=OneProcess, sections={
    **SECTIONS, "Where, and into what": ("environments", "ranks", "output")})
@with_options(*MEASUREMENT, *COMPARISON)
@click.option("-e", "--environment", "environments", multiple=True, required=True,
              metavar="ENVDIR",
              help="A virtual environment, with whose mpiexec to measure; repeatable.")
@click.option("--ranks", default="2,4", show_default=True, metavar="N,...",
              help="Numbers of ranks.")
@click.option("-o", "--output", default="hpccoll-matrix", show_default=True, metavar="FOLDER",
              help="Where records, pictures and ratios.md go.")
@click.pass_context
def command(context: click.Context, environments: tuple[str, ...], ranks: str, output: str,
            **given: Any) -> None:
    """Measure COLLECTIVE under several MPI libraries: hpccoll bench in each environment."""
    folder, words = Path(output), _words(context, given)
    runs = libraries.plan(environments, numbers("--ranks", ranks), folder)
    with report_write_errors("--output", output):
        folder.mkdir(parents=True, exist_ok=True)
    measured, problems = libraries.measure(runs, words, lambda line: click.echo(f"# {line}"))
    if measured:
        text = "\n".join(libraries.markdown(measured, words)) + "\n"
        with report_write_errors("--output", output):
            (folder / "ratios.md").write_text(text, encoding="utf-8")
            libraries.draw(measured, folder / "ratios.png")
        click.echo(text, nl=False)
    for problem in problems:
        click.echo(f"hpccoll: {NAME}: {problem}", err=True)
    sys.exit(WRONG if problems else 0)


def _words(context: click.Context, given: dict[str, Any]) -> list[str]:
    """The words of the command line that each ``hpccoll bench`` gets."""
    words = list(given["collectives"])
    for option in context.command.params:
        if (isinstance(option, click.Option) and option.name in given and
                context.get_parameter_source(option.name) == ParameterSource.COMMANDLINE):
            spelling, value = option.opts[-1], given[option.name]
            words += ([spelling] if option.is_flag else
                      [word for each in (value if option.multiple else [value])
                       for word in (spelling, str(each))])
    return words


if __name__ == "__main__":
    command()
