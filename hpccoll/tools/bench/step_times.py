"""Training steps side by side: candidates by name, their turns, and what comes of the times.

Every candidate takes its step in every turn, in another order each time, behind a barrier; a step
takes as long as its slowest rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from time import perf_counter
from typing import NamedTuple

from mpi4py import MPI

from hpccoll.comm import Comm
from hpccoll.errors import ArgumentError
from hpccoll.tools.bench.steps import (
    Alone,
    AtOnce,
    EmulatedModel,
    Exchanged,
    InViews,
    Joined,
    Stepper,
)
from hpccoll.training.compress import parse

#: The candidate that communicates nothing, and those of other libraries.
NONE, EXCHANGE, DDP, HOROVOD = "none", "exchange", "ddp", "horovod"
#: Those without details.
PLAIN: dict[str, Callable[..., Stepper]] = {
    NONE: Alone, "at-once": AtOnce, "views": InViews, "allreduce": Joined}
#: Steps before the first one that counts: buckets are rebuilt, compressors start dense.
WARM = 3


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
            from hpccoll.tools.bench.torch_steps import stepper
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
