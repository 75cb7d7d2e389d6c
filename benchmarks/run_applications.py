"""Programs of other projects, under plain mpi4py and under ``hpccoll run``.

    python benchmarks/run_applications.py -o docs/data/applications
    python benchmarks/run_applications.py --short --library mpich --ranks 2

Makes an environment for each MPI library, with all programs in it. Starts no MPI, but the launchers
of the environments. Exit status: 0, 1 if hpccoll changed passes or numbers, 2 for bad options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from applications import bench, environments, picture
from applications.program import NAMES, load
from one_process import OneProcess

from hpccoll.atomic_file import open_replacement
from hpccoll.cli.options import report_write_errors
from hpccoll.cli.ranks import WRONG
from hpccoll.units import numbers

CACHE = environments.ROOT / "build" / "applications"


@click.command("run_applications", cls=OneProcess, sections={
    "What": ("only", "short", "library", "ranks", "rounds"), "Where": ("cache", "output")})
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="A program; repeatable.")
@click.option("--short", is_flag=True, help="The programs of the short form, once each.")
@click.option("--library", "library_names", multiple=True, type=click.Choice(list(
    environments.LIBRARIES)), help="An MPI library; repeatable. All by default.")
@click.option("--ranks", default="2,4", show_default=True, metavar="N,...",
              help="Numbers of ranks.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1),
              help="Jobs of each candidate, in turns.")
@click.option("--cache", default=str(CACHE), metavar="FOLDER",
              help="Environments, sources and outputs.")
@click.option("-o", "--output", metavar="FOLDER", help="Where results.json and times.png go.")
def command(only: tuple[str, ...], short: bool, library_names: tuple[str, ...], ranks: str,
            rounds: int, cache: str, output: str | None) -> None:
    """Run programs of other projects, plain and with hpccoll, and compare."""
    programs = [program for program in load(only or NAMES) if program.short or not short]
    folder = Path(cache)

    def keep(record: dict[str, Any]) -> None:
        if output:
            with open_replacement(Path(output) / "results.json") as file:
                file.write(json.dumps(record, indent=1) + "\n")

    with report_write_errors("--output", output or ""):
        folder.mkdir(parents=True, exist_ok=True)
        if output:
            Path(output).mkdir(parents=True, exist_ok=True)
        record = bench.measure(programs, library_names or tuple(environments.LIBRARIES),
                               numbers("--ranks", ranks), 1 if short else rounds, folder,
                               lambda text: click.echo(f"# {text}"), keep)
        if output:
            picture.draw(record, Path(output) / "times.png")
    sys.exit(WRONG if any(result["differences"] for result in record["results"]) else 0)


if __name__ == "__main__":
    command()
