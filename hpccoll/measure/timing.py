"""Interleaved measurement of candidates.

All candidates of a case run on the same buffers: every repetition gives each of them a batch of
iterations, in a different order, so that drift of the machine and cache effects of the previous
candidate affect all equally. An iteration starts at a barrier; its time is that of the slowest
rank. The first and the last iteration of every candidate are checked, on separate data, and not
timed with the others.

Rank 0 sets the number of iterations after every repetition and broadcasts it, so that all ranks
stop together: at the budget, or on Ctrl-C.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy
from mpi4py import MPI

from hpccoll.config import AUTO, NATIVE, NONE, OFF, load
from hpccoll.ir.methods import METHODS
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place
from hpccoll.machine.limits import FIRST_CALLS
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.call_forms import BlockingForm
from hpccoll.measure.candidates import FORWARDED, serves
from hpccoll.measure.cases import Case
from hpccoll.measure.results import Result
from hpccoll.measure.samples import in_turn
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.attributes import existing_context
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate

#: Approximate number of repetitions of a case.
REPETITIONS = 25
#: Minimum and maximum iterations of a candidate under a budget.
LEAST, MOST = 10, 5000
#: Warm-up iterations for each set of buffers; after the calls before set-up, three
#: prepare everything.
WARM = FIRST_CALLS + 4

AnyResult = TypeVar("AnyResult")


class Settings(NamedTuple):
    """Settings of a measurement.

    Attributes:
        warmup, iterations: per candidate; ``None`` for as many as the budget permits.
        rotate: sets of buffers that iterations use in turn.
        segment_bytes: for hpccoll's algorithms; 0 for the default.
    """

    warmup: int | None = None
    iterations: int | None = None
    seconds: float = 0.25
    rotate: int = 1
    segment_bytes: int = 0
    topology: Topology | None = None
    form: type[BlockingForm] = BlockingForm


class Peer(Protocol):
    """Collectives of another library on the same ranks, as a candidate."""

    version: str

    def method(self, collective: str) -> Callable:
        """Return a function with the arguments of mpi4py's method."""

    def free(self) -> None:
        """Release it; collective."""


class World:
    """The communicators of a benchmark: one to measure on, one for barriers and agreements.

    Args:
        forwarded: measure the native method as ``wrap`` calls it, which is what an automatic
            choice can reach; otherwise as mpi4py does.
        tuning: source of measured times of ``wrap``; the environment's setting if omitted.

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
        self.measured, self.control = MPI.Intracomm(comm.Dup()), PrivateComm(comm.Dup())
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.meet = wrap(self.control, tuning=OFF).Barrier
        self.config = load()
        self.peers: dict[str, Peer] = {}

    @contextmanager
    def method(self, candidate: Candidate, collective: str,
               form: type[BlockingForm] = BlockingForm) -> Iterator[Callable]:
        """Return the method that a user of the candidate would call.

        Each candidate has its own wrapper, because the cache of a wrapper ends with its
        ``using`` block.
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
        # Named algorithms are measured, whatever their properties.
        comm = self._wrap(self.measured, topology, determinism=NONE, tuning=self._tuning)
        algorithm = NATIVE if candidate.name == FORWARDED else candidate.name
        preference = {METHODS[collective]: (algorithm, dict(candidate.params))}
        segment = candidate.segment_bytes or self.settings.segment_bytes
        with comm.using(segment_bytes=segment, **preference):
            yield getattr(comm, name)

    @property
    def tuned(self) -> JobTimes | None:
        """Return the measured times that ``auto`` uses, once it has run."""
        return self._wrap(self.measured).tuned

    @property
    def place(self) -> Place | None:
        """Return the place of ``auto``, once it is known."""
        context = existing_context(self.measured)
        return None if context is None else context.place

    def free(self) -> None:
        """Free the communicators and peers; collective."""
        for peer in self.peers.values():
            peer.free()
        self.measured.Free()
        self.control.Free()


class Runner:
    """Runner of one candidate on one case: calls it, checks it, stores its times."""

    def __init__(self, world: World, case: Case, candidate: Candidate, method: Callable,
                 memories: Sequence[CaseBuffers], form: type[BlockingForm] = BlockingForm):
        self.world, self.case, self.candidate = world, case, candidate
        self.form, self.memories = form, memories
        self.calls = [form(memory, method) for memory in memories]
        #: Seconds of each iteration, or a row of several times; see ``BlockingForm.sample``.
        self.times: list[Any] = []
        self.first = 0.0
        self.wrong = self.changed = self.turn = 0

    def run(self, iterations: int) -> list[Any]:
        """Time a batch of iterations on this rank."""
        times, barrier = [], self.world.meet
        for _ in range(iterations):
            formed = self.calls[self.turn]
            self.turn = (self.turn + 1) % len(self.calls)
            formed.prepare()
            call, arguments = formed.call, formed.arguments
            barrier()
            start = perf_counter()
            returned = call(*arguments)
            seconds = perf_counter() - start
            formed.returned = returned
            times.append(formed.sample(seconds))
        return times

    def check(self, occasion: int) -> float:
        """Run once on each set of buffers, on fresh data; check all; return the first time."""
        fresh = list(enumerate(self.memories, occasion * len(self.memories)))
        for iteration, memory in fresh:
            memory.refill(iteration)
        times = self.run(len(self.memories))
        for formed in self.calls:
            formed.deliver()
        for iteration, memory in fresh:
            self.wrong += memory.wrong(iteration)
            self.changed += memory.count_changed_input(iteration)
        return times[0]

    def free(self) -> None:
        """Release prepared requests; collective."""
        for formed in self.calls:
            formed.free()

    def slowest(self) -> numpy.ndarray:
        """Return the times of the slowest rank in each iteration, on rank 0; collective."""
        series = numpy.array(self.times)
        slowest = numpy.empty_like(series)
        self.world.control.Reduce(series, slowest, MPI.MAX)
        return slowest

    def result(self) -> Result | None:
        """Gather the ranks' results; ``None`` on all ranks but 0."""
        case, slowest = self.case, self.slowest()
        everyone = self.world.control.gather((float(numpy.mean(self.times)), self.first, self.wrong,
                                              self.changed))
        if everyone is None:
            return None
        means, first, wrong, changed = zip(*everyone)
        world, served = self.world, None
        if self.candidate.name == AUTO:
            served = self.form.auto_choice(case, world.config)
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
    """Measure candidates on a case; return the results on rank 0, nothing on other ranks.

    Args:
        stopped: callback on rank 0, returns True to end early.
        progress: callback, gets the name of the case and its completed share.
        settings: of this case; the world's if omitted.
    """
    return measure_rows(Runner.result, world, case, candidates, memories, stopped, progress,
                        settings or world.settings)


def measure_rows(read: Callable[[Runner], AnyResult | None], world: World, case: Case,
                 candidates: Sequence[Candidate], memories: list[CaseBuffers],
                 stopped: Callable[[], bool], progress: Callable[[str, float], None],
                 settings: Settings) -> list[AnyResult]:
    """Measure as :func:`measure` does; ``read`` makes the results, on all ranks together."""
    warmup = WARM * settings.rotate if settings.warmup is None else settings.warmup
    with ExitStack() as stack:
        form = settings.form
        runners = [Runner(world, case, c, stack.enter_context(
            world.method(c, case.collective, form)), memories, form) for c in candidates]
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
        results = [read(runner) for runner in runners]
    return [result for result in results if result is not None]


def _repeat(world: World, settings: Settings, runners: Sequence[Runner],
            stopped: Callable[[], bool], progress: Callable[[str, float], None]) -> None:
    """Run the candidates in turn until rank 0 ends the repetitions."""
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


def next_batch(settings: Settings, done: int, spent: float) -> int:
    """Return the iterations of the next repetition, 0 for none, after ``done`` in ``spent`` s."""
    if settings.iterations is not None:
        return min(-(-settings.iterations // REPETITIONS), settings.iterations - done)
    if not done:
        return 1
    if done >= MOST or done >= LEAST and spent >= settings.seconds:
        return 0
    pace = spent / done
    affordable = (settings.seconds - spent) / pace
    # At most doubling: a fast first iteration must not cause a long batch.
    batch = min(settings.seconds / REPETITIONS / pace, affordable, 2 * done)
    return max(min(int(batch), MOST - done, MOST // REPETITIONS), 1)
