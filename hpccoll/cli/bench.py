"""``hpccoll bench``: measure collectives on real ranks, side by side with the host MPI's.

Every rank runs this command with the same options, so every rank finds the same mistake in
them; rank 0 alone says so. Exit status: 0, 1 when a result was wrong, 2 for bad options, 130
when interrupted. ``--compare`` reads two records and starts no MPI; its status is 1 where
something became slower, 3 where native itself moved so far that nothing can be compared.
``--matrix`` starts the launchers of several environments; its status is 1 where one of them failed.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from hpccoll.algorithms.outside import is_reference, split
from hpccoll.cli.options import (
    PERCENT,
    SECONDS,
    OneOf,
    Together,
    addressed,
    buffer_sizes,
    check_outputs,
    check_together,
    opened,
    stated,
)
from hpccoll.cli.ranks import (
    BAD_OPTIONS,
    INTERRUPTED,
    WRONG,
    Progress,
    Ranked,
    abort,
    agree,
    agree_on_rank_0,
    complain,
    silent,
    stoppable,
)
from hpccoll.errors import ArgumentError, HpccollError, TuningError
from hpccoll.ir.collectives import COLLECTIVES, method_named
from hpccoll.ir.topology import Topology
from hpccoll.machine.launcher import require_mpi
from hpccoll.units import size

#: Exit status of a comparison that says nothing.
NOT_COMPARABLE = 3
#: Which options go together. Two programs beside the usual one start no MPI: --compare, --matrix.
TOGETHER = (
    Together("--overlap", ("--format", "--plot", "--peers", "--sweeps", "--rotate", "--calls",
                           "--keep"),
             remedy="it has a table and a record, no other form, no peers, one sweep and one set "
                    "of buffers, and nonblocking calls"),
    Together("--device", ("--overlap", "--peers", "--calls"),
             remedy="blocking calls on arrays of CuPy's are measured with it"),
    Together("--tests", needs="--overlap"),
    Together("--work", needs="--overlap"),
    Together("--compare", ("--overlap", "--matrix", "--plot", "--json"),
             remedy="it measures nothing"),
    Together("--matrix", ("--overlap", "--tolerance", "--format", "--json", "--plot"),
             remedy="it writes records, pictures and a table of its own"),
    Together("--ranks", needs="--matrix"),
    Together("--output", needs="--matrix"),
)


#: Groups of options in the help.
SECTIONS = {
    "What is called": ("sizes", "step", "dtype", "op", "root", "in_place", "uneven", "calls",
                       "registered", "device", "topology"),
    "Who is compared": ("algorithm", "params", "segment_bytes", "peers"),
    "How long": ("seconds", "iterations", "warmup", "sweeps", "rotate"),
    "What is shown and written": ("full", "form", "json_path", "keep", "plot_path", "tolerance",
                                  "validate", "tail"),
    "Other measurements": ("overlap", "work", "tests", "records", "environments", "ranks",
                           "output"),
}


@click.command("bench", cls=Ranked, sections=SECTIONS,
               context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("collectives", nargs=-1, metavar="COLLECTIVE...")
@click.option("--algorithm", default="", metavar="NAMES",
              help="Candidates: native, auto, algorithms such as ring or knomial:k=8, plausible "
                   "(what tune would measure), all, or forwarded (native as hpccoll.Comm calls "
                   "it). Default: native, auto and one or two of hpccoll's for the size.")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
              help="A parameter of FILE.py:NAME, such as k=4; repeatable.")
@click.option("-m", "--sizes", default="8:16M", show_default=True, metavar="[MIN:]MAX",
              help="Bytes of a rank's larger buffer; with --format osu, of a block.")
@click.option("--step", type=click.IntRange(min=2), metavar="N",
              help="Factor between sizes. Default: 4, or 2 with --format osu.")
@click.option("-T", "--dtype", default="float32", show_default=True, help="NumPy type.")
@click.option("--op", default="sum", show_default=True, help="Reduction operator.")
@click.option("--root", type=int, default=0, show_default=True, help="Root of rooted collectives.")
@click.option("-l", "--in-place", is_flag=True, help="Pass MPI.IN_PLACE.")
@click.option("--uneven", is_flag=True, help="Blocks of 1:2:3 where the collective takes them.")
@click.option("--calls", type=OneOf(["blocking", "nonblocking", "persistent", "lower-case"]),
              default="blocking", show_default=True,
              help="Form of the calls: blocking, nonblocking (Iallreduce; the call and its wait "
                   "are timed), persistent (Allreduce_init; start and wait are), or mpi4py's "
                   "lower-case methods (allreduce), on arrays and, where there is one float, a "
                   "number.")
@click.option("--registered", is_flag=True,
              help="Buffers in registered memory (hpccoll.Comm.empty), for all candidates; with "
                   "--device, of the GPU.")
@click.option("--device", type=OneOf(["cuda"]), metavar="KIND",
              help="Buffers on GPUs, for all candidates: cuda. Then nccl, nccl+rails and "
                   "nccl+leader may be candidates.")
@click.option("--peers", is_flag=True,
              help="PyTorch's process groups in the same processes as candidates: its own "
                   "(gloo), and hpccoll's (torch).")
@click.option("-x", "--warmup", type=click.IntRange(min=0), metavar="N",
              help="Iterations not measured. Default: 5 for each set of buffers.")
@click.option("-i", "--iterations", type=click.IntRange(min=1), metavar="N",
              help="Iterations measured. Default: 10 to 5000 in each sweep, by --seconds.")
@click.option("--seconds", type=SECONDS, default=0.25,
              show_default=True, help="Time for each candidate and size.")
@click.option("--sweeps", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Measure all sizes so often, and spread times and iterations over that: a "
                   "machine that is slow for some seconds is so for a part of them only.")
@click.option("--rotate", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Sets of buffers that iterations use in turn.")
@click.option("--segment-bytes", metavar="BYTES",
              help="Bytes of a block that travel as one message, for named algorithms.")
@click.option("--topology", metavar="LAYOUT", help="Layout to pretend, such as 2x4.")
@click.option("--format", "form", type=OneOf(["table", "osu", "csv", "json"]),
              default="table", show_default=True, help="Form of the output.")
@click.option("-f", "--full", is_flag=True, help="A line a candidate, and all columns.")
@click.option("-c", "--validate", is_flag=True,
              help="With --format osu, show the verdict; all results are checked anyway.")
@click.option("-z", "--tail", is_flag=True, help="With --format osu, show percentiles.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write a record with every single time; - is standard output.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N",
              help="With --json, write so many of each candidate's times, evenly taken; what is "
                   "computed from them still is of all.")
@click.option("--plot", "plot_path", metavar="FILE", help="Draw ratio and bandwidth over size.")
@click.option("--overlap", is_flag=True,
              help="Nonblocking collectives: how much of them hides behind computation.")
@click.option("--work", default="numpy,python", show_default=True, metavar="KIND,...",
              help="With --overlap, what hides them: numpy, which lets other threads of Python "
                   "run; python, which does not; asleep, which leaves a processor free.")
@click.option("--tests", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="With --overlap, calls of Test during the computation.")
@click.option("--compare", "records", nargs=2, metavar="OLD NEW",
              help="Measure nothing: compare two records of --json, exit 1 on a regression.")
@click.option("--matrix", "environments", multiple=True, metavar="ENVDIR",
              help="Measure with the mpiexec of this virtual environment, too; one ratio table.")
@click.option("--ranks", default="2,4", show_default=True, metavar="N,...",
              help="With --matrix, numbers of ranks.")
@click.option("-o", "--output", default="hpccoll-matrix", show_default=True, metavar="FOLDER",
              help="With --matrix, where records, pictures and ratios.md go.")
@click.option("--tolerance", type=PERCENT, default=10.0, show_default=True,
              metavar="PERCENT", help="How much slower than the best candidate auto may be; with "
                                      "--compare, how much slower is no regression.")
@click.pass_context
def command(context: click.Context, collectives: tuple[str, ...], form: str, json_path: str | None,
            keep: int | None, plot_path: str | None, full: bool, validate: bool, tail: bool,
            overlap: bool, work: str, tests: int, records: tuple[str, str] | None, tolerance: float,
            environments: tuple[str, ...], ranks: str, output: str, **given: Any) -> None:
    """Measure COLLECTIVE (allreduce, alltoallv, ..., or all) and check every result.

    FILE.py:NAME among the collectives measures an algorithm of your own beside the usual
    candidates, or those of --algorithm.

    \b
    mpiexec -n 4 hpccoll bench allreduce
    mpiexec -n 8 hpccoll bench my.py:torus -p x=2 -p y=2 -p z=2
    mpiexec -n 4 hpccoll bench bcast -m 1K:64M --algorithm native,chain,knomial
    mpiexec -n 4 hpccoll bench all --json record.json --plot picture.png
    mpiexec -n 2 hpccoll bench allreduce --overlap --algorithm native,ring
    hpccoll bench --compare before.json after.json
    hpccoll bench allreduce --matrix env/mpich --matrix env/openmpi --ranks 2,4
    """
    try:
        check_together(context, TOGETHER)
    except ArgumentError as error:
        if records is not None or environments:  # which start no MPI
            click.echo(f"hpccoll: bench: {error}", err=True)
        else:
            complain("bench", str(error))
        sys.exit(BAD_OPTIONS)
    if records is not None:
        sys.exit(_compare(records, tolerance / 100, collectives, full))
    if not collectives:
        complain("bench", "Missing argument 'COLLECTIVE...'.")
        sys.exit(BAD_OPTIONS)
    if environments:
        sys.exit(_matrix(context, environments, ranks, output))
    with ExitStack() as stack:
        # Before MPI starts: from then on no rank may end without the others.
        stopped = stack.enter_context(stoppable())
        MPI = require_mpi(steps=True)
        from hpccoll.cli import terminal
        from hpccoll.tools.bench import overlap as overlapping
        from hpccoll.tools.bench import overlap_report, plot, session, torch_groups

        comm = MPI.COMM_WORLD
        try:
            options = _options(collectives, osu=form == "osu", **given)
            agree(comm, lambda: session.check(options, comm.Get_size()))
            works = agree(comm, lambda: overlapping.kinds(work))
            if options.peers:
                agree(comm, torch_groups.available)
            agree_on_rank_0(comm, lambda: check_outputs(json_path, plot_path))
        except HpccollError as error:
            complain("bench", str(error))
            sys.exit(BAD_OPTIONS)
        try:
            progress: Progress = silent
            console: Console | None = None
            if comm.Get_rank() == 0:
                console, bar = terminal.screen(form == "table")
                progress = terminal.shown(stack.enter_context(bar))
            if overlap:
                table = None if console is None else overlap_report.OverlapTable(console)
                hidden = overlapping.run(comm, options, tests, table, works, stopped,
                                         progress)
                if json_path is not None and console is not None:
                    with opened(json_path) as file:
                        overlap_report.write_record(file, options, hidden)
                failures, interrupted = hidden.failures, hidden.interrupted
            else:
                reports = [] if console is None else _reports(
                    form, full, validate, tail, console, options, json_path, tolerance / 100,
                    keep or 0)
                times = session.run(comm, options, reports, stopped, progress)
                if plot_path is not None and times.environment is not None and times.groups:
                    plot.draw(times.groups, times.environment, plot_path)
                    click.echo(f"{'# picture: ' if form == 'table' else 'wrote '}{plot_path}",
                               err=form != "table")
                failures, interrupted = times.failures, times.interrupted
        except TuningError as error:
            complain("bench", str(error))
            sys.exit(BAD_OPTIONS)
        except Exception as error:
            abort(comm, error)
    if interrupted and form != "table":  # which says so itself
        complain("bench", "interrupted: not everything was measured")
    sys.exit(WRONG if failures else INTERRUPTED if interrupted else 0)


def _compare(paths: tuple[str, str], tolerance: float, collectives: tuple[str, ...],
             full: bool) -> int:
    """Print how two records differ; return the exit status. Starts no MPI."""
    from hpccoll.cli.terminal import line_console
    from hpccoll.tools.bench import compare, records

    try:
        old, new = map(records.read, paths)
        compared = [pair for pair in compare.pairs(old, new)
                 if not collectives or pair.key.collective in collectives]
        if not compared:
            raise HpccollError(f"the records have no {' or '.join(collectives)} in common")
    except HpccollError as error:
        click.echo(f"hpccoll: bench: {error}", err=True)
        return BAD_OPTIONS
    console = line_console()
    for line in compare.lines(old, new, compared, tolerance, console.width, full):
        console.print(line, soft_wrap=True)
    judged = compare.comparable(old, new, compared, tolerance)
    if not judged:
        return NOT_COMPARABLE
    return WRONG if any(pair.regressed(tolerance) for pair in judged) else 0


def _matrix(context: click.Context, environments: tuple[str, ...], ranks: str,
            output: str) -> int:
    """Run the benchmark in every environment; return the exit status. Starts no MPI."""
    from hpccoll.tools.bench import libraries

    folder = Path(output)
    try:
        counts = ranks.split(",")
        if not all(count.isdecimal() and int(count) for count in counts):
            raise ArgumentError("--ranks", f"cannot read {ranks!r}", "write it like 2,4")
        runs = libraries.plan(environments, [int(count) for count in counts], folder)
        words = _words(context)
        folder.mkdir(parents=True, exist_ok=True)
        measured, problems = libraries.measure(runs, words, lambda line: click.echo(f"# {line}"))
        if measured:
            text = "\n".join(libraries.markdown(measured, words)) + "\n"
            (folder / "ratios.md").write_text(text, encoding="utf-8")
            libraries.draw(measured, folder / "ratios.png")
            click.echo(text, nl=False)
    except HpccollError as error:
        click.echo(f"hpccoll: bench: {error}", err=True)
        return BAD_OPTIONS
    except OSError as error:
        click.echo(f"hpccoll: bench: cannot write {error.filename!r}: {error.strerror}", err=True)
        return BAD_OPTIONS
    for problem in problems:
        click.echo(f"hpccoll: bench: {problem}", err=True)
    return WRONG if problems else 0


def _words(context: click.Context) -> list[str]:
    """The words of a command line, less those of ``--matrix`` itself."""
    words = list(context.params["collectives"])
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if (not isinstance(option, click.Option) or source != ParameterSource.COMMANDLINE
                or option.name in ("environments", "ranks", "output")):
            continue
        value = context.params[str(option.name)]
        words += [option.opts[-1]] if option.is_flag else [option.opts[-1], str(value)]
    return words


def _options(collectives: tuple[str, ...], osu: bool, algorithm: str, sizes: str,
             step: int | None, dtype: str, op: str, root: int, in_place: bool, uneven: bool,
             calls: str, registered: bool, device: str | None, peers: bool, warmup: int | None,
             iterations: int | None, seconds: float, sweeps: int, rotate: int,
             segment_bytes: str | None, topology: str | None, params: tuple[str, ...]) -> Any:
    """The options as values.

    Raises:
        ArgumentError: one of them makes no sense.
    """
    from hpccoll.calls.call import METHODS
    from hpccoll.measure import candidates, cases
    from hpccoll.measure.call_forms import FORMS
    from hpccoll.measure.timing import Settings
    from hpccoll.tools.bench.session import Options

    own = [addressed(word, None, params)[1] for word in collectives if is_reference(word)]
    collectives = tuple(stated(split(word)[0]) if is_reference(word) else word
                        for word in map(method_named, collectives))
    if params and not own:
        raise ArgumentError("--param", "means nothing without FILE.py:NAME",
                            "write parameters of others behind their names: knomial:k=8")
    for name in collectives:
        if name not in (*METHODS, "all"):
            raise ArgumentError.unknown("collective", name, (*METHODS, "all"))
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
    """The reports that rank 0 writes."""
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
        reports = [formats.Json(partial(opened, "-"), options.as_data(), tolerance, keep)]
    if json_path is not None:
        reports.append(formats.Json(partial(opened, json_path), options.as_data(), tolerance, keep))
    return reports
