"""What a rank did inside of blocking calls of ours, by the moments that it noted.

    CallRecord --moments between a call's beginning and end--> Activities --> spans, seconds by kind

An activity lasts until the next moment of its *line*, or until the call's end. A line is a place
where one phase follows another: each segment in flight has one, and each lane of its phases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy

from hpccoll.measure.observed.record import CallKind, CallRecord, RankRecord
from hpccoll.runtime.events.moments import KEPT, PHASE_BITS, PLAN_BITS, ROW, Activity

#: How an activity is called; those that wait for others are told for whom.
NAMES = {Activity.SENDING: "sending", Activity.WAITING: "waiting for",
         Activity.COPYING: "copying", Activity.REDUCING: "reducing",
         Activity.DRAINING: "waiting for space at"}


class Activities(NamedTuple):
    """Arrays of one length, in the order of lines of calls.

    Attributes:
        calls: which of the record's kept calls.
        lines: numbers of lines.
        plans, segments, phases, kinds: what was done; the last is an :class:`Activity`.
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
        line, name: where, and what.
        start, stop: seconds of the rank's clock.
        details: what else there is to say, of a phase.
    """

    line: int
    name: str
    start: float
    stop: float
    details: Mapping[str, Any] | None


def activities(record: CallRecord) -> Activities | None:
    """What was done inside of a record's kept calls; ``None`` where no moments were noted."""
    calls = record.calls()
    if record.noted is None or not len(calls):
        return None
    rows = numpy.array(record.noted["rows"], numpy.int64).reshape(-1, ROW)
    order = numpy.argsort(calls[:, 1], kind="stable")
    begun, times = calls[order, 1], 1e-9 * rows[:, 2]
    which = numpy.searchsorted(begun, times, "right") - 1
    inside = (which >= 0) & (times <= calls[order[which], 2])
    if len(rows) == KEPT:  # the beginning of the first call may have been written over
        inside &= which > which[0]
    rows, times, found = rows[inside], times[inside], order[which[inside]]
    plans, segments = rows[:, 0] >> PLAN_BITS, rows[:, 0] & (1 << PLAN_BITS) - 1
    phases, kinds = rows[:, 1] >> PHASE_BITS, rows[:, 1] & (1 << PHASE_BITS) - 1
    lines = _lines(record.noted["plans"], plans, segments, phases)
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
    """The line of each row."""
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
    """Each phase, followed by what was done in it."""
    plans = record.noted["plans"] if record.noted is not None else []
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
    """Seconds that each rank spent in reductions, where that is known."""
    sums: dict[int, float] = defaultdict(float)
    for record in records:
        for made in filter(None, map(activities, record.communicators)):
            at = made.kinds == Activity.REDUCING
            sums[record.rank] += float((made.stops - made.starts)[at].sum())
    return sums


def reduced_by_kind(records: Iterable[RankRecord]) -> Mapping[CallKind, float]:
    """Mean seconds that a call of each kind spent in reductions, where that is known."""
    sums: dict[CallKind, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for record in records:
        for one in record.communicators:
            made = activities(one)
            if made is None:
                continue
            kinds = one.calls()[:, 0].astype(int)
            seconds = (made.stops - made.starts) * (made.kinds == Activity.REDUCING)
            for number in numpy.unique(kinds[made.calls]):
                mine = kinds[made.calls] == number
                found = sums[one.kinds[number]._replace(root=-1)]
                found[0] += float(seconds[mine].sum())
                found[1] += len(numpy.unique(made.calls[mine]))
    return {kind: seconds / calls for kind, (seconds, calls) in sums.items()}
