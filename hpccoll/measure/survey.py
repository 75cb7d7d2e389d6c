"""A survey of all candidates over all sizes: what ``hpccoll tune`` writes down.

A size is measured in several rounds. The first gives every candidate a few calls. The second gives
those that came near the best one the rest of the size's time, together with variants of the best
that cut their messages otherwise. When all sizes have had these two, later rounds are for the
candidates that are still so close to the best one that noise would decide: later, since a machine
that is slow or busy for some seconds is so for one round only. Native barriers before and after
show where it was too busy, and so does a size that took much longer than a larger one; there the
first two rounds are repeated, and a later one that was disturbed does not count.
Sizes rise, and each may use its part of what remains of the time: where that is short, only the
most promising are tried. When all time is spent, what is missing stays missing. A probe tries a
handful of candidates for few sizes, from which the model of :mod:`hpccoll.tune.cost_model` says
what to expect of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.config import NATIVE, OFF
from hpccoll.ir.topology import Topology
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.candidates import select
from hpccoll.measure.filing import Doubt, Measured, filed, late
from hpccoll.measure.results import Result
from hpccoll.measure.shortlist import (
    BETWEEN,
    FEWEST,
    SEGMENTS,
    Latest,
    affordable,
    candidate_of,
    close,
    fastest,
    near,
    of_all_rounds,
    worth_trying,
)
from hpccoll.measure.survey_plan import SurveyPlan, SurveyPoint, points
from hpccoll.measure.timing import Settings, World, measure
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.context import context_of
from hpccoll.tune.table import Candidate, Curves, Fingerprint, Kind, fingerprint

#: The part of the time that the first two rounds have, that repeating them may have, and how many
#: later rounds there are.
FIRST, AGAIN, MORE = 0.55, 0.15, 4
#: Barriers that show how busy the machine is, and how many times the shortest time that they took
#: in the survey is too busy: ranks that wait for another process's time slice take a hundred.
BARRIERS, BUSY = 9, 10.0
#: Calls of the first round that are not timed, and that are; with one to check each candidate
#: before and one after.
UNTIMED, TIMED = 1, 3
ROUGH = Settings(warmup=UNTIMED, iterations=TIMED)
ROUGH_CALLS = UNTIMED + TIMED + 2
#: Seconds for a candidate's second or a later round, at least and at most.
SHORTEST, LONGEST = 0.004, 0.5


def _add(one: Any, two: Any, datatype: MPI.Datatype) -> None:
    numpy.frombuffer(two, "f4")[...] += numpy.frombuffer(one, "f4")


class Survey(NamedTuple):
    """The outcome.

    Attributes:
        machine: what the times hold for.
        curves: times, on rank 0.
        failures: wrong elements of collectives' candidates that had any; these are left out.
        interrupted: not everything was measured.
        doubtful: what a busy machine spoilt, which is left out.
    """

    machine: Fingerprint
    curves: Curves
    failures: Mapping[tuple[str, Candidate], int]
    interrupted: bool
    doubtful: tuple[Doubt, ...] = ()


class Surveyor:
    """A survey in progress; rank 0 decides what is tried, and sends that to the others.

    Args:
        comm: the ranks.
        plan: what to measure.
        wrap: the class of communicators that is timed.
        topology: pretend layout.
    """

    def __init__(self, comm: MPI.Intracomm, plan: SurveyPlan, wrap: Wrap,
                 topology: Topology | None = None):
        # Without tuning: an old table must not stand in the way.
        self.world = World(comm, ROUGH._replace(topology=topology), wrap, forwarded=True,
                           tuning=OFF)
        self.plan = plan
        context = context_of(self.world.measured, self.world.config, topology)
        self.hierarchical = context.topology.depth > 1
        self.machine = fingerprint(context.topology, context.place.oversubscribed)
        # Inside a node other segments gain a few per cent, which a short round cannot show.
        between = self.hierarchical or not context.place.one_node
        self.segments = BETWEEN if between else SEGMENTS if plan.thorough else ()
        self.points = list(points(plan, self.world.size))
        #: Sums in rank order, as an operator of the user's may need them.
        self.ordered = MPI.Op.Create(_add, commute=False)
        self.start = perf_counter()
        #: On rank 0.
        self.latest: dict[Kind, Latest] = {}
        #: The results of each round so far, by the number of the point; on rank 0.
        self.rounds: dict[int, list[list[Result]]] = {}
        #: Seconds of a barrier around the first two rounds of each point, and the fewest of all.
        self.barriers: dict[int, float] = {}
        self.fastest_barrier = inf

    def free(self) -> None:
        """Free the communicators; collective."""
        self.ordered.Free()
        self.world.free()

    def left(self, part: float = 1.0) -> float:
        """Seconds that remain of a part of the time."""
        return part * self.plan.seconds - (perf_counter() - self.start)

    def share(self, part: float, numbers: Sequence[int]) -> float:
        """Seconds for the first of the points that are still to come in a part of the time.

        Costs rise with sizes: of what is left, larger ones get more.
        """
        weights = [self.points[number].weight for number in numbers]
        return self.left(part) * weights[0] / sum(weights)

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
            order = [candidate_of(r) for r in sorted(rough, key=fastest)]
            busy = ROUGH_CALLS * sum(r.mean for r in rough) / len(rough)
            self.latest[point.kind] = Latest(
                case.nbytes, max(seconds / len(rough) - busy, 0.0), busy, order)
            best = near(rough, case, self.plan, self.segments)
            left = max(share - seconds, 0.0)
            chosen = best if left else best[:FEWEST], left
        fine = self._round(point, memories, *self.world.control.bcast(chosen))
        self.barriers[number] = max(barrier, self._barrier())
        if rough:
            self.rounds[number] = [rough, fine]

    def disturbed(self) -> list[int]:
        """Points that were begun while the machine was busy, as barriers show, or as native does,
        which took much longer than for more bytes; the same on all ranks."""
        spoilt = {number for number, found in zip(self.rounds, late(self.measured()))
                  if NATIVE in found}
        return self.world.control.bcast([number for number, barrier in self.barriers.items()
                                         if number in spoilt or self._busy(barrier)])

    def _busy(self, barrier: float) -> bool:
        return barrier > BUSY * self.fastest_barrier

    def _barrier(self) -> float:
        """Seconds of a barrier now."""
        seconds = []
        for _ in range(BARRIERS):
            start = perf_counter()
            self.world.control.Barrier()
            seconds.append(perf_counter() - start)
        now = sorted(seconds)[BARRIERS // 2]
        self.fastest_barrier = min(self.fastest_barrier, now)
        return now

    def results(self, number: int) -> list[Result]:
        """The results of all rounds of a point together; on rank 0."""
        return of_all_rounds(*self.rounds.get(number, [[]]))

    def measured(self) -> Measured:
        """All points so far, and their results; none but on rank 0."""
        return [(self.points[number], self.results(number)) for number in self.rounds]

    def undecided(self) -> list[int]:
        """Points where several candidates are close to the best one; the same on all ranks."""
        return self.world.control.bcast([n for n in self.rounds if close(self.results(n))])

    def resume(self, numbers: Sequence[int], part: float) -> None:
        """Measure candidates again that are close to the best one of the first of the points."""
        number, point = numbers[0], self.points[numbers[0]]
        chosen = close(self.results(number)), self.share(part, numbers)
        barrier = self._barrier()
        results = self._round(point, [self._buffers(point)], *self.world.control.bcast(chosen))
        barrier = max(barrier, self._barrier())
        if results and not self._busy(barrier):
            self.rounds[number].append(results)

    def _round(self, point: SurveyPoint, memories: list[CaseBuffers],
               candidates: list[Candidate], seconds: float) -> list[Result]:
        """Measure candidates for so long."""
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
    """Measure everything; collective.

    Args:
        comm: the ranks.
        plan: what to measure.
        wrap: the class of communicators that is timed.
        stopped: asked on rank 0 whether to end early.
        progress: called on rank 0 with what is measured, and the part of everything that is done.
        topology: pretend layout.
    """
    surveyor = Surveyor(comm, plan, wrap, topology)

    def visit(numbers: Sequence[int], measure: Callable[[Sequence[int], float], None],
              part: float, end: float) -> bool:
        """Measure point after point until that part of the time is over; return on all ranks
        whether to end everything."""
        while numbers:
            case = surveyor.points[numbers[0]].case
            progress(f"{case.rule.name} {case.nbytes}", min(1 - surveyor.left() / plan.seconds, 1))
            wanted, late = surveyor.world.control.bcast((stopped(), surveyor.left(end) < 0))
            if wanted or late:
                return wanted
            measure(numbers, part)
            numbers = numbers[1:]
        return False

    try:
        # A point without any time is missing, so the first rounds may take more than their part.
        interrupted = visit(range(len(surveyor.points)), surveyor.begin, FIRST, 1.0)
        if not interrupted:
            interrupted = visit(surveyor.disturbed(), surveyor.begin, FIRST + AGAIN, FIRST + AGAIN)
        rest = max(1 - surveyor.left() / plan.seconds, FIRST)
        for later in range(1, MORE + 1):
            if not interrupted:
                part = rest + (1 - rest) * later / MORE
                interrupted = visit(surveyor.undecided(), surveyor.resume, part, part)
    finally:
        surveyor.free()
    curves, failures, doubtful = filed(surveyor.measured())
    return Survey(surveyor.machine, curves, comm.bcast(failures), interrupted,
                  comm.bcast(doubtful))
