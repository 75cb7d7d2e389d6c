"""``hpccoll bench step``: training steps side by side, by what of their communication shows.

Exit status: 0, 2 for bad options, 130 when interrupted.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from hpccoll.cli.options import Finite, check_outputs, names, opened
from hpccoll.cli.ranks import (
    BAD_OPTIONS,
    INTERRUPTED,
    Ranked,
    abort,
    agree,
    agree_on_rank_0,
    complain,
    stoppable,
)
from hpccoll.errors import HpccollError
from hpccoll.machine.launcher import require_mpi
from hpccoll.units import size, size_text, time_text

SCHEMA = "hpccoll-steps-1"
BACKWARD = Finite(min=0)


@click.command("bench step", cls=Ranked, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--gradients", default="25M", show_default=True, metavar="BYTES",
              help="Bytes of all gradients, in float32.")
@click.option("--layers", type=click.IntRange(min=1), default=50, show_default=True, metavar="N",
              help="Layers that they belong to: a square matrix and a bias each.")
@click.option("--backward", type=BACKWARD, default=0.1, show_default=True, metavar="SECONDS",
              help="Length of the backward pass, in which a rank sleeps; 0 for none.")
@click.option("--candidates", "wanted", multiple=True, metavar="NAMES",
              help="none, exchange, exchange:COMPRESSOR such as exchange:bf16, at-once, "
                   "views, allreduce, ddp, ddp:gloo, horovod. Default: none,exchange,"
                   "exchange:bf16.")
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
              help="Steps of each candidate, beside three of warm-up.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write a record with every single time; - is standard output.")
def command(gradients: str, layers: int, backward: float, wanted: tuple[str, ...], steps: int,
            json_path: str | None) -> None:
    """Time training steps whose backward pass is emulated, and see what of them is communication.

    \b
    mpiexec -n 2 hpccoll bench step --gradients 100M --backward 0.2
    mpiexec -n 4 hpccoll bench step --candidates none,exchange:powersgd,ddp:gloo
    """
    with ExitStack() as stack:
        stopped = stack.enter_context(stoppable())
        MPI = require_mpi(steps=True)
        from hpccoll.cli import terminal
        from hpccoll.tools.bench import provenance, step_times
        from hpccoll.tools.bench.steps import layers as model_of

        comm = MPI.COMM_WORLD
        try:
            nbytes = size("--gradients", gradients, least=4)
            chosen = agree(comm, lambda: step_times.candidates(
                names(wanted) or ["none", "exchange", "exchange:bf16"]))
            agree_on_rank_0(comm, lambda: check_outputs(json_path, None))
        except HpccollError as error:
            complain("bench step", str(error))
            sys.exit(BAD_OPTIONS)
        try:
            model = model_of(nbytes, layers, backward)
            times, interrupted = [], False
            for each in step_times.measure(comm, model, chosen, steps):
                times.append(each)
                # A rank that stops alone would leave the others waiting.
                interrupted = comm.allreduce(stopped(), MPI.LOR)
                if interrupted:
                    break
            environment = provenance.record(comm, None)
            if environment is not None:
                found = step_times.summary(model, times)
                if json_path is not None:
                    with opened(json_path) as file:
                        json.dump(_record(model, environment, found), file, indent=1)
                if json_path != "-":
                    console, _ = terminal.screen(True)
                    console.print(_title(model, environment, steps), soft_wrap=True)
                    console.print(_table(found))
        except Exception as error:
            abort(comm, error)
    if interrupted:
        complain("bench step", "interrupted: not everything was measured")
    sys.exit(INTERRUPTED if interrupted else 0)


def _title(model: Any, environment: dict[str, Any], steps: int) -> str:
    return (f"{environment['ranks']} ranks, {size_text(model.nbytes)} of gradients, backward pass "
            f"of {time_text(model.backward_seconds, 3)}; medians of up to {steps} steps")


def _table(found: list[Any]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("candidate")
    for title in ("step", "exposed", "of the step", "efficiency"):
        table.add_column(title, justify="right")
    for each in found:
        table.add_row(each.candidate, time_text(each.median_seconds, 3),
                      time_text(each.exposed_seconds, 3), f"{100 * each.exposed_part:.1f} %",
                      f"{each.efficiency:.3f}")
    return table


def _record(model: Any, environment: dict[str, Any], found: list[Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "environment": environment, "nbytes": model.nbytes,
            "arrays": len(model.shapes), "backward_seconds": model.backward_seconds,
            "results": [{"candidate": each.candidate, "seconds": each.seconds,
                         "median_seconds": each.median_seconds,
                         "exposed_seconds": each.exposed_seconds,
                         "exposed_part": each.exposed_part, "efficiency": each.efficiency}
                        for each in found]}
