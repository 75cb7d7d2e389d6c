"""Ranking of candidates by measured and predicted times.

Between two measured sizes the time is interpolated linearly in the bytes, like latency + bytes /
bandwidth. Outside the measured range, the nearest size decides.

A probe measures only a few candidates. The model predicts the others, except native, which has no
closed form and is always measured. For calls much larger than the probe's, rules are better than
the model.

Only the four basic operations are used, which all processors round in the same way, so every rank
has the same order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from hpccoll.config import NATIVE
from hpccoll.ir.topology import Topology
from hpccoll.tune.cost_model import Model, plausible_algorithms, terms
from hpccoll.tune.table import Candidate, Curve

#: Factors that favour native and penalize variants of an algorithm: smaller differences are noise.
#: A probe is noisier.
TIE, PROBED_TIE = 0.97, 0.9
#: Relative difference of times below which rounding could decide the order.
LEVEL = 1 - 1e-9
#: Factor by which a predicted time must be smaller than native and the others; the model's miss
#: replaces it if larger.
UNMEASURED = 0.7
#: Factor of bytes above a probe's largest call from which the probe is not used.
BEYOND = 2


class TimedCandidate(NamedTuple):
    """Candidate, its seconds, and True if these are predicted."""

    candidate: Candidate
    seconds: float
    predicted: bool = False


Ranking = tuple[TimedCandidate, ...]


def measured_ranking(curve: Curve, nbytes: int) -> Ranking:
    """Return the measured candidates for a size, fastest first."""
    return tuple(sorted((TimedCandidate(c, seconds) for c,
                         seconds in times_at(curve, nbytes).items()),
                        key=_weigh))


def expected_ranking(curve: Curve, model: Model | None, collective: str, nbytes: int,
                     topology: Topology) -> Ranking:
    """Return all candidates for a size, by the times of a probe or else by the model.

    Empty if the probe does not apply.
    """
    largest = curve[-1][0]
    if nbytes > BEYOND * largest:
        return ()
    nbytes = max(min(nbytes, largest), curve[0][0])
    times = times_at(curve, nbytes)
    if Candidate(NATIVE) not in times:
        return ()
    weighed = [(seconds * (PROBED_TIE if c.name == NATIVE else 1.0), TimedCandidate(c, seconds))
             for c, seconds in times.items()]
    others = plausible_algorithms(collective, topology.size, nbytes,
                                  topology.depth > 1) if model else []
    for candidate in map(Candidate, others):
        known = terms(collective, candidate, topology.size, nbytes, topology)
        if model is not None and candidate not in times and known is not None:
            seconds = model.seconds(known)
            weighed.append((seconds * max(model.miss, 1 / UNMEASURED),
                          TimedCandidate(candidate, seconds, True)))
    return tuple(timed for _, timed in sorted(weighed, key=lambda pair: pair[0]))


def times_at(curve: Curve, nbytes: int) -> Mapping[Candidate, float]:
    """Return the times of a size; between two sizes, of the candidates measured at both."""
    above = bisect_right(curve, nbytes, key=lambda point: point[0])
    if above == 0 or above == len(curve) or curve[above - 1][0] == nbytes:
        return curve[max(above - 1, 0)][1]
    (low, one), (high, two) = curve[above - 1:above + 1]
    part = (nbytes - low) / (high - low)
    between = {c: one[c] + (two[c] - one[c]) * part for c in one if c in two}
    return between or one


def _weigh(timed: TimedCandidate) -> float:
    candidate, seconds, _ = timed
    if candidate.name == NATIVE:
        return seconds * TIE
    return seconds / TIE if candidate.params or candidate.segment_bytes else seconds
