"""``hpccoll simulate``: how long collectives take on a machine that is not there.

Exit status: 0, or 2 for bad options, a bad machine file, or a layout an algorithm cannot serve.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

import click
from click.core import ParameterSource
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hpccoll.algorithms import ALGORITHMS, find, schedule
from hpccoll.atomic_file import writable
from hpccoll.cli.options import check_outputs, names, parameters, write_text
from hpccoll.cli.ranks import BAD_OPTIONS, abort, agree, complain
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.topology import Topology
from hpccoll.machine.launcher import require_mpi
from hpccoll.simulator import catalog, plot, simulate
from hpccoll.simulator.machine_model import machine_as_data
from hpccoll.simulator.report import Report
from hpccoll.simulator.validation import NEAR, Compared, compare, picks
from hpccoll.tools.bench import records
from hpccoll.units import counts, size, size_text, time_text
from hpccoll.units import sizes as read_sizes

#: What is compared when no algorithm is named.
USUAL = {
    "allreduce": "ring,recursive_doubling,rabenseifner,circulant,rails",
    "reduce_scatter": "ring,circulant,rails", "allgather": "ring,bruck,circulant,rails",
    "alltoall": "pairwise,bruck,two_phase", "bcast": "binomial,scatter_allgather,leader,rails",
    "reduce": "binomial,rabenseifner,leader,rails", "barrier": "dissemination,tree,leader",
    "gather": "linear,binomial", "scatter": "linear,binomial",
    "scan": "recursive_doubling,linear", "exscan": "recursive_doubling,linear"}
#: What goes with --against; all else is for the record to say.
WITH_RECORD = ("against", "collective", "machine", "topology", "segment_bytes", "json_path",
               "plot_path")
#: Columns of the table where there is no terminal.
WIDE = 150


class SimulationCase(NamedTuple):
    """One thing to simulate."""

    nodes: int
    nbytes: int
    algorithm: str
    params: dict[str, int]


@click.command("simulate")
@click.argument("collective", required=False)
@click.option("--nodes", default="2", show_default=True, metavar="LIST",
              help="Numbers of nodes: 64, or 2,4,12, or 2:4096 for doubling ones.")
@click.option("--ppn", default="1", show_default=True, metavar="LAYOUT",
              help="Ranks per node; 2x4 for two groups of four.")
@click.option("--topology", metavar="LAYOUT",
              help="Any layout instead, such as 3,5,4, outermost level first.")
@click.option("--nbytes", "sizes", default="1M", show_default=True, metavar="LIST",
              help="Bytes of a rank's vector, or of all its blocks together: 1G, or 8,64K, or "
                   "1K:1G for sizes that grow by --step.")
@click.option("--step", type=click.IntRange(min=2), default=4, show_default=True,
              help="Factor between sizes of a range.")
@click.option("--machine", default="hdr", show_default=True, metavar="NAME|FILE",
              help="A machine that comes along (see --machines), or a file.")
@click.option("--algorithm", "wanted", multiple=True, metavar="NAMES",
              help="Algorithms to compare, such as ring,rails or knomial:k=8, or all.")
@click.option("--root", type=int, default=0, show_default=True, help="Root of a rooted collective.")
@click.option("--segment-bytes", metavar="BYTES",
              help="Cut blocks into segments of so many bytes, and pipeline them.")
@click.option("--itemsize", type=click.IntRange(min=1),
              help="Bytes of an element: cut blocks at whole elements. Default: equal parts.")
@click.option("--no-fold", is_flag=True, help="Time every rank on its own.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Draw; the suffix names the format: png, svg, pdf.")
@click.option("--machines", "listed", is_flag=True, help="List the machines that come along.")
@click.option("--against", metavar="FILE",
              help="Compare with what hpccoll bench --json measured, of COLLECTIVE or of all, on "
                   "--machine.")
@click.option("--calibrate", metavar="FILE",
              help="Measure this job's machine into a machine file; under mpiexec.")
@click.pass_context
def command(context, collective, nodes, ppn, topology, sizes, step, machine, wanted, root,
            segment_bytes, itemsize, no_fold, json_path, plot_path, listed, against, calibrate):
    """Time COLLECTIVE on a machine described by a file; no MPI and no cluster needed.

    \b
    hpccoll simulate allreduce --nodes 1024 --ppn 8 --nbytes 1G --machine frontier
    hpccoll simulate allreduce --nodes 2:4096 --ppn 8 --nbytes 64M --plot nodes.png
    hpccoll simulate alltoall --topology 4x8 --nbytes 1K:16M --algorithm pairwise,bruck:k=4
    mpiexec -n 4 python -m hpccoll simulate --calibrate here.json
    hpccoll simulate step --help
    """
    if calibrate is not None:
        _calibrate(calibrate)
        return
    if listed:
        for name in catalog.names():
            click.echo(f"{name:14} {catalog.find(name).description}")
        return
    segment = 0 if segment_bytes is None else size("--segment-bytes", segment_bytes)
    check_outputs(json_path, plot_path)
    if against is not None:
        _record_says(context)
        _against(against, collective, machine, topology, segment, json_path, plot_path)
        return
    if collective is None:
        raise ArgumentError("collective", "which one to simulate is missing",
                            f"choose from {', '.join(ALGORITHMS)}")
    known = catalog.find(machine)
    layouts, chosen = _layouts(nodes, ppn, topology), _algorithms(collective, wanted)
    moved = read_sizes("--nbytes", sizes, step)
    if COLLECTIVES[collective].payload == "none":
        moved = [0]
    points = [SimulationCase(count, nbytes, name, params) for count in layouts for nbytes in moved
              for name, params in chosen]
    simulations = ((point, simulate(
        schedule(collective, point.algorithm, layouts[point.nodes].size, root=root,
                 topology=layouts[point.nodes] if find(collective, point.algorithm).hierarchical
                 else None, **point.params),
        point.nbytes, known, layouts[point.nodes], itemsize=itemsize or 0,
        segment_bytes=segment, fold=not no_fold)) for point in points)
    reports = list(_shown(simulations, len(points)))
    if json_path is not None:
        write_text(json_path, json.dumps({
            "format": 1, "collective": collective, "machine": machine_as_data(known),
            "results": [{"nodes": point.nodes, **report.as_json()} for point, report in reports],
        }, indent=1) + "\n")
    elif len(reports) == 1:
        click.echo(str(reports[0][1]), nl=False)
    else:
        # What is read by programs, or from a file, is as wide as it needs to be.
        Console(width=None if sys.stdout.isatty() else WIDE).print(_table(reports))
    if plot_path is not None:
        plot.draw([(point.nodes, report) for point, report in reports], plot_path)
        click.echo(f"wrote {plot_path}", err=True)


def _record_says(context: click.Context) -> None:
    """Refuse what a record says already, rather than take no notice of it."""
    for option in context.command.params:
        if (context.get_parameter_source(option.name) == ParameterSource.COMMANDLINE
                and option.name not in WITH_RECORD):
            raise ArgumentError("--against", f"does not go with {option.opts[-1]}",
                                "the record says what is simulated")


def _against(path: str, collective: str | None, machine: str, topology: str | None, segment: int,
             json_path: str | None, plot_path: str | None) -> None:
    """Show measured and simulated times side by side, and how often the simulation is right."""
    known, record = catalog.find(machine), records.read(path)
    layout = None if topology is None else Topology.parse(topology)
    try:
        compared = compare(record._asdict(), known, layout, segment, collective)
    except HpccollError as error:
        raise ArgumentError("--against", f"{path!r}: {error}") from error
    right, of = picks(compared)
    if json_path is not None:
        write_text(json_path, json.dumps({
            "format": 1, "machine": machine_as_data(known), "right": right, "of": of,
            "results": [c._asdict() for c in compared]}, indent=1) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else WIDE).print(_beside(compared))
        click.echo(f"{right} of {of} sizes: the algorithm that is fastest in simulation measured "
                   f"best, or within {NEAR - 1:.0%} of it")
    if plot_path is not None:
        plot.draw_against(compared, plot_path)
        click.echo(f"wrote {plot_path}", err=True)


def _beside(compared: Sequence[Compared]) -> Table:
    """A line per algorithm and size: measured and simulated."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("collective", "bytes", "algorithm", "measured", "simulated", "simulated/measured"):
        table.add_column(name, justify="left" if name in ("collective", "algorithm") else "right")
    for c in compared:
        table.add_row(c.collective, size_text(c.nbytes, unit=""), c.candidate,
                      time_text(c.measured), time_text(c.simulated),
                      f"{c.simulated / c.measured:.2f}")
    return table


def _calibrate(path: str) -> None:
    """Measure on all ranks; rank 0 writes the file."""
    MPI = require_mpi(steps=True)
    from hpccoll.comm.communicator import Comm
    from hpccoll.tools.calibrate import calibrate

    world = MPI.COMM_WORLD
    try:
        if world.Get_size() < 2:
            raise ArgumentError("--calibrate", "one rank alone has no links to measure",
                                "start it with mpiexec -n 2 or more")
        if world.bcast(world.Get_rank() == 0 and not writable(path)):
            raise ArgumentError("--calibrate", f"cannot write {path!r}")
        comm = agree(world, lambda: Comm(world))
    except HpccollError as error:
        complain("simulate", str(error))
        sys.exit(BAD_OPTIONS)
    try:
        measured = calibrate(comm, PurePath(path).stem)
    except Exception as error:
        abort(world, error)
    if world.Get_rank() == 0:
        write_text(path, json.dumps(machine_as_data(measured), indent=1) + "\n")


def _layouts(nodes: str, ppn: str, topology: str | None) -> dict[int, Topology]:
    """The layout for every number of nodes."""
    if topology is not None:
        layout = Topology.parse(topology)
        return {len(layout.groups()): layout}
    Topology.parse(ppn)
    inner = f"({ppn})" if "," in ppn else ppn
    return {count: Topology.parse(f"{count}x{inner}") for count in counts("--nodes", nodes)}


def _algorithms(collective: str, wanted: tuple[str, ...]) -> list[tuple[str, dict[str, int]]]:
    """Names and parameters of what to compare."""
    if collective not in ALGORITHMS:
        raise ArgumentError("collective", f"{collective!r} is unknown",
                            f"choose from {', '.join(ALGORITHMS)}")
    chosen = []
    for text in names(wanted) or names([USUAL[collective]]):
        name, *settings = text.split(":")
        for each in (ALGORITHMS[collective] if name == "all" else (name,)):
            find(collective, each)
            chosen.append((each, parameters(settings, "--algorithm")))
    return chosen


def _shown(simulations: Iterator[tuple[SimulationCase, Report]],
           total: int) -> Iterator[tuple[SimulationCase, Report]]:
    """Run simulations behind a progress bar, where there is a terminal to show it on."""
    console = Console(stderr=True)
    columns = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True,
                  disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        for each in simulations:
            progress.advance(task)
            yield each


def _table(reports: list[tuple[SimulationCase, Report]]) -> Table:
    """A line per simulation, grouped by nodes and size; the fastest of a group is marked."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("nodes", "ranks", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    for name in ("time", "x best", "GB/s", "latency", "transfer", "sharing", "local", "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("busiest", no_wrap=True)
    best: dict[tuple[int, int], float] = {}
    for point, report in reports:
        place = point.nodes, point.nbytes
        best[place] = min(best.get(place, report.seconds), report.seconds)
    last = None
    for point, report in reports:
        place = point.nodes, point.nbytes
        head = (["", "", ""] if place == last else
                [f"{point.nodes:,}", f"{report.schedule.size:,}", size_text(point.nbytes, unit="")])
        last = place
        table.add_row(*head, *_cells(report, best[place]),
                      style="bold" if report.seconds <= best[place] else "")
    return table


def _cells(report: Report, best: float) -> list[str]:
    """One simulation: time, and what the critical path spent it on."""
    def part(name: str) -> str:
        return time_text(sum(getattr(cost, name) for cost in report.critical))

    params = "".join(f":{name}={value}" for name, value in report.schedule.params)
    busy = report.busiest[0] if report.busiest else None
    rate = report.nbytes / report.seconds / 1e9 if report.seconds else 0.0
    return [report.schedule.algorithm + params, time_text(report.seconds),
            f"{report.seconds / best:.2f}" if best else "-",
            f"{rate:.3g}" if rate else "-",
            part("latency"), part("transfer"), part("sharing"),
            time_text(report.local_seconds), time_text(report.idle.mean),
            f"{busy.kind} {100 * busy.utilisation:.0f} %" if busy else "-"]
