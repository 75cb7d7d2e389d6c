"""Overlap of nonblocking collectives with computation.

    pure        begin, then wait
    alone       computation of the caller, without a pending collective
    compute     the same computation, between begin and wait
    overlapped  begin, compute, wait: the total
    overlap     100 % - (overlapped - compute) / pure, as OSU's NBC tests define it, not below 0 %
    gain        (alone + pure - overlapped) / pure: time saved by the program
    processor   processor time of the process beyond that of the work alone

Full overlap is 100 %; a library that progresses only in ``Wait`` has 0 %. If all processors
compute, progress takes processor time from the computation: this reduces gain, not overlap.

The computation is one of :data:`WORK`, as long as the ``pure`` of the slowest candidate, so that
all totals contain the same work. ``tests`` calls of ``Test`` are spread over it; their own time is
not counted as computation. Times are those of the slowest rank in every iteration, and medians over
iterations; candidates take turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple, Protocol, TextIO

import numpy
from mpi4py import MPI
from rich.text import Text

from hpccoll.comm import Comm
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.call_forms import NonblockingForm
from hpccoll.measure.cases import Case
from hpccoll.measure.timing import LEAST, MOST, WARM, World, in_turn
from hpccoll.tools.bench.provenance import record
from hpccoll.tools.bench.records import SCHEMA
from hpccoll.tools.bench.report import Lines, header
from hpccoll.tools.bench.session import Buffers, Options, plan_cases
from hpccoll.tune.table import Candidate

#: Elements of the computation's array: it fits into the cache, and is large enough for NumPy to
#: release Python's lock.
WORKED = 2048
#: Kinds of work: NumPy releases Python's lock, Python does not, and ``asleep`` models a wait for a
#: device, which leaves a processor idle.
WORK = NUMPY, PYTHON, ASLEEP = "numpy", "python", "asleep"
#: Number of repetitions of a case.
REPETITIONS = 5


class Overlap(NamedTuple):
    """Times of one candidate on one case; seconds of every iteration's slowest rank."""

    collective: str
    candidate: str
    ranks: int
    root: int | None
    nbytes: int
    dtype: str | None
    op: str | None
    in_place: bool
    tests: int
    work: str
    pure_seconds: tuple[float, ...]
    alone_seconds: tuple[float, ...]
    compute_seconds: tuple[float, ...]
    overlapped_seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...]
    wrong: int
    changed: int

    @property
    def medians(self) -> dict[str, float]:
        """Return the median seconds of each kind of time."""
        return {name: float(numpy.median(times)) for name, times in (
            ("pure", self.pure_seconds), ("alone", self.alone_seconds),
            ("compute", self.compute_seconds), ("overlapped", self.overlapped_seconds),
            ("processor", self.processor_seconds))}

    @property
    def percent(self) -> float:
        """Return the overlap in per cent."""
        times = self.medians
        return min(max(100 - 100 * (times["overlapped"] - times["compute"]) / times["pure"], 0.0),
                   100.0)

    @property
    def gain(self) -> float:
        """Return the gain in per cent of the collective; negative for a loss."""
        times = self.medians
        return 100 * (times["alone"] + times["pure"] - times["overlapped"]) / times["pure"]

    @property
    def failures(self) -> int:
        """Return the number of wrong and changed elements."""
        return self.wrong + self.changed


class Computation:
    """Computation of one kind and a chosen length."""

    def __init__(self, comm: MPI.Intracomm, kind: str = NUMPY):
        self.kind, self.array = kind, numpy.ones(WORKED)
        self.do = {NUMPY: self.roots, PYTHON: _sums, ASLEEP: _sleep}[kind]
        self.do(100)
        seconds = []
        for _ in range(20):
            comm.Barrier()
            start = perf_counter()
            self.do(20)
            seconds.append((perf_counter() - start) / 20)
        self.unit = comm.allreduce(float(numpy.median(seconds)), MPI.MAX)

    def units(self, seconds: float) -> int:
        """Return the units of work that last ``seconds``, at least one."""
        return max(round(seconds / self.unit), 1)

    def roots(self, units: int) -> None:
        """Compute square roots of an array in the cache."""
        array, root = self.array, numpy.sqrt
        for _ in range(units):
            root(array, array)


def _sums(units: int) -> None:
    """Compute with Python numbers."""
    total = 0
    for number in range(20 * units):
        total += number * number


def _sleep(units: int) -> None:
    sleep(10e-6 * units)


class OverlapRunner:
    """Runner of one candidate on one case: times it with and without computation."""

    def __init__(self, world: World, case: Case, candidate: Candidate, method: Callable,
                 memory: CaseBuffers):
        self.world, self.case, self.candidate = world, case, candidate
        self.method, self.memory = method, memory
        self.pure: list[float] = []
        self.alone: list[float] = []
        self.compute: list[float] = []
        self.overlapped: list[float] = []
        self.processor: list[float] = []
        self.wrong = self.changed = 0
        #: Processor time of the process at the start of the last iteration.
        self.used = 0.0

    def begin(self) -> tuple[float, MPI.Request]:
        """Begin the collective on all ranks, after a barrier."""
        if self.memory.restorable:
            self.memory.restore()
        self.world.control.Barrier()
        self.used = process_time()
        return perf_counter(), self.method(*self.memory.arguments)

    def time_blocking(self, iterations: int) -> list[float]:
        """Time iterations that wait immediately."""
        times = []
        for _ in range(iterations):
            start, request = self.begin()
            request.Wait()
            times.append(perf_counter() - start)
        return times

    def time_overlap(self, iterations: int, work: Computation, units: int, tests: int) -> None:
        """Time iterations that compute before they wait."""
        slices = numpy.diff(numpy.linspace(0, units, tests + 2).astype(int))
        for _ in range(iterations):
            self.world.control.Barrier()
            used, start = process_time(), perf_counter()
            work.do(units)
            self.alone.append(perf_counter() - start)
            used -= process_time()
            start, request = self.begin()
            used -= self.used
            begun = perf_counter()
            testing = 0.0
            for number, part in enumerate(slices):
                if number:
                    before = perf_counter()
                    request.Test()
                    testing += perf_counter() - before
                work.do(int(part))
            computed = perf_counter() - begun - testing
            request.Wait()
            self.overlapped.append(perf_counter() - start)
            self.compute.append(computed)
            self.processor.append(used + process_time())

    def check(self, iteration: int, work: Computation) -> None:
        """Run with computation on fresh data, and check all results."""
        self.memory.refill(iteration)
        _, request = self.begin()
        work.do(1)
        request.Wait()
        self.wrong += self.memory.wrong(iteration)
        self.changed += self.memory.count_changed_input(iteration)

    def max_over_ranks(self, times: Sequence[float]) -> tuple[float, ...]:
        """Return the slowest rank's time for every iteration, on all ranks; collective."""
        longest = numpy.array(times)
        self.world.control.Allreduce(MPI.IN_PLACE, longest, MPI.MAX)
        return tuple(map(float, longest))

    def result(self, tests: int, work: str) -> Overlap:
        """Gather the ranks' results; the same on all ranks."""
        case, total = self.case, numpy.array([self.wrong, self.changed])
        self.world.control.Allreduce(MPI.IN_PLACE, total)
        return Overlap(case.collective, self.candidate.label, case.size,
                       case.root if case.rule.rooted else None, case.nbytes,
                       case.dtype.name if case.count else None, case.op, case.in_place, tests, work,
                       self.max_over_ranks(self.pure), self.max_over_ranks(self.alone),
                       self.max_over_ranks(self.compute), self.max_over_ranks(self.overlapped),
                       self.max_over_ranks(self.processor), int(total[0]), int(total[1]))


class OverlapOutcome(NamedTuple):
    """Outcome of the measurement; the environment is on rank 0."""

    groups: list[list[Overlap]]
    environment: dict[str, Any] | None
    failures: int
    interrupted: bool


class OverlapReport(Protocol):
    """Receiver of the results, on rank 0."""

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Handle the start of the measurement."""

    def begin_collective(self, name: str) -> None:
        """Handle the start of a collective."""

    def group(self, results: Sequence[Overlap], refused: Mapping[str, str]) -> None:
        """Handle a measured case; ``refused`` maps unsupported candidates to reasons."""

    def end(self, failures: int, interrupted: bool) -> None:
        """Handle the end of the measurement."""


def run(comm: MPI.Intracomm, options: Options, tests: int, report: OverlapReport | None,
        works: Sequence[str] = (NUMPY,), stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[str, float], None] = lambda name, part: None) -> OverlapOutcome:
    """Run the benchmark; collective.

    Args:
        comm: communicator of the ranks.
        options: of the benchmark; already checked.
        tests: calls of ``Test`` during the computation.
        report: receiver of results on rank 0.
        works: kinds of work, of :data:`WORK`.
        stopped, progress: as for a benchmark of blocking collectives.
    """
    world = World(comm, options.settings, Comm)
    todo = plan_cases(options, world.size)
    buffers = Buffers(world, options, todo)
    environment = record(comm, options.layout)
    if environment is not None:
        environment["buffers"] = buffers.kind
    computations = [Computation(world.control, work) for work in works]
    if report is not None and environment is not None:
        report.begin(environment)
    groups: list[list[Overlap]] = []
    failures, latest, interrupted = 0, "", False
    for number, case in enumerate(todo):
        interrupted = world.control.bcast(stopped())
        if interrupted:
            break
        progress(f"i{case.collective} {case.nbytes}", number / len(todo))
        memory, = buffers.make(case, 1)
        chosen, refused = NonblockingForm.select(options.wanted, case, memory, options.hierarchical)
        results = [result for work in computations
                   for result in _measure(world, case, chosen, memory, work, tests)]
        failures += sum(r.failures for r in results)
        if results:
            groups.append(results)
        if report is not None:
            if case.collective != latest:
                latest = case.collective
                report.begin_collective(latest)
            report.group(results, refused)
    interrupted = world.control.bcast(interrupted or stopped())
    if report is not None:
        report.end(failures, interrupted)
    world.free()
    return OverlapOutcome(groups, environment, failures, interrupted)


def _measure(world: World, case: Case, chosen: Sequence[Candidate], memory: CaseBuffers,
             work: Computation, tests: int) -> list[Overlap]:
    settings = world.settings
    with ExitStack() as stack:
        runners = [OverlapRunner(world, case, c, stack.enter_context(
            world.method(c, case.collective, NonblockingForm)), memory) for c in chosen]
        longest = 0.0
        for runner in runners:
            runner.check(0, work)
            runner.time_blocking(WARM if settings.warmup is None else settings.warmup)
            longest = max(longest,
                          float(numpy.median(runner.max_over_ranks(runner.time_blocking(3)))))
        # Time per candidate: once pure, once for the work alone, and twice for both.
        each = settings.iterations or min(max(int(settings.seconds / 4 / longest), LEAST), MOST)
        batches = [len(part) for part in numpy.array_split(range(each), REPETITIONS) if len(part)]
        for repetition, batch in enumerate(batches):
            for runner in in_turn(runners, repetition):
                runner.pure += runner.time_blocking(batch)
        units = work.units(max(float(numpy.median(r.max_over_ranks(r.pure))) for r in runners))
        for repetition, batch in enumerate(batches):
            for runner in in_turn(runners, repetition):
                runner.time_overlap(batch, work, units, tests)
        for runner in runners:
            runner.check(1, work)
        return [runner.result(tests, work.kind) for runner in runners]


class OverlapTable(Lines):
    """Table, grouped by size; comment lines start with ``#``."""

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Write the header."""
        for line in header(environment):
            self.say(line)
        self.say("nonblocking collectives: pure is start and wait; alone is the work without a "
                 "pending call; total is start, work, wait; times are medians in us")
        self.say("overlap is 100 % - (total - work meanwhile) / pure: the hidden part of the "
                 "collective; gain is (alone + pure - total) / pure: the saved part")
        self.say("cpu is processor time of a rank minus that of the work alone, waits included")

    def begin_collective(self, name: str) -> None:
        """Write the head of the columns."""
        self.say("")
        self.say(f"i{name}", "bold")
        self.say(f"{'size':>11} {'type':>10} {'redop':>6} {'root':>5} | {'candidate':20} "
                 f"{'work':6} {'pure(us)':>11} {'alone(us)':>11} {'total(us)':>11} "
                 f"{'overlap%':>9} {'gain%':>7} {'cpu(us)':>11} {'#wrong':>7}")

    def group(self, results: Sequence[Overlap], refused: Mapping[str, str]) -> None:
        """Write the lines of one case."""
        for label, problem in refused.items():
            self.say(f"{label} is omitted: {problem}")
        for number, r in enumerate(results):
            times = {name: 1e6 * seconds for name, seconds in r.medians.items()}
            root = "-" if r.root is None else r.root
            where = (f"{r.nbytes:>13} {r.dtype or '-':>10} {r.op or '-':>6} {root:>5}"
                     if number == 0 else " " * 37)
            line = Text(f"{where} | {r.candidate:20} {r.work:6} {times['pure']:11.2f} "
                        f"{times['alone']:11.2f} {times['overlapped']:11.2f} {r.percent:9.1f} "
                        f"{r.gain:7.1f} {times['processor']:11.2f}")
            line.append(f" {r.failures:7}", "bold red" if r.failures else "")
            self.write(line)

    def end(self, failures: int, interrupted: bool) -> None:
        """Write the footer."""
        self.say("")
        self.say(f"wrong elements: {failures}", "bold red" if failures else "")
        if interrupted:
            self.say("interrupted: some cases were not measured", "bold red")


def write_record(file: TextIO, options: Options, outcome: OverlapOutcome) -> None:
    """Write environment, settings and all times as JSON."""
    entries = [{**r._asdict(), "statistics": {
        **{f"{name}_seconds": seconds for name, seconds in r.medians.items()},
        "overlap_percent": r.percent, "gain_percent": r.gain}}
        for group in outcome.groups for r in group]
    json.dump({"schema": SCHEMA, "environment": outcome.environment,
               "settings": options.as_data(), "complete": not outcome.interrupted,
               "results": [], "overlap": entries}, file, indent=1)
    file.write("\n")
