"""Benchmark session: from options to the last report, on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.comm import Comm
from hpccoll.config import NATIVE, load
from hpccoll.cuda import device_namespace, use_device
from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology
from hpccoll.measure import call_forms
from hpccoll.measure import candidates as choosing
from hpccoll.measure.buffers import Arena, CaseBuffers, DeviceBuffers
from hpccoll.measure.cases import Case, make
from hpccoll.measure.results import Result, merge_rounds
from hpccoll.measure.timing import Settings, World, measure
from hpccoll.tools.bench.provenance import record
from hpccoll.tools.bench.report import BenchReport
from hpccoll.tools.bench.roofline import SHOWN, copy_rate, min_seconds
from hpccoll.tools.bench.torch_groups import BACKENDS, check_available, objection, open_groups


class Options(NamedTuple):
    """Options of a benchmark, the same on every rank; see the command line."""

    collectives: Sequence[str]
    sizes: Sequence[int]
    dtype: numpy.dtype
    op: str = "sum"
    root: int = 0
    in_place: bool = False
    uneven: bool = False
    osu: bool = False
    wanted: Sequence[choosing.Candidate] = ()
    settings: Settings = Settings()
    registered: bool = False
    peers: bool = False
    sweeps: int = 1
    on_device: bool = False

    @property
    def layout(self) -> str | None:
        """Return the pretend layout as text."""
        return None if self.settings.topology is None else str(self.settings.topology)

    def buffers(self, case: Case, rank: int, empty: Callable[..., Any] | None = None
                ) -> CaseBuffers:
        """Return the buffers of a case, in unregistered memory unless ``empty`` is given."""
        if self.on_device:
            return DeviceBuffers(case, rank, empty)
        return CaseBuffers(case, rank, empty or numpy.empty)

    @property
    def hierarchical(self) -> bool:
        """Return True if a layout is given, which hierarchical algorithms need."""
        return self.settings.topology is not None

    def as_data(self) -> dict[str, Any]:
        settings = self.settings._asdict()
        return {**self._asdict(), "dtype": self.dtype.name,
                "wanted": [c.label for c in self.wanted],
                "settings": {**settings, "topology": self.layout,
                             "form": self.settings.form.word}}


class Outcome(NamedTuple):
    """Outcome of a benchmark; groups and environment are on rank 0."""

    groups: list[Any]
    environment: dict[str, Any] | None
    failures: int
    interrupted: bool


def check(options: Options, size: int) -> None:
    """Raise for invalid options before communication starts; the same on every rank."""
    load()
    if not 0 <= options.root < size:
        raise ArgumentError("--root", f"{options.root} is not a rank of 0..{size - 1}")
    if options.settings.topology is not None:
        Topology.parse(options.settings.topology, size)
    form = options.settings.form
    if options.on_device and (options.peers or form is not call_forms.BlockingForm):
        raise ArgumentError("--device", "does not go with --peers or other --calls",
                            "measure blocking calls of MPI and hpccoll")
    if options.peers:
        check_available()
    if options.on_device:
        node_comm = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        problem = use_device(node_comm.Get_rank())
        node_comm.Free()
        if problem:
            raise ArgumentError("--device", problem, "measure without it")
    call_forms.check(form, options.collectives, options.in_place, options.peers)
    choosing.check(options.wanted, options.collectives, size)
    refused: dict[str, str] = {}
    for name in options.collectives:
        case = next(cases(options, name, size))
        chosen, problems = form.select(options.wanted, case, options.buffers(case, 0),
                                       options.hierarchical)
        if chosen:
            return
        refused.update(problems)
    reasons = "; ".join(f"{label} cannot run: {why}" for label, why in refused.items())
    raise ArgumentError("--algorithm", reasons, f"add another candidate, such as {NATIVE}")


def cases(options: Options, collective: str, size: int) -> Iterator[Case]:
    """Yield the cases of one collective: one per size, each once."""
    seen = set()
    for nbytes in options.sizes:
        case = make(collective, size, nbytes, options.dtype, options.op, options.root,
                    options.in_place, options.uneven, options.osu)
        if case.counts not in seen:
            seen.add(case.counts)
            yield case


def plan_cases(options: Options, size: int) -> list[Case]:
    """Return all cases, in order."""
    return [case for name in options.collectives for case in cases(options, name, size)]


class Buffers:
    """Factory of sets of buffers, each valid until the next; the constructor is collective.

    Attributes:
        kind: ``"ordinary"``, ``"registered"``, or ``"unregistered"`` if registration failed; on
            GPUs with the prefix ``"device"``, and ``"device"`` alone for ordinary buffers.
    """

    def __init__(self, world: World, options: Options, todo: Sequence[Case]):
        self.rank, self.arena, self.options = world.rank, None, options
        self.kind = "device" if options.on_device else "ordinary"
        if options.registered:
            largest = max(case.nbytes for case in todo)
            self.arena = Arena(world.measured, Comm, largest, options.settings.rotate,
                               options.settings.topology,
                               device_namespace() if options.on_device else numpy)
            found = "registered" if self.arena.registered else "unregistered"
            self.kind = f"device {found}" if options.on_device else found

    def make(self, case: Case, sets: int) -> list[CaseBuffers]:
        if self.arena is None:
            return [self.options.buffers(case, self.rank) for _ in range(sets)]
        self.arena.clear()
        return [self.options.buffers(case, self.rank, self.arena.empty) for _ in range(sets)]


#: Measures a case: gets world, options, case, buffers, and the callbacks of :func:`run`. Returns
#: the results, and why candidates are unsupported.
Visit = Callable[..., tuple[list[Any], dict[str, str]]]


def run(comm: MPI.Intracomm, options: Options, reports: Sequence[BenchReport],
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[str, float], None] = lambda name, part: None,
        visit: Visit | None = None) -> Outcome:
    """Run the benchmark; collective.

    Args:
        options: options of the benchmark, checked by :func:`check`.
        reports: receivers of results on rank 0.
        stopped: callback on rank 0, returns True to end early.
        progress: callback on rank 0, called with the current case and the completed share.
        visit: measures a case; blocking calls if omitted.
    """
    # A library without support for device memory would crash in its own method.
    world = World(comm, _spread(options.settings, options.sweeps), Comm, options.on_device)
    todo = plan_cases(options, world.size)
    limited = visit is None and max(c.nbytes for c in todo) >= SHOWN
    rate = copy_rate(world.control, options.on_device) if limited else 0.0
    visit = visit or partial(_visit, rate)
    buffers = Buffers(world, options, todo)
    if options.peers:
        world.peers |= open_groups(world.control)
    environment = record(comm, options.layout)
    listeners: list[BenchReport] = []
    if environment is not None:
        listeners += reports
        environment |= {"copy_rate": rate, "buffers": buffers.kind,
                        "calls": options.settings.form.about,
                        "peers": {name: group.version for name, group in world.peers.items()}}
        for report in listeners:
            report.begin(environment)
    latest = ""
    by_number: dict[int, tuple[list[Any], dict[str, str]]] = {}

    def show(number: int) -> None:
        nonlocal latest
        name = todo[number].collective
        if name != latest:
            latest = name
            for report in listeners:
                report.begin_collective(name, _labels(options, name, world.size))
        for report in listeners:
            report.group(*by_number[number])

    interrupted, total, shown = False, options.sweeps * len(todo), 0
    for turn in range(total):
        interrupted = world.control.bcast(stopped())
        if interrupted:
            break
        number = turn % len(todo)
        results, refused = visit(world, options, todo[number], buffers, stopped,
                                 partial(_part, progress, turn, total))
        if number in by_number:
            results = merge_rounds(by_number[number][0], results)
        by_number[number] = results, refused
        if turn >= total - len(todo):
            show(number)
            shown += 1
    interrupted = world.control.bcast(interrupted or stopped())
    for number in range(shown, len(by_number)):
        show(number)
    groups = [results for results, _ in by_number.values() if results]
    for report in listeners:
        report.end(groups, interrupted)
    failures = world.control.bcast(sum(r.failures for group in groups for r in group))
    world.free()
    return Outcome(groups, environment, failures, interrupted)


def _visit(rate: float, world: World, options: Options, case: Case, buffers: Buffers,
           stopped: Callable[[], bool], progress: Callable[[str, float], None],
           ) -> tuple[list[Result], dict[str, str]]:
    """Measure blocking calls of one case."""
    memories = buffers.make(case, options.settings.rotate)
    chosen, refused = options.settings.form.select(options.wanted, case, memories[0],
                                                   options.hierarchical)
    if world.peers:
        problem = objection(case)
        refused |= dict.fromkeys(world.peers, problem) if problem else {}
        chosen += [] if problem else [choosing.Candidate(name) for name in world.peers]
    results = measure(world, case, chosen, memories, stopped, progress) if chosen else []
    limit = min_seconds(case, rate)
    return [r._replace(limit_seconds=limit) for r in results], refused


def _spread(settings: Settings, sweeps: int) -> Settings:
    iterations = settings.iterations and -(-settings.iterations // sweeps)
    return settings._replace(seconds=settings.seconds / sweeps, iterations=iterations)


def _part(progress: Callable[[str, float], None], number: int, total: int, name: str,
          part: float) -> None:
    """Return a callback that reports the total progress from that of one case."""
    progress(name, (number + part) / total)


def _labels(options: Options, name: str, size: int) -> list[str]:
    named = [choosing.expand(options.wanted, name, size, nbytes, options.hierarchical)
             for nbytes in options.sizes]
    labels = dict.fromkeys(c.label for expanded in named for c in expanded)
    return [*labels, *(BACKENDS if options.peers else ())]
