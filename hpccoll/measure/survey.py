"""Survey of all candidates over all sizes: the measurement of ``hpccoll tune``.

A size is measured in several rounds. The first gives every candidate a few calls. The second gives
the rest of the size's time to those near the best one, and to variants of the best with other
segments. When all sizes have had these two, later rounds measure the candidates that are still so
close to the best one that noise would decide. They are later, because a disturbance of some seconds
then affects one round only. A size is disturbed if native barriers before or after it are slow, or
if it took much longer than a larger one. Then the first two rounds are repeated, and a disturbed
later round does not count.

Sizes are ascending, and each has its share of the remaining time: if it is short, only the most
promising candidates run. When the time is over, the rest stays unmeasured. A probe runs a few
candidates for few sizes; the model of :mod:`hpccoll.tune.cost_model` predicts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy
from mpi4py import MPI

from hpccoll.config import NATIVE, OFF
from hpccoll.ir.topology import Topology
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.candidates import select
from hpccoll.measure.noise import Doubt, Measured, filter_times, late
from hpccoll.measure.results import Result
from hpccoll.measure.rounds import (
    BETWEEN,
    FEWEST,
    SEGMENTS,
    LatestTimes,
    SurveyPlan,
    SurveyPoint,
    affordable,
    candidate_of,
    close,
    min_seconds,
    nearby_candidates,
    of_all_rounds,
    points,
    worth_trying,
)
from hpccoll.measure.samples import sample
from hpccoll.measure.timing import Settings, World, measure
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.context import Context
from hpccoll.tune.table import Candidate, Curves, Fingerprint, Kind, fingerprint

#: Share of the time for the first two rounds, share for repeating them, and the number of later
#: rounds.
FIRST, AGAIN, MORE = 0.55, 0.15, 4
#: Number of barriers that measure the load, and the factor to their shortest time in the survey
#: above which the machine is too busy: ranks that wait for a time slice take a hundred times as
#: long.
BARRIERS, BUSY = 9, 10.0
#: Untimed and timed calls of the first round; each candidate has one check before and one after.
UNTIMED, TIMED = 1, 3
ROUGH = Settings(warmup=UNTIMED, iterations=TIMED)
ROUGH_CALLS = UNTIMED + TIMED + 2
#: Minimum and maximum seconds of a candidate's second or later round.
SHORTEST, LONGEST = 0.004, 0.5


def _add(one: Any, two: Any, datatype: MPI.Datatype) -> None:
    numpy.frombuffer(two, "f4")[...] += numpy.frombuffer(one, "f4")


class Survey(NamedTuple):
    """Result of a survey.

    Attributes:
        curves: times, on rank 0.
        failures: wrong elements of candidates that had any; they are left out.
        interrupted: True if points are missing.
    """

    machine: Fingerprint
    curves: Curves
    failures: Mapping[tuple[str, Candidate], int]
    interrupted: bool
    doubtful: tuple[Doubt, ...] = ()


class Surveyor:
    """A survey in progress; rank 0 selects the candidates, and broadcasts them."""

    def __init__(self, comm: MPI.Intracomm, plan: SurveyPlan, wrap: Wrap,
                 topology: Topology | None = None):
        # Without tuning: an old table must not influence the survey.
        self.world = World(comm, ROUGH._replace(topology=topology), wrap, forwarded=True,
                           tuning=OFF)
        self.plan = plan
        self.hierarchical = wrap(self.world.measured, topology, tuning=OFF).layout.depth > 1
        context = cast(Context, existing_context(self.world.measured))
        self.machine = fingerprint(context.topology, context.place.oversubscribed)
        # Inside a node other segments gain a few per cent, which a short round cannot resolve.
        between = self.hierarchical or not context.place.one_node
        self.segments = BETWEEN if between else SEGMENTS if plan.thorough else ()
        self.points = list(points(plan, self.world.size))
        #: Sums in rank order, like a user's operator that does not commute.
        self.ordered = MPI.Op.Create(_add, commute=False)
        self.start = perf_counter()
        #: On rank 0.
        self.latest: dict[Kind, LatestTimes] = {}
        #: The results of each round so far, by the number of the point; on rank 0.
        self.rounds: dict[int, list[list[Result]]] = {}
        #: Barrier seconds around the first two rounds of each point, and their minimum.
        self.barriers: dict[int, float] = {}
        self.fastest_barrier = inf

    def free(self) -> None:
        self.ordered.Free()
        self.world.free()

    def remaining_seconds(self, part: float = 1.0) -> float:
        return part * self.plan.seconds - (perf_counter() - self.start)

    def share(self, part: float, numbers: Sequence[int]) -> float:
        """Return the seconds for the first of the remaining points in a part of the time.

        Costs rise with sizes: larger sizes get larger shares.
        """
        weights = [self.points[number].weight for number in numbers]
        return self.remaining_seconds(part) * weights[0] / sum(weights)

    def begin(self, numbers: Sequence[int], part: float) -> None:
        """Measure the first of the points in two rounds; collective."""
        number, start, barrier = numbers[0], perf_counter(), self._barrier()
        point, share = self.points[number], self.share(part, numbers)
        case, latest = point.case, self.latest.get(point.kind)
        memories = [self._buffers(point)]
        tried, _ = select(worth_trying(self.plan, point, latest, self.hierarchical), case,
                          memories[0], self.hierarchical)
        tried = self.world.control.bcast(affordable(point, tried, latest, share))
        rough = measure(self.world, case, tried, memories)
        chosen: tuple[list[Candidate], float] = [], 0.0
        if rough:
            seconds = perf_counter() - start
            order = [candidate_of(r) for r in sorted(rough, key=min_seconds)]
            busy = ROUGH_CALLS * sum(r.mean for r in rough) / len(rough)
            self.latest[point.kind] = LatestTimes(
                case.nbytes, max(seconds / len(rough) - busy, 0.0), busy, order)
            best = nearby_candidates(rough, case, self.plan, self.segments)
            left = max(share - seconds, 0.0)
            chosen = best if left else best[:FEWEST], left
        fine = self._round(point, memories, *self.world.control.bcast(chosen))
        self.barriers[number] = max(barrier, self._barrier())
        if rough:
            self.rounds[number] = [rough, fine]

    def disturbed_points(self) -> list[int]:
        """Return the disturbed points, the same on all ranks.

        Their barriers were slow, or native took much longer than for more bytes.
        """
        spoilt = {number for number, found in zip(self.rounds, late(self.all_results()))
                  if NATIVE in found}
        return self.world.control.bcast([number for number, barrier in self.barriers.items()
                                         if number in spoilt or self._is_machine_busy(barrier)])

    def _is_machine_busy(self, barrier: float) -> bool:
        return barrier > BUSY * self.fastest_barrier

    def _barrier(self) -> float:
        """Measure the seconds of a barrier."""
        now = sorted(sample(self.world.control.Barrier, BARRIERS))[BARRIERS // 2]
        self.fastest_barrier = min(self.fastest_barrier, now)
        return now

    def results(self, number: int) -> list[Result]:
        """Return the merged results of all rounds of a point; on rank 0."""
        return of_all_rounds(*self.rounds.get(number, [[]]))

    def all_results(self) -> Measured:
        """Return all points so far with their results; empty on other ranks than 0."""
        return [(self.points[number], self.results(number)) for number in self.rounds]

    def undecided_points(self) -> list[int]:
        """Return the points with several candidates close to the best; the same on all ranks."""
        return self.world.control.bcast([n for n in self.rounds if close(self.results(n))])

    def resume(self, numbers: Sequence[int], part: float) -> None:
        """Measure again the candidates close to the best one of the first of the points."""
        number, point = numbers[0], self.points[numbers[0]]
        chosen = close(self.results(number)), self.share(part, numbers)
        barrier = self._barrier()
        results = self._round(point, [self._buffers(point)], *self.world.control.bcast(chosen))
        barrier = max(barrier, self._barrier())
        if results and not self._is_machine_busy(barrier):
            self.rounds[number].append(results)

    def _round(self, point: SurveyPoint, memories: list[CaseBuffers],
               candidates: list[Candidate], seconds: float) -> list[Result]:
        if not candidates:
            return []
        pace = Settings(warmup=2, seconds=min(max(seconds / len(candidates), SHORTEST), LONGEST))
        return measure(self.world, point.case, candidates, memories, settings=pace)

    def _buffers(self, point: SurveyPoint) -> CaseBuffers:
        return CaseBuffers(point.case, self.world.rank,
                           op=None if point.commutes else self.ordered)


def survey(comm: MPI.Intracomm, plan: SurveyPlan, wrap: Wrap,
           stopped: Callable[[], bool] = lambda: False,
           progress: Callable[[str, float], None] = lambda name, part: None,
           topology: Topology | None = None) -> Survey:
    """Run a survey; collective.

    Args:
        stopped: callback on rank 0, returns True to end early.
        progress: callback on rank 0, gets the current point and the completed share of the survey.
    """
    surveyor = Surveyor(comm, plan, wrap, topology)

    def visit(numbers: Sequence[int], measure: Callable[[Sequence[int], float], None],
              part: float, end: float) -> bool:
        """Measure points until this part of the time is over; return True on all ranks to stop."""
        while numbers:
            case = surveyor.points[numbers[0]].case
            progress(f"{case.rule.name} {case.nbytes}",
                     min(1 - surveyor.remaining_seconds() / plan.seconds, 1))
            wanted, late = surveyor.world.control.bcast((stopped(),
                                                         surveyor.remaining_seconds(end) < 0))
            if wanted or late:
                return wanted
            measure(numbers, part)
            numbers = numbers[1:]
        return False

    try:
        # The first rounds may exceed their part: a point without any time would be missing.
        interrupted = visit(range(len(surveyor.points)), surveyor.begin, FIRST, 1.0)
        if not interrupted:
            interrupted = visit(surveyor.disturbed_points(), surveyor.begin, FIRST + AGAIN,
                                FIRST + AGAIN)
        rest = max(1 - surveyor.remaining_seconds() / plan.seconds, FIRST)
        for later in range(1, MORE + 1):
            if not interrupted:
                part = rest + (1 - rest) * later / MORE
                interrupted = visit(surveyor.undecided_points(), surveyor.resume, part, part)
    finally:
        surveyor.free()
    curves, failures, doubtful = filter_times(surveyor.all_results())
    return Survey(surveyor.machine, curves, comm.bcast(failures), interrupted,
                  comm.bcast(doubtful))
