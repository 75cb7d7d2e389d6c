"""Summary of a timeline: bytes sent, and exposed and hidden communication time.

    exposed   a bucket was compressed or in flight while the program was blocked
    hidden    a bucket was compressed or in flight while the program computed
    late      a bucket was in flight here, but the last rank had not started it

If several buckets are in flight while the program is blocked, the time is exposed for each of
them; the exposed time of the step counts it once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.explain.columns import FittedTable, Header
from hpccoll.training.trace import (
    BLOCKED,
    COMPRESS,
    DONE,
    FLIGHT,
    STEP,
    WAIT,
    StepTimeline,
    TimedSpan,
)
from hpccoll.units import count_text, size_text, time_text

#: Summed phases; the bytes of a bucket are counted once, when it is done.
TIMED = WAIT, COMPRESS, FLIGHT, DONE
#: Rounding of times in files, in seconds.
TICK = 2e-9


class BucketTimes(NamedTuple):
    """Times of one bucket in seconds; means over ranks and steps.

    Attributes:
        name: name of the bucket.
        nbytes, wire_bytes: its size, and the bytes that a rank sent for it.
        wait: time from complete to started.
        compress, flight: time of compression and decompression; time in flight.
        exposed, hidden: parts of compress and flight in which the program was blocked, and was not.
        late: part of the flight before the last rank started.
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
    """Summary of a timeline; means over ranks and steps.

    Attributes:
        ranks, steps: their numbers.
        seconds: time of a step.
        exposed: seconds of a step in which the exchange blocked the program.
        buckets: times of each bucket, in the order of sending.
    """

    ranks: int
    steps: int
    seconds: float
    exposed: float
    buckets: tuple[BucketTimes, ...]

    @property
    def share(self) -> float:
        """Fraction of the step in which the program was blocked."""
        return self.exposed / self.seconds if self.seconds else 0.0

    @property
    def nbytes(self) -> float:
        """Bytes that a rank exchanges in a step."""
        return sum(bucket.nbytes for bucket in self.buckets)

    @property
    def wire_bytes(self) -> float:
        """Bytes that a rank sends in a step."""
        return sum(bucket.wire_bytes for bucket in self.buckets)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON-compatible data."""
        return {"format": 1, "ranks": self.ranks, "steps": self.steps, "seconds": self.seconds,
                "exposed_seconds": self.exposed, "share": self.share, "nbytes": self.nbytes,
                "wire_bytes": self.wire_bytes,
                "buckets": [bucket._asdict() for bucket in self.buckets]}

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def report(timeline: StepTimeline, skip: int = 1) -> TraceReport:
    """Summarize the complete steps of a timeline.

    Args:
        timeline: timeline of one or all ranks.
        skip: warm-up steps to leave out, if there are more steps.

    Raises:
        ArgumentError: no rank has a complete step.
    """
    steps = {rank: steps_of(spans) for rank, spans in timeline.tracks.items()}
    whole = min(map(len, steps.values()), default=0)
    if not whole:
        raise ArgumentError("trace", "has no complete step",
                            "a step ends when all arrays were waited for")
    # Ranks may have dropped different numbers of first steps; the last steps match.
    counted = whole - skip if whole > skip else whole
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(BucketTimes._fields) - 1))
    begun: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    blocked = seconds = 0.0
    for rank, spans in timeline.tracks.items():
        own = steps[rank][-counted:]
        stops = [step.stop for step in own]
        still = _BlockedTimes(spans)
        seconds += sum(step.stop - step.start for step in own)
        blocked += sum(still.seconds_between(step.start, step.stop) for step in own)
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


def steps_of(spans: Sequence[TimedSpan]) -> list[TimedSpan]:
    """Return the step spans of one rank."""
    return sorted(span for span in spans if span.phase == STEP)


class _BlockedTimes:
    """Intervals in which the program of a rank was blocked."""

    def __init__(self, spans: Sequence[TimedSpan]):
        pairs = sorted((span.start, span.stop) for span in spans if span.phase == BLOCKED)
        self.starts, self.stops = [a for a, _ in pairs], [b for _, b in pairs]

    def seconds_between(self, start: float, stop: float) -> float:
        """Return the blocked seconds between two times."""
        first, end = bisect_right(self.stops, start), bisect_left(self.starts, stop)
        return sum(min(self.stops[i], stop) - max(self.starts[i], start)
                   for i in range(first, end))


def _add(sums: list[float], span: TimedSpan, still: _BlockedTimes) -> None:
    """Add one span to the sums of its bucket, which are in field order."""
    took = span.stop - span.start
    if span.phase == DONE:
        sums[0] += span.nbytes
    elif span.phase == WAIT:
        sums[2] += took
    else:
        exposed = still.seconds_between(span.start, span.stop)
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
    rows = [(b.name, size_text(b.nbytes), size_text(b.wire_bytes), *(
        time_text(value, 3) for value in (b.wait, b.compress, b.flight, b.late, b.exposed,
                                          b.hidden))) for b in found.buckets]
    yield ""
    yield from FittedTable([Header(head, head != "bucket") for head in heads], rows,
                           full=True).lines()
