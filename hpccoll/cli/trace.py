"""``hpccoll trace``: what recorded timelines say.

Exit status: 0, or 2 for bad options, or files that are no timelines.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpccoll.cli.options import check_outputs, write_text
from hpccoll.errors import ArgumentError
from hpccoll.training.picture import draw_step
from hpccoll.training.report import report
from hpccoll.training.trace import read


@click.group("trace", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Read timelines that HPCCOLL_TRACE or exchange.timeline() wrote."""


@command.command("report")
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--skip", type=click.IntRange(min=0), default=1, show_default=True,
              help="First steps to leave out, where there are more.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Draw one step; the suffix names the format: png, svg, pdf.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True,
              help="Rank whose step is drawn.")
@click.option("--step", type=int, default=-1, show_default=True,
              help="Step that is drawn; -1 is the last.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
def trace_report(path, skip, plot_path, rank, step, json_path):
    """Sum up FILE, or the newest timeline of FOLDER: bytes, and time hidden and exposed.

    \b
    HPCCOLL_TRACE=traces mpiexec -n 4 python train.py
    hpccoll trace report traces --plot step.png
    """
    check_outputs(json_path, plot_path)
    file = _newest(Path(path)) if Path(path).is_dir() else Path(path)
    timeline = read(file)
    found = report(timeline, skip)
    if json_path is not None:
        write_text(json_path, json.dumps({"file": str(file), **found.as_json()}, indent=1) + "\n")
    else:
        click.echo(f"{file}: {found}", nl=False)
    if plot_path is not None:
        draw_step(timeline, plot_path, rank, step)
        click.echo(f"wrote {plot_path}", err=True)


def _newest(folder: Path) -> Path:
    files = sorted(folder.glob("*.json"), key=lambda file: (file.stat().st_mtime, file.name))
    if not files:
        raise ArgumentError("trace", f"{str(folder)!r} holds no timeline",
                            "HPCCOLL_TRACE names the folder that they are written to")
    return files[-1]
