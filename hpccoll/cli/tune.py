"""``hpccoll tune``: measure all candidates on this machine and write the table for ``auto``.

The table is read before anything is measured, so that a broken one is an error at once, and again
right before it is written, so that what another job wrote meanwhile, or writes just now, stays.
Exit status: 0, 1 when a result was wrong (that candidate is left out) or other processes used the
cores (nothing is written), 2 for bad options or an unusable table, 130 when interrupted (nothing is
written).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.outside import is_reference
from hpccoll.cli.options import (
    ALGORITHM,
    SECONDS,
    AlgorithmChoice,
    buffer_sizes,
    declared_collective,
    names,
    parameters,
    split_collectives,
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
from hpccoll.config import NATIVE, OFF, ONLINE, PROBE
from hpccoll.errors import ArgumentError, TuningError
from hpccoll.ir.collectives import collective_named
from hpccoll.machine.launcher import require_mpi
from hpccoll.units import time_text

#: Seconds for everything, quick and full.
QUICK, FULL = 50.0, 600.0


@click.command("tune", cls=RankCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("brought", nargs=-1, type=ALGORITHM, metavar="[COLLECTIVE|FILE.py:NAME]...")
@click.option("--quick", is_flag=True, help="Under a minute: fewer sizes, no variants.")
@click.option("--probe", is_flag=True,
              help="A few seconds: three sizes and a few candidates; a model predicts the others. "
                   "Jobs prefer times measured without it.")
@click.option("-o", "--output", metavar="FILE",
              help="The table; it keeps its entries, and averages old and new times of the same "
                   "calls. Default: the file of HPCCOLL_TUNING, or the default path.")
@click.option("--replace", "replaced", is_flag=True,
              help="Replace the table's entries of these calls on this machine.")
@click.option("--force", is_flag=True,
              help="Write the times even if other processes used the cores.")
@click.option("--collective", "collectives", multiple=True, metavar="NAMES",
              help="Collectives to measure. Default: all.")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
              help="A parameter of FILE.py:NAME, such as k=4; repeatable.")
@click.option("-m", "--sizes", metavar="[MIN:]MAX",
              help="Bytes of a rank's larger buffer. Default: 64:1M probe, 8:4M quick, 8:32M "
                   "else.")
@click.option("--seconds", type=SECONDS,
              help=f"Approximate total time. Default: 4 probe, {QUICK:g} quick, {FULL:g} else.")
@click.option("-f", "--full", is_flag=True, help="Print a line per size.")
def command(brought: tuple[AlgorithmChoice, ...], params: tuple[str, ...], quick: bool, probe: bool,
            output: str | None, replaced: bool, force: bool, collectives: tuple[str, ...],
            sizes: str | None, seconds: float | None, full: bool) -> None:
    """Measure every algorithm against the host MPI, and note the times for later jobs.

    FILE.py:NAME is measured beside the candidates of its collective, and shown; what is noted are
    names that every job knows.

    \b
    mpiexec -n 4 hpccoll tune --quick
    mpiexec -n 4 hpccoll tune --probe
    mpiexec -n 64 hpccoll tune allreduce bcast -o tuning.json
    """
    named, brought = split_collectives(brought)
    collectives = (*named, *collectives)
    with ExitStack() as stack:
        stopped = stack.enter_context(stoppable())
        MPI = require_mpi(steps=True)
        from hpccoll.cli import terminal
        from hpccoll.comm import Comm
        from hpccoll.measure import load, survey

        comm = MPI.COMM_WORLD
        plan = agree(comm, lambda: _add_algorithms(
            _plan(quick, probe, collectives, sizes, seconds), brought, parameters(params),
            comm.Get_size(), bool(collectives)))
        path = agree(comm, lambda: _path(output))
        if comm.Get_size() == 1:
            raise ArgumentError("world", "one rank has no choice of algorithms",
                                "start it with mpiexec")
        agree_on_rank_0(comm, lambda: _check(path))
        try:
            console: Console | None = None
            progress: Progress = ignore_progress
            if comm.Get_rank() == 0:
                console, bar = terminal.screen(True)
                progress = (_progress_lines(plan.seconds) if bar.disable else
                            terminal.progress_callback(stack.enter_context(bar)))
            others = load.OtherLoad(comm)
            outcome = survey.survey(comm, plan, Comm, stopped, progress)
            busy = load.load_text(comm.allreduce(others.share(), MPI.MAX))
            machine = outcome.machine._replace(probe=probe)
        except Exception as error:
            abort(comm, error)
        if outcome.interrupted:
            stack.close()
            complain("tune", "interrupted; no file is written")
            sys.exit(INTERRUPTED)
        noted = agree(comm, lambda: comm.Get_rank() or _add(
            "" if busy and not force else path, machine, outcome, replaced))
        stack.close()
        if console is not None:
            curves, stayed = noted
            _show(console, machine, curves, stayed, outcome.doubtful, full, not busy or force)
            for line in _ends(path, busy, force, console.width):
                console.print(line, highlight=False, soft_wrap=True)
            for (name, candidate), count in outcome.failures.items():
                complain("tune", f"{name} {candidate.label} is omitted: {count} wrong elements")
    sys.exit(WRONG if outcome.failures or busy and not force else 0)


def _progress_lines(seconds: float) -> Progress:
    """Return a callback that prints a line per tenth of the time: files do not show a bar."""
    printed = [0]

    def show(name: str, part: float) -> None:
        tenth = int(10 * part)
        if tenth > printed[0]:
            printed[0] = tenth
            click.echo(f"hpccoll: tune: {time_text(part * seconds, 2)} of "
                       f"{time_text(seconds, 2)}, {name} B", err=True)

    return show


def _plan(quick: bool, probe: bool, collectives: tuple[str, ...], sizes: str | None,
          seconds: float | None) -> Any:
    from hpccoll.measure import rounds

    if quick and probe:
        raise ArgumentError("--probe", "does not go with --quick", "choose one of them")
    chosen = dict.fromkeys(map(collective_named, names(collectives)))
    for name in chosen:
        if name not in ALGORITHMS:
            raise ArgumentError.unknown_word("--collective", name, ALGORITHMS)
    plan = rounds.PROBE if probe else (
        rounds.SurveyPlan(sizes=rounds.QUICK, seconds=QUICK, thorough=False) if quick
        else rounds.SurveyPlan(seconds=FULL))
    wanted = plan.sizes
    if sizes is not None:
        wanted = buffer_sizes(sizes, 16 if probe else 8 if quick else 4)
    return plan._replace(collectives=tuple(chosen) or plan.collectives, sizes=wanted,
                         seconds=seconds or plan.seconds)


def _add_algorithms(plan: Any, brought: tuple[AlgorithmChoice, ...], params: dict[str, int],
                    size: int,
                    chosen: bool) -> Any:
    """The plan with algorithms of one's own; without preferences, for their collectives only."""
    from hpccoll.algorithms import schedule
    from hpccoll.tune.table import Candidate

    if params and not brought:
        raise ArgumentError("--param", "requires FILE.py:NAME",
                            "hpccoll tries parameter values of its own algorithms")
    own: dict[str, tuple[Candidate, ...]] = {}
    for each in brought:
        if not is_reference(each.name):
            raise ArgumentError("algorithm", f"{each.name!r} is not a user-defined algorithm",
                                "write FILE.py:NAME; the command measures all others anyway")
        collective = declared_collective(each.name)
        given: dict[str, Any] = {**each.params, **params}
        schedule(collective, each.name, size, **given)
        own[collective] = (*own.get(collective, ()), Candidate(each.name, tuple(given.items())))
    if own and not chosen:
        plan = plan._replace(collectives=tuple(own))
    return plan._replace(brought=own)


def _path(output: str | None) -> str:
    from hpccoll.config import load
    from hpccoll.tune.loading import default_path

    setting = load().tuning
    return output or (setting if setting not in ("", OFF, ONLINE, PROBE) else default_path())


def _check(path: str) -> None:
    """Find out before anything is measured whether the table can be read and written."""
    from hpccoll.tune.store import load_existing

    load_existing(path)
    directory = Path(path).absolute().parent
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise TuningError(path, f"cannot write it: no permission, or no directory: {directory}",
                          "choose another file: hpccoll tune --output FILE")


def _add(path: str, machine: Any, outcome: Any, replaced: bool) -> Any:
    """Write the times, if there are any, unless there is no path.

    Returns:
        The times that the table has of these calls then, and the disagreements.
    """
    from hpccoll.algorithms.table import is_ours
    from hpccoll.tune.store import add

    def keep_candidates(curves: Any, ours: bool) -> Any:
        """Return the candidates for a table, or the others, which are the user's algorithms."""
        return {kind: tuple((nbytes, part) for nbytes, times in curve if (part := {
            c: t for c, t in times.items() if ours == (c.name == NATIVE
                                                       or is_ours(kind[0], c.name))}))
                for kind, curve in curves.items()}

    if outcome.curves:
        noted = {k: c for k, c in keep_candidates(outcome.curves, True).items() if c}
        curves, stayed = (add(path, machine, noted, outcome.failures, replaced) if path
                          else (noted, []))
        return _join_curves(curves, keep_candidates(outcome.curves, False)), stayed
    if outcome.doubtful:
        raise ArgumentError("tune", "other programs disturbed all measurements; no file is written",
                            "repeat it when the machine is idle")
    if not outcome.failures:
        raise ArgumentError("--seconds", "too short to measure; no file is written")
    return {}, []


def _ends(path: str, busy: str, force: bool, width: int) -> Iterator[str]:
    """Return the texts on written and omitted measurements."""
    from hpccoll.explain.columns import wrap_comment

    if busy:
        yield from wrap_comment(
            f"{busy} while tune measured: these times may be wrong" if force else
            f"nothing saved: {busy} while tune measured, and the times above may be wrong; repeat "
            "it when the machine is idle, or save these times with --force", width)
    if force or not busy:
        yield f"# written to {path}"
        yield "# later jobs on such machines use it; HPCCOLL_TUNING=off disables it"


def _join_curves(curves: Any, own: Any) -> Any:
    """The times in the table, and beside them those of algorithms of one's own."""
    shown = {kind: dict(curve) for kind, curve in curves.items()}
    for kind, curve in own.items():
        for nbytes, times in curve:
            shown[kind][nbytes] = {**shown[kind].get(nbytes, {}), **times}
    return {kind: tuple(sorted(points.items())) for kind, points in shown.items()}


def _show(console: Console, machine: Any, curves: Any, stayed: Any, doubtful: Any,
          full: bool, hold: bool) -> None:
    """The verdict: for every collective and size, what is fastest and how much."""
    from hpccoll.ir.topology import Topology
    from hpccoll.tools import tuning_report
    from hpccoll.tune.loading import JobTimes

    known = JobTimes(curves)
    if machine.probe:
        known = JobTimes(probed=curves, topology=Topology.parse(machine.topology, machine.ranks))
    for line in tuning_report.lines(machine, tuning_report.fastest_candidates(curves, known),
                                    doubtful,
                                    console.width, full, stayed, hold):
        console.print(line, style="dim" if line.startswith("#") else
                      "green" if line.startswith("*") else "", highlight=False, soft_wrap=True)
