"""Filter of a survey's times: those that go into the table by candidate, kind of call and size.

A busy machine causes impossible times: ratios that no algorithm reaches, and messages that took
much longer than larger ones. A wrong native time invalidates the whole point, because all
candidates are compared with it. A wrong time of another candidate is omitted alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpccoll.config import NATIVE
from hpccoll.measure.noise import absurd, implausible_ratios
from hpccoll.measure.results import Result
from hpccoll.measure.rounds import candidate_of
from hpccoll.measure.survey_plan import SurveyPoint
from hpccoll.tune.table import Candidate, Curves, Kind

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
