"""Candidates in the order of the times that are to be expected of them.

Between two measured sizes the time of a candidate is taken to grow linearly with the bytes, as
latency + bytes / bandwidth does; beyond the outermost ones, the outermost decide.

A probe measures a few candidates only. Of the others the model tells what to expect - native has
no closed form, so it is always measured - but never of calls much larger than the probe's, for
which rules know better.

Only the four basic operations, which every processor rounds alike, so every rank has one order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from hpccoll.config import NATIVE
from hpccoll.ir.topology import Topology
from hpccoll.tune.cost_model import Model, plausible, terms
from hpccoll.tune.table import Candidate, Curve

#: Native counts as this much faster than measured, and variants of an algorithm as that much
#: slower: below that, they would win and lose by noise. A probe is noisier.
TIE, PROBED_TIE = 0.97, 0.9
#: Times nearer to each other than this could be ordered by rounding.
LEVEL = 1 - 1e-9
#: What was not measured must be expected to be this much faster than native and the others; or
#: even faster, where the model was wrong by more about anything that was measured.
UNMEASURED = 0.7
#: A probe says nothing of calls with so many times the bytes of its largest.
BEYOND = 2


class Timed(NamedTuple):
    """A candidate, its seconds, and whether these are only expected."""

    candidate: Candidate
    seconds: float
    predicted: bool = False


Ranking = tuple[Timed, ...]


def measured(curve: Curve, nbytes: int) -> Ranking:
    """The measured candidates for so many bytes, fastest first."""
    return tuple(sorted((Timed(c, seconds) for c, seconds in times_at(curve, nbytes).items()),
                        key=_weighed))


def expected(curve: Curve, model: Model | None, collective: str, nbytes: int,
             topology: Topology) -> Ranking:
    """All candidates for so many bytes, by the times of a probe and, for the others, the model.

    Nothing where the probe says nothing.
    """
    largest = curve[-1][0]
    if nbytes > BEYOND * largest:
        return ()
    nbytes = max(min(nbytes, largest), curve[0][0])
    times = times_at(curve, nbytes)
    if Candidate(NATIVE) not in times:
        return ()
    weighed = [(seconds * (PROBED_TIE if c.name == NATIVE else 1.0), Timed(c, seconds))
             for c, seconds in times.items()]
    others = plausible(collective, topology.size, nbytes, topology.depth > 1) if model else []
    for candidate in map(Candidate, others):
        known = terms(collective, candidate, topology.size, nbytes, topology)
        if model is not None and candidate not in times and known is not None:
            seconds = model.seconds(known)
            weighed.append((seconds * max(model.miss, 1 / UNMEASURED),
                          Timed(candidate, seconds, True)))
    return tuple(timed for _, timed in sorted(weighed, key=lambda pair: pair[0]))


def times_at(curve: Curve, nbytes: int) -> Mapping[Candidate, float]:
    """Times of a size; between two measured ones, of the candidates measured at both."""
    above = bisect_right(curve, nbytes, key=lambda point: point[0])
    if above == 0 or above == len(curve) or curve[above - 1][0] == nbytes:
        return curve[max(above - 1, 0)][1]
    (low, one), (high, two) = curve[above - 1:above + 1]
    part = (nbytes - low) / (high - low)
    between = {c: one[c] + (two[c] - one[c]) * part for c in one if c in two}
    return between or one


def _weighed(timed: Timed) -> float:
    candidate, seconds, _ = timed
    if candidate.name == NATIVE:
        return seconds * TIE
    return seconds / TIE if candidate.params or candidate.segment_bytes else seconds
