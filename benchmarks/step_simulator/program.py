"""One rank's step: it computes, begins buckets, and waits; all ranks do the same.

Buckets go one after the other on their lane, strictly in the order in which they are begun, as in
a real exchange. Lanes share one link: a transfer waits for the one begun before, and only
compressing goes on beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpccoll.training.trace import BLOCKED, DONE, FLIGHT, PROGRAM, READY, STEP, WAIT, TimedSpan
from step_simulator.traffic import TrafficPart


class BucketJob(NamedTuple):
    """One bucket on its way, once."""

    name: str
    nbytes: int
    wire_bytes: float
    parts: tuple[TrafficPart, ...]


class SimulatedRank:
    """A rank in its step; methods move its clock.

    Args:
        lanes: buckets that may be under way at once.

    Attributes:
        now: seconds since the step began.
        spans: what happened.
    """

    def __init__(self, lanes: int = 1):
        self.now, self.spans = 0.0, list[TimedSpan]()
        self._lanes, self._link, self._begun = [0.0] * lanes, 0.0, 0

    def compute(self, seconds: float) -> None:
        """Compute for so long."""
        self.now += seconds

    def begin(self, job: BucketJob) -> float:
        """Begin a bucket now; returns when it will be done."""
        lane = self._begun % len(self._lanes)
        self._begun += 1
        time = max(self.now, self._lanes[lane])
        waited = [TimedSpan(job.name, READY, self.now, self.now, job.nbytes)]
        if time > self.now:
            waited.append(TimedSpan(job.name, WAIT, self.now, time, job.nbytes))
        flights = sum(part.phase == FLIGHT for part in job.parts)
        for phase, seconds, _ in job.parts:
            start = max(time, self._link) if phase == FLIGHT else time
            time = start + seconds
            if phase == FLIGHT:
                self._link = time
            waited.append(TimedSpan(job.name, phase, start, time, job.nbytes,
                               job.wire_bytes / flights if phase == FLIGHT else 0.0))
        self._lanes[lane] = time
        self.spans += [*waited, TimedSpan(job.name, DONE, time, time, job.nbytes)]
        return time

    def wait(self, until: float) -> None:
        """Stand still until something is done."""
        if until > self.now:
            self.spans.append(TimedSpan(PROGRAM, BLOCKED, self.now, until))
            self.now = until

    def finish(self) -> None:
        """End the step."""
        self.spans.append(TimedSpan(PROGRAM, STEP, 0.0, self.now))

    def seconds_of(self, phase: str) -> float:
        """Sum of all spans of one phase."""
        return sum(span.stop - span.start for span in self.spans if span.phase == phase)


class Compute(NamedTuple):
    """Seconds of one rank's own work.

    Attributes:
        forward: pass, all buckets together.
        backward: until each bucket is ready, in their order, from the one before.
        rest: of the backward pass, after the last bucket.
        optimizer: update of what this rank updates.
    """

    forward: float
    backward: tuple[float, ...]
    rest: float
    optimizer: float


def replicated(rank: SimulatedRank, work: Compute, gradients: Sequence[BucketJob],
               parameters: Sequence[BucketJob] = (), overlap: bool = True) -> None:
    """A step with whole parameters on every rank: no ZeRO, or its stages 1 and 2.

    Args:
        rank: whose.
        work: its own.
        gradients: the buckets in their order.
        parameters: the buckets gathered after the update; none without ZeRO.
        overlap: begin a bucket as soon as it is ready; or else all after the backward pass.
    """
    rank.compute(work.forward)
    done = 0.0
    for seconds, job in zip(work.backward, gradients):
        rank.compute(seconds)
        if overlap:
            done = max(done, rank.begin(job))
    rank.compute(work.rest)
    if not overlap:
        done = max(map(rank.begin, gradients), default=0.0)
    rank.wait(done)
    rank.compute(work.optimizer)
    rank.wait(max(map(rank.begin, parameters), default=0.0))
    rank.finish()


def sharded(rank: SimulatedRank, work: Compute, gradients: Sequence[BucketJob],
            parameters: Sequence[BucketJob]) -> None:
    """A step of ZeRO 3: a bucket's parameters are gathered for each pass, one bucket ahead."""
    total = sum(work.backward)
    forward = [work.forward * (part / total if total else 1 / len(gradients))
               for part in reversed(work.backward)]
    _gathered(rank, forward, parameters[::-1])
    done = _gathered(rank, work.backward, parameters, gradients)
    rank.compute(work.rest)
    rank.wait(done)
    rank.compute(work.optimizer)
    rank.finish()


def _gathered(rank: SimulatedRank, work: Sequence[float], parameters: Sequence[BucketJob],
              gradients: Sequence[BucketJob] = ()) -> float:
    """One pass; returns when the gradients begun in it are done."""
    done, here = 0.0, rank.begin(parameters[0])
    for index, seconds in enumerate(work):
        coming = rank.begin(parameters[index + 1]) if index + 1 < len(work) else 0.0
        rank.wait(here)
        rank.compute(seconds)
        if gradients:
            done = rank.begin(gradients[index])
        here = coming
    return done
