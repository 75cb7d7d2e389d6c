"""Trace of a job's collectives: a timeline for Perfetto, a summary, and a plot."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy

from hpccoll.explain.columns import WIDTH, FittedTable, Header
from hpccoll.explain.plotting import save
from hpccoll.measure.profiling.merge import (
    JoinedRecords,
    correct_times,
    describe_stragglers,
)
from hpccoll.measure.profiling.phases import (
    activities,
    reduced_by_rank,
    spans,
)
from hpccoll.measure.profiling.profile import CallRow, Profile, method_and_bytes, profile
from hpccoll.measure.profiling.record import CallRecord, RankRecord
from hpccoll.record_file import line_names
from hpccoll.training.picture import COLOURS, INK, new_figure, style_panel
from hpccoll.units import count_text, size_text, time_text

#: Heads of the table; messages and reductions need records inside of calls.
HEADS = ("call", "bytes", "count", "a call", "waits", "messages", "reduces", "skew",
         "arrived last", "algorithm")
TEXT = ("call", "arrived last", "algorithm")
#: Maximum rows of the table; maximum ranks and calls of the plot.
LINES, MOST_RANKS, MOST_CALLS = 20, 32, 40
#: Maximum lines of phases of a communicator.
MOST_LINES = 1000


@dataclass(frozen=True)
class CallSummary:
    """A traced job in numbers.

    Attributes:
        profile: of the ranks with a record.
        missing: number of ranks without one.
        offsets: how far the clock of rank 0 was ahead, by rank, if clocks differ.
        compared: number of clock comparisons.
    """

    profile: Profile
    missing: int
    offsets: Mapping[int, float]
    compared: int

    @property
    def waits(self) -> Mapping[int, float]:
        """Return the seconds that others waited for each rank, summed over them; longest first."""
        sums: dict[int, float] = defaultdict(float)
        for one in self.profile.stragglers:
            sums[one.rank] += one.waits
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def sentences(self) -> list[str]:
        """Return further remarks."""
        text = [f"{count_text(self.profile.ranks, 'rank')}" + (
            f"; no trace of {count_text(self.missing, 'rank')}" if self.missing else "")]
        for rank, seconds in islice(self.waits.items(), 1):
            if seconds > 0:
                text.append(f"rank {rank} is the slowest: others waited {time_text(seconds, 3)} "
                            "for it in total")
        if self.offsets:
            far = max(map(abs, self.offsets.values()))
            text.append("clocks of several nodes, synchronised by round-trip messages, "
                        f"{self.compared} times, by up to {time_text(far, 3)}")
        else:
            text.append("all ranks use the same clock")
        *found, clocks = [f"{one[0].upper()}{one[1:]}." for one in text]
        return [*found, *describe_stragglers(self.profile.stragglers), clocks]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**self.profile.as_json(), "format": "hpccoll call summary 1",
                "missing": self.missing, "waits": self.waits, "offsets": self.offsets,
                "slowest": next(iter(self.waits.items()), None),
                "sentences": self.sentences()}


def summary(joined: JoinedRecords, ranks: int) -> CallSummary:
    """Return the summary of a traced job with a number of ranks."""
    return CallSummary(profile(joined), ranks - len(joined.records), joined.offsets,
                       min((len(record.ahead) for record in joined.records), default=0))


def lines(found: CallSummary, width: int = WIDTH) -> list[str]:
    """Return a table of the kinds of calls that took longest."""
    rows = found.profile.details[:LINES]
    inside = any(row.reduces is not None for row in rows)
    return FittedTable([Header(head, head not in TEXT) for head in HEADS],
                       [_cells(row, inside) for row in rows], width).lines() if rows else []


def _cells(row: CallRow, inside: bool) -> tuple[str, ...]:
    """Return the row as text: with messages and reductions, or with the arrival of the ranks."""
    parts = [row.waits, None, None]
    if row.reduces is not None:
        reduces = row.reduces / (row.a_call or 1.0)
        parts[1:] = max(1.0 - (row.waits or 0.0) - reduces, 0.0), reduces
    return (row.method, row.sizes, f"{row.calls:,}", time_text(row.a_call, 3),
            *("" if part is None else f"{part:.0%}" for part in parts),
            "" if row.skew is None or inside else time_text(row.skew, 3),
            "" if row.last is None or inside else f"rank {row.last[0]} ({row.last[1]:.0%})",
            row.served)


# -- the timeline ------------------------------------------------------------------------------
def events(joined: JoinedRecords) -> Iterator[dict[str, Any]]:
    """Yield events of the Trace Event Format: a process for each rank, a line per communicator.

    Inside a call of all ranks, the wait for the last rank is the span ``waiting``. If phases were
    recorded, lines below have the phases, and the activities in them.
    """
    waits = _waits_by_start(joined)
    for record in joined.records:
        names = [f"{one.name} {index}" if index else one.name
                 for index, one in enumerate(record.communicators)]
        yield from line_names(record.rank, f"rank {record.rank}", {
            name: line for line, name in enumerate(names)})
        for line, (name, one) in enumerate(zip(names, record.communicators)):
            yield from _inside(joined, record, one, name, (line, len(names)))
        yield from _training_spans(joined, record)
        for line, one in enumerate(record.communicators):
            calls = one.calls
            starts, stops = (correct_times(calls[:, column], record.ahead) - joined.zero
                             for column in (1, 2))
            for number, start, stop in zip(calls[:, 0].astype(int), starts, stops):
                kind = one.kinds[number]
                method, nbytes = method_and_bytes(kind.title, kind.nbytes)
                event = {"ph": "X", "pid": record.rank, "tid": line}
                yield {**event, "name": f"{method} {nbytes}", "ts": round(start * 1e6, 3),
                       "dur": round((stop - start) * 1e6, 3),
                       "args": {"nbytes": kind.nbytes, "of": kind.what, "root": kind.root,
                                "served by": kind.served}}
                waited = waits.get((record.rank, round(start, 9)), 0.0)
                if waited > 0:
                    yield {**event, "name": "waiting", "ts": round(start * 1e6, 3),
                           "dur": round(waited * 1e6, 3)}


def _training_spans(joined: JoinedRecords, record: RankRecord) -> Iterator[dict[str, Any]]:
    """Yield the spans of training, on a line for each array or bucket, below all other lines."""
    tids: dict[str, int] = {}
    for _, name, phase, start, stop, nbytes, sent in record.spans:
        tid = tids.setdefault(name, MOST_LINES ** 2 + len(tids))
        begun, ended = (float(correct_times(when, record.ahead)) - joined.zero
                        for when in (start, stop))
        yield {"ph": "X", "pid": record.rank, "tid": tid, "name": phase,
               "ts": round(begun * 1e6, 3), "dur": round((ended - begun) * 1e6, 3),
               "args": {"nbytes": nbytes, "wire_bytes": sent}}
    for name, tid in tids.items():
        event = {"ph": "M", "pid": record.rank, "tid": tid}
        yield {**event, "name": "thread_name", "args": {"name": name}}
        yield {**event, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _inside(joined: JoinedRecords, record: RankRecord, one: CallRecord, name: str,
            place: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the activities of a rank inside calls of one communicator.

    ``place`` is its line, and the number of communicators of the rank.
    """
    made = activities(one)
    if made is None:
        return
    line, step = place

    def tid(number: int) -> int:
        return line + step * (number + 1)

    event = {"ph": "M", "name": "thread_sort_index", "pid": record.rank}
    numbers = numpy.unique(made.lines).tolist()
    for at, number in [(line, -1), *((tid(number), number) for number in numbers)]:
        if number >= 0:
            yield {**event, "name": "thread_name", "tid": at, "args": {
                "name": f"{name}, phases" + (f" {number}" if len(numbers) > 1 else "")}}
        yield {**event, "tid": at, "args": {"sort_index": line * MOST_LINES + number + 1}}
    starts, stops = (correct_times(seconds, record.ahead) - joined.zero
                     for seconds in (made.starts, made.stops))
    for span in spans(one, made._replace(starts=starts, stops=stops)):
        yield {"ph": "X", "pid": record.rank, "tid": tid(span.line), "name": span.name,
               "ts": round(span.start * 1e6, 3), "dur": round((span.stop - span.start) * 1e6, 3),
               **({"args": span.details} if span.details else {})}


def _waits_by_start(joined: JoinedRecords) -> dict[tuple[int, float], float]:
    return {(rank, round(float(start), 9)): float(wait) for one in joined.matched
            for rank, starts, waits in zip(one.ranks, one.starts - joined.zero, one.waits)
            for start, wait in zip(starts, waits)}


def header_fields(joined: JoinedRecords, found: CallSummary) -> dict[str, Any]:
    """Return the header fields of the timeline's file."""
    return {"ranks": found.profile.ranks,
            "clock": "of rank 0; " + found.sentences()[-1],
            "seconds ahead": {str(rank): seconds for rank, seconds in found.offsets.items()}}


# -- the plot ----------------------------------------------------------------------------------
def draw(joined: JoinedRecords, found: CallSummary, path: str | os.PathLike[str]) -> None:
    """Draw the activities of every rank in collectives: the sums, and some calls in the middle."""
    ranks = [record.rank for record in joined.records][:MOST_RANKS]
    figure = new_figure(9.0, 2.8 + 0.36 * len(ranks))
    above, below = figure.subplots(2, 1)
    waits, seconds = (dict.fromkeys(ranks, 0.0) for _ in range(2))
    for one in joined.matched:
        for row, rank in enumerate(one.ranks):
            if rank in waits:
                waits[rank] += float(one.waits[row].sum())
                seconds[rank] += float((one.stops[row] - one.starts[row]).sum())
    style_panel(above, "seconds in collectives")
    reduced = reduced_by_rank(joined.records)
    reduces = [reduced.get(rank, 0.0) for rank in ranks]
    rest = [max(seconds[rank] - waits[rank] - reduced.get(rank, 0.0), 0.0) for rank in ranks]
    _bars(above, ranks, [0.0] * len(ranks), list(waits.values()), rest,
          "messages" if reduced else "messages and reductions")
    if reduced:
        above.barh(ranks, reduces, left=numpy.add(list(waits.values()), rest), height=0.7,
                   color=COLOURS["computing"], label="reductions")
    above.legend(frameon=False, fontsize=8, labelcolor=INK, ncols=3, loc="lower right",
                 bbox_to_anchor=(1, 1))
    longest = max(joined.matched, key=lambda one: one.starts.size, default=None)
    if longest is not None and longest.starts.size:
        count = longest.starts.shape[1]
        cut = slice(max(count // 2 - MOST_CALLS // 2, 0), count // 2 + MOST_CALLS // 2 + 1)
        zero = longest.starts[:, cut].min()
        shown = longest.starts[:, cut].shape[1]
        style_panel(below, f"{count_text(shown, 'call')} in the middle, on {longest.name}")
        for row, rank in enumerate(longest.ranks):
            if rank in ranks:
                starts, wait = longest.starts[row, cut] - zero, longest.waits[row, cut]
                rest = longest.stops[row, cut] - longest.starts[row, cut] - wait
                _bars(below, [rank] * shown, starts, wait, rest)
    for panel in (above, below):
        panel.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
        panel.invert_yaxis()
        panel.xaxis.set_major_formatter(lambda value, position: time_text(value, 3))
    figure.tight_layout()
    save(figure, path, 130)


def _bars(panel: Any, rows: Sequence[int], starts: Any, waits: Any, rest: Any,
          label: str = "messages and reductions") -> None:
    panel.barh(rows, waits, left=starts, color=COLOURS["blocked"], height=0.7,
               label="waiting for other ranks")
    panel.barh(rows, rest, left=numpy.add(starts, waits), color=COLOURS["in flight"], height=0.7,
               label=label)


def totals(records: Sequence[RankRecord]) -> str:
    """Return the amount of traced calls as text."""
    counted = [(sums.calls, max(kind.nbytes, 0)) for record in records
               for one in record.communicators for kind, sums in zip(one.kinds, one.sums)]
    calls, nbytes = sum(calls for calls, _ in counted), sum(map(math.prod, counted))
    return f"{calls:,} calls on {size_text(nbytes)} of buffers"
