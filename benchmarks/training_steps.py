"""Training steps side by side, by what of their communication shows.

    mpiexec -n 2 python benchmarks/training_steps.py --gradients 100M --backward 0.2
    mpiexec -n 4 python benchmarks/training_steps.py --candidates none,exchange:powersgd,ddp:gloo

Every candidate takes its step in every turn, in another order each time, behind a barrier; a step
takes as long as its slowest rank. Exit status: 0, 2 for bad options, 130 when interrupted.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from time import perf_counter
from typing import Any, NamedTuple

import click
from emulated import Alone, AtOnce, EmulatedModel, Exchanged, InViews, Joined, Stepper
from emulated import layers as model_of
from mpi4py import MPI
from rich.box import SIMPLE_HEAD
from rich.table import Table

from hpccoll.cli import terminal
from hpccoll.cli.options import FiniteRange, check_outputs, names, open_output
from hpccoll.cli.ranks import (
    BAD_OPTIONS,
    INTERRUPTED,
    RankCommand,
    abort,
    agree,
    agree_on_rank_0,
    complain,
    stoppable,
)
from hpccoll.comm import Comm
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.machine.launcher import require_mpi
from hpccoll.tools.bench import provenance
from hpccoll.training.compress import parse
from hpccoll.units import size, size_text, time_text

NAME, SCHEMA = "training_steps", "hpccoll-steps-1"
#: The candidate that communicates nothing, and those of other libraries.
NONE, EXCHANGE, DDP, HOROVOD = "none", "exchange", "ddp", "horovod"
#: Those without details.
PLAIN: dict[str, Callable[..., Stepper]] = {
    NONE: Alone, "at-once": AtOnce, "views": InViews, "allreduce": Joined}
#: Steps before the first one that counts: buckets are rebuilt, compressors start dense.
WARM = 3
#: Seconds of a backward pass.
BACKWARD = FiniteRange(min=0)


def candidates(names: Sequence[str]) -> dict[str, Callable[..., Stepper]]:
    """Read names of candidates.

    Raises:
        ArgumentError: there is no such candidate.
        HpccollError: the library that it needs is not installed.
    """
    found: dict[str, Callable[..., Stepper]] = {}
    for text in names:
        name, _, detail = text.partition(":")
        if text in PLAIN:
            found[text] = PLAIN[text]
        elif name == EXCHANGE:
            found[text] = _exchanged(detail)
        elif name in (DDP, HOROVOD):
            from frameworks import stepper
            found[text] = stepper(name, detail)
        else:
            raise ArgumentError("candidate", f"there is no {text!r}",
                                "choose from none, exchange, exchange:COMPRESSOR, at-once, "
                                "views, allreduce, ddp, ddp:gloo, horovod")
    return found


def _exchanged(compress: str) -> Callable[..., Stepper]:
    parse(compress or "none")  # a mistake is found before anything is measured
    return lambda comm, model: Exchanged(comm, model, compress)


def measure(comm: MPI.Intracomm, model: EmulatedModel, chosen: Mapping[str, Callable[..., Stepper]],
            steps: int, seed: int = 0) -> Iterator[tuple[str, float]]:
    """Take steps of all candidates in turn; give name and seconds of each, the slowest rank's.

    Collective; all ranks get the same.
    """
    ours = Comm(comm)
    steppers = {name: make(ours, model) for name, make in chosen.items()}
    turns = Random(seed)
    try:
        for turn in range(WARM + steps):
            for name in turns.sample(list(steppers), len(steppers)):
                comm.Barrier()
                start = perf_counter()
                steppers[name].step()
                seconds = comm.allreduce(perf_counter() - start, MPI.MAX)
                if turn >= WARM:
                    yield name, seconds
    finally:
        for stepper in steppers.values():
            stepper.close()


class StepTimes(NamedTuple):
    """One candidate's steps.

    Attributes:
        candidate: its name.
        seconds: of every step.
        alone_seconds: median of the backward pass alone.
    """

    candidate: str
    seconds: tuple[float, ...]
    alone_seconds: float

    @property
    def median_seconds(self) -> float:
        """Of a step."""
        return statistics.median(self.seconds)

    @property
    def exposed_seconds(self) -> float:
        """Of a step beyond the backward pass: communication that is not hidden."""
        return max(0.0, self.median_seconds - self.alone_seconds)

    @property
    def exposed_part(self) -> float:
        """Part of the step in which nothing but communication goes on."""
        return self.exposed_seconds / self.median_seconds if self.median_seconds else 0.0

    @property
    def efficiency(self) -> float:
        """Scaling efficiency: how long the step would take without communication, as a part."""
        return 1.0 - self.exposed_part


def summary(model: EmulatedModel, times: Sequence[tuple[str, float]]) -> list[StepTimes]:
    """Put steps together by candidate, in the order in which they came first."""
    names = dict.fromkeys(name for name, _ in times)
    by_name = {name: tuple(t for other, t in times if other == name) for name in names}
    alone = by_name.get(NONE)
    floor = statistics.median(alone) if alone else model.backward_seconds
    return [StepTimes(name, by_name[name], floor) for name in sorted(
        names, key=lambda name: statistics.median(by_name[name]))]


@click.command(NAME, cls=RankCommand, context_settings={"help_option_names": ["-h", "--help"]})
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
              help="Write a record with all times; - is standard output.")
def command(gradients: str, layers: int, backward: float, wanted: tuple[str, ...], steps: int,
            json_path: str | None) -> None:
    """Time training steps whose backward pass is emulated, and see what of them is communication.

    \b
    mpiexec -n 2 python benchmarks/training_steps.py --gradients 100M --backward 0.2
    mpiexec -n 4 python benchmarks/training_steps.py --candidates none,exchange:powersgd,ddp:gloo
    """
    with stoppable() as stopped:
        require_mpi(steps=True)
        comm = MPI.COMM_WORLD
        try:
            nbytes = size("--gradients", gradients, least=4)
            chosen = agree(comm, lambda: candidates(
                names(wanted) or ["none", "exchange", "exchange:bf16"]))
            agree_on_rank_0(comm, lambda: check_outputs(json_path, None))
        except HpccollError as error:
            complain(NAME, str(error))
            sys.exit(BAD_OPTIONS)
        try:
            model = model_of(nbytes, layers, backward)
            times, interrupted = [], False
            for each in measure(comm, model, chosen, steps):
                times.append(each)
                # A rank that stops alone would leave the others waiting.
                interrupted = comm.allreduce(stopped(), MPI.LOR)
                if interrupted:
                    break
            environment = provenance.record(comm, None)
            if environment is not None:
                environment["command"] = shlex.join(sys.argv)
                found = summary(model, times)
                if json_path is not None:
                    with open_output(json_path) as file:
                        json.dump(_record(model, environment, found), file, indent=1)
                if json_path != "-":
                    console, _ = terminal.screen(True)
                    console.print(_title(model, environment, steps), soft_wrap=True)
                    console.print(_table(found))
        except Exception as error:
            abort(comm, error)
    if interrupted:
        complain(NAME, "interrupted: some cases were not measured")
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


if __name__ == "__main__":
    command()
