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

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI
from rich.text import Text

from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.call_forms import AwaitedForm, NonblockingForm
from hpccoll.measure.cases import Case
from hpccoll.measure.samples import sample
from hpccoll.measure.timing import Runner, World, measure, measure_rows
from hpccoll.tools.bench import session
from hpccoll.tools.bench.report import BenchReport, BenchTable
from hpccoll.tools.bench.session import Buffers, Options, Outcome
from hpccoll.tune.table import Candidate

#: Elements of the computation's array: it fits into the cache, and is large enough for NumPy to
#: release Python's lock.
WORKED = 2048
#: Kinds of work: NumPy releases Python's lock, Python does not, and ``asleep`` models a wait for a
#: device, which leaves a processor idle.
WORK = NUMPY, PYTHON, ASLEEP = "numpy", "python", "asleep"


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
        seconds = sample(lambda: self.do(20), 20, comm.Barrier)
        self.unit = comm.allreduce(float(numpy.median(seconds)) / 20, MPI.MAX)

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


class OverlappedForm(NonblockingForm):
    """A call that computes before its wait; subclasses set the attributes.

    Attributes:
        barrier: a barrier of all ranks.
        tests: calls of ``Test`` in it.
    """

    barrier: Callable[[], Any]
    work: Computation
    units: int
    tests: int

    def __init__(self, memory: CaseBuffers, method: Callable):
        super().__init__(memory, self.overlap)
        self.begin = method
        self.slices = numpy.diff(numpy.linspace(0, self.units, self.tests + 2).astype(int))
        self.row: tuple[float, ...] = ()
        self.alone = self.used = 0.0

    def prepare(self) -> None:
        self.barrier()
        used, start = process_time(), perf_counter()
        self.work.do(self.units)
        self.alone = perf_counter() - start
        self.used = process_time() - used
        super().prepare()

    def overlap(self, *arguments: Any) -> None:
        """Begin, compute and test, wait."""
        used, start = process_time(), perf_counter()
        request = self.begin(*arguments)
        begun, testing = perf_counter(), 0.0
        for number, part in enumerate(self.slices):
            if number:
                before = perf_counter()
                request.Test()
                testing += perf_counter() - before
            self.work.do(int(part))
        computed = perf_counter() - begun - testing
        request.Wait()
        total = perf_counter() - start
        self.row = self.alone, computed, total, process_time() - used - self.used

    def sample(self, seconds: float) -> tuple[float, ...]:
        """Return the seconds of the work alone, the work meanwhile, the total, the processor."""
        return self.row


def run(comm: MPI.Intracomm, options: Options, tests: int, reports: Sequence[BenchReport] = (),
        works: Sequence[str] = (NUMPY,), stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[str, float], None] = lambda name, part: None) -> Outcome:
    """Run the benchmark; collective.

    Args:
        options: of the benchmark; already checked.
        tests: calls of ``Test`` during the computation.
        reports: receivers of results on rank 0.
    """
    computations = [Computation(comm, work) for work in works]

    def visit(world: World, options: Options, case: Case, buffers: Buffers,
              *course: Any) -> tuple[list[Overlap], dict[str, str]]:
        memory, = buffers.make(case, 1)
        chosen, refused = NonblockingForm.select(options.wanted, case, memory, options.hierarchical)
        return [result for work in computations if chosen for result in
                _measure(world, case, chosen, memory, work, tests, *course)], refused

    return session.run(comm, options, reports, stopped, progress, visit)


def _measure(world: World, case: Case, chosen: Sequence[Candidate], memory: CaseBuffers,
             work: Computation, tests: int, stopped: Callable[[], bool],
             progress: Callable[[str, float], None]) -> list[Overlap]:
    """Measure all candidates pure, then with work as long as the slowest of them takes."""
    settings = world.settings._replace(seconds=world.settings.seconds / 2)
    pure = measure(world, case, chosen, [memory], stopped, progress,
                   settings._replace(form=AwaitedForm))
    units = world.control.bcast(work.units(max((one.median for one in pure), default=0.0)))
    by_label = {one.candidate: one for one in pure}

    def read(runner: Runner) -> Overlap | None:
        times = runner.slowest()
        found = world.control.gather((runner.wrong, runner.changed))
        if found is None:
            return None
        label = runner.candidate.label
        alone, compute, total, processor = (tuple(map(float, column)) for column in times.T)
        wrong, changed = numpy.sum(found, axis=0).tolist()
        one = by_label[label]
        return Overlap(one.collective, label, one.ranks, one.root, one.nbytes, one.dtype, one.op,
                       one.in_place, tests, work.kind, one.seconds, alone, compute, total,
                       processor, one.wrong + wrong, one.changed + changed)

    form = type("Form", (OverlappedForm,), {"barrier": staticmethod(world.meet), "work": work,
                                            "units": units, "tests": tests})
    return measure_rows(read, world, case, chosen, [memory], stopped, progress,
                        settings._replace(form=form))


class OverlapTable(BenchTable):
    """Table, grouped by size; comment lines start with ``#``."""

    def begin(self, environment: Mapping[str, Any]) -> None:
        super().begin(environment)
        self.say("nonblocking collectives: pure is start and wait; alone is the work without a "
                 "pending call; total is start, work, wait; times are medians in us")
        self.say("overlap is 100 % - (total - work meanwhile) / pure: the hidden part of the "
                 "collective; gain is (alone + pure - total) / pure: the saved part")
        self.say("cpu is processor time of a rank minus that of the work alone, waits included")

    def begin_collective(self, name: str, labels: Sequence[str]) -> None:
        self.say("")
        self.say(f"i{name}", "bold")
        self.say(f"{'size':>11} {'type':>10} {'redop':>6} {'root':>5} | {'candidate':20} "
                 f"{'work':6} {'pure(us)':>11} {'alone(us)':>11} {'total(us)':>11} "
                 f"{'overlap%':>9} {'gain%':>7} {'cpu(us)':>11} {'#wrong':>7}")

    def group(self, results: Sequence[Any], refused: Mapping[str, str]) -> None:
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

    def end(self, groups: Sequence[Sequence[Any]], interrupted: bool) -> None:
        failures = sum(r.failures for group in groups for r in group)
        self.say("")
        self.say(f"wrong elements: {failures}", "bold red" if failures else "")
        if interrupted:
            self.say("interrupted: some cases were not measured", "bold red")


def as_data(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the results for the record."""
    return [{**r._asdict(), "statistics": {
        **{f"{name}_seconds": seconds for name, seconds in r.medians.items()},
        "overlap_percent": r.percent, "gain_percent": r.gain}}
        for group in outcome.groups for r in group]
