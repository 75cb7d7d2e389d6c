"""Conditions of a call besides its schedule: late ranks, noise, and work between rounds.

Delays are drawn from a distribution, written as text:

* ``uniform:20us`` - from 0 to 20 microseconds, ``uniform:5us:20us`` from 5;
* ``normal:10us:2us`` - mean and standard deviation; negative values become 0;
* ``exponential:10us`` - mean;
* ``one:3:50us`` - rank 3 alone; ``list:0,5us,20us`` - one delay for each rank, in order.

Draws depend on the seed only: the same seed gives the same delays for all algorithms. Repeated
simulations use the following seeds.
Source of the idea that noise is amplified by collectives: Hoefler, Schneider and Lumsdaine,
"Characterizing the influence of system noise on large-scale applications by simulation", SC 2010.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from hpccoll.errors import ArgumentError, did_you_mean
from hpccoll.units import seconds, time_text

__all__ = ["SimulatedConditions"]

#: Random distributions, and the valid numbers of time parameters of each.
DRAWN = {"uniform": (1, 2), "normal": (2,), "exponential": (1,)}
HOW = "write uniform:20us, normal:10us:2us, exponential:10us"
HOW_RANKS = f"{HOW}, one:RANK:50us or list:0,5us,20us"
#: Maximum repeats of one simulation.
MOST = 10_000


@dataclass(frozen=True)
class Delays:
    """A distribution of delays.

    Attributes:
        kind: one of ``DRAWN``, ``one`` or ``list``.
        times: parameters in seconds.
        rank: the late rank, for ``one``.
    """

    kind: str
    times: tuple[float, ...]
    rank: int = -1

    def draw(self, random: Random) -> float:
        if self.kind == "uniform":
            low, high = self.times if len(self.times) > 1 else (0.0, self.times[0])
            return random.uniform(low, high)
        if self.kind == "normal":
            return max(random.gauss(*self.times), 0.0)
        return random.expovariate(1 / self.times[0]) if self.times[0] else 0.0

    def of_ranks(self, size: int, random: Random) -> list[float]:
        if self.kind == "list":
            if len(self.times) != size:
                raise ArgumentError("late", f"got {len(self.times)} delays for {size} ranks",
                                    "pass one per rank")
            return list(self.times)
        if self.kind == "one":
            if self.rank >= size:
                raise ArgumentError("late", f"rank {self.rank} is out of range for {size} ranks")
            return [self.times[0] if rank == self.rank else 0.0 for rank in range(size)]
        return [self.draw(random) for _ in range(size)]

    def __str__(self) -> str:
        times = [time_text(value) for value in self.times]
        if self.kind == "list":
            return f"a list, at most {time_text(max(self.times, default=0.0))}"
        return " ".join([self.kind, *([f"rank {self.rank}"] if self.rank >= 0 else []), *times])


def delays(argument: str, text: str, ranks: bool = False) -> Delays:
    """Parse a distribution.

    Args:
        ranks: True if it may name single ranks.
    """
    kind, *rest = text.strip().split(":")
    if kind in DRAWN and len(rest) in DRAWN[kind]:
        made = Delays(kind, tuple(seconds(argument, part) for part in rest))
        if kind == "uniform" and len(rest) > 1 and made.times[0] > made.times[1]:
            raise ArgumentError(argument, f"{text!r} starts above its end")
        return made
    if ranks and kind == "list" and len(rest) == 1:
        return Delays(kind, tuple(seconds(argument, part) for part in rest[0].split(",")))
    if ranks and kind == "one" and len(rest) == 2 and rest[0].isdecimal():
        return Delays(kind, (seconds(argument, rest[1]),), int(rest[0]))
    known = (*DRAWN, *(("one", "list") if ranks else ()))
    meant = "" if kind in known else did_you_mean(kind, known)
    raise ArgumentError(argument, f"cannot parse {text!r} as a distribution of delays",
                        f"{meant}; {HOW_RANKS if ranks else HOW}".strip("; "))


def work_after_rounds(argument: str, text: str) -> tuple[float, float]:
    """Parse work of a rank after a round: seconds, seconds per byte received, or both.

    >>> work_after_rounds("--compute", "5us,0.25ns/B")
    (5e-06, 2.5e-10)
    """
    found = [0.0, 0.0]
    for part in text.split(","):
        time, per_byte = part.strip().removesuffix("/B"), part.strip().endswith("/B")
        found[per_byte] += seconds(argument, time)
    return found[0], found[1]


@dataclass(frozen=True)
class SimulatedConditions:
    """Conditions of a call. Distributions are :class:`Delays`, or their text.

    Attributes:
        late: delays of ranks at the start.
        noise: added to the latency of every message.
        compute_noise: added to the end of every round of every rank, on its processor.
        round_seconds: work of a rank after every round, on its processor.
        byte_seconds: work of a rank for every byte that it received in the round.
        seed: seed of all draws.
        repeat: number of simulations; the median is reported.
    """

    late: Delays | str | None = None
    noise: Delays | str | None = None
    compute_noise: Delays | str | None = None
    round_seconds: float = 0.0
    byte_seconds: float = 0.0
    seed: int = 0
    repeat: int = 1

    def __post_init__(self):
        for name in ("late", "noise", "compute_noise"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, delays(name, value, name == "late"))
            elif value is not None and not isinstance(value, Delays):
                raise ArgumentError(name, f"expected a distribution of delays, got {value!r}", HOW)
        for name in ("round_seconds", "byte_seconds"):
            value = getattr(self, name)
            if (isinstance(value, bool) or not isinstance(value, (int, float))
                    or not 0 <= value < math.inf):
                raise ArgumentError(name, f"expected seconds, 0 or more, got {value!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ArgumentError("seed", f"expected an integer, got {self.seed!r}")
        if isinstance(self.repeat, bool) or not isinstance(self.repeat, int) or not (
                1 <= self.repeat <= MOST):
            raise ArgumentError("repeat", f"expected a number from 1 to {MOST:,}, got "
                                          f"{self.repeat!r}")
        if self.repeat > 1 and not self.is_random:
            raise ArgumentError("repeat", "no random distribution is set, so all repeats are "
                                          "identical",
                                "set late, noise or compute_noise to a distribution")

    @property
    def is_random(self) -> bool:
        """Return True if any value is random."""
        return any(d is not None and d.kind in DRAWN
                   for d in (self.late, self.noise, self.compute_noise)
                   if isinstance(d, Delays))

    @property
    def is_uniform(self) -> bool:
        """Return True if all ranks have the same conditions."""
        return not (self.late or self.noise or self.compute_noise)

    def turn(self, number: int) -> SimulatedConditions:
        """Return the conditions of repeat ``number``, from 0: another seed."""
        return replace(self, seed=self.seed + number, repeat=1)

    def draw(self, size: int) -> SimulationDelays:
        """Return the delays for a simulation with a number of ranks."""
        return SimulationDelays(self, size)

    def describe(self) -> str:
        """Return the deviations from the default in a line; empty if there are none."""
        parts = [f"{name} {value}" for name, value in (
            ("late", self.late), ("noise", self.noise),
            ("noise of computing", self.compute_noise)) if value]
        if self.round_seconds:
            parts.append(f"{time_text(self.round_seconds)} of work after a round")
        if self.byte_seconds:
            parts.append(f"{time_text(self.byte_seconds)} of work per received byte")
        if self.is_random:
            parts.append(f"seed {self.seed}" if self.repeat == 1 else
                         f"seeds {self.seed} to {self.seed + self.repeat - 1}")
        return ", ".join(parts)


#: No rank is late, and there is no noise.
USUAL = SimulatedConditions()


class SimulationDelays:
    """Delays of one simulation; 0 by default."""

    def __init__(self, conditions: SimulatedConditions, size: int):
        self.conditions = conditions
        seed = conditions.seed
        self.late: Sequence[float] = ()
        if isinstance(conditions.late, Delays):
            self.late = conditions.late.of_ranks(size, Random(f"late {seed}"))
        self.messages, self.rounds = Random(f"noise {seed}"), Random(f"compute {seed}")
        self.noise, self.compute_noise = conditions.noise, conditions.compute_noise
        #: True if ranks work after rounds; True if any value is random, or a rank is late.
        self.works = bool(conditions.round_seconds or conditions.byte_seconds)
        self.any = not conditions.is_uniform

    def message(self) -> float:
        """Return the additional latency of a message in seconds."""
        return self.noise.draw(self.messages) if isinstance(self.noise, Delays) else 0.0

    def round(self) -> float:
        """Return the additional processor time of a round in seconds."""
        return (self.compute_noise.draw(self.rounds) if isinstance(self.compute_noise, Delays)
                else 0.0)

    def work(self, received: float) -> float:
        """Return the seconds of work after a round that received a number of bytes."""
        return self.conditions.round_seconds + self.conditions.byte_seconds * received
