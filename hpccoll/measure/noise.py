"""Noise: effect of other processes on times, and the bounds for valid results.

Candidates take turns, so the same part of each one's series was measured at the same time. If the
parts of a run have different ratios, the load changed, and the ratio is not a result. Only the
middle parts count, so that one short disturbance does not invalidate a run. The bounds come from
the project's records (docs/data, docs/internal/notebook): on a quiet machine the middle parts
differ by 1.2 at the median point, no true ratio was above 23, and of 10,340 pairs of a time and
that of at least 8 times the bytes, 11 had a first one that was more than 3 times as long.

A wrong native time invalidates the whole point of a survey, because all candidates are compared
with it. A wrong time of another candidate is omitted alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy

from hpccoll.config import NATIVE
from hpccoll.measure.results import Result
from hpccoll.measure.rounds import SurveyPoint, candidate_of
from hpccoll.tune.table import Candidate, Curves, Kind

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


#: Points of a survey with all their results.
Measured = Sequence[tuple[SurveyPoint, Sequence[Result]]]


class Doubt(NamedTuple):
    """Implausible time that is omitted from the table.

    Attributes:
        ratio: native time divided by that of the best candidate; 0 if that is not the reason.
        late: time divided by that of a larger size, or 0.
        label: the candidate whose time is omitted; empty for all candidates of the point.
    """

    collective: str
    nbytes: int
    ratio: float = 0.0
    late: float = 0.0
    label: str = ""


class PlausibleTimes(NamedTuple):
    """Times of the table; wrong elements of candidates that had any; doubtful times."""

    curves: Curves
    failures: Mapping[tuple[str, Candidate], int]
    doubtful: tuple[Doubt, ...]


def late(measured: Measured) -> list[dict[str, float]]:
    """Return, for each point, the candidates much slower than for more bytes, with the factor."""
    found: list[dict[str, float]] = [{} for _ in measured]
    curves: dict[tuple[Kind, str], list[tuple[int, int, float]]] = {}
    for number, (point, results) in enumerate(measured):
        for one in _right(results):
            curves.setdefault((point.kind, one.candidate), []).append(
                (number, point.case.nbytes, one.trimmed_seconds))
    for (_, candidate), curve in curves.items():
        for (number, *_), times in zip(curve, implausible_ratios([one[1:] for one in curve])):
            if times:
                found[number][candidate] = times
    return found


def filter_times(measured: Measured) -> PlausibleTimes:
    """Return the plausible times, and the omitted ones with the reasons."""
    doubtful: list[Doubt] = []
    curves: dict[Kind, list] = {}
    failures: dict[tuple[str, Candidate], int] = {}
    for (point, results), delayed in zip(measured, late(measured)):
        where = point.case.rule.name, point.case.nbytes
        for result in results:
            if result.failures:
                key = where[0], candidate_of(result)
                failures[key] = failures.get(key, 0) + result.failures
        seeming = absurd([r for r in results if not r.failures])
        if seeming or NATIVE in delayed:
            doubtful.append(Doubt(*where, seeming, delayed.get(NATIVE, 0.0)))
            continue
        doubtful += [Doubt(*where, late=times, label=label) for label, times in delayed.items()]
        times = {candidate_of(r): r.trimmed_seconds for r in _right(results)
                 if r.candidate not in delayed}
        if times:
            curves.setdefault(point.kind, []).append((where[1], times))
    return PlausibleTimes({kind: tuple(curve) for kind, curve in sorted(curves.items())}, failures,
                          tuple(doubtful))


def _right(results: Sequence[Result]) -> list[Result]:
    """Return the results that are correct and have a time."""
    return [r for r in results if not r.failures and r.trimmed_seconds > 0]
