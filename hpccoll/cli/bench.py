"""``hpccoll bench``: measure collectives on real ranks, side by side with the host MPI's.

Every rank parses the same options; rank 0 reports their errors. Exit status: 0, 1 for a wrong
result, 2 for bad options, 130 for an interrupt. ``bench overlap`` uses its options and its run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, reduce
from typing import Any

import click
from rich.console import Console

from hpccoll.algorithms.outside import is_reference, split
from hpccoll.cli.options import (
    PERCENT,
    SECONDS,
    FiniteRange,
    OneOf,
    buffer_sizes,
    check_outputs,
    declared_collective,
    open_output,
    resolve_algorithm,
)
from hpccoll.cli.ranks import (
    INTERRUPTED,
    WRONG,
    Progress,
    RankCommand,
    abort,
    agree,
    agree_on_rank_0,
    complain,
    ignore_progress,
    stoppable,
)
from hpccoll.errors import ArgumentError, TuningError
from hpccoll.ir.collectives import COLLECTIVES, method_named
from hpccoll.ir.topology import Topology
from hpccoll.machine.launcher import require_mpi
from hpccoll.units import size

#: Groups of options in the help pages.
SECTIONS = {
    "Calls": ("sizes", "step", "dtype", "op", "root", "in_place", "uneven", "calls",
              "registered", "device", "topology", "works", "tests"),
    "Candidates": ("algorithm", "params", "segment_bytes", "peers"),
    "Duration": ("seconds", "iterations", "warmup", "sweeps", "rotate"),
    "Output": ("full", "form", "json_path", "keep", "plot_path", "least", "tolerance",
               "validate", "tail"),
}


def _parse_option(context: click.Context, argument: click.Parameter, words: tuple[str, ...]) -> Any:
    if not words:
        raise click.UsageError("COLLECTIVE is missing: name one, such as allreduce", context)
    return words


#: Options of every measurement.
MEASUREMENT = (
    click.argument("collectives", nargs=-1, metavar="COLLECTIVE...", callback=_parse_option),
    click.option("--algorithm", default="", metavar="NAMES",
                 help="Candidates: native, auto, algorithms such as ring or knomial:k=8, plausible "
                      "(the candidates of tune), all, or forwarded (native through hpccoll.Comm). "
                      "Default: native, auto and one or two algorithms of hpccoll for the size."),
    click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
                 help="A parameter of FILE.py:NAME, such as k=4; repeatable."),
    click.option("-m", "--sizes", default="8:16M", show_default=True, metavar="[MIN:]MAX",
                 help="Bytes of a rank's larger buffer."),
    click.option("--step", type=click.IntRange(min=2), metavar="N",
                 help="Factor between sizes. Default: 4."),
    click.option("-T", "--dtype", default="float32", show_default=True, help="NumPy type."),
    click.option("--op", default="sum", show_default=True, help="Reduction operator."),
    click.option("--root", default=0, show_default=True, help="Root of rooted collectives."),
    click.option("-l", "--in-place", is_flag=True, help="Pass MPI.IN_PLACE."),
    click.option("--uneven", is_flag=True, help="Blocks of 1:2:3, if supported."),
    click.option("--registered", is_flag=True,
                 help="Buffers in registered memory (hpccoll.Comm.empty), for all candidates."),
    click.option("-x", "--warmup", type=click.IntRange(min=0), metavar="N",
                 help="Warm-up iterations. Default: 5 per set of buffers."),
    click.option("-i", "--iterations", type=click.IntRange(min=1), metavar="N",
                 help="Measured iterations. Default: limited by --seconds."),
    click.option("--seconds", type=SECONDS, default=0.25, show_default=True,
                 help="Time per candidate and size."),
    click.option("--segment-bytes", metavar="BYTES",
                 help="Bytes of a block per message, for named algorithms."),
    click.option("--topology", metavar="LAYOUT", help="Layout to assume, such as 2x4."),
)
#: Options of a comparison of candidates, with one MPI library or several.
COMPARISON = (
    click.option("--calls", type=OneOf(["blocking", "nonblocking", "persistent", "lower-case"]),
                 default="blocking", show_default=True,
                 help="Form of the calls: blocking, nonblocking (Iallreduce; times the call and "
                      "its wait), persistent (Allreduce_init; times start and wait), or mpi4py's "
                      "lower-case methods (allreduce) on arrays, and on a number for a single "
                      "float."),
    click.option("--device", type=OneOf(["cuda"]), metavar="KIND",
                 help="Buffers on GPUs, for all candidates: cuda; registered with --registered. "
                      "Enables the candidates nccl, nccl+rails and nccl+leader."),
    click.option("--peers", is_flag=True,
                 help="Candidates of PyTorch process groups in the same processes: gloo, and "
                      "hpccoll's backend (torch)."),
    click.option("--sweeps", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
                 help="Number of passes over all sizes. Times and iterations are divided between "
                      "them, so that a slow phase of the machine affects only some passes."),
    click.option("--rotate", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
                 help="Sets of buffers that iterations cycle through."),
    click.option("-f", "--full", is_flag=True, help="Print a line per candidate, with all "
                                                    "columns."),
    click.option("--keep", type=click.IntRange(min=1), metavar="N",
                 help="Number of times per candidate that a record stores, evenly sampled; "
                      "statistics use all times."),
)
JSON = click.option("--json", "json_path", metavar="FILE",
                    help="Write a record with all times; - is standard output.")


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorate a command with several options."""
    return lambda command: reduce(lambda done, option: option(done), options[::-1], command)


@click.command("bench", cls=RankCommand, sections=SECTIONS)
@with_options(*MEASUREMENT, *COMPARISON, JSON)
@click.option("--format", "form", type=OneOf(["table", "osu", "csv", "json"]),
              default="table", show_default=True,
              help="Form of the output. With osu, sizes are those of a block, and --step is 2.")
@click.option("-c", "--validate", is_flag=True,
              help="With --format osu, show the result of the check; all results are checked in "
                   "any case.")
@click.option("-z", "--tail", is_flag=True, help="With --format osu, show percentiles.")
@click.option("--plot", "plot_path", metavar="FILE", help="Draw ratio and bandwidth over size.")
@click.option("--check", "least", type=FiniteRange(min=0, min_open=True), metavar="MIN",
              help="Exit with status 1 unless each collective reaches a bus bandwidth of MIN GB/s "
                   "at one of the sizes: auto, or the fastest candidate without it.")
@click.option("--tolerance", type=PERCENT, default=10.0, show_default=True, metavar="PERCENT",
              help="Percentage by which auto may be slower than the best candidate.")
def command(form: str, json_path: str | None, keep: int | None, plot_path: str | None, full: bool,
            validate: bool, tail: bool, tolerance: float, least: float | None,
            **given: Any) -> None:
    """Measure COLLECTIVE (allreduce, alltoallv, ..., or all) and check every result.

    FILE.py:NAME among the collectives measures an algorithm of your own beside the usual
    candidates, or those of --algorithm.

    \b
    mpiexec -n 4 hpccoll bench allreduce
    mpiexec -n 8 hpccoll bench my.py:torus -p x=2 -p y=2 -p z=2
    mpiexec -n 4 hpccoll bench bcast -m 1K:64M --algorithm native,chain,knomial
    mpiexec -n 4 hpccoll bench all --json record.json --plot picture.png
    mpiexec -n 4 hpccoll bench allreduce -m 1M:64M --check 5

    \b
    hpccoll bench compare --help    two records
    hpccoll bench fresh --help      new sizes and new communicators
    hpccoll bench overlap --help    what computation hides of nonblocking calls
    """
    def run(comm: Any, options: Any, console: Console | None, *course: Any) -> Any:
        from hpccoll.tools.bench import comparison_result, plot, session

        reports = [] if console is None else _reports(
            form, full, validate, tail, console, options, json_path, tolerance / 100, keep or 0)
        times = session.run(comm, options, reports, *course)
        if plot_path is not None and times.environment is not None and times.groups:
            plot.draw(times.groups, times.environment, plot_path)
            click.echo(f"{'# picture: ' if form == 'table' else 'wrote '}{plot_path}",
                       err=form != "table")
        if least is not None:
            checks = list(comparison_result.check_bandwidth(times.groups, least * 1e9))
            for line, _ in checks:
                click.echo(f"# check: {line}", err=form != "table")
            times = times._replace(failures=comm.bcast(
                times.failures + sum(not passed for _, passed in checks)))
        return times

    measure("bench", given, run, json_path, plot_path, form)


def measure(command: str, given: dict[str, Any], run: Callable[..., Any],
            json_path: str | None, plot_path: str | None = None, form: str = "table") -> None:
    """Parse and check the options of :data:`MEASUREMENT` and :data:`COMPARISON`, measure, exit.

    Args:
        run: measures and returns the outcome; gets the communicator, the options, a console on rank
            0, a callback that returns True to stop, and a callback for progress.
    """
    def prepare(comm: Any) -> Any:
        from hpccoll.tools.bench import session

        options = _parse_options(osu=form == "osu", **given)
        agree(comm, lambda: session.check(options, comm.Get_size()))
        return options

    outcome = run_on_ranks(prepare, run, json_path, plot_path, form == "table")
    if outcome.interrupted and form != "table":  # a table shows the interrupt
        complain(command, "interrupted: some cases were not measured")
    sys.exit(WRONG if outcome.failures else INTERRUPTED if outcome.interrupted else 0)


def run_on_ranks(prepare: Callable[[Any], Any], run: Callable[..., Any], json_path: str | None,
                 plot_path: str | None = None, table: bool = True) -> Any:
    """Measure on all ranks with a console and a progress bar on rank 0; see :func:`measure`."""
    with ExitStack() as stack:
        # Before MPI starts: afterwards no rank may exit alone.
        stopped = stack.enter_context(stoppable())
        MPI = require_mpi(steps=True)
        from hpccoll.cli import terminal

        comm = MPI.COMM_WORLD
        options = prepare(comm)
        agree_on_rank_0(comm, lambda: check_outputs(json_path, plot_path))
        try:
            progress: Progress = ignore_progress
            console: Console | None = None
            if comm.Get_rank() == 0:
                console, bar = terminal.screen(table)
                progress = terminal.progress_callback(stack.enter_context(bar))
            return run(comm, options, console, stopped, progress)
        except TuningError:  # raised on every rank
            raise
        except Exception as error:
            abort(comm, error)


def _parse_options(collectives: tuple[str, ...], osu: bool, algorithm: str, sizes: str,
                   step: int | None, dtype: str, op: str, root: int, in_place: bool, uneven: bool,
                   registered: bool, warmup: int | None, iterations: int | None, seconds: float,
                   segment_bytes: str | None, topology: str | None, params: tuple[str, ...],
                   calls: str = "blocking", device: str | None = None, peers: bool = False,
                   sweeps: int = 1, rotate: int = 1) -> Any:
    from hpccoll.ir.methods import METHODS
    from hpccoll.measure import candidates, cases
    from hpccoll.measure.call_forms import FORMS
    from hpccoll.measure.timing import Settings
    from hpccoll.tools.bench.session import Options

    own = [resolve_algorithm(word, None, params)[1] for word in collectives if is_reference(word)]
    collectives = tuple(declared_collective(split(word)[0]) if is_reference(word) else word
                        for word in map(method_named, collectives))
    if params and not own:
        raise ArgumentError("--param", "requires FILE.py:NAME",
                            "write parameters of other algorithms after their names: knomial:k=8")
    for name in collectives:
        if name not in (*METHODS, "all"):
            raise ArgumentError.unknown_word("collective", name, (*METHODS, "all"))
    chosen = dict.fromkeys(METHODS if "all" in collectives else collectives)
    reduces = any(COLLECTIVES[METHODS[name]].reduces for name in chosen)
    segment = size("--segment-bytes", segment_bytes, least=1) if segment_bytes else 0
    usual = "auto" if osu else candidates.USUAL if own else ""
    wanted = candidates.parse(",".join([algorithm or usual, *(each.label for each in own if each)]))
    return Options(
        tuple(chosen), buffer_sizes(sizes, step or (2 if osu else 4)),
        cases.data_type(dtype, op if reduces else None), op, root, in_place, uneven, osu, wanted,
        Settings(warmup, iterations, seconds, rotate, segment,
                 None if topology is None else Topology.parse(topology), FORMS[calls]),
        registered, peers, sweeps, device is not None)


def _reports(form: str, full: bool, validate: bool, tail: bool, console: Console, options: Any,
             json_path: str | None, tolerance: float, keep: int) -> list[Any]:
    from hpccoll.measure.candidates import WORDS
    from hpccoll.tools.bench import formats
    from hpccoll.tools.bench.report import BenchReport, SizeTable, TableReport

    reports: list[BenchReport]
    if form == "table":
        named = [each.label for each in options.wanted if each.name not in WORDS]
        reports = [TableReport(console, tolerance) if full else SizeTable(console, named)]
    elif form == "osu":
        reports = [formats.Osu(sys.stdout, full, validate, tail)]
    elif form == "csv":
        reports = [formats.Csv(sys.stdout)]
    else:
        reports = [formats.Json(partial(open_output, "-"), options.as_data(), tolerance, keep)]
    if json_path is not None:
        reports.append(formats.Json(partial(open_output, json_path), options.as_data(), tolerance,
                                    keep))
    return reports
