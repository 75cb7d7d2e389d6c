"""Plan of a survey; selection of its candidates, and of those with further rounds.

Pure functions of times and of properties of algorithms; tests run the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.table import picks
from hpccoll.config import NATIVE
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.measure.cases import Case, make
from hpccoll.measure.results import Result, merge_rounds
from hpccoll.tune.cost_model import plausible_algorithms
from hpccoll.tune.rules import RULES
from hpccoll.tune.table import Candidate, Kind

#: Sizes in bytes of a quick and a full survey.
QUICK = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 4 << 20)
FULL = tuple(8 << shift for shift in range(0, 24, 2))
#: The method measured for a collective, if its name differs.
METHOD = {"reduce_scatter": "reduce_scatter_block"}
#: Minimum message size for segments, and segment sizes in bytes: inside nodes, and between.
SEGMENTED = 1 << 20
SEGMENTS, BETWEEN = (128 << 10, 512 << 10, 2 << 20), (48 << 10, 256 << 10, 1 << 20)
#: Maximum factor to the best time of the first round for a candidate of the second one, and to the
#: best time so far for later rounds.
NEAR, CLOSE = 1.6, 1.2
#: Minimum number of candidates in the first round, however short the time.
FEWEST = 4


class SurveyPlan(NamedTuple):
    """Contents of a survey.

    Attributes:
        sizes: bytes, ascending.
        thorough: try values of parameters, segments inside nodes, too, of several algorithms, and
            operators that do not commute.
        most: maximum candidates per size in addition to native, 0 for all; representative ones,
            without segments.
        brought: the user's candidates by collective; measured at every size.
    """

    collectives: Sequence[str] = tuple(COLLECTIVES)
    sizes: Sequence[int] = FULL
    seconds: float = 600.0
    thorough: bool = True
    most: int = 0
    brought: Mapping[str, Sequence[Candidate]] = {}


#: Plan of a probe: sizes of latency, of transfer, and between them.
PROBE = SurveyPlan(sizes=(64, 16 << 10, 1 << 20), seconds=4.0, thorough=False, most=4)


class SurveyPoint(NamedTuple):
    """A case, and True if its operator commutes or it has none."""

    case: Case
    commutes: bool

    @property
    def kind(self) -> Kind:
        """Kind of call, under which the table stores the times."""
        return self.case.rule.name, self.commutes

    @property
    def weight(self) -> float:
        """Relative cost of a measurement; grows with the size."""
        return 1.0 + self.case.nbytes / (1 << 20)


def points(plan: SurveyPlan, size: int) -> Iterator[SurveyPoint]:
    """Yield the points of a plan for a number of ranks, by ascending size, each once."""
    seen = set()
    for nbytes in sorted(plan.sizes):
        for collective in plan.collectives:
            case = make(METHOD.get(collective, collective), size, nbytes, numpy.dtype("f4"))
            if (collective, case.nbytes) not in seen:
                seen.add((collective, case.nbytes))
                yield SurveyPoint(case, True)
                if plan.thorough and case.rule.reduces:
                    yield SurveyPoint(case, False)


class LatestTimes(NamedTuple):
    """Times of the first round of a collective's latest size.

    Attributes:
        idle, busy: seconds of a candidate outside its calls, and in them.
        order: the candidates, fastest first.
    """

    nbytes: int
    idle: float
    busy: float
    order: Sequence[Candidate]

    def seconds(self, nbytes: int) -> float:
        """Estimate the seconds of a candidate at another size, proportional to the bytes."""
        return self.idle + self.busy * max(nbytes / max(self.nbytes, 1), 1.0)


def worth_trying(plan: SurveyPlan, point: SurveyPoint, latest: LatestTimes | None,
                 hierarchical: bool) -> list[Candidate]:
    """Return all plausible candidates, the most promising first: time may be short.

    Native, the user's candidates, those of the rules, and then in turn those that were fast for
    fewer bytes, which depends on the machine, and those with a low cost by their closed form.
    """
    case = point.case
    names = plausible_algorithms(case.rule.name, case.size, case.nbytes, hierarchical)
    if not point.commutes:
        names = [name for name in names if ALGORITHMS[case.rule.name][name].rank_order]
    if plan.most:
        names = _representative(case.rule.name, names)[:plan.most]
    candidates = [Candidate(NATIVE), *map(Candidate, names)]
    if plan.thorough:
        candidates += [variant for name in names for variant in _variants(case, name)]
    before = [c for c in latest.order if c in candidates] if latest else []
    named = [Candidate(name) for name in _rule_algorithms(case.rule.name) if name in names]
    in_turn = [c for pair in zip_longest(before, candidates[1:]) for c in pair if c is not None]
    brought = plan.brought.get(case.rule.name, ())
    return list(dict.fromkeys([candidates[0], *brought, *named, *in_turn]))


def affordable(point: SurveyPoint, tried: list[Candidate], latest: LatestTimes | None,
               seconds: float) -> list[Candidate]:
    """Return as many candidates as fit into half of the time."""
    if latest is None:
        return tried
    return tried[:max(int(seconds / 2 / latest.seconds(point.case.nbytes)), FEWEST)]


def min_seconds(result: Result) -> float:
    """Return the shortest of a few iterations.

    A disturbance makes iterations longer; one could exclude the best candidate from the second
    round.
    """
    return min(result.seconds)


def candidate_of(result: Result) -> Candidate:
    """Return the candidate of a result."""
    candidate = Candidate.read(result.candidate)
    if candidate is None:
        raise ValueError(f"{result.candidate!r} is not a candidate label")
    return candidate


def nearby_candidates(rough: Sequence[Result], case: Case, plan: SurveyPlan,
                      segments: Sequence[int] = SEGMENTS) -> list[Candidate]:
    """Return the candidates near the best one, native, and the best with other segments."""
    good = sorted((r for r in rough if not r.failures), key=min_seconds) or rough
    candidates = list(dict.fromkeys([Candidate(NATIVE), *(
        candidate_of(r) for r in good if min_seconds(r) <= NEAR * min_seconds(good[0]))]))
    if case.nbytes >= SEGMENTED and not plan.most:
        named = [c for c in candidates if c.name != NATIVE][:3 if plan.thorough else 1]
        candidates += [c._replace(segment_bytes=segment) for c in named for segment in segments]
    return candidates


def close(fine: Sequence[Result]) -> list[Candidate]:
    """Return the candidates close to the best one; none if there is no other."""
    good = [r for r in fine if not r.failures]
    if not good:
        return []
    limit = CLOSE * min(r.trimmed_seconds for r in good)
    candidates = [candidate_of(r) for r in good if r.trimmed_seconds <= limit]
    return candidates if len(candidates) > 1 else []


def of_all_rounds(rough: Sequence[Result], *rounds: Sequence[Result]) -> list[Result]:
    """Return the merged results of later rounds, or those of the first if there are no others.

    The first round is short. Its errors count.
    """
    first, later = ({r.candidate: r for r in part} for part in (rough, merge_rounds(*rounds)))
    failed = {name: r for name, r in first.items() if name in later and r.failures}
    return [*(first | later | {name: later[name]._replace(
        wrong=later[name].wrong + r.wrong, changed=later[name].changed + r.changed)
        for name, r in failed.items()}).values()]


def _rule_algorithms(collective: str) -> list[str]:
    """Return the algorithms of the tuning rules: best on other machines."""
    return [rule.algorithm for rule in RULES if rule.collective == collective]


def _representative(collective: str, names: Sequence[str]) -> list[str]:
    """Return the names, first those that were best on other machines for few or many bytes."""
    picked = [*picks(collective, large=False), *picks(collective, large=True)]
    return [name for name in dict.fromkeys((*_rule_algorithms(collective), *picked, *names))
            if name in names]


def _variants(case: Case, name: str) -> Iterator[Candidate]:
    """Yield an algorithm with other values of its parameters."""
    entry = ALGORITHMS[case.rule.name][name]
    for key, default in entry.params.items():
        for value in entry.variants[key].measured:
            if value != default and (key == "n" or value <= case.size):
                yield Candidate(name, ((key, value),))
