"""A survey of all candidates over all sizes: what ``hpccoll tune`` writes down.

A size is measured in two goes. The first gives every candidate a few calls, the second gives
those that came near the best one all the time that is left, together with variants of the best
that cut their messages otherwise. Sizes rise, and each may use its part of what remains of the
time for everything: where that is short, only what was fast for fewer bytes is tried again. When
all time is spent, what is missing stays missing.
"""

from __future__ import annotations

from time import perf_counter
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.bench.cases import Case, make
from hpccoll.bench.candidates import select
from hpccoll.bench.measure import Settings, World, measure
from hpccoll.bench.memory import Memory
from hpccoll.bench.results import Result
from hpccoll.collective import COLLECTIVES
from hpccoll.comm import Comm
from hpccoll.config import NATIVE
from hpccoll.life import Life
from hpccoll.private import existing
from hpccoll.tune.machine import here
from hpccoll.tune.plausible import plausible
from hpccoll.tune.table import Candidate, Curves, Machine
from hpccoll.tune.tuned import Tuned

#: Sizes in bytes of a quick survey, and of a full one.
QUICK = (8, 4 << 10, 64 << 10, 512 << 10, 4 << 20)
FULL = tuple(8 << shift for shift in range(0, 24, 2))
#: The method that stands for a collective, where another one than its own.
METHOD = {"reduce_scatter": "reduce_scatter_block"}
#: Values of parameters that a full survey tries beside the default.
VARIANTS = {"k": (2, 3, 4, 8), "n": (4, 8, 32), "batch": (2, 4, 16), "leaders": (2, 4)}
#: From this size on, messages may be cut into segments of these bytes.
SEGMENTED, SEGMENTS = 1 << 20, (128 << 10, 512 << 10, 2 << 20)
#: The second go is for candidates at most this much slower than the best of the first.
NEAR = 1.6
#: The first go: calls of each candidate that are not timed and that are; and how many candidates
#: have one, however short the time.
ROUGH, FEWEST = Settings(warmup=1, iterations=2), 4
#: Seconds for a candidate's second go, at least and at most.
SHORTEST, LONGEST = 0.004, 0.5


class Plan(NamedTuple):
    """What to survey.

    Attributes:
        collectives: what their algorithms are registered under.
        sizes: bytes, ascending.
        seconds: for everything.
        thorough: try values of parameters, and segments of several algorithms.
    """

    collectives: Sequence[str] = tuple(COLLECTIVES)
    sizes: Sequence[int] = FULL
    seconds: float = 600.0
    thorough: bool = True


class Survey(NamedTuple):
    """The outcome.

    Attributes:
        machine: what the times hold for.
        curves: times, on rank 0.
        failures: wrong elements of candidates that had any; these are left out.
        interrupted: not everything was measured.
    """

    machine: Machine
    curves: Curves
    failures: Mapping[str, int]
    interrupted: bool


class Surveyor:
    """A survey in progress; rank 0 decides what is tried, and tells the others.

    Args:
        comm: the ranks.
        plan: what to measure.
    """

    def __init__(self, comm: MPI.Intracomm, plan: Plan):
        self.world, self.plan = World(comm, ROUGH), plan
        # An old table must not stand in the way.
        Life.of(Comm(self.world.measured)).tuned = Tuned()
        self.hierarchical = Comm(self.world.measured).topology.depth > 1
        state = existing(self.world.measured)
        self.machine = here(state.topology, state.crowded)
        self.cases = list(_cases(plan, self.world.size))
        self.start = perf_counter()
        #: Of each collective's latest size: bytes, seconds for a candidate's first go, and the
        #: candidates, fastest first.
        self.latest: dict[str, tuple[int, float, list[Candidate]]] = {}

    def left(self) -> float:
        """Seconds that remain."""
        return self.plan.seconds - (perf_counter() - self.start)

    def point(self, number: int) -> list[Result]:
        """Measure one size in two goes; results are on rank 0."""
        case, start = self.cases[number], perf_counter()
        # Sizes rise and costs with them: of what is left, larger ones get more.
        share = self.left() * _weight(case) / sum(map(_weight, self.cases[number:]))
        memories = [Memory(case, self.world.rank)]
        tried, _ = select(self._tried(case), case, memories[0], self.hierarchical)
        tried = self.world.control.bcast(self._affordable(case, tried, share))
        rough = measure(self.world, case, tried, memories)
        near: tuple[list[Candidate], float] = [], 0.0
        if rough:
            seconds = perf_counter() - start
            order = [Candidate.read(r.candidate) for r in sorted(rough, key=lambda r: r.median)]
            self.latest[case.rule.name] = case.nbytes, seconds / len(tried), order
            chosen, left = _near(rough, case, self.plan), max(share - seconds, 0.0)
            near = chosen if left else chosen[:FEWEST], left
        near = self.world.control.bcast(near)
        pace = Settings(warmup=2, seconds=min(max(near[1] / len(near[0]), SHORTEST), LONGEST))
        fine = measure(self.world, case, near[0], memories, settings=pace)
        return list({r.candidate: r for r in (*rough, *fine)}.values())

    def _tried(self, case: Case) -> list[Candidate]:
        """Everything worth a try: native, and what was fast for fewer bytes first."""
        names = plausible(case.rule.name, self.world.size, case.nbytes, self.hierarchical)
        found = [Candidate(NATIVE), *map(Candidate, names)]
        if self.plan.thorough:
            found += [variant for name in names for variant in _variants(case, name)]
        before = self.latest.get(case.rule.name, (0, 0.0, ()))[2]
        return [found[0], *sorted(found[1:], key=lambda c: before.index(c) if c in before
                                  else len(before))]

    def _affordable(self, case: Case, tried: list[Candidate], share: float) -> list[Candidate]:
        """As many of the candidates as the first go, at half of the time, has room for."""
        if case.rule.name not in self.latest:
            return tried
        nbytes, seconds, _ = self.latest[case.rule.name]
        # Between a latency that stays and a transfer that grows with the bytes.
        expected = seconds * max((case.nbytes / max(nbytes, 1)) ** 0.5, 1.0)
        return tried[:max(int(share / 2 / expected), FEWEST)]


def survey(comm: MPI.Intracomm, plan: Plan, stopped: Callable[[], bool] = lambda: False,
           progress: Callable[[str, float], None] = lambda name, part: None) -> Survey:
    """Measure everything; collective.

    Args:
        comm: the ranks.
        plan: what to measure.
        stopped: tells on rank 0 that it shall end early.
        progress: is told on rank 0 what is measured and which part of everything is done.
    """
    surveyor = Surveyor(comm, plan)
    found: dict[tuple[str, bool], list] = {}
    failures: dict[str, int] = {}
    interrupted = False
    try:
        for number, case in enumerate(surveyor.cases):
            interrupted, late = surveyor.world.control.bcast((stopped(), surveyor.left() < 0))
            if interrupted or late:
                break
            progress(f"{case.rule.name} {case.nbytes}", number / len(surveyor.cases))
            results = surveyor.point(number)
            for result in results:
                if result.failures:
                    name = f"{case.rule.name} {result.candidate}"
                    failures[name] = failures.get(name, 0) + result.failures
            times = {Candidate.read(r.candidate): r.median for r in results
                     if not r.failures and r.median > 0}
            if times:
                found.setdefault((case.rule.name, True), []).append((case.nbytes, times))
    finally:
        surveyor.world.free()
    curves = {kind: tuple(points) for kind, points in sorted(found.items())}
    return Survey(surveyor.machine, curves, comm.bcast(failures), interrupted)


def _cases(plan: Plan, size: int) -> Iterator[Case]:
    seen = set()
    for nbytes in sorted(plan.sizes):
        for collective in plan.collectives:
            case = make(METHOD.get(collective, collective), size, nbytes, numpy.dtype("f4"))
            if (collective, case.nbytes) not in seen:
                seen.add((collective, case.nbytes))
                yield case


def _weight(case: Case) -> float:
    return 1.0 + case.nbytes / (1 << 20)


def _variants(case: Case, name: str) -> Iterator[Candidate]:
    """An algorithm with other values of its parameters."""
    for key, default in ALGORITHMS[case.rule.name][name].params.items():
        for value in VARIANTS.get(key, ()):
            if value != default and (key == "n" or value <= case.size):
                yield Candidate(name, ((key, value),))


def _near(rough: Sequence[Result], case: Case, plan: Plan) -> list[Candidate]:
    """The candidates that came near the best one, native, and the best with other segments."""
    good = sorted((r for r in rough if not r.failures), key=lambda r: r.median) or rough
    near = [r.candidate for r in good if r.median <= NEAR * good[0].median]
    chosen = list(dict.fromkeys([NATIVE, *near]))
    found = [Candidate.read(label) for label in chosen]
    if case.nbytes >= SEGMENTED:
        ours = [c for c in found if c.name != NATIVE][:3 if plan.thorough else 1]
        found += [c._replace(segment_bytes=segment) for c in ours for segment in SEGMENTS]
    return found
