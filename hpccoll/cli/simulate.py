"""``hpccoll simulate``: how long collectives take on a machine that is not there.

Exit status: 0, 1 where ``--calibrate`` found a busy machine, 2 for bad options, a bad machine file,
or a layout that an algorithm does not support, 130 when interrupted, after the results so far.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath
from time import monotonic
from typing import NamedTuple

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hpccoll.algorithms import ALGORITHMS, find, schedule
from hpccoll.algorithms.outside import display_name
from hpccoll.atomic_file import is_writable
from hpccoll.cli.options import (
    AlgorithmChoice,
    RankCount,
    check_outputs,
    layout_of,
    layouts_of,
    names,
    parse_algorithm,
    resolve_algorithm,
    write_text,
)
from hpccoll.cli.ranks import (
    BAD_OPTIONS,
    INTERRUPTED,
    WRONG,
    SectionCommand,
    abort,
    agree,
    complain,
    stoppable,
)
from hpccoll.cli.terminal import line_console
from hpccoll.errors import ArgumentError, HpccollError, NoisyMachineError
from hpccoll.ir.collectives import COLLECTIVES, collective_named
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology
from hpccoll.machine.launcher import require_mpi
from hpccoll.simulator import machine_model, plot, simulate
from hpccoll.simulator.conditions import SimulatedConditions, work_after_rounds
from hpccoll.simulator.effort import ESTIMATE, MESSAGES, PROGRAMS, ProgressCallback
from hpccoll.simulator.machine_model import machine_as_data
from hpccoll.simulator.report import Report
from hpccoll.simulator.table import level_note, simulated_table
from hpccoll.simulator.validation import compare, comparison_table, picks
from hpccoll.tools.bench import records
from hpccoll.units import size, time_text
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
               "plot_path", "full")
#: Seconds from which on an estimate is worth a line.
LONG = 10.0
#: Total seconds, about: algorithms that were not named are left out if they take longer.
PATIENCE = 60.0
#: Start of a stage in the progress bar of a simulation, and its fraction of the bar.
SHARE = {PROGRAMS: (0.0, 0.7), MESSAGES: (0.7, 0.3)}


class SimulationCase(NamedTuple):
    """One thing to simulate."""

    nodes: int
    nbytes: int
    algorithm: str
    params: dict[str, int]


#: Groups of options in the help.
SECTIONS = {
    "Collective": ("nodes", "ppn", "topology", "ranks", "sizes", "step", "wanted", "params",
                   "root", "segment_bytes", "itemsize", "no_fold"),
    "Delays": ("late", "noise", "compute_noise", "compute", "seed", "repeat"),
    "Machine": ("machine", "shape", "listed", "calibrate", "force"),
    "Output": ("full", "json_path", "plot_path", "against"),
}


@click.command("simulate", cls=SectionCommand, sections=SECTIONS)
@click.argument("collective", required=False)
@click.option("--nodes", default="2", show_default=True, metavar="LIST",
              help="Numbers of nodes: 64, or 2,4,12, or 2:4096 for powers of two.")
@click.option("--ppn", default="1", show_default=True, metavar="LAYOUT",
              help="Ranks per node; 2x4 for two groups of four.")
@click.option("--topology", metavar="LAYOUT",
              help="Another layout, such as 3,5,4, outermost level first.")
@click.option("--nbytes", "sizes", default="1M", show_default=True, metavar="LIST",
              help="Bytes of a rank's vector, or of all its blocks together: 1G, or 8,64K, or "
                   "1K:1G for sizes that grow by --step.")
@click.option("--step", type=click.IntRange(min=2), default=4, show_default=True,
              help="Factor between sizes of a range.")
@click.option("--machine", default="hdr", show_default=True, metavar="NAME|FILE",
              help="A built-in machine (see --machines), or a file.")
@click.option("--shape", metavar="KIND:EXTENTS",
              help="Shape of the network between nodes instead of the machine's: torus:4x4x4, "
                   "mesh:8x8, fat_tree:8x4:up=1x4:routing=spread, dragonfly:9x4x2.")
@click.option("--algorithm", "wanted", multiple=True, metavar="NAMES",
              help="Algorithms to compare, such as ring,rails or knomial:k=8, or all.")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
              help="A parameter of FILE.py:NAME, such as k=4; repeatable.")
@click.option("--size", "ranks", type=RankCount(1), metavar="RANKS",
              help="Number of nodes with one rank each, instead of --nodes and --ppn.")
@click.option("--root", type=int, default=0, show_default=True, help="Root of a rooted collective.")
@click.option("--segment-bytes", metavar="BYTES",
              help="Bytes of a segment: split blocks into segments and pipeline them.")
@click.option("--itemsize", type=click.IntRange(min=1),
              help="Bytes of an element: split blocks between elements. Default: equal parts.")
@click.option("--late", metavar="DELAYS",
              help="Delays of ranks at the start: uniform:20us, normal:10us:2us, exponential:10us, "
                   "one:RANK:50us, list:0,5us,20us.")
@click.option("--noise", metavar="DELAYS",
              help="Delay added to the latency of every message: exponential:2us.")
@click.option("--compute-noise", metavar="DELAYS",
              help="Delay added to every round of every rank: exponential:2us.")
@click.option("--compute", metavar="TIME",
              help="Work of a rank after every round: 5us, or 0.1ns/B of what it received, or "
                   "5us,0.1ns/B.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random delays.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True,
              help="Number of simulations with different delays; shows the median.")
@click.option("--no-fold", is_flag=True, help="Time every rank on its own.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Draw; the suffix selects the format: png, svg, pdf.")
@click.option("--full", is_flag=True,
              help="Show all columns and all algorithms of every point.")
@click.option("--machines", "listed", is_flag=True, help="List the built-in machines.")
@click.option("--against", metavar="FILE",
              help="Compare with a record of hpccoll bench --json, of COLLECTIVE or all, on "
                   "--machine.")
@click.option("--calibrate", metavar="FILE",
              help="Measure this job's machine and write a machine file; requires mpiexec.")
@click.option("--force", is_flag=True,
              help="Write the file of --calibrate even if the machine is busy.")
@click.pass_context
def command(context, collective, nodes, ppn, topology, sizes, step, machine, shape, wanted, params,
            ranks, root, segment_bytes, itemsize, late, noise, compute_noise, compute, seed,
            repeat, no_fold, json_path, plot_path, full, listed,
            against, calibrate, force):
    """Time COLLECTIVE on a machine described by a file; no MPI and no cluster needed.

    FILE.py:NAME in the place of COLLECTIVE times an algorithm of your own, beside those of
    --algorithm.

    \b
    hpccoll simulate allreduce --nodes 64 --ppn 4x2 --nbytes 1G --machine frontier
    hpccoll simulate allreduce --nodes 2:4096 --ppn 8 --nbytes 64M --plot n.png
    hpccoll simulate alltoall --topology 4x8 --nbytes 1K:16M --algorithm bruck:k=4
    mpiexec -n 4 python -m hpccoll simulate --calibrate here.json
    hpccoll simulate my.py:torus --nodes 16 --ppn 4 -p x=4 -p y=4 -p z=4
    """
    if calibrate is not None:
        _calibrate(calibrate, force)
        return
    if listed:
        for name in machine_model.names():
            click.echo(f"{name:14} {machine_model.find(name).description}")
        return
    segment = 0 if segment_bytes is None else size("--segment-bytes", segment_bytes)
    check_outputs(json_path, plot_path)
    if against is not None:
        _record_says(context)
        collective = None if collective is None else collective_named(collective)
        _compare_times(against, collective, machine, topology, segment, json_path, plot_path, full)
        return
    if collective is None:
        raise ArgumentError("collective", "a collective is required",
                            f"choose from {', '.join(ALGORITHMS)}")
    collective, own = resolve_algorithm(collective, None, params)
    if params and own is None:
        raise ArgumentError("--param", "requires FILE.py:NAME",
                            "write parameters of other algorithms after their names: knomial:k=8")
    known = machine_model.with_shape(machine_model.find(machine), shape)
    work = work_after_rounds("--compute", compute) if compute else (0.0, 0.0)
    conditions = SimulatedConditions(late, noise, compute_noise, *work, seed, repeat)
    if ranks is not None:
        if topology is not None:
            raise ArgumentError("--size", "does not go with --topology",
                                "--topology defines the size")
        nodes, ppn = str(ranks), "1"
    layouts, chosen = layouts_of(nodes, ppn, topology), _algorithms(collective, wanted, own)
    moved = read_sizes("--nbytes", sizes, step)
    if COLLECTIVES[collective].payload == "none":
        moved = [0]
    points = [SimulationCase(count, nbytes, each.name, each.params) for count in layouts
              for nbytes in moved for each in chosen]
    simulations = ((point, lambda progress, point=point: simulate(
        _schedule(collective, point, layouts[point.nodes], root), point.nbytes, known,
        layouts[point.nodes], itemsize=itemsize or 0, segment_bytes=segment, fold=not no_fold,
        progress=progress, conditions=conditions)) for point in points)
    reports, stopped = _run_simulations(simulations, len(points), named=bool(wanted or own))
    if json_path is not None:
        write_text(json_path, json.dumps({
            "format": 1, "collective": collective, "machine": machine_as_data(known),
            "results": [{"nodes": point.nodes, **report.as_json()} for point, report in reports],
        }, indent=1) + "\n")
    elif len(reports) == 1 and not stopped:
        click.echo(reports[0][1].as_text(), nl=False)
        note = level_note(known, Topology.parse(reports[0][1].topology))
        if note:
            click.echo(f"hpccoll: simulate: note: {note}", err=True)
    elif reports:
        console = line_console()
        made = simulated_table([(point.nodes, report) for point, report in reports],
                                console.width, full, topology or "")
        for number, line in enumerate(made.lines):
            console.print(line, style="bold" if number in made.best else
                          "dim" if line.startswith("#") else "", soft_wrap=True)
    if plot_path is not None and reports:
        plot.draw([(point.nodes, report) for point, report in reports], plot_path)
        click.echo(f"wrote {plot_path}", err=True)
    if stopped:
        sys.exit(INTERRUPTED)


def _schedule(collective: str, point: SimulationCase, layout: Topology, root: int) -> Schedule:
    """The schedule of one case, called as its algorithm was named on the command line."""
    hierarchical = find(collective, point.algorithm).hierarchical
    made = schedule(collective, point.algorithm, layout.size, root=root,
                    topology=layout if hierarchical else None, **point.params)
    return replace(made, algorithm=display_name(point.algorithm))


def _record_says(context: click.Context) -> None:
    """Refuse what a record says already, rather than take no notice of it."""
    for option in context.command.params:
        if (context.get_parameter_source(option.name) == ParameterSource.COMMANDLINE
                and option.name not in WITH_RECORD):
            raise ArgumentError("--against", f"does not go with {option.opts[-1]}",
                                "the record defines the simulation")


def _compare_times(path: str, collective: str | None, machine: str, topology: str | None,
                   segment: int,
                   json_path: str | None, plot_path: str | None, full: bool) -> None:
    """Show measured and simulated times side by side, and how often the simulation is right."""
    known, record = machine_model.find(machine), records.read(path)
    layout = None if topology is None else layout_of("--topology", topology)
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
        console = line_console()
        for line in comparison_table(compared, console.width, full):
            console.print(line, style="dim" if line.startswith("#") else "", soft_wrap=True)
    if plot_path is not None:
        plot.draw_against(compared, plot_path)
        click.echo(f"wrote {plot_path}", err=True)


def _calibrate(path: str, force: bool) -> None:
    """Measure on all ranks; rank 0 writes the file."""
    with stoppable() as stopped:
        MPI = require_mpi(steps=True)
        from hpccoll.comm.communicator import Comm
        from hpccoll.tools.calibrate import calibrate

        world = MPI.COMM_WORLD
        try:
            if world.Get_size() < 2:
                raise ArgumentError("--calibrate", "one rank has no links to measure",
                                    "start it with mpiexec -n 2 or more")
            if world.bcast(world.Get_rank() == 0 and not is_writable(path)):
                raise ArgumentError("--calibrate", f"cannot write {path!r}")
            comm = agree(world, lambda: Comm(world))
        except HpccollError as error:
            complain("simulate", str(error))
            sys.exit(BAD_OPTIONS)
        try:
            measured = calibrate(comm, PurePath(path).stem, stopped, force)
        except KeyboardInterrupt:  # on all ranks
            complain("simulate", "interrupted; no file is written")
            sys.exit(INTERRUPTED)
        except NoisyMachineError as error:
            complain("simulate", str(error))
            sys.exit(WRONG)
        except Exception as error:
            abort(world, error)
        if world.Get_rank() == 0:
            write_text(path, json.dumps(machine_as_data(measured), indent=1) + "\n")


def _algorithms(collective: str, wanted: tuple[str, ...],
                own: AlgorithmChoice | None) -> list[AlgorithmChoice]:
    """Names and parameters of what to compare."""
    if collective not in ALGORITHMS:
        raise ArgumentError.unknown_word("collective", collective, ALGORITHMS)
    chosen = [] if own is None else [own]
    for text in names(wanted) or ([] if own else names([USUAL[collective]])):
        each = parse_algorithm(text)
        chosen += ([AlgorithmChoice(name, each.params) for name in ALGORITHMS[collective]]
                   if each.name == "all" else [each])
    for each in chosen:
        each.entry(collective)
    return chosen


def _run_simulations(simulations: Iterator[tuple[SimulationCase,
                                                 Callable[[ProgressCallback], Report]]],
                     total: int,
                     named: bool) -> tuple[list[tuple[SimulationCase, Report]], bool]:
    """Run simulations behind a progress bar, where there is a terminal to show it on.

    Prints beforehand what takes long, or omits it if it was not named. After Ctrl-C the results so
    far are returned.

    Returns:
        The reports, and whether some are missing.
    """
    console = Console(stderr=True)
    reports: list[tuple[SimulationCase, Report]] = []
    columns = (TextColumn("simulating {task.description}"), BarColumn(), TaskProgressColumn(),
               TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True,
                  disable=not console.is_terminal) as progress:
        teller, left_out = _Teller(progress, total), {}
        try:
            for number, (point, run) in enumerate(simulations):
                label = AlgorithmChoice(point.algorithm, point.params).label
                # Something is shown in any case.
                teller.begin(label, number, named or not reports and number == total - 1)
                try:
                    reports.append((point, run(teller.advance)))
                except TooLong as error:
                    left_out[label] = time_text(error.seconds, 2)
        except KeyboardInterrupt:
            progress.stop()
            click.echo(f"hpccoll: stopped after {len(reports)} of {total} simulations, in "
                       f"{teller.where}", err=True)
            return reports, True
    if left_out:
        text = ", ".join(f"{label} (about {seconds})" for label, seconds in left_out.items())
        click.echo(f"hpccoll: simulate: omitted, because all would take more than {PATIENCE:g} s: "
                   f"{text}; select them with --algorithm {','.join(left_out)}",
                   err=True)
    return reports, False


class TooLong(Exception):
    """A simulation would take many seconds, and its algorithm was not requested."""

    def __init__(self, seconds: float):
        super().__init__(seconds)
        self.seconds = seconds


class _Teller:
    """Passes on how a simulation goes on."""

    def __init__(self, progress: Progress, total: int):
        self.progress, self.task = progress, progress.add_task("", total=total)
        self.name = self.where = ""
        self.number, self.patient = 0, True
        self.started = monotonic()

    def begin(self, name: str, number: int, patient: bool) -> None:
        """The next one begins; ``patient`` if it may take as long as it likes."""
        self.name = self.where = name
        self.number, self.patient = number, patient
        self.progress.update(self.task, completed=number, description=name)

    def advance(self, stage: str, part: float, text: str) -> None:
        """A simulation says how far it is."""
        if stage != ESTIMATE:
            start, share = SHARE[stage]
            self.where = f"{self.name}, {part:.0%} of its {stage}" + f", {text}" * bool(text)
            self.progress.update(self.task, completed=self.number + start + part * share)
        elif part > LONG and not self.patient and monotonic() - self.started + part > PATIENCE:
            raise TooLong(part)
        elif part > LONG:
            self.progress.print(f"{self.name}: {text}; Ctrl-C ends it with partial results",
                                highlight=False, soft_wrap=True)
