"""Calls with new sizes, on new communicators and in other spellings, compared with plain mpi4py.

Each call of a size class has a different size, so no rank has a cached plan for it. After some
calls the other arguments are in the cache, as in any program that runs for a while. hpccoll and
plain mpi4py take turns on the same memory, and each result is compared. Times are medians over the
calls, of the slowest rank in each.

An Allreduce of 1 MiB runs on the same arrays and on new ones in each call, as a program makes that
computes its operands.

A communicator is created, used for one small Allreduce, and freed. Memory is that of one additional
communicator that is not freed: used once, or some hundred times. The start is that of a process of
its own, :mod:`hpccoll.tools.bench.start`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple, TextIO

import numpy
from mpi4py import MPI
from rich.console import Console
from rich.table import Table

from hpccoll.comm import Comm
from hpccoll.config import OFF
from hpccoll.tools.bench.provenance import record
from hpccoll.tools.bench.records import SCHEMA
from hpccoll.tools.bench.report import Lines, header
from hpccoll.tools.bench.spellings import SpelledCall, measure
from hpccoll.tools.bench.start import Start, measure_start
from hpccoll.units import size_text, time_text

#: Bytes of a rank's block at the start of each class of sizes; calls of a class have up to twice
#: as many, or 64 elements more.
CLASSES = (8, 1 << 10, 8 << 10, 32 << 10, 256 << 10)
#: Calls of a class, and of these the first ones, which fill the cache; freed communicators; and
#: communicators that are not freed, with the calls on a busy one.
CALLS, KNOWN, MADE, KEPT, BUSY = 60, 12, 150, 30, 200
#: Elements of the calls on new arrays, 1 MiB.
LARGE = 1 << 17
#: Methods with a new size in each call.
METHODS = ("Bcast", "Allreduce", "Allgatherv", "Gatherv", "Scatterv", "Alltoallv")


class FreshSizes(NamedTuple):
    """Calls of one method, with a new size in each.

    Attributes:
        nbytes: bytes of the class; see :data:`CLASSES`.
        seconds, plain_seconds: median of a call, of hpccoll and of plain mpi4py.
        processor_seconds: processor time of a call of a new size beyond that of the same size the
            second time; median, of this rank.
        wrong: elements that differ from those of mpi4py.
    """

    method: str
    nbytes: int
    seconds: float
    plain_seconds: float
    processor_seconds: float
    wrong: int


class FreshArrays(NamedTuple):
    """An Allreduce of 1 MiB on ``new`` or on the ``same`` arrays; otherwise as in FreshSizes."""

    arrays: str
    seconds: float
    plain_seconds: float
    wrong: int


class FreshCommunicators(NamedTuple):
    """Communicators that are created, used once and freed; medians of one, as in FreshSizes."""

    method: str
    seconds: float
    plain_seconds: float


class CommunicatorMemory(NamedTuple):
    """Memory and files of a communicator that is not freed; maximum over ranks.

    Attributes:
        calls: calls on the communicator.
        shared_bytes: bytes of /dev/shm that this process has written or read; -1 if unknown.
        resident_bytes: resident memory of this process; -1 if unknown.
        files: open files of this process; -1 if unknown.
    """

    calls: int
    shared_bytes: int
    resident_bytes: int
    files: int


class FreshOutcome(NamedTuple):
    """Results of the benchmark; ``environment`` is set on rank 0 only."""

    sizes: list[FreshSizes]
    arrays: list[FreshArrays]
    communicators: list[FreshCommunicators]
    footprints: list[CommunicatorMemory]
    spellings: list[SpelledCall]
    start: Start | None
    environment: dict[str, Any] | None
    failures: int
    interrupted: bool

    def worst(self) -> float:
        """Return the largest ratio of the time with hpccoll to that of plain mpi4py."""
        return max((one.seconds / one.plain_seconds for one in self.sizes), default=1.0)

    def mean(self, method: str) -> float:
        """Return the geometric mean of the time ratios of a method."""
        ratios = [one.seconds / one.plain_seconds for one in self.sizes if one.method == method]
        return float(numpy.exp(numpy.mean(numpy.log(ratios)))) if ratios else 1.0


class FreshCalls:
    """Calls of every method with n elements in each block, on buffers of the largest size."""

    def __init__(self, rank: int, size: int, most: int):
        self.rank, self.size = rank, size
        self.source = numpy.arange(most * size, dtype="f8") % 11 + rank
        self.sink = numpy.zeros(most * size)

    def call(self, method: str, n: int) -> tuple[Callable[[Any], None], numpy.ndarray]:
        """Return a call as a function of the communicator, and the memory that it writes."""
        x, y, size = self.source, self.sink, self.size
        counts = [n] * size
        if method == "Bcast":
            return lambda comm: comm.Bcast(y[:n]), y[:n]
        if method == "Allreduce":
            return lambda comm: comm.Allreduce(x[:n], y[:n]), y[:n]
        if method == "Allgatherv":
            return lambda comm: comm.Allgatherv(x[:n], [y[:n * size], counts]), y[:n * size]
        if method == "Alltoallv":
            return (lambda comm: comm.Alltoallv([x[:n * size], counts], [y[:n * size], counts]),
                    y[:n * size])
        if method == "Gatherv":
            whole = [y[:n * size], counts] if self.rank == 0 else None
            return lambda comm: comm.Gatherv(x[:n], whole), y[:n * size if whole else 0]
        whole = [x[:n * size], counts] if self.rank == 0 else None
        return lambda comm: comm.Scatterv(whole, y[:n]), y[:n]


def sizes_of(nbytes: int) -> list[int]:
    """Return the distinct element counts of the calls of a class."""
    least = max(nbytes // 8, 1)
    return [least + number * max(least // CALLS, 1) for number in range(CALLS)]


def run(comm: MPI.Intracomm, console: Console | None, json_path: TextIO | None = None,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[str, float], None] = lambda name, part: None) -> FreshOutcome:
    """Run the benchmark; collective.

    Args:
        comm: communicator of the ranks.
        console: for the table, on rank 0.
        json_path: file of the record, on rank 0.
        stopped, progress: as for a benchmark of blocking collectives.
    """
    control = MPI.Intracomm(comm.Dup())
    meet = Comm(control, tuning=OFF).Barrier
    environment = record(comm, None)
    todo = [(method, nbytes) for method in METHODS for nbytes in CLASSES]
    # First: later communicators would reuse memory that earlier ones have freed.
    footprints = [_footprint(control, calls) for calls in (1, BUSY)]
    sizes, interrupted = [], False
    for number, (method, nbytes) in enumerate(todo):
        interrupted = control.bcast(stopped())
        if interrupted:
            break
        progress(f"{method} {size_text(nbytes)}", number / (len(todo) + 2))
        sizes.append(_sizes(control, meet, method, nbytes))
    arrays = [] if interrupted else [
        _arrays(control, meet, kind) for kind in ("same", "new")]
    communicators = [] if interrupted else [
        _communicators(control, meet, method) for method in ("Dup", "Split")]
    spellings: list[SpelledCall] = []
    if not interrupted:
        progress("spellings", len(todo) / (len(todo) + 2))
        spellings += measure(control, meet, _median_of_slowest)
    start = None
    if not interrupted:
        progress("start", (len(todo) + 1) / (len(todo) + 2))
        start = control.bcast(measure_start() if comm.Get_rank() == 0 else None)
    measured: tuple[FreshSizes | FreshArrays | SpelledCall, ...] = *sizes, *arrays, *spellings
    outcome = FreshOutcome(sizes, arrays, communicators, footprints, spellings, start, environment,
                           sum(one.wrong for one in measured), interrupted)
    if console is not None and environment is not None:
        show(console, outcome, environment)
    if json_path is not None and environment is not None:
        json.dump({"schema": SCHEMA, "environment": environment, **{
            name: [one._asdict() for one in getattr(outcome, name)]
            for name in ("sizes", "arrays", "communicators", "footprints", "spellings")},
            "start": start._asdict() if start is not None else None}, json_path, indent=1)
        json_path.write("\n")
    control.Free()
    return outcome


def _median_of_slowest(control: MPI.Intracomm, times: Sequence[float]) -> float:
    """Return the median over calls of the slowest rank's time."""
    longest = numpy.array(times)
    control.Allreduce(MPI.IN_PLACE, longest, MPI.MAX)
    return float(numpy.median(longest))


def _sizes(control: MPI.Intracomm, meet: Callable[[], None], method: str, nbytes: int
           ) -> FreshSizes:
    sizes = sizes_of(nbytes)
    calls = FreshCalls(control.rank, control.size, sizes[-1])
    ours, plain = Comm(MPI.Intracomm(control.Dup())), MPI.Intracomm(control.Dup())
    _ = ours.layout  # the first access creates communicators
    times: tuple[list[float], list[float]] = [], []
    extra, wrong = [], 0
    for number, n in enumerate(sizes):
        call, written = calls.call(method, n)
        results = []
        for which in (0, 1) if number % 2 else (1, 0):
            written[...] = calls.source[:written.size] if (
                method == "Bcast" and control.rank == 0) else -1
            meet()
            begun, start = thread_time(), perf_counter()
            call((ours, plain)[which])
            times[which].append(perf_counter() - start)
            if which == 0:
                new = thread_time() - begun
            results.append(written.copy())
        meet()
        begun = thread_time()
        call(ours)
        extra.append(new - (thread_time() - begun))
        wrong += int((results[0] != results[1]).sum())
    ours.Free()
    plain.Free()
    return FreshSizes(method, nbytes, _median_of_slowest(control, times[0][KNOWN:]),
                      _median_of_slowest(control,
                                         times[1][KNOWN:]), float(numpy.median(extra[KNOWN:])),
                      control.allreduce(wrong))


def _arrays(control: MPI.Intracomm, meet: Callable[[], None], arrays: str) -> FreshArrays:
    comms = Comm(MPI.Intracomm(control.Dup())), MPI.Intracomm(control.Dup())
    times: tuple[list[float], list[float]] = [], []
    kept = [(numpy.ones(LARGE), numpy.zeros(LARGE)) for _ in comms]
    wrong = 0
    for number in range(CALLS):
        for which in (0, 1) if number % 2 else (1, 0):
            if arrays == "new":
                kept[which] = numpy.ones(LARGE), numpy.empty(LARGE)
            x, y = kept[which]
            meet()
            start = perf_counter()
            comms[which].Allreduce(x, y)
            times[which].append(perf_counter() - start)
            wrong += int((y != control.size).sum())
    for comm in comms:
        comm.Free()
    seconds, plain_seconds = (_median_of_slowest(control, each[KNOWN:]) for each in times)
    return FreshArrays(arrays, seconds, plain_seconds, control.allreduce(wrong))


def _communicators(control: MPI.Intracomm, meet: Callable[[], None], method: str
                   ) -> FreshCommunicators:
    parents = Comm(MPI.Intracomm(control.Dup())), MPI.Intracomm(control.Dup())
    times: tuple[list[float], list[float]] = [], []
    x, y = numpy.ones(4), numpy.empty(4)
    for number in range(MADE):
        for which in (0, 1) if number % 2 else (1, 0):
            meet()
            start = perf_counter()
            made = parents[which].Dup() if method == "Dup" else parents[which].Split(0)
            made.Allreduce(x, y)
            made.Free()
            times[which].append(perf_counter() - start)
    for parent in parents:
        parent.Free()
    return FreshCommunicators(method,
                              *(_median_of_slowest(control, each[KNOWN:]) for each in times))


def _footprint(control: MPI.Intracomm, calls: int) -> CommunicatorMemory:
    """Measure communicators that are not freed; the first one is not counted."""
    parent, x, y = Comm(MPI.Intracomm(control.Dup())), numpy.ones(4), numpy.empty(4)
    kept = []

    def more(number: int) -> Iterator[int]:
        for _ in range(number):
            kept.append(parent.Dup())
            for _ in range(calls):
                kept[-1].Allreduce(x, y)
        control.Barrier()
        return iter(_memory_use())

    before, after = more(1), more(KEPT)
    used = [max(last - first, 0) / KEPT if first >= 0 else -1
            for first, last in zip(before, after)]
    for one in [*kept, parent]:
        one.Free()
    most = control.allreduce(numpy.array(used), lambda one, other: numpy.maximum(one, other))
    return CommunicatorMemory(calls, *map(round, most))


def _memory_use() -> tuple[int, int, int]:
    """Return resident bytes of shared memory of hpccoll and of all, and open files; -1 if unknown.

    Mappings are counted, not the use of the file system: other programs have files there, too, and
    the files of communicators have no names.
    """
    try:
        shared = resident = 0
        ours = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if line.startswith("Rss:"):
                nbytes = int(line.split()[1]) << 10
                resident += nbytes
                shared += nbytes * ours
            elif "-" in line.split(" ")[0]:
                ours = "/dev/shm/#" in line
        return shared, resident, len(os.listdir("/proc/self/fd"))
    except OSError:
        return -1, -1, -1


def show(console: Console, outcome: FreshOutcome, environment: Mapping[str, Any]) -> None:
    """Print the tables on rank 0."""
    lines = Lines(console)
    for line in header(environment):
        lines.say(line)
    lines.say("each call has a new size; hpccoll's time over that of plain mpi4py, by bytes of a "
              "block;")
    lines.say("processor time of a new size beyond that of a known one")
    table = Table("method", *map(size_text, CLASSES), "mean", "processor time", box=None)
    for method in METHODS:
        found = [one for one in outcome.sizes if one.method == method]
        if found:
            table.add_row(
                method, *("wrong" if one.wrong else f"{one.seconds / one.plain_seconds:.2f}"
                          for one in found),
                *[""] * (len(CLASSES) - len(found)), f"{outcome.mean(method):.2f}",
                time_text(max(float(numpy.median([one.processor_seconds for one in found])), 0.0),
                          2))
    console.print(table)
    if outcome.spellings:
        lines.say("calls of 64 B, by the spelling of buffers and counts")
        spelled = Table("method", "buffer", "counts", "plain", "hpccoll", box=None)
        for each in outcome.spellings:
            spelled.add_row(*each[:3], time_text(each.plain_seconds, 2),
                            "wrong" if each.wrong else time_text(each.seconds, 2))
        console.print(spelled)
    for kind in outcome.arrays:
        lines.say(f"Allreduce of 1 MiB, {kind.arrays} arrays in each call: "
                  + ("wrong" if kind.wrong else f"{time_text(kind.seconds, 3)}, plain mpi4py "
                                                f"{time_text(kind.plain_seconds, 3)}"))
    for made in outcome.communicators:
        lines.say(f"{made.method}, one Allreduce, Free: {time_text(made.seconds, 3)}, "
                  f"{made.seconds / made.plain_seconds:.1f} times plain mpi4py")
    if outcome.start is not None:
        start = outcome.start
        lines.say(f"a process without calls takes {time_text(start.seconds, 3)} of processor "
                  f"time, plain mpi4py and NumPy {time_text(start.plain_seconds, 3)}")
    for one in outcome.footprints:
        shared, resident = (size_text(each) if each >= 0 else "unknown"
                            for each in (one.shared_bytes, one.resident_bytes))
        lines.say(f"a communicator with {one.calls} call{'s' * (one.calls > 1)} takes {shared} of "
                  f"/dev/shm, {resident} of memory, {one.files} files")
    if outcome.interrupted:
        lines.say("interrupted")
