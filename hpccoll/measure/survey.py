"""A survey of all candidates over all sizes: what ``hpccoll tune`` writes down.

A size is measured in several goes. The first gives every candidate a few calls, the second gives
those that came near the best one the rest of the size's time, together with variants of the best
that cut their messages otherwise. When all sizes have had these two, those candidates have more
goes that are still so close to the best one that noise would decide: later, since a machine that is
slow or busy for some seconds is so for one go only. Where it was too busy to tell anything, which
native barriers before and after show, the first two are begun again, or a later go does not count.
Sizes rise, and each may use its part of what remains of the time: where that is short, only the
most promising are tried. When all time is spent, what is missing stays missing. A probe tries a
handful of candidates for few sizes, from which the model of :mod:`hpccoll.tune.cost_model` tells what to
expect of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.table import picks
from hpccoll.config import NATIVE, OFF
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.topology import Topology
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.candidates import select
from hpccoll.measure.cases import Case, make
from hpccoll.measure.results import Result, joined
from hpccoll.measure.timing import Settings, World, measure
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.context import context_of
from hpccoll.tune.pruning import plausible
from hpccoll.tune.rules import RULES
from hpccoll.tune.table import Candidate, Curves, Fingerprint, Kind, fingerprint

#: Sizes in bytes of a quick survey, and of a full one.
QUICK = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 4 << 20)
FULL = tuple(8 << shift for shift in range(0, 24, 2))
#: The method that stands for a collective, where another one than its own.
METHOD = {"reduce_scatter": "reduce_scatter_block"}
#: From this size on, messages may be cut into segments of these bytes: inside nodes, and between.
SEGMENTED = 1 << 20
SEGMENTS, BETWEEN = (128 << 10, 512 << 10, 2 << 20), (48 << 10, 256 << 10, 1 << 20)
#: The second go is for candidates at most this much slower than the best of the first; later ones
#: are for those at most this much slower than the best so far.
NEAR, CLOSE = 1.6, 1.2
#: The part of the time that the first two goes have, that what is begun again may have, and how
#: many more goes there are.
FIRST, AGAIN, MORE = 0.55, 0.15, 4
#: Barriers that tell how busy the machine is, and how many times the shortest time that they took
#: in the survey is too busy: ranks that wait for a time slice of somebody else's take a hundred.
BARRIERS, BUSY = 9, 10.0
#: The first go: calls of each candidate that are not timed and that are; and how many candidates
#: have one, however short the time.
ROUGH, FEWEST = Settings(warmup=1, iterations=3), 4
#: All of its calls: each candidate is checked before and after.
ROUGH_CALLS = ROUGH.warmup + ROUGH.iterations + 2
#: Seconds for a candidate's second or a later go, at least and at most.
SHORTEST, LONGEST = 0.004, 0.5


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
    """

    collectives: Sequence[str] = tuple(COLLECTIVES)
    sizes: Sequence[int] = FULL
    seconds: float = 600.0
    thorough: bool = True
    most: int = 0


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


class Latest(NamedTuple):
    """What the first go of a collective's latest size took.

    Attributes:
        nbytes: that size.
        idle, busy: seconds of a candidate outside its calls, and in them.
        order: the candidates, fastest first.
    """

    nbytes: int
    idle: float
    busy: float
    order: Sequence[Candidate]

    def seconds(self, nbytes: int) -> float:
        """What a candidate may take at another size, where calls grow with the bytes."""
        return self.idle + self.busy * max(nbytes / max(self.nbytes, 1), 1.0)


def _add(one: Any, two: Any, datatype: MPI.Datatype) -> None:
    numpy.frombuffer(two, "f4")[...] += numpy.frombuffer(one, "f4")


class Survey(NamedTuple):
    """The outcome.

    Attributes:
        machine: what the times hold for.
        curves: times, on rank 0.
        failures: wrong elements of collectives' candidates that had any; these are left out.
        interrupted: not everything was measured.
    """

    machine: Fingerprint
    curves: Curves
    failures: Mapping[tuple[str, Candidate], int]
    interrupted: bool


class Surveyor:
    """A survey in progress; rank 0 decides what is tried, and tells the others.

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
        # Inside a node other segments gain a few per cent, less than a short go can tell.
        between = self.hierarchical or not context.place.one_node
        self.segments = BETWEEN if between else SEGMENTS if plan.thorough else ()
        self.points = list(_points(plan, self.world.size))
        #: Sums in rank order, as an operator of the user's may need them.
        self.ordered = MPI.Op.Create(_add, commute=False)
        self.start = perf_counter()
        #: On rank 0.
        self.latest: dict[Kind, Latest] = {}
        #: The results of each go so far, by the number of the point; on rank 0.
        self.goes: dict[int, list[list[Result]]] = {}
        #: Seconds of a barrier around the first two goes of each point, and the fewest of all.
        self.barriers: dict[int, float] = {}
        self.quiet = inf

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
        weights = [_weight(self.points[number]) for number in numbers]
        return self.left(part) * weights[0] / sum(weights)

    def begin(self, numbers: Sequence[int], part: float) -> None:
        """Measure the first of the points in two goes; collective."""
        number, start, barrier = numbers[0], perf_counter(), self._barrier()
        point, share = self.points[number], self.share(part, numbers)
        case = point.case
        memories = [self._buffers(point)]
        tried, _ = select(self._tried(point), case, memories[0], self.hierarchical)
        tried = self.world.control.bcast(self._affordable(point, tried, share))
        rough = measure(self.world, case, tried, memories)
        near: tuple[list[Candidate], float] = [], 0.0
        if rough:
            seconds = perf_counter() - start
            order = [Candidate.read(r.candidate) for r in sorted(rough, key=_fastest)]
            busy = ROUGH_CALLS * sum(r.mean for r in rough) / len(rough)
            self.latest[point.kind] = Latest(
                case.nbytes, max(seconds / len(rough) - busy, 0.0), busy, order)
            chosen = _near(rough, case, self.plan, self.segments)
            left = max(share - seconds, 0.0)
            near = chosen if left else chosen[:FEWEST], left
        fine = self._go(point, memories, *self.world.control.bcast(near))
        self.barriers[number] = max(barrier, self._barrier())
        if rough:
            self.goes[number] = [rough, fine]

    def disturbed(self) -> list[int]:
        """Points that were begun while the machine was busy; the same on all ranks."""
        return self.world.control.bcast(
            [number for number, barrier in self.barriers.items() if self._busy(barrier)])

    def _busy(self, barrier: float) -> bool:
        return barrier > BUSY * self.quiet

    def _barrier(self) -> float:
        """Seconds of a barrier now."""
        seconds = []
        for _ in range(BARRIERS):
            start = perf_counter()
            self.world.control.Barrier()
            seconds.append(perf_counter() - start)
        now = sorted(seconds)[BARRIERS // 2]
        self.quiet = min(self.quiet, now)
        return now

    def found(self, number: int) -> list[Result]:
        """What all goes of a point have found together; on rank 0."""
        return _joined(*self.goes.get(number, [[]]))

    def undecided(self) -> list[int]:
        """Points where several candidates are close to the best one; the same on all ranks."""
        return self.world.control.bcast([n for n in self.goes if _close(self.found(n))])

    def resume(self, numbers: Sequence[int], part: float) -> None:
        """Measure candidates again that are close to the best one of the first of the points."""
        number, point = numbers[0], self.points[numbers[0]]
        close = _close(self.found(number)), self.share(part, numbers)
        barrier = self._barrier()
        results = self._go(point, [self._buffers(point)],
                           *self.world.control.bcast(close))
        barrier = max(barrier, self._barrier())
        if results and not self._busy(barrier):
            self.goes[number].append(results)

    def _go(self, point: SurveyPoint, memories: list[CaseBuffers], candidates: list[Candidate],
            seconds: float) -> list[Result]:
        """Measure candidates for so long."""
        if not candidates:
            return []
        limits = Settings(warmup=2, seconds=min(max(seconds / len(candidates), SHORTEST), LONGEST))
        return measure(self.world, point.case, candidates, memories, settings=limits)

    def _buffers(self, point: SurveyPoint) -> CaseBuffers:
        return CaseBuffers(point.case, self.world.rank,
                           op=None if point.commutes else self.ordered)

    def _tried(self, point: SurveyPoint) -> list[Candidate]:
        """Everything worth a try, the most promising first: there may not be time for all.

        Native, what the rules name, and then in turn what was fast for fewer bytes, which knows the
        machine, and what is cheap by its closed form, which knows the number of bytes.
        """
        case = point.case
        names = plausible(case.rule.name, self.world.size, case.nbytes, self.hierarchical)
        if not point.commutes:
            names = [name for name in names if ALGORITHMS[case.rule.name][name].rank_order]
        if self.plan.most:
            names = _representative(case.rule.name, names)[:self.plan.most]
        found = [Candidate(NATIVE), *map(Candidate, names)]
        if self.plan.thorough:
            found += [variant for name in names for variant in _variants(case, name)]
        latest = self.latest.get(point.kind)
        before = [c for c in latest.order if c in found] if latest else []
        named = [Candidate(name) for name in _ruled(case.rule.name) if name in names]
        in_turn = [c for pair in zip_longest(before, found[1:]) for c in pair if c is not None]
        return list(dict.fromkeys([found[0], *named, *in_turn]))

    def _affordable(self, point: SurveyPoint, tried: list[Candidate], share: float) -> list[Candidate]:
        """As many of the candidates as the first go, at half of the time, has room for."""
        if point.kind not in self.latest:
            return tried
        expected = self.latest[point.kind].seconds(point.case.nbytes)
        return tried[:max(int(share / 2 / expected), FEWEST)]


def survey(comm: MPI.Intracomm, plan: SurveyPlan, wrap: Wrap,
           stopped: Callable[[], bool] = lambda: False,
           progress: Callable[[str, float], None] = lambda name, part: None,
           topology: Topology | None = None) -> Survey:
    """Measure everything; collective.

    Args:
        comm: the ranks.
        plan: what to measure.
        wrap: the class of communicators that is timed.
        stopped: tells on rank 0 that it shall end early.
        progress: is told on rank 0 what is measured and which part of everything is done.
        topology: pretend layout.
    """
    surveyor = Surveyor(comm, plan, wrap, topology)

    def visit(numbers: Sequence[int], measure: Callable[[Sequence[int], float], None],
              part: float, end: float) -> bool:
        """Measure point after point until that part of the time is over; tell on all ranks whether
        somebody wants everything to end."""
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
        # A point without any time is missing, so the first goes may take more than their part.
        interrupted = visit(range(len(surveyor.points)), surveyor.begin, FIRST, 1.0)
        if not interrupted:
            interrupted = visit(surveyor.disturbed(), surveyor.begin, FIRST + AGAIN, FIRST + AGAIN)
        rest = max(1 - surveyor.left() / plan.seconds, FIRST)
        for go in range(1, MORE + 1):
            if not interrupted:
                part = rest + (1 - rest) * go / MORE
                interrupted = visit(surveyor.undecided(), surveyor.resume, part, part)
    finally:
        surveyor.free()
    curves, failures = _filed(surveyor)
    return Survey(surveyor.machine, curves, comm.bcast(failures), interrupted)


def _filed(surveyor: Surveyor) -> tuple[Curves, dict[tuple[str, Candidate], int]]:
    """What was found, as the table has it, and the wrong elements of candidates that had any."""
    curves: dict[Kind, list] = {}
    failures: dict[tuple[str, Candidate], int] = {}
    for number in surveyor.goes:
        point, results = surveyor.points[number], surveyor.found(number)
        for result in results:
            if result.failures:
                key = point.case.rule.name, Candidate.read(result.candidate)
                failures[key] = failures.get(key, 0) + result.failures
        times = {Candidate.read(r.candidate): r.trimmed for r in results
                 if not r.failures and r.trimmed > 0}
        if times:
            curves.setdefault(point.kind, []).append((point.case.nbytes, times))
    return {kind: tuple(points) for kind, points in sorted(curves.items())}, failures


def _points(plan: SurveyPlan, size: int) -> Iterator[SurveyPoint]:
    seen = set()
    for nbytes in sorted(plan.sizes):
        for collective in plan.collectives:
            case = make(METHOD.get(collective, collective), size, nbytes, numpy.dtype("f4"))
            if (collective, case.nbytes) not in seen:
                seen.add((collective, case.nbytes))
                yield SurveyPoint(case, True)
                if plan.thorough and case.rule.reduces:
                    yield SurveyPoint(case, False)


def _weight(point: SurveyPoint) -> float:
    return 1.0 + point.case.nbytes / (1 << 20)


def _ruled(collective: str) -> list[str]:
    """What rules name: algorithms that were best elsewhere."""
    return [rule.algorithm for rule in RULES if rule.collective == collective]


def _representative(collective: str, names: Sequence[str]) -> list[str]:
    """The names, those first that were best elsewhere, for few bytes or for many."""
    picked = [*picks(collective, large=False), *picks(collective, large=True)]
    return [name for name in dict.fromkeys((*_ruled(collective), *picked, *names))
            if name in names]


def _variants(case: Case, name: str) -> Iterator[Candidate]:
    """An algorithm with other values of its parameters."""
    entry = ALGORITHMS[case.rule.name][name]
    for key, default in entry.params.items():
        for value in entry.variants[key].measured:
            if value != default and (key == "n" or value <= case.size):
                yield Candidate(name, ((key, value),))


def _fastest(result: Result) -> float:
    """The shortest of a few iterations: a disturbance makes them longer, and one would be enough to
    keep the best candidate out of the second go."""
    return min(result.seconds)


def _close(fine: Sequence[Result]) -> list[Candidate]:
    """The candidates that are close to the best one; none where it is alone."""
    good = [r for r in fine if not r.failures]
    if not good:
        return []
    limit = CLOSE * min(r.trimmed for r in good)
    found = [Candidate.read(r.candidate) for r in good if r.trimmed <= limit]
    return found if len(found) > 1 else []


def _joined(rough: Sequence[Result], *goes: Sequence[Result]) -> list[Result]:
    """The results of later goes together; of the first, which is short, where there are no
    others. What was wrong in the first is wrong."""
    first, later = ({r.candidate: r for r in go} for go in (rough, joined(*goes)))
    failed = {name: r for name, r in first.items() if name in later and r.failures}
    return [*(first | later | {name: later[name]._replace(
        wrong=later[name].wrong + r.wrong, changed=later[name].changed + r.changed)
        for name, r in failed.items()}).values()]


def _near(rough: Sequence[Result], case: Case, plan: SurveyPlan, segments: Sequence[int] = SEGMENTS
          ) -> list[Candidate]:
    """The candidates that came near the best one, native, and the best with other segments."""
    good = sorted((r for r in rough if not r.failures), key=_fastest) or rough
    near = [r.candidate for r in good if _fastest(r) <= NEAR * _fastest(good[0])]
    chosen = list(dict.fromkeys([NATIVE, *near]))
    found = [Candidate.read(label) for label in chosen]
    if case.nbytes >= SEGMENTED and not plan.most:
        ours = [c for c in found if c.name != NATIVE][:3 if plan.thorough else 1]
        found += [c._replace(segment_bytes=segment) for c in ours for segment in segments]
    return found
