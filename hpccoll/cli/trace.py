"""``hpccoll trace``: what recorded timelines and calls say.

Exit status: 0, or 2 for bad options, or files that are no timelines.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hpccoll import record_file
from hpccoll.cli.options import check_outputs, report_write_errors, write_text
from hpccoll.cli.terminal import line_console
from hpccoll.errors import ArgumentError, did_you_mean
from hpccoll.measure.profiling.merge import join
from hpccoll.measure.profiling.record import read as read_calls
from hpccoll.tools import call_trace, diagnose
from hpccoll.training.picture import draw_step
from hpccoll.training.report import report
from hpccoll.training.trace import read


def folder_of(context: click.Context, param: click.Parameter, folder: str) -> str:
    """The folder, which must be there."""
    if not os.path.isdir(folder):
        raise ArgumentError("trace", f"{folder!r} is no folder" if os.path.exists(folder) else
                            f"there is no folder {folder!r}",
                            "run the program with HPCCOLL_TRACE=FOLDER: see hpccoll trace --help")
    return folder


class Traces(click.Group):
    """A group one of whose commands, ``calls``, needs no name."""

    def resolve_command(self, context: click.Context, args: list[str]
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        meant = did_you_mean(args[0], self.commands) if args else ""
        if meant and args[0] not in self.commands and not os.path.exists(args[0]):
            raise ArgumentError("command", f"{args[0]!r} is not a command or a folder", meant)
        return super().resolve_command(context, args if args[0] in self.commands
                                       else ["calls", *args])


@click.group("trace", cls=Traces, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Read what HPCCOLL_TRACE wrote: hpccoll trace FOLDER shows the collectives of all ranks.

    \b
    HPCCOLL_TRACE=traces mpiexec -n 4 python program.py
    hpccoll trace traces
    """


@command.command("calls")
@click.argument("folder", callback=folder_of)
@click.option("--output", "-o", metavar="FILE",
              help="The timeline for https://ui.perfetto.dev; default FOLDER/timeline.json.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Draw all ranks; the suffix selects the format: png, svg, pdf.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write the summary as JSON instead of text; - is standard output.")
def trace_calls(folder, output, plot_path, json_path):
    """Join the collectives of all ranks of the newest job in FOLDER: a timeline and a summary.

    \b
    HPCCOLL_TRACE=traces HPCCOLL_TRACE_PHASES=yes mpiexec -n 4 python program.py
    hpccoll trace traces --plot calls.png
    """
    check_outputs(json_path, plot_path)
    records, ranks = read_calls(Path(folder))
    joined = join(records)
    found = call_trace.summary(joined, ranks)
    path = output or str(Path(folder) / "timeline.json")
    record_file.write(path, "timeline", call_trace.header_fields(joined, found),
                      call_trace.events(joined))
    if json_path is not None:
        write_text(json_path, json.dumps(found.as_json(), indent=1) + "\n")
    else:
        console = line_console()
        for line in (*call_trace.lines(found, console.width), "", *found.sentences()):
            console.print(line, markup=False)
    click.echo(f"wrote {path}, for https://ui.perfetto.dev: {call_trace.totals(records)}",
               err=True)
    if plot_path is not None:
        call_trace.draw(joined, found, plot_path)
        click.echo(f"wrote {plot_path}", err=True)


@command.command("diagnose")
@click.argument("folder", callback=folder_of)
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
def trace_diagnose(folder, json_path):
    """Say why the newest job in FOLDER hung or failed, by its ranks' flight records.

    \b
    HPCCOLL_TRACE=traces mpiexec -n 4 python program.py    # it hangs
    pkill -USR1 -f program.py               # every rank writes what it does
    hpccoll trace diagnose traces
    """
    check_outputs(json_path, None)
    found = diagnose.diagnose(diagnose.read(Path(folder)))
    if json_path is not None:
        write_text(json_path, json.dumps(found.as_json(), indent=1) + "\n")
        return
    console = line_console()
    console.print(f"{diagnose.heading(found)}\n\n{found.verdict}", markup=False)
    for comm in found.comms:
        click.echo("\n" + "\n".join(diagnose.table(comm, console.width)))


@command.command("report")
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--skip", type=click.IntRange(min=0), default=1, show_default=True,
              help="Number of first steps to skip.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Draw one step; the suffix selects the format: png, svg, pdf.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True,
              help="Rank of the step to draw.")
@click.option("--step", type=int, default=-1, show_default=True,
              help="Step to draw; -1 is the last.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
def trace_report(path, skip, plot_path, rank, step, json_path):
    """Sum up FILE, or the newest timeline of FOLDER: bytes, and time hidden and exposed.

    \b
    HPCCOLL_TRACE=traces mpiexec -n 4 python train.py
    hpccoll trace report traces --plot step.png
    """
    check_outputs(json_path, plot_path)
    file = record_file.newest(path, record_file.STEPS)[-1] if Path(path).is_dir() else Path(path)
    timeline = read(file)
    found = report(timeline, skip)
    if json_path is not None:
        write_text(json_path, json.dumps({"file": str(file), **found.as_json()}, indent=1) + "\n")
    else:
        click.echo(f"{file}: {found}", nl=False)
    if plot_path is not None:
        with report_write_errors("--plot", plot_path):
            draw_step(timeline, plot_path, rank, step)
        click.echo(f"wrote {plot_path}", err=True)
