"""Times of the last step of an exchange, for reports, the simulator and the recorder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from hpccoll.explain.columns import FittedTable, Header
from hpccoll.training.buckets import ArraySpec
from hpccoll.units import size_text, time_text

HEADS = ("bucket", "bytes", "wire", "time", "exposed", "hidden")


class BucketTransfer(NamedTuple):
    """Transfer of one bucket.

    Attributes:
        name: name of the bucket.
        nbytes: bytes of its arrays.
        ready: time at which its last array was submitted on this rank.
        start, stop: times at which all ranks had submitted it, and its result was complete.
        wire_bytes: bytes that this rank sent for it, by the closed form of its transfer.
    """

    name: str
    nbytes: int
    ready: float
    start: float
    stop: float
    wire_bytes: float


class StepReport(NamedTuple):
    """One step of an exchange on one rank; times in seconds.

    Attributes:
        transfers: transfers of all buckets.
        blocked: intervals in which the exchange blocked the program.
        seconds: time of the whole step.
    """

    transfers: tuple[BucketTransfer, ...]
    blocked: tuple[tuple[float, float], ...]
    seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(flight.nbytes for flight in self.transfers)

    @property
    def wire_bytes(self) -> float:
        """Bytes that this rank sent."""
        return sum(flight.wire_bytes for flight in self.transfers)

    @property
    def exposed(self) -> float:
        """Seconds in which the program was blocked."""
        return sum(stop - start for start, stop in self.blocked)

    def exposed_of(self, flight: BucketTransfer) -> float:
        """Return the seconds of one transfer in which the program was blocked."""
        return sum(max(0.0, min(stop, flight.stop) - max(start, flight.start))
                   for start, stop in self.blocked)

    def __str__(self) -> str:
        rows = []
        for flight in self.transfers:
            taken, exposed = flight.stop - flight.start, self.exposed_of(flight)
            rows.append([flight.name, size_text(flight.nbytes),
                         size_text(round(flight.wire_bytes)),
                         *(time_text(one, 3) for one in (taken, exposed, taken - exposed))])
        lines = FittedTable([Header(head, head != "bucket") for head in HEADS], rows).lines()
        share = self.exposed / self.seconds if self.seconds else 0.0
        lines.append(f"step {time_text(self.seconds, 3)}, exposed {time_text(self.exposed, 3)} "
                     f"({share:.0%}), {size_text(self.nbytes)} of arrays, "
                     f"{size_text(round(self.wire_bytes))} sent")
        return "\n".join(lines)


class StepMetrics:
    """Times of the current step and of the last one.

    Args:
        recorder: records all times, such as :class:`hpccoll.training.trace.Recorder`; or ``None``.
    """

    def __init__(self, recorder: Any = None):
        self.recorder = recorder
        self.last = StepReport((), (), 0.0)
        self.ready_times: dict[str, float] = {}
        self.backward = 0.0
        self._began = time.perf_counter()
        self._transfers: list[BucketTransfer] = []
        self._blocked: list[tuple[float, float]] = []
        self._ready_times: dict[str, float] = {}

    def begin(self) -> None:
        """Set the start of the backward pass to now, instead of the end of the last step."""
        self._began = time.perf_counter()
        if self.recorder is not None:
            self.recorder.begin_step(self._began)

    def record_ready(self, name: str, now: float, nbytes: int) -> None:
        """Record that an array is ready on this rank."""
        self._ready_times[name] = now - self._began
        if self.recorder is not None:
            self.recorder.add(name, "ready", now, now, nbytes)

    def record_transfer(self, flight: BucketTransfer, busy: float = 0.0) -> None:
        """Record a completed bucket with ``busy`` seconds of compression."""
        self._transfers.append(flight)
        if self.recorder is not None:
            name, nbytes, whole, start, stop, wire = flight
            self.recorder.add(name, "wait", whole, start, nbytes)
            if busy:
                self.recorder.add(name, "compress", start, start + busy, nbytes)
            self.recorder.add(name, "in flight", start + busy, stop, nbytes, wire)
            self.recorder.add(name, "done", stop, stop, nbytes)

    def record_blocked(self, start: float, stop: float) -> None:
        """Record an interval in which the exchange blocked the program."""
        self._blocked.append((start, stop))
        if self.recorder is not None:
            self.recorder.record_blocked(start, stop)

    def end(self) -> None:
        """Record the end of the step."""
        now = time.perf_counter()
        self.last = StepReport(tuple(self._transfers), tuple(self._blocked), now - self._began)
        if self._ready_times:
            self.ready_times, self.backward = self._ready_times, max(self._ready_times.values())
        self._transfers, self._blocked, self._ready_times = [], [], {}
        self._began = now
        if self.recorder is not None:
            self.recorder.end_step(now)

    def profile(self, specs: Sequence[ArraySpec]) -> dict[str, Any]:
        """Return sizes and ready times of arrays in the last step."""
        return {"arrays": [{**asdict(spec), "shape": list(spec.shape)} for spec in specs],
                "ready_seconds": [self.ready_times.get(spec.name, 0.0) for spec in specs],
                "backward_seconds": self.backward}
