"""What a survey measures: collectives, sizes, time, and the points that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy

from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.measure.cases import Case, make
from hpccoll.tune.table import Candidate, Kind

#: Sizes in bytes of a quick survey, and of a full one.
QUICK = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 4 << 20)
FULL = tuple(8 << shift for shift in range(0, 24, 2))
#: The method that stands for a collective, where another one than its own.
METHOD = {"reduce_scatter": "reduce_scatter_block"}


class SurveyPlan(NamedTuple):
    """What to survey.

    Attributes:
        collectives: what their algorithms are registered under.
        sizes: bytes, ascending.
        seconds: for everything.
        thorough: try values of parameters, segments inside nodes, too, of several algorithms, and
            operators that do not commute.
        most: candidates beside native for one size, 0 for all; those that represent the others,
            without segments.
        brought: candidates of one's own, by collective; tried at every size.
    """

    collectives: Sequence[str] = tuple(COLLECTIVES)
    sizes: Sequence[int] = FULL
    seconds: float = 600.0
    thorough: bool = True
    most: int = 0
    brought: Mapping[str, Sequence[Candidate]] = {}


#: What a job may spend unprepared: sizes where a call is latency, where the two meet, and transfer.
PROBE = SurveyPlan(sizes=(64, 16 << 10, 1 << 20), seconds=4.0, thorough=False, most=4)


class SurveyPoint(NamedTuple):
    """A case, and whether its operator commutes (``True`` where there is none)."""

    case: Case
    commutes: bool

    @property
    def kind(self) -> Kind:
        """What the table files it under."""
        return self.case.rule.name, self.commutes

    @property
    def weight(self) -> float:
        """What it costs beside others: more for larger sizes."""
        return 1.0 + self.case.nbytes / (1 << 20)


def points(plan: SurveyPlan, size: int) -> Iterator[SurveyPoint]:
    """The points of a plan on so many ranks, by rising size, each once."""
    seen = set()
    for nbytes in sorted(plan.sizes):
        for collective in plan.collectives:
            case = make(METHOD.get(collective, collective), size, nbytes, numpy.dtype("f4"))
            if (collective, case.nbytes) not in seen:
                seen.add((collective, case.nbytes))
                yield SurveyPoint(case, True)
                if plan.thorough and case.rule.reduces:
                    yield SurveyPoint(case, False)
