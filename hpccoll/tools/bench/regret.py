"""Regret of ``auto``: its slowdown against the best candidate, for each point.

A point is one case with ``auto`` and at least two other candidates. The time of a candidate is its
trimmed mean, see :func:`hpccoll.measure.results.trimmed_mean`. The minimum of several noisy times
is biased: so every second iteration selects the best candidate, and the others time it. Both halves
are used for both, and the geometric mean of the two ratios counts.

The algorithm of ``auto`` may be a candidate itself. If hpccoll runs it, both are the same
code, and their iterations are merged: their difference is noise, and if it is the best, the ratio
is 1. ``native`` stays separate, because ``auto`` calls it through Python, and a user pays for that.
If it was also measured ``forwarded``, as ``hpccoll.Comm`` calls it, that is the candidate instead:
the ratio then shows only the quality of the choice. Peers that ``auto`` cannot choose do not count.

The noise level follows from points where ``auto`` and its algorithm were both measured: the same
code, whose ratio should be 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy

from hpccoll.algorithms.outside import display_name
from hpccoll.config import AUTO, NATIVE
from hpccoll.measure.candidates import FORWARDED
from hpccoll.measure.results import Result, trimmed_mean
from hpccoll.tools.bench.torch_groups import BACKENDS

#: Permitted slowdown against the best candidate, relative to its time.
TOLERANCE = 0.1


class Regret(NamedTuple):
    """One point: the algorithm of ``auto``, the best candidate, and the ratio of their times.

    ``again`` is the ratio of the times of auto's algorithm, as auto and by name. It is ``None`` if
    the algorithm was not measured by name, or is native and was not measured ``forwarded``.
    """

    collective: str
    nbytes: int
    serves: str
    seconds: float
    best: str
    ratio: float
    again: float | None = None

    def is_within(self, tolerance: float) -> bool:
        """Return True if auto was within the tolerance."""
        return self.ratio <= 1 + tolerance


def regret_of(group: Sequence[Result]) -> Regret | None:
    """Return the regret of one case; ``None`` if the case is not a point."""
    auto = next((r for r in group if r.candidate == AUTO and not r.failures), None)
    forwarded = any(r.candidate == FORWARDED for r in group)
    others = {NATIVE if r.candidate == FORWARDED else r.candidate: r for r in group
              if r.candidate not in (AUTO, *BACKENDS, *[NATIVE] * forwarded) and not r.failures}
    if auto is None or len(others) < 2 or min(len(r.seconds) for r in group) < 2:
        return None
    halves, mine, again = {name: _halves(r) for name, r in others.items()}, _halves(auto), None
    same = auto.serves in others and (forwarded or auto.serves != NATIVE)
    if same:
        again = auto.trimmed_seconds / others[auto.serves].trimmed_seconds
        mine = halves[auto.serves] = [numpy.concatenate(both)
                                     for both in zip(mine, halves[auto.serves])]
    seconds, ratio, best = trimmed_mean(numpy.concatenate(mine)), 1.0, ""
    for half in (0, 1):
        best = min(halves, key=lambda name: trimmed_mean(halves[name][half]))
        if not same or best != auto.serves:
            ratio *= seconds / trimmed_mean(halves[best][1 - half])
    return Regret(auto.collective, auto.nbytes, auto.serves, seconds, best, sqrt(ratio), again)


def _halves(result: Result) -> list[numpy.ndarray]:
    """Return the even and the odd iterations."""
    return [numpy.array(result.seconds[half::2]) for half in (0, 1)]


def summary(groups: Iterable[Sequence[Result]], tolerance: float) -> dict[str, Any] | None:
    """Return the summary of the record: points, those within tolerance, the others; or ``None``.

    ``same`` and ``same_within`` count points where auto's algorithm was also measured by name, and
    those where the two times agree.
    """
    points = [near for group in groups if (near := regret_of(group)) is not None]
    missed = [near for near in points if not near.is_within(tolerance)]
    again = [near.again for near in points if near.again is not None]
    return {"tolerance": tolerance, "points": len(points), "within": len(points) - len(missed),
            "same": len(again), "same_within": sum(1 / (1 + tolerance) <= ratio <= 1 + tolerance
                                                   for ratio in again),
            "missed": [near._asdict() for near in missed]} if points else None


def lines(groups: Iterable[Sequence[Result]], tolerance: float) -> list[str]:
    """Return the summary lines of the table."""
    numbers = summary(groups, tolerance)
    if numbers is None:
        return []
    said = [f"auto within {100 * tolerance:g} % of the best candidate at {numbers['within']} of "
            f"{numbers['points']} points"]
    if numbers["same"]:
        said.append("noise: the same algorithm, as auto and by name, agreed within that at "
                    f"{numbers['same_within']} of {numbers['same']} points")
    for missed in (Regret(**fields) for fields in numbers["missed"]):
        said.append(f"exception: {missed.collective}, {missed.nbytes} bytes: auto "
                    f"({display_name(missed.serves)}) takes {missed.ratio:.2f} times as long as "
                    f"{display_name(missed.best)}")
    return said
