"""How near ``auto`` comes to the best candidate, point by point.

A point is one case with ``auto`` and at least two other candidates. The time of a candidate is its
trimmed mean, see :func:`hpccoll.measure.results.trimmed`. The smallest of several noisy times is
too small, so nothing is compared with it: every second iteration decides which candidate is the
best, and the others time it. That is done both ways round, and the geometric mean of the two
ratios counts.

What ``auto`` runs may be a candidate itself. If it is an algorithm of hpccoll's the two are one and
the same code, so their iterations are put together: what differs between them is noise, and where
it is the best, the ratio is 1. ``native`` stays apart, since ``auto`` reaches it through Python,
and a user pays for that. Where it was measured ``forwarded`` too, as ``hpccoll.Comm`` calls it,
that is the candidate instead: what remains is whether the choice was good. Peers that ``auto``
cannot choose do not count.

How much of it all is noise shows where ``auto`` and the algorithm that it runs were both measured:
one and the same code, which should be near itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy

from hpccoll.algorithms.outside import display_name
from hpccoll.config import AUTO, NATIVE
from hpccoll.measure.candidates import FORWARDED
from hpccoll.measure.results import Result, trimmed
from hpccoll.tools.bench.torch_groups import BACKENDS

#: How much slower than the best candidate still counts as near, as a part of its time.
TOLERANCE = 0.1


class Regret(NamedTuple):
    """One point: what ``auto`` ran, the best candidate, and how many times its time auto took.

    ``again`` is the ratio of the times of what auto ran, as auto and by name; ``None`` where it
    has no name here, or is native and was not measured ``forwarded``.
    """

    collective: str
    nbytes: int
    serves: str
    seconds: float
    best: str
    ratio: float
    again: float | None = None

    def within(self, tolerance: float) -> bool:
        """Whether auto was near enough."""
        return self.ratio <= 1 + tolerance


def regret_of(group: Sequence[Result]) -> Regret | None:
    """How near auto came in one case; ``None`` where the case is no point."""
    auto = next((r for r in group if r.candidate == AUTO and not r.failures), None)
    forwarded = any(r.candidate == FORWARDED for r in group)
    others = {NATIVE if r.candidate == FORWARDED else r.candidate: r for r in group
              if r.candidate not in (AUTO, *BACKENDS, *[NATIVE] * forwarded) and not r.failures}
    if auto is None or len(others) < 2 or min(len(r.seconds) for r in group) < 2:
        return None
    halves, mine, again = {name: _halves(r) for name, r in others.items()}, _halves(auto), None
    same = auto.serves in others and (forwarded or auto.serves != NATIVE)
    if same:
        again = auto.trimmed / others[auto.serves].trimmed
        mine = halves[auto.serves] = [numpy.concatenate(both)
                                     for both in zip(mine, halves[auto.serves])]
    seconds, ratio, best = trimmed(numpy.concatenate(mine)), 1.0, ""
    for half in (0, 1):
        best = min(halves, key=lambda name: trimmed(halves[name][half]))
        if not same or best != auto.serves:
            ratio *= seconds / trimmed(halves[best][1 - half])
    return Regret(auto.collective, auto.nbytes, auto.serves, seconds, best, sqrt(ratio), again)


def _halves(result: Result) -> list[numpy.ndarray]:
    """Every second iteration, and the others between them."""
    return [numpy.array(result.seconds[half::2]) for half in (0, 1)]


def summary(groups: Iterable[Sequence[Result]], tolerance: float) -> dict[str, Any] | None:
    """What the record says: points, those near enough, and the others; ``None`` if none counts.

    ``same`` and ``same_within`` count points where auto was measured by name as well, and those
    where the two were near each other.
    """
    points = [near for group in groups if (near := regret_of(group)) is not None]
    missed = [near for near in points if not near.within(tolerance)]
    again = [near.again for near in points if near.again is not None]
    return {"tolerance": tolerance, "points": len(points), "within": len(points) - len(missed),
            "same": len(again), "same_within": sum(1 / (1 + tolerance) <= ratio <= 1 + tolerance
                                                   for ratio in again),
            "missed": [near._asdict() for near in missed]} if points else None


def lines(groups: Iterable[Sequence[Result]], tolerance: float) -> list[str]:
    """What the table says, for people."""
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
