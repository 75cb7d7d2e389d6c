"""adaptive: the scheme that takes the least time for this bucket on these ranks, by trial.

    steps 0 ...    no compression, then every choice: its settling, one step to warm up, and
                   ``trials`` measured ones: seconds of work of its own, and seconds in flight
    then           one allreduce (MIN) of flight and -work of all, 16 bytes a choice, so that all
                   ranks decide alike: flight as the last rank to come saw it, work as the slowest
    from then on   the least sum of both; a choice must beat no compression by ``margin``

What a choice held back when the next one takes over is added to the next step's values
(``Reduction.release``), so the law of the scheme in use goes on: sum mean x - sum out is what is
held back now. Where another cut into buckets or a restart loads a state, trials begin anew.

Flight is measured from outside: work of other buckets done meanwhile counts if it delays the
answer, as it would in every step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.bf16 import Bf16
from hpccoll.training.compress.int8 import Int8
from hpccoll.training.compress.none import NoCompression
from hpccoll.training.compress.onebit import OneBit
from hpccoll.training.compress.scheme import (
    Reduction,
    Scheme,
    Shapes,
    Steps,
    allreduce_bytes,
    elements,
)

#: Bytes that are allreduced for each choice when ranks decide.
VERDICT = 16


@dataclass(frozen=True)
class Adaptive(Scheme):
    """Whatever pays.

    Attributes:
        choices: schemes to try; no compression is always tried, first.
        trials: measured steps of each.
        margin: share of the time of no compression that a choice must save at least.
    """

    name = "adaptive"

    choices: tuple[Scheme, ...] = (Bf16(), Int8(), OneBit())
    trials: int = 3
    margin: float = 0.05

    def __post_init__(self) -> None:
        usable = all(isinstance(one, Scheme) and not isinstance(one, Adaptive) and
                     not getattr(one, "momentum", 0) for one in self.choices)
        self.check("choices", bool(self.choices) and usable,
                   "schemes without momentum, such as 'bf16+onebit'")
        self.check("trials", self.trials > 0, "1 or more steps")
        self.check("margin", 0 <= self.margin < 1, "at least 0 and below 1")

    @property
    def candidates(self) -> tuple[Scheme, ...]:
        """What is tried, in order."""
        return (NoCompression(), *self.choices)

    @property
    def settling(self) -> int:
        return sum(map(self.turns, self.candidates))

    def turns(self, candidate: Scheme) -> int:
        """Steps in which a candidate is tried."""
        return candidate.settling + 1 + self.trials

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        return _AdaptiveReduction(self, comm, shapes)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        """As of every scheme; after the trials those of no compression, the most there can be.

        The reduction's own ``wire_bytes`` knows what was chosen.
        """
        if step is not None and elements(shapes):
            for candidate in self.candidates:
                if step < self.turns(candidate):
                    last = candidate is self.candidates[-1] and step == self.turns(candidate) - 1
                    verdict = allreduce_bytes(VERDICT * len(self.candidates), size) if last else 0
                    return candidate.wire_bytes(shapes, size, step) + verdict
                step -= self.turns(candidate)
        return NoCompression().wire_bytes(shapes, size)


class _AdaptiveReduction(Reduction):
    """The reduction of the scheme that is tried, or was chosen.

    Attributes:
        current: that reduction.
        tried: how many candidates were.
        times: of those, seconds in flight and of work, by candidate.
    """

    scheme: Adaptive

    def __init__(self, scheme: Adaptive, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self._restart()

    def _restart(self) -> None:
        self.steps = self.tried = 0
        self.times = numpy.zeros((2, len(self.scheme.candidates)))
        self.measured: list[tuple[float, float]] = []
        self.current = self.scheme.candidates[0].start(self.comm, self.shapes)

    def _reduce(self, values: Any) -> Steps:
        released = self.vectors.get("error")
        if released is not None:
            values += released
        flight = work = 0.0
        clock = time.perf_counter()
        for request in self.current.reduce(values):
            now = time.perf_counter()
            yield request
            work, clock = work + now - clock, time.perf_counter()
            flight += clock - now
        work += time.perf_counter() - clock
        self.vectors.pop("error", None)
        if self.tried < len(self.scheme.candidates):
            self.measured.append((flight, work))
            if len(self.measured) == self.scheme.turns(self.scheme.candidates[self.tried]):
                yield from self._next()

    def _next(self) -> Steps:
        """End the trial of one candidate: try the next, or decide."""
        flights, works = zip(*self.measured[-self.scheme.trials:])
        self.times[:, self.tried] = median(flights), -median(works)
        self.measured.clear()
        self.tried += 1
        best = self.tried
        if self.tried == len(self.scheme.candidates):
            yield self.comm.Iallreduce(MPI.IN_PLACE, self.times, MPI.MIN)
            best = self.best()
            if best == self.tried - 1:
                return
        released = self.current.release()
        if released is not None:
            self.vectors["error"] = released
        self.current = self.scheme.candidates[best].start(self.comm, self.shapes)
        if self.tried == len(self.scheme.candidates):
            self.current.steps = self.current.scheme.settling  # it has settled before

    def best(self) -> int:
        """The number of the candidate that pays most, by the times that all ranks know."""
        seconds = self.times[0] - self.times[1]
        best = int(seconds.argmin())
        return best if seconds[best] <= (1 - self.scheme.margin) * seconds[0] else 0

    @property
    def chosen(self) -> Scheme | None:
        """The scheme that was chosen; ``None`` while they are tried."""
        return self.current.scheme if self.tried == len(self.scheme.candidates) else None

    def wire_bytes(self) -> float:
        return super().wire_bytes() if self.chosen is None else self.current.wire_bytes()

    def held(self) -> Any:
        found = [one for one in (super().held(), self.current.held()) if one is not None]
        return sum(found[1:], found[0]) if found else None

    def release(self) -> Any:
        held = super().release()
        self._restart()
        return held

    def state(self) -> dict[str, Any]:
        held = self.held()
        return {} if held is None else {"error": held}

    def load(self, state: dict[str, Any]) -> None:
        super().load({name: one for name, one in state.items() if name == "error"})
        self._restart()
