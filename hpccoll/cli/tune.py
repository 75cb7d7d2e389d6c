"""``hpccoll tune``: measure all candidates on this machine and write the table for ``auto``.

The table is read before anything is measured, so that a broken one is an error at once, and again
right before it is written, so that what another job wrote meanwhile, or writes just now, stays.
Exit status: 0, 1 when a result was wrong (that candidate is left out), 2 for bad options or an
unusable table, 130 when interrupted (nothing is written).
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hpccoll.algorithms import ALGORITHMS
from hpccoll.cli.options import SECONDS, buffer_sizes, names
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
from hpccoll.config import NATIVE, OFF, ONLINE, PROBE
from hpccoll.errors import ArgumentError, HpccollError, TuningError
from hpccoll.machine.launcher import require_mpi

#: Seconds for everything, quick and full.
QUICK, FULL = 50.0, 600.0


@click.command("tune", cls=Ranked, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Under a minute: fewer sizes, no variants.")
@click.option("--probe", is_flag=True,
              help="A few seconds: three sizes, a handful of candidates; what to expect of the "
                   "others follows from a model. Jobs prefer what was measured without it.")
@click.option("-o", "--output", metavar="FILE",
              help="The table; what it holds already stays, and where it has times of the same "
                   "calls, the old and the new ones count half each. Default: the file that "
                   "HPCCOLL_TUNING names, or where hpccoll looks by itself.")
@click.option("--replace", "replaced", is_flag=True,
              help="Forget what the table says of these calls here.")
@click.option("--collective", "collectives", multiple=True, metavar="NAMES",
              help="Collectives to measure. Default: all.")
@click.option("-m", "--sizes", metavar="[MIN:]MAX",
              help="Bytes of a rank's larger buffer. Default: 64:1M probe, 8:4M quick, 8:32M "
                   "else.")
@click.option("--seconds", type=SECONDS,
              help=f"Time for everything, about. Default: 4 probe, {QUICK:g} quick, {FULL:g} else.")
def command(quick: bool, probe: bool, output: str | None, replaced: bool,
            collectives: tuple[str, ...], sizes: str | None, seconds: float | None) -> None:
    """Measure every algorithm against the host MPI, and note the times for later jobs.

    \b
    mpiexec -n 4 python -m hpccoll tune --quick
    mpiexec -n 4 python -m hpccoll tune --probe
    mpiexec -n 64 python -m hpccoll tune --collective allreduce,bcast -o tuning.json
    """
    with ExitStack() as stack:
        stopped = stack.enter_context(stoppable())
        MPI = require_mpi(steps=True)
        from hpccoll.cli import terminal
        from hpccoll.comm import Comm
        from hpccoll.measure import survey

        comm = MPI.COMM_WORLD
        try:
            plan = _plan(quick, probe, collectives, sizes, seconds)
            path = agree(comm, lambda: _path(output))
            if comm.Get_size() == 1:
                raise ArgumentError("tune", "there is nothing to choose on one rank",
                                    "start it with mpiexec")
            agree_on_rank_0(comm, lambda: _check(path))
        except HpccollError as error:
            complain("tune", str(error))
            sys.exit(BAD_OPTIONS)
        try:
            console: Console | None = None
            progress: Progress = silent
            if comm.Get_rank() == 0:
                console, bar = terminal.screen(True)
                progress = terminal.shown(stack.enter_context(bar))
            outcome = survey.survey(comm, plan, Comm, stopped, progress)
            machine = outcome.machine._replace(probe=probe)
        except Exception as error:
            abort(comm, error)
        if outcome.interrupted:
            sys.exit(INTERRUPTED)
        try:
            curves = agree(comm, lambda: comm.Get_rank() or _add(path, machine, outcome, replaced))
        except HpccollError as error:
            complain("tune", str(error))
            sys.exit(BAD_OPTIONS)
        stack.close()
        if console is not None:
            _show(console, machine, curves, path)
            for (name, candidate), count in outcome.failures.items():
                complain("tune", f"{name} {candidate.label} is left out: {count} wrong elements")
    sys.exit(WRONG if outcome.failures else 0)


def _plan(quick: bool, probe: bool, collectives: tuple[str, ...], sizes: str | None,
          seconds: float | None) -> Any:
    """What to measure.

    Raises:
        ArgumentError: an option makes no sense.
    """
    from hpccoll.measure import survey_plan

    if quick and probe:
        raise ArgumentError("--probe", "does not go with --quick", "choose one of them")
    chosen = dict.fromkeys(names(collectives))
    for name in chosen:
        if name not in ALGORITHMS:
            raise ArgumentError("--collective", f"{name!r} is unknown",
                                f"choose from {', '.join(ALGORITHMS)}")
    plan = survey_plan.PROBE if probe else (
        survey_plan.SurveyPlan(sizes=survey_plan.QUICK, seconds=QUICK, thorough=False) if quick
        else survey_plan.SurveyPlan(seconds=FULL))
    wanted = plan.sizes
    if sizes is not None:
        wanted = buffer_sizes(sizes, 16 if probe else 8 if quick else 4)
    return plan._replace(collectives=tuple(chosen) or plan.collectives, sizes=wanted,
                         seconds=seconds or plan.seconds)


def _path(output: str | None) -> str:
    """The file to write.

    Raises:
        ArgumentError: the environment is malformed.
    """
    from hpccoll.config import load
    from hpccoll.tune.loading import default_path

    setting = load().tuning
    return output or (setting if setting not in ("", OFF, ONLINE, PROBE) else default_path())


def _check(path: str) -> None:
    """Find out before anything is measured whether the table can be read and written.

    Raises:
        TuningError: it cannot.
    """
    from hpccoll.tune.store import before

    before(path)
    directory = Path(path).absolute().parent
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise TuningError(path, f"cannot be written: no permission, or no directory: {directory}")


def _add(path: str, machine: Any, outcome: Any, replaced: bool) -> Any:
    """Write the times, if there are any; what the table has of these calls then.

    Raises:
        HpccollError: there are none, though nothing failed; or the table cannot be written.
    """
    from hpccoll.tune.store import add

    if outcome.curves:
        return add(path, machine, outcome.curves, outcome.failures, replaced)
    if not outcome.failures:
        raise ArgumentError("--seconds", "too short to measure anything: nothing is written")
    return {}


def _show(console: Console, machine: Any, curves: Any, path: str) -> None:
    """The verdict: for every collective and size, what is fastest and how much."""
    from hpccoll.ir.topology import Topology
    from hpccoll.tune.loading import Tuned

    tuned = Tuned(curves)
    if machine.probe:
        tuned = Tuned(probed=curves, topology=Topology.parse(machine.topology, machine.ranks))
    console.print(f"# {machine.mpi}, {machine.host}, {machine.ranks} ranks, "
                  f"layout {machine.topology}", highlight=False, soft_wrap=True)
    console.print(f"{'collective':24} {'size':>11}   {'fastest':34} {'time(us)':>10} "
                  f"{'native':>10} {'ratio':>7}", style="bold", soft_wrap=True)
    for (collective, commutes), curve in curves.items():
        for nbytes, times in curve:
            ranking = tuned.ranking(collective, commutes, nbytes)
            if not ranking:  # no time of native's, which a probe's must have
                continue
            best, seconds, predicted = ranking[0]
            native = next((t for c, t in times.items() if c.name == NATIVE), None)
            ratio = f"{native * 1e6:10.2f} {native / seconds:7.2f}" if native else ""
            name = collective if commutes else f"{collective}, ordered"
            label = best.label + " (predicted)" * predicted
            console.print(f"{name:24} {nbytes:11}   {label:34} {seconds * 1e6:10.2f} "
                          f"{ratio}", highlight=False, soft_wrap=True)
    console.print(f"# written to {path}", highlight=False, soft_wrap=True)
