"""Measuring candidates side by side.

All candidates of a case run together on the same buffers: every repetition gives each of them
a batch of iterations, each time in another order, so that drift of the machine and what the one
before has left behind hit all alike. An iteration starts at a barrier; its time is
that of the slowest rank. The first and the last iteration of every candidate are checked, on
data of their own, and not timed with the others.

Rank 0 sets the pace and sends it to the others after every repetition, so that all ranks stop
together: at the budget, or on Ctrl-C.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from time import perf_counter
from typing import NamedTuple, Protocol, TypeVar

import numpy
from mpi4py import MPI

from hpccoll.calls.call import METHODS
from hpccoll.config import AUTO, NATIVE, NONE, OFF, load
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.call_forms import BlockingForm
from hpccoll.measure.candidates import FORWARDED, serves
from hpccoll.measure.cases import Case
from hpccoll.measure.results import Result
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.context import existing
from hpccoll.tune.loading import Tuned
from hpccoll.tune.table import Candidate

#: Repetitions that the iterations of a case are spread over, about.
REPETITIONS = 25
#: Iterations of a candidate when the budget decides.
LEAST, MOST = 10, 5000
#: Iterations of warm-up for each set of buffers; hpccoll has everything prepared after three.
WARM = 5

AnyRunner = TypeVar("AnyRunner")


class Settings(NamedTuple):
    """How to measure.

    Attributes:
        warmup, iterations: per candidate; ``None`` leaves it to the budget.
        seconds: budget of one candidate on one case.
        rotate: sets of buffers that iterations use in turn.
        segment_bytes: for the algorithms of hpccoll's table; 0 for the default.
        topology: pretend layout.
        form: how collectives are called.
    """

    warmup: int | None = None
    iterations: int | None = None
    seconds: float = 0.25
    rotate: int = 1
    segment_bytes: int = 0
    topology: Topology | None = None
    form: type[BlockingForm] = BlockingForm


class Peer(Protocol):
    """Collectives of another library, over the same ranks, as one more candidate.

    Attributes:
        version: of that library.
    """

    version: str

    def method(self, collective: str) -> Callable:
        """A function that takes the arguments of mpi4py's method."""

    def free(self) -> None:
        """End it; collective."""


class World:
    """The communicators of a benchmark: one to measure on, one for barriers and agreements.

    Args:
        comm: the ranks.
        settings: the pace.
        wrap: the class of communicators that is timed.
        forwarded: measure the native method as ``wrap`` calls it, which is what an automatic
            choice can have; otherwise as mpi4py does.
        tuning: where ``wrap`` takes measured times from; the environment's setting if omitted.

    Attributes:
        meet: the barrier that an iteration starts at: ``wrap``'s, because its ranks leave it within
            a fraction of a microsecond where that of an MPI library takes one or two, which is as
            long as a small collective. It shares no memory with what is measured.
        peers: candidates that are not hpccoll's, by name; freed with the world.
    """

    def __init__(self, comm: MPI.Intracomm, settings: Settings, wrap: Wrap,
                 forwarded: bool = False, tuning: str | None = None):
        self.settings, self.forwarded = settings, forwarded
        self._wrap, self._tuning = wrap, tuning
        self.measured, self.control = MPI.Intracomm(comm.Dup()), MPI.Intracomm(comm.Dup())
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.meet = wrap(self.control, tuning=OFF).Barrier
        self.config = load()
        self.peers: dict[str, Peer] = {}

    @contextmanager
    def method(self, candidate: Candidate, collective: str,
               form: type[BlockingForm] = BlockingForm) -> Iterator[Callable]:
        """The method that a user of the candidate would call.

        Each candidate has a wrapper of its own, since what a wrapper remembers of earlier calls
        ends with its ``using`` block.
        """
        if candidate.name in self.peers:
            yield self.peers[candidate.name].method(collective)
            return
        name = form.method(collective)
        if candidate.name == NATIVE and not self.forwarded:
            yield getattr(self.measured, name)
            return
        topology = self.settings.topology
        if candidate.name == AUTO:
            yield getattr(self._wrap(self.measured, topology, tuning=self._tuning), name)
            return
        # What is asked for by name is measured, whatever it promises.
        comm = self._wrap(self.measured, topology, determinism=NONE, tuning=self._tuning)
        algorithm = NATIVE if candidate.name == FORWARDED else candidate.name
        wish = {METHODS[collective]: (algorithm, dict(candidate.params))}
        segment = candidate.segment_bytes or self.settings.segment_bytes
        with comm.using(segment_bytes=segment, **wish):
            yield getattr(comm, name)

    @property
    def tuned(self) -> Tuned | None:
        """The measured times that ``auto`` rests on, once it has run."""
        return self._wrap(self.measured).tuned

    @property
    def place(self) -> Place | None:
        """Where ``auto`` runs, once it knows."""
        context = existing(self.measured)
        return None if context is None else context.place

    def free(self) -> None:
        """Free the communicators, and end peers; collective."""
        for peer in self.peers.values():
            peer.free()
        self.measured.Free()
        self.control.Free()


class Runner:
    """One candidate on one case: calls it, checks it, keeps its times."""

    def __init__(self, world: World, case: Case, candidate: Candidate, method: Callable,
                 memories: Sequence[CaseBuffers]):
        self.world, self.case, self.candidate = world, case, candidate
        self.form, self.memories = world.settings.form, memories
        self.calls = [self.form(memory, method) for memory in memories]
        self.times: list[float] = []
        self.first = 0.0
        self.wrong = self.changed = self.turn = 0

    def run(self, iterations: int) -> list[float]:
        """Time a batch of iterations on this rank."""
        times, barrier = [], self.world.meet
        for _ in range(iterations):
            formed = self.calls[self.turn]
            self.turn = (self.turn + 1) % len(self.calls)
            if formed.memory.restorable:
                formed.memory.restore()
            call, arguments = formed.call, formed.arguments
            barrier()
            start = perf_counter()
            returned = call(*arguments)
            times.append(perf_counter() - start)
            formed.returned = returned
        return times

    def check(self, occasion: int) -> float:
        """Run once on each set of buffers, on fresh data; check everything; the first time."""
        fresh = list(enumerate(self.memories, occasion * len(self.memories)))
        for iteration, memory in fresh:
            memory.refill(iteration)
        times = self.run(len(self.memories))
        for formed in self.calls:
            formed.deliver()
        for iteration, memory in fresh:
            self.wrong += memory.wrong(iteration)
            self.changed += memory.changed(iteration)
        return times[0]

    def free(self) -> None:
        """End what was prepared; collective."""
        for formed in self.calls:
            formed.free()

    def result(self) -> Result | None:
        """Bring the ranks' results together; ``None`` on all ranks but 0."""
        comm, case = self.world.control, self.case
        series = numpy.array(self.times)
        slowest = numpy.empty_like(series)
        comm.Reduce(series, slowest, MPI.MAX)
        everyone = comm.gather((float(series.mean()), self.first, self.wrong, self.changed))
        if everyone is None:
            return None
        means, first, wrong, changed = zip(*everyone)
        world, served = self.world, None
        if self.candidate.name == AUTO:
            served = self.form.served(case, world.config)
        return Result(
            case.collective, self.candidate.label,
            served or serves(self.candidate, case, self.memories[0], world.config, world.tuned,
                             world.place),
            case.size,
            case.root if case.rule.rooted else None, case.nbytes, case.count, case.message,
            case.dtype.name if case.count else None, case.op, case.in_place, max(first),
            tuple(map(float, slowest)), means, sum(wrong), sum(changed))


def measure(world: World, case: Case, candidates: Sequence[Candidate], memories: list[CaseBuffers],
            stopped: Callable[[], bool] = lambda: False,
            progress: Callable[[str, float], None] = lambda name, part: None,
            settings: Settings | None = None) -> list[Result]:
    """Measure candidates on a case; the results are on rank 0, other ranks get none.

    Args:
        world: the communicators.
        case, candidates, memories: what to call, by which algorithms, on which buffers.
        stopped: asked on rank 0 whether to end early.
        progress: called with the name of the case and the part of it that is done.
        settings: the pace of this case; the world's if omitted.
    """
    settings = settings or world.settings
    warmup = WARM * settings.rotate if settings.warmup is None else settings.warmup
    with ExitStack() as stack:
        form = world.settings.form
        runners = [Runner(world, case, c, stack.enter_context(
            world.method(c, case.collective, form)), memories) for c in candidates]
        for runner in runners:
            stack.callback(runner.free)
            runner.first = runner.check(occasion=0)
            runner.run(warmup)
        collecting = gc.isenabled()
        gc.disable()
        try:
            _repeat(world, settings, runners, stopped, progress)
        finally:
            if collecting:
                gc.enable()
        for runner in runners:
            runner.check(occasion=1)
        results = [runner.result() for runner in runners]
    return [result for result in results if result is not None]


def _repeat(world: World, settings: Settings, runners: Sequence[Runner],
            stopped: Callable[[], bool], progress: Callable[[str, float], None]) -> None:
    """Let the candidates take turns until rank 0 says that it is enough."""
    done, repetition, start = 0, 0, perf_counter()
    while True:
        spent = (perf_counter() - start) / len(runners)
        batch = 0 if done and stopped() else next_batch(settings, done, spent)
        batch = world.control.bcast(batch)
        if not batch:
            return
        for runner in in_turn(runners, repetition):
            runner.times += runner.run(batch)
        done, repetition = done + batch, repetition + 1
        progress(f"{runners[0].case.collective} {runners[0].case.nbytes}",
                 done / settings.iterations if settings.iterations
                 else min(max(done / MOST, spent / settings.seconds), 1))


def in_turn(runners: Sequence[AnyRunner], repetition: int) -> list[AnyRunner]:
    """The runners in the order of a repetition; the same on every rank.

    Shuffled, so that nobody always comes after the same one: a slow candidate leaves cold caches
    and tired processors to the next.
    """
    return Random(repetition).sample(runners, len(runners))


def next_batch(settings: Settings, done: int, spent: float) -> int:
    """Iterations of the next repetition, 0 for none, after ``done`` in ``spent`` seconds."""
    if settings.iterations is not None:
        return min(-(-settings.iterations // REPETITIONS), settings.iterations - done)
    if not done:
        return 1
    if done >= MOST or done >= LEAST and spent >= settings.seconds:
        return 0
    pace = spent / done
    affordable = (settings.seconds - spent) / pace
    # At most doubling: a lucky first iteration must not commit everybody to a long batch.
    batch = min(settings.seconds / REPETITIONS / pace, affordable, 2 * done)
    return max(min(int(batch), MOST - done, MOST // REPETITIONS), 1)
