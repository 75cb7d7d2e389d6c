"""Plan of a survey: collectives, sizes, time, and the resulting points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy

from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.measure.cases import Case, make
from hpccoll.tune.table import Candidate, Kind

#: Sizes in bytes of a quick and a full survey.
QUICK = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 4 << 20)
FULL = tuple(8 << shift for shift in range(0, 24, 2))
#: The method measured for a collective, if its name differs.
METHOD = {"reduce_scatter": "reduce_scatter_block"}


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
