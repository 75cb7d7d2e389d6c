"""Noise: what a machine that others use too does to times, and when it is too much.

Candidates take turns, so the same part of each one's series was measured at the same time. Where
the parts of a run tell different ratios, the machine did something else meanwhile, and the ratio is
no result. The middle parts count, so that one bad moment condemns nothing. The bounds come from our
own records (docs/data, docs/internal/notebook): on a quiet machine the middle parts differ by 1.2
at the median point, no true ratio was above 23, and of 10,340 pairs of a time and that of at least
8 times the bytes, 11 had a first one that was more than 3 times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from hpccoll.config import NATIVE
from hpccoll.measure.results import Result

#: Parts of a run, one after the other; below so many iterations each is one.
PARTS = 5
#: Factor between the middle parts' ratios, from which on a point is too noisy to compare.
NOISY = 1.6
#: A ratio that no algorithm reaches, and one that is not believed where native times moved too.
ABSURD, DOUBTFUL, MOVED = 25.0, 10.0, 3.0
#: A size that took so many times as long as a larger one was measured beside something else; the
#: second where the larger one has at least so many times the bytes.
LATE, LATE_BY_FAR, FAR = 10.0, 3.0, 8


class Spread(NamedTuple):
    """A ratio in the middle parts of a run: the lowest and the highest."""

    low: float
    high: float

    @property
    def noisy(self) -> bool:
        """Whether the parts disagree too much for the ratio to be a result."""
        return self.high > NOISY * self.low


def parts(seconds: Sequence[float]) -> list[float]:
    """Medians of the parts of a series, one after the other."""
    if not len(seconds):
        return []
    pieces = numpy.array_split(numpy.asarray(seconds, float), min(PARTS, len(seconds)))
    return [float(numpy.median(piece)) for piece in pieces]


def spread(native: Sequence[float], other: Sequence[float]) -> Spread:
    """How the ratio of two series that were measured in turns differs between the middle parts."""
    values = sorted(a / b for a, b in zip(parts(native), parts(other)) if b) or [1.0]
    inner = values[1:-1] if len(values) > 2 else values
    return Spread(inner[0], inner[-1])


def moved(seconds: Sequence[float]) -> float:
    """By which factor the middle parts of a series differ."""
    values = sorted(parts(seconds))
    inner = values[1:-1] if len(values) > 2 else values
    return inner[-1] / inner[0] if inner and inner[0] else 1.0


def absurd(results: Sequence[Result]) -> float:
    """The ratio of native to the best candidate of a case, if it cannot be believed; else 0."""
    native = next((r for r in results if r.candidate == NATIVE), None)
    others = [r.trimmed for r in results if r.candidate != NATIVE and r.trimmed > 0]
    if native is None or not others:
        return 0.0
    ratio = native.trimmed / min(others)
    if ratio > ABSURD or ratio > DOUBTFUL and moved(native.seconds) > MOVED:
        return ratio
    return 0.0


def overtaken(times: Sequence[tuple[int, float]]) -> list[float]:
    """How many times as long as a larger size each one took, if it cannot be believed; else 0.

    Args:
        times: bytes and seconds of one candidate of one collective.
    """
    return [max([0.0, *(seconds / more for larger, more in times if larger > nbytes and
                        seconds > more * (LATE_BY_FAR if larger >= FAR * nbytes else LATE) > 0)])
            for nbytes, seconds in times]
