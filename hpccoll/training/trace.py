"""Timelines of arrays and buckets: recorded per rank, gathered, written for Perfetto.

    Recorder (one rank, clock of its node) --gather(comm)--> StepTimeline (all, clock of rank 0)

A recorder writes each :class:`TimedSpan` to the ring of events of its process, which keeps the last
ones. A timeline is written in the Trace Event Format of Chrome, which https://ui.perfetto.dev
shows: one process for each rank, one line for each name. :mod:`~hpccoll.training.report` defines
the times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy

from hpccoll import record_file
from hpccoll.config import load
from hpccoll.measure.clocks import seconds_ahead
from hpccoll.measure.profiling.merge import correct_times
from hpccoll.runtime.events.ring import events
from hpccoll.training.buckets import ArraySpec

#: Phases of an array or a bucket. Instants: ready on this rank, done. Spans: complete and waiting
#: to start, compressed or decompressed, in flight.
PHASES = READY, WAIT, COMPRESS, FLIGHT, DONE = "ready", "wait", "compress", "in flight", "done"
#: Phases of the whole rank: the exchange blocks its program; one step.
BLOCKED, STEP = "blocked", "step"
#: Line name of the phases of the whole rank.
PROGRAM = "step"
#: Largest number of spans of a timeline of all ranks.
GATHERED = 2_000_000
_numbers = count()


class TimedSpan(NamedTuple):
    """Event or span on one rank.

    Attributes:
        name: name of the array or bucket.
        phase: one of :data:`PHASES`, :data:`BLOCKED` or :data:`STEP`.
        start, stop: times in seconds; equal for an instant.
        nbytes: bytes of the array or bucket.
        wire_bytes: bytes that this rank sent for it.
    """

    name: str
    phase: str
    start: float
    stop: float
    nbytes: int = 0
    wire_bytes: float = 0.0


class Recorder:
    """Recorder of one rank's spans, with times of :func:`time.perf_counter`.

    Thread-safe.

    Args:
        rank: the rank.
        traced: False to keep the last step only.

    Attributes:
        last: the spans of the last step; its last one is the step.
    """

    def __init__(self, rank: int, traced: bool = True):
        self.rank, self._traced, self._number = rank, traced, next(_numbers)
        self.last: list[TimedSpan] = []
        self._step: list[TimedSpan] = []
        #: Pairs of local time and offset of rank 0's clock.
        self._clock_offsets: list[tuple[float, float]] = []
        self._step_began: float | None = None

    def add(self, name: str, phase: str, start: float, stop: float, nbytes: int = 0,
            wire_bytes: float = 0.0) -> None:
        """Record an event or span of an array or a bucket."""
        self._step.append(TimedSpan(name, phase, start, stop, nbytes, wire_bytes))
        if self._traced:
            events().add_span(self._number, name, phase, start, stop, nbytes, wire_bytes)

    @property
    def spans(self) -> list[TimedSpan]:
        """Return the spans that the ring still has."""
        return [TimedSpan(*span[1:]) for span in events().spans() if span[0] == self._number]

    def add_transfer(self, name: str, nbytes: int, ready: float, start: float,
                     wire_bytes: float) -> None:
        """Record a bucket that is done now.

        Args:
            ready: time at which its last array was submitted on this rank.
            start: time at which all ranks had submitted it.
            wire_bytes: bytes that this rank sent for it, by the closed form of its transfer.
        """
        now = time.perf_counter()
        self.add(name, WAIT, ready, start, nbytes)
        self.add(name, FLIGHT, start, now, nbytes, wire_bytes)
        self.add(name, DONE, now, now, nbytes)

    def record_blocked(self, start: float, stop: float) -> None:
        """Record an interval in which the exchange blocked the program."""
        self.add(PROGRAM, BLOCKED, start, stop)

    def begin_step(self, now: float) -> None:
        """Set the start of the next step, if it is not the end of the last one."""
        self._step_began = now

    def end_step(self, now: float) -> None:
        """Record the end of a step, which is also the start of the next one."""
        if self._step_began is None:
            self._step_began = min((span.start for span in tuple(self._step)), default=now)
        self.add(PROGRAM, STEP, self._step_began, now)
        self.last, self._step = self._step, []
        self._step_began = now

    def last_step(self) -> StepTimeline:
        """Return the timeline of the last step, of this rank only."""
        return StepTimeline({self.rank: self.last})

    def profile(self, specs: Sequence[ArraySpec]) -> dict[str, Any]:
        """Return sizes and ready times of arrays in the last step."""
        ready = {span.name: span.start - self.last[-1].start
                 for span in self.last if span.phase == READY}
        return {"arrays": [{**asdict(spec), "shape": list(spec.shape)} for spec in specs],
                "ready_seconds": [ready.get(spec.name, 0.0) for spec in specs],
                "backward_seconds": max(ready.values(), default=0.0)}

    def align(self, comm: Any) -> None:
        """Synchronize clocks with rank 0; collective.

        Clocks of nodes drift by some microseconds per second. Times between two calls are
        interpolated linearly; :meth:`gather` makes the last call.
        """
        self._clock_offsets.append((time.perf_counter(), seconds_ahead(comm)))

    def gather(self, comm: Any) -> StepTimeline:
        """Gather the spans of all ranks in rank 0's time, from the first span on; collective.

        Returns:
            The timeline; an empty one on other ranks than 0, for which :meth:`StepTimeline.save`
            writes nothing.
        """
        self.align(comm)
        spans = self.spans[-max(GATHERED // comm.Get_size(), 1):]
        times = correct_times(numpy.array([span[2:4] for span in spans]).reshape(-1, 2),
                              self._clock_offsets)
        gathered = comm.gather([tuple(span._replace(start=start, stop=stop))
                                for span, (start, stop) in zip(spans, times.tolist())], root=0)
        return _from_zero({rank: [TimedSpan(*fields) for fields in track]
                           for rank, track in enumerate(gathered or ())})

    def local_timeline(self) -> StepTimeline:
        """Return the timeline of this rank only, if other ranks are unreachable."""
        return _from_zero({self.rank: self.spans})


@dataclass(frozen=True)
class StepTimeline:
    """Timeline of several ranks on one clock, in seconds from the first span.

    Attributes:
        tracks: spans, by rank.
    """

    tracks: Mapping[int, Sequence[TimedSpan]]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline atomically, for https://ui.perfetto.dev and :func:`read`.

        Writes nothing for a timeline without ranks.

        Raises:
            OSError: the file cannot be written.
        """
        if not self.tracks:
            return
        record_file.write(path, record_file.STEPS, {"ranks": len(self.tracks)}, self._events())

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield trace events: ``M`` names a line, ``X`` is a span, ``i`` an instant."""
        for rank, spans in self.tracks.items():
            lines = {PROGRAM: 0}
            for span in spans:
                lines.setdefault(span.name, len(lines))
            yield from record_file.line_names(rank, f"rank {rank}", lines)
            for span in spans:
                event = {"name": span.phase, "pid": rank, "tid": lines[span.name],
                         "ts": round(span.start * 1e6, 3)}
                instant = span.phase in (READY, DONE)
                event |= {"ph": "i", "s": "t"} if instant else {
                    "ph": "X", "dur": round((span.stop - span.start) * 1e6, 3)}
                if span.nbytes or span.wire_bytes:
                    event["args"] = {"nbytes": span.nbytes, "wire_bytes": span.wire_bytes}
                yield event


def read(path: str | os.PathLike[str]) -> StepTimeline:
    """Read a file that :meth:`StepTimeline.save` wrote.

    Raises:
        ArgumentError: the file cannot be read or is not a timeline.
    """
    return record_file.read(path, record_file.STEPS,
                            lambda data: StepTimeline(_tracks(data["traceEvents"])))


def recorder_from_environment(rank: int) -> Recorder | None:
    """Return a recorder if ``HPCCOLL_TRACE`` is set, else None."""
    return Recorder(rank) if load().trace else None


def save_all(recorder: Recorder, comm: Any) -> None:
    """Write the timeline of all ranks to the folder in ``HPCCOLL_TRACE``; collective.

    Raises:
        OSError: on rank 0, the file cannot be written.
    """
    timeline = recorder.gather(comm)
    if timeline.tracks:
        job = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        timeline.save(record_file.path_of(load().trace, record_file.STEPS, job, 0))


def _from_zero(tracks: Mapping[int, Sequence[TimedSpan]]) -> StepTimeline:
    zero = min((span.start for spans in tracks.values() for span in spans), default=0.0)
    return StepTimeline({rank: [span._replace(start=span.start - zero, stop=span.stop - zero)
                            for span in spans] for rank, spans in tracks.items()})


def _tracks(events: Sequence[Mapping[str, Any]]) -> dict[int, list[TimedSpan]]:
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
             if event["name"] == "thread_name"}
    tracks: dict[int, list[TimedSpan]] = {rank: [] for rank, _ in names}
    for event in events:
        if event["ph"] != "M":
            start, rank = event["ts"] / 1e6, event["pid"]
            tracks[rank].append(TimedSpan(names[rank, event["tid"]], event["name"], start,
                                     start + event.get("dur", 0.0) / 1e6,
                                     **event.get("args", {})))
    return tracks
