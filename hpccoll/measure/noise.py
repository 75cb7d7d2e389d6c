"""Noise: effect of other processes on times, and the bounds for valid results.

Candidates take turns, so the same part of each one's series was measured at the same time. If the
parts of a run have different ratios, the load changed, and the ratio is not a result. Only the
middle parts count, so that one short disturbance does not invalidate a run. The bounds come from
the project's records (docs/data, docs/internal/notebook): on a quiet machine the middle parts
differ by 1.2 at the median point, no true ratio was above 23, and of 10,340 pairs of a time and
that of at least 8 times the bytes, 11 had a first one that was more than 3 times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from hpccoll.config import NATIVE
from hpccoll.measure.results import Result

#: Consecutive parts of a run; in shorter runs each iteration is a part.
PARTS = 5
#: Factor between the middle parts' ratios above which a point is too noisy to compare.
NOISY = 1.6
#: An impossible ratio, and the implausible one if native times varied too.
ABSURD, DOUBTFUL, MOVED = 25.0, 10.0, 3.0
#: Maximum factor between the time of a size and that of a larger one, unless the load changed; the
#: second value holds if the larger one has at least the third value times the bytes.
LATE, LATE_BY_FAR, FAR = 10.0, 3.0, 8


class Spread(NamedTuple):
    """Lowest and highest ratio in the middle parts of a run."""

    low: float
    high: float

    @property
    def noisy(self) -> bool:
        """True if the parts differ too much for the ratio to be a result."""
        return self.high > NOISY * self.low


def parts(seconds: Sequence[float]) -> list[float]:
    """Return the medians of the consecutive parts of a series."""
    if not len(seconds):
        return []
    pieces = numpy.array_split(numpy.asarray(seconds, float), min(PARTS, len(seconds)))
    return [float(numpy.median(piece)) for piece in pieces]


def spread(native: Sequence[float], other: Sequence[float]) -> Spread:
    """Return the spread of the ratio of two interleaved series over the middle parts."""
    values = sorted(a / b for a, b in zip(parts(native), parts(other)) if b) or [1.0]
    inner = values[1:-1] if len(values) > 2 else values
    return Spread(inner[0], inner[-1])


def drift_factor(seconds: Sequence[float]) -> float:
    """Return the factor between the middle parts of a series."""
    values = sorted(parts(seconds))
    inner = values[1:-1] if len(values) > 2 else values
    return inner[-1] / inner[0] if inner and inner[0] else 1.0


def absurd(results: Sequence[Result]) -> float:
    """Return native time divided by that of the best candidate if implausible; else 0."""
    native = next((r for r in results if r.candidate == NATIVE), None)
    others = [r.trimmed_seconds for r in results if r.candidate != NATIVE and r.trimmed_seconds > 0]
    if native is None or not others:
        return 0.0
    ratio = native.trimmed_seconds / min(others)
    if ratio > ABSURD or ratio > DOUBTFUL and drift_factor(native.seconds) > MOVED:
        return ratio
    return 0.0


def implausible_ratios(times: Sequence[tuple[int, float]]) -> list[float]:
    """Return, for each size, its time divided by that of a larger one if implausible; else 0.

    Args:
        times: bytes and seconds of one candidate of one collective.
    """
    return [max([0.0, *(seconds / more for larger, more in times if larger > nbytes and
                        seconds > more * (LATE_BY_FAR if larger >= FAR * nbytes else LATE) > 0)])
            for nbytes, seconds in times]
