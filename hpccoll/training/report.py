"""What a timeline means: what was sent, what of it stood in the way, and what was hidden.

    exposed   the program stood still, and a bucket was compressed or in flight: the step is longer
    hidden    a bucket was compressed or in flight while the program computed: free
    late      a bucket was in flight here, and not yet begun on the last rank: nothing could move

Where several buckets are under way while the program stands still, each counts it as exposed; the
exposed time of the step counts it once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.training.trace import (
    BLOCKED,
    COMPRESS,
    DONE,
    FLIGHT,
    STEP,
    WAIT,
    StepTimeline,
    Traced,
)
from hpccoll.units import count_text, size_text, time_text

#: What is summed up: a bucket's bytes count where it is done, once.
TIMED = WAIT, COMPRESS, FLIGHT, DONE
#: Seconds by which files round times.
TICK = 2e-9


class BucketTimes(NamedTuple):
    """One bucket; means over ranks and steps. Times in seconds.

    Attributes:
        name: of the bucket.
        nbytes, wire_bytes: its size, and what a rank sent for it.
        wait: whole, and waiting for its turn.
        compress, flight: compressed or restored; under way.
        exposed, hidden: parts of these two in which the program stood still, and did not.
        late: part of the flight before the last rank had begun.
    """

    name: str
    nbytes: float
    wire_bytes: float
    wait: float
    compress: float
    flight: float
    exposed: float
    hidden: float
    late: float


@dataclass(frozen=True)
class TraceReport:
    """A timeline in numbers; means over ranks and steps.

    Attributes:
        ranks, steps: how many.
        seconds: of a step.
        exposed: of it, seconds in which the program stood still for the exchange.
        buckets: each, in the order in which they went.
    """

    ranks: int
    steps: int
    seconds: float
    exposed: float
    buckets: tuple[BucketTimes, ...]

    @property
    def share(self) -> float:
        """Part of the step in which the program stood still."""
        return self.exposed / self.seconds if self.seconds else 0.0

    @property
    def nbytes(self) -> float:
        """Bytes exchanged in a step, by a rank."""
        return sum(bucket.nbytes for bucket in self.buckets)

    @property
    def wire_bytes(self) -> float:
        """Bytes sent in a step, by a rank."""
        return sum(bucket.wire_bytes for bucket in self.buckets)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"format": 1, "ranks": self.ranks, "steps": self.steps, "seconds": self.seconds,
                "exposed_seconds": self.exposed, "share": self.share, "nbytes": self.nbytes,
                "wire_bytes": self.wire_bytes,
                "buckets": [bucket._asdict() for bucket in self.buckets]}

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def report(timeline: StepTimeline, skip: int = 1) -> TraceReport:
    """Sum up the whole steps of a timeline.

    Args:
        timeline: of one or all ranks.
        skip: first steps to leave out, where there are more: they prepare what later ones use.

    Raises:
        ArgumentError: no rank has a whole step.
    """
    steps = {rank: steps_of(spans) for rank, spans in timeline.tracks.items()}
    whole = min(map(len, steps.values()), default=0)
    if not whole:
        raise ArgumentError("trace", "has no complete step",
                            "a step ends when all arrays were waited for")
    # A rank may have forgotten more of its first steps than another: the last ones are the same.
    counted = whole - skip if whole > skip else whole
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(BucketTimes._fields) - 1))
    begun: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    blocked = seconds = 0.0
    for rank, spans in timeline.tracks.items():
        own = steps[rank][-counted:]
        stops = [step.stop for step in own]
        still = _Still(spans)
        seconds += sum(step.stop - step.start for step in own)
        blocked += sum(still.during(step.start, step.stop) for step in own)
        seen: dict[tuple[str, int], int] = defaultdict(int)
        for span in spans:
            number = bisect_left(stops, span.stop - TICK)
            if span.phase not in TIMED or span.start < own[0].start - TICK or number == counted:
                continue
            _add(sums[span.name], span, still)
            if span.phase == FLIGHT:
                begun[span.name, number, seen[span.name, number]].append(span.start)
                seen[span.name, number] += 1
    ranks = len(timeline.tracks)
    share = ranks * counted
    for (name, _, _), starts in begun.items():
        if len(starts) == ranks:
            sums[name][-1] += max(starts) * ranks - sum(starts)
    return TraceReport(ranks, counted, seconds / share, blocked / share, tuple(
        BucketTimes(name, *(value / share for value in each)) for name, each in sums.items()))


def steps_of(spans: Sequence[Traced]) -> list[Traced]:
    """The steps of one rank."""
    return sorted(span for span in spans if span.phase == STEP)


class _Still:
    """When the program of a rank stood still."""

    def __init__(self, spans: Sequence[Traced]):
        pairs = sorted((span.start, span.stop) for span in spans if span.phase == BLOCKED)
        self.starts, self.stops = [a for a, _ in pairs], [b for _, b in pairs]

    def during(self, start: float, stop: float) -> float:
        """Seconds of it between two times."""
        first, end = bisect_right(self.stops, start), bisect_left(self.starts, stop)
        return sum(min(self.stops[i], stop) - max(self.starts[i], start)
                   for i in range(first, end))


def _add(sums: list[float], span: Traced, still: _Still) -> None:
    """Add one span to the sums of its bucket, in the order of the fields."""
    took = span.stop - span.start
    if span.phase == DONE:
        sums[0] += span.nbytes
    elif span.phase == WAIT:
        sums[2] += took
    else:
        exposed = still.during(span.start, span.stop)
        sums[1] += span.wire_bytes
        sums[3 if span.phase == COMPRESS else 4] += took
        sums[5] += exposed
        sums[6] += took - exposed


def _lines(found: TraceReport) -> Iterator[str]:
    yield (f"{count_text(found.ranks, 'rank')}, {count_text(found.steps, 'step')}; means over "
           "both")
    yield f"  step           {time_text(found.seconds)}"
    yield f"  exposed        {time_text(found.exposed)}, {found.share:.1%} of the step"
    yield f"  exchanged      {size_text(found.nbytes)}"
    yield f"  sent           {size_text(found.wire_bytes)}"
    heads = ("bucket", "bytes", "sent", "wait", "compress", "in flight", "late", "exposed",
             "hidden")
    rows = [heads] + [(b.name, size_text(b.nbytes), size_text(b.wire_bytes), *(
        time_text(value, 3) for value in (b.wait, b.compress, b.flight, b.late, b.exposed,
                                          b.hidden))) for b in found.buckets]
    widths = [max(map(len, column)) for column in zip(*rows)]
    yield ""
    for name, *values in rows:
        yield "  ".join([f"{name:<{widths[0]}}", *(f"{value:>{width}}" for value, width in
                                                    zip(values, widths[1:]))]).rstrip()
