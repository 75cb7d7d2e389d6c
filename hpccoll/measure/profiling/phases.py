"""Activities of a rank inside hpccoll's blocking calls, from the recorded phases.

    CallRecord --phases between a call's beginning and end--> Activities --> spans, seconds by kind

An activity lasts until the next event of its *line*, or until the call's end. A line is a sequence
of phases: each segment in flight has one, and each lane of its phases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy

from hpccoll.measure.profiling.record import CallKind, CallRecord, RankRecord
from hpccoll.runtime.events.phase_events import PHASE_BITS, PLAN_BITS, Activity

#: Names of activities; those that wait have the awaited rank as well.
NAMES = {Activity.SENDING: "sending", Activity.WAITING: "waiting for",
         Activity.COPYING: "copying", Activity.REDUCING: "reducing",
         Activity.DRAINING: "waiting for space at"}


class Activities(NamedTuple):
    """Arrays of one length, in the order of lines of calls.

    Attributes:
        calls: indices of the record's kept calls.
        plans, segments, phases, kinds: of the activity; the last is an :class:`Activity`.
        starts, stops: seconds of the rank's clock.
    """

    calls: numpy.ndarray
    lines: numpy.ndarray
    plans: numpy.ndarray
    segments: numpy.ndarray
    phases: numpy.ndarray
    kinds: numpy.ndarray
    starts: numpy.ndarray
    stops: numpy.ndarray


class TraceSpan(NamedTuple):
    """A span of a timeline, on a line: a phase, or an activity in it.

    Attributes:
        start, stop: seconds of the rank's clock.
    """

    line: int
    name: str
    start: float
    stop: float
    details: Mapping[str, Any] | None


def activities(record: CallRecord) -> Activities | None:
    """Return the activities inside a record's kept calls; ``None`` without phases."""
    if record.phases is None or not len(calls := record.calls):
        return None
    rows = numpy.array(record.phases["rows"], numpy.int64).reshape(-1, 3)
    order = numpy.argsort(calls[:, 1], kind="stable")
    begun, times = calls[order, 1], 1e-9 * rows[:, 2]
    which = numpy.searchsorted(begun, times, "right") - 1
    inside = (which >= 0) & (times <= calls[order[which], 2])
    if not record.phases["whole"]:  # the start of the first call may be overwritten
        inside &= which > which[0]
    rows, times, found = rows[inside], times[inside], order[which[inside]]
    plans, segments = rows[:, 0] >> PLAN_BITS, rows[:, 0] & (1 << PLAN_BITS) - 1
    phases, kinds = rows[:, 1] >> PHASE_BITS, rows[:, 1] & (1 << PHASE_BITS) - 1
    lines = _lines(record.phases["plans"], plans, segments, phases)
    order = numpy.lexsort((numpy.arange(len(rows)), lines, found))
    found, lines, starts = found[order], lines[order], times[order]
    stops = calls[found, 2]
    follows = (found[1:] == found[:-1]) & (lines[1:] == lines[:-1])
    stops[:-1][follows] = starts[1:][follows]
    kept = kinds[order] != Activity.OVER
    return Activities(*(column[kept] for column in (
        found, lines, plans[order], segments[order], phases[order], kinds[order], starts, stops)))


def _lines(plans: list[dict[str, Any]], numbers: numpy.ndarray, segments: numpy.ndarray,
           phases: numpy.ndarray) -> numpy.ndarray:
    known: dict[tuple[int, int, int], int] = {}
    found = []
    for key in zip(numbers.tolist(), segments.tolist(), phases.tolist()):
        line = known.get(key)
        if line is None:
            number, segment, phase = key
            plan = plans[number]
            lanes = 1 + max((one[0] for program in plan["programs"] for one in program), default=0)
            lane = plan["programs"][plan["segments"][segment]][phase][0]
            line = known[key] = segment % plan["depth"] * lanes + lane
        found.append(line)
    return numpy.array(found, int)


def spans(record: CallRecord, made: Activities) -> Iterator[TraceSpan]:
    """Yield each phase, followed by its activities."""
    plans = record.phases["plans"] if record.phases is not None else []
    columns = [column.tolist() for column in made]
    rows = list(zip(*columns))
    first = 0
    for index in range(1, len(rows) + 1):
        if index < len(rows) and rows[index][:5] == rows[first][:5]:
            continue
        _, line, number, segment, phase, _, start, _ = rows[first]
        plan = plans[number]
        _, to, source = plan["programs"][plan["segments"][segment]][phase]
        several = f"segment {segment}, " if len(plan["segments"]) > 1 else ""
        to, source = ([record.ranks[peer] for peer in peers] for peers in (to, source))
        yield TraceSpan(line, f"{several}phase {phase}", start, rows[index - 1][-1],
                   {"of": plan["title"], "to": to, "from": source})
        for *_, kind, begun, ended in rows[first:index]:
            name = NAMES[kind]
            if kind in (Activity.WAITING, Activity.DRAINING):
                peers = source if kind == Activity.WAITING and source else to
                name += f" rank{'s' * (len(peers) > 1)} {', '.join(map(str, peers))}"
            yield TraceSpan(line, name, begun, ended, None)
        first = index


def reduced_by_rank(records: Iterable[RankRecord]) -> Mapping[int, float]:
    """Return the seconds that each rank spent in reductions, if known."""
    sums: dict[int, float] = defaultdict(float)
    for record in records:
        for made in filter(None, map(activities, record.communicators)):
            at = made.kinds == Activity.REDUCING
            sums[record.rank] += float((made.stops - made.starts)[at].sum())
    return sums


def reduced_by_kind(records: Iterable[RankRecord]) -> Mapping[CallKind, float]:
    """Return the mean seconds in reductions of a call of each kind, if known."""
    sums: dict[CallKind, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for record in records:
        for one in record.communicators:
            made = activities(one)
            if made is None:
                continue
            kinds = one.calls[:, 0].astype(int)
            seconds = (made.stops - made.starts) * (made.kinds == Activity.REDUCING)
            for number in numpy.unique(kinds[made.calls]):
                mine = kinds[made.calls] == number
                found = sums[one.kinds[number]._replace(root=-1)]
                found[0] += float(seconds[mine].sum())
                found[1] += len(numpy.unique(made.calls[mine]))
    return {kind: seconds / calls for kind, (seconds, calls) in sums.items()}
