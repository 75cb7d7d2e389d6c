"""Joined records of all ranks: matching of calls, and wait times.

Ranks make the calls of a communicator in one order, so the n-th calls of all ranks match. The
*wait* of a call ends when the last rank that it needs has entered: all ranks for an allreduce, the
root for a broadcast. The rest of its time is the collective itself: messages and reductions.
*Stragglers* are the last ranks to enter calls.

"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

import numpy

from hpccoll.ir.methods import METHODS
from hpccoll.measure.profiling.record import CallKind, CallRecord, RankRecord, ordered_kinds
from hpccoll.units import count_text, time_text

#: Ranks that a call needs before it can complete: all, the root, all at the root only, or the
#: lower ranks.
EVERYBODY, THE_ROOT, AT_THE_ROOT, THOSE_BEFORE = range(4)
NEEDED = {"bcast": THE_ROOT, "scatter": THE_ROOT, "reduce": AT_THE_ROOT, "gather": AT_THE_ROOT,
          "scan": THOSE_BEFORE, "exscan": THOSE_BEFORE}
#: Maximum number of reported communicators, those with the longest waits first.
MOST_TOLD = 3


class MatchedCalls(NamedTuple):
    """Calls of one communicator that all of its ranks made, in order, in the clock of rank 0.

    Attributes:
        kinds: by their numbers in ``calls``, as recorded on the first rank.
        starts, stops: seconds, a row for each rank.
        waits: seconds of each call before all needed ranks had entered.
    """

    name: str
    ranks: tuple[int, ...]
    kinds: Sequence[CallKind]
    calls: numpy.ndarray
    starts: numpy.ndarray
    stops: numpy.ndarray
    waits: numpy.ndarray

    @property
    def skews(self) -> numpy.ndarray:
        """Return the seconds between the first and the last rank that enter each call."""
        found: numpy.ndarray = self.starts.max(0) - self.starts.min(0)
        return found


@dataclass(frozen=True)
class JoinedRecords:
    """Records of all ranks.

    Attributes:
        matched: the communicators with records of all ranks.
        zero: start of the first record, in the clock of rank 0.
    """

    records: Sequence[RankRecord]
    matched: Sequence[MatchedCalls]
    zero: float

    @property
    def offsets(self) -> dict[int, float]:
        """Return by rank how far the clock of rank 0 was ahead, for ranks with other clocks."""
        return {record.rank: record.ahead[-1][1] for record in self.records
                if record.ahead and record.clock != self.records[0].clock}


def join(records: Sequence[RankRecord]) -> JoinedRecords:
    """Join the records of ranks."""
    records = sorted(records, key=lambda record: record.rank)
    members: dict[tuple[tuple[int, ...], int], dict[int, CallRecord]] = defaultdict(dict)
    for record in records:
        for one in record.communicators:
            members[one.ranks, one.number][record.rank] = one
    ahead = {record.rank: record.ahead for record in records}
    matched = [_match(ranks, [found[rank] for rank in ranks], [ahead[rank] for rank in ranks])
               for (ranks, _), found in members.items()
               if ranks and all(rank in found for rank in ranks)]
    zero = min((float(correct_times(record.began, record.ahead)) for record in records),
               default=0.0)
    return JoinedRecords(records, matched, zero)


def correct_times(times: numpy.ndarray | float,
                  ahead: Sequence[tuple[float, float]]) -> numpy.ndarray:
    """Return times in the clock of rank 0, interpolated between two comparisons."""
    if not ahead:
        return numpy.asarray(times)
    when, seconds = zip(*ahead)
    found: numpy.ndarray = times + numpy.interp(times, when, seconds)
    return found


def _match(ranks: tuple[int, ...], members: Sequence[CallRecord],
           ahead: Sequence[Sequence[tuple[float, float]]]) -> MatchedCalls:
    tracks = []
    for member in members:
        calls = member.calls
        if len(calls):
            calls = calls[ordered_kinds(member.kinds)[calls[:, 0].astype(int)]]
        tracks.append(calls)
    first = max(member.ordered for member in members)
    end = min(member.ordered + len(calls) for member, calls in zip(members, tracks))
    count = max(end - first, 0)
    cut = [calls[first - member.ordered:first - member.ordered + count]
           for member, calls in zip(members, tracks)]
    kinds = numpy.array([calls[:, 0] for calls in cut], int).reshape(len(members), count)
    titles = [numpy.array([kind.title for kind in member.kinds] or [""])[numbers]
              for member, numbers in zip(members, kinds)]
    same = numpy.ones(count, bool)
    for other in titles[1:]:
        same &= titles[0] == other
    starts, stops = (numpy.array([correct_times(calls[:, column], one)
                                  for calls, one in zip(cut, ahead)])[:, same]
                     for column in (1, 2))
    numbers = kinds[0][same]
    return MatchedCalls(members[0].name, ranks, tuple(members[0].kinds), numbers, starts, stops,
                        _waits(members[0].kinds, numbers, starts, stops))


def _waits(kinds: Sequence[CallKind], numbers: numpy.ndarray, starts: numpy.ndarray,
           stops: numpy.ndarray) -> numpy.ndarray:
    """Return the seconds of each call before the last rank that it needs had entered."""
    waits = numpy.zeros_like(starts)
    for number in numpy.unique(numbers):
        kind = kinds[number]
        title = kind.title.removesuffix(" of objects")
        if title not in METHODS:  # it begins a request, and does not wait
            continue
        at = numbers == number
        begun, needed = starts[:, at], NEEDED.get(METHODS[title], EVERYBODY)
        root = kind.root if 0 <= kind.root < len(begun) else 0
        if needed == THE_ROOT:
            last = begun[root]
        elif needed == THOSE_BEFORE:
            last = numpy.maximum.accumulate(begun, axis=0)
        else:
            last = begun.max(0)
        found = numpy.clip(last - begun, 0, stops[:, at] - begun)
        if needed == AT_THE_ROOT:
            others = numpy.arange(len(begun)) != root
            found[others] = 0
        waits[:, at] = found
    return waits


class MatchedSums(NamedTuple):
    """Sums over the matched calls of one kind.

    Attributes:
        waits, seconds: over all ranks.
        skews: seconds between the first and the last rank.
        lasts: number of calls that each rank entered last.
    """

    waits: float
    seconds: float
    skews: float
    lasts: Counter[int]


def waits_by_kind(joined: JoinedRecords) -> Mapping[CallKind, MatchedSums]:
    """Return the sums of matched calls by kind, over all roots."""
    sums: dict[CallKind, MatchedSums] = {}
    for one in joined.matched:
        for number in numpy.unique(one.calls):
            kind, at = one.kinds[number]._replace(root=-1), one.calls == number
            found = MatchedSums(
                float(one.waits[:, at].sum()), float((one.stops - one.starts)[:, at].sum()),
                float(one.skews[at].sum()),
                Counter(one.ranks[row] for row in one.starts[:, at].argmax(0)))
            sums[kind] = MatchedSums(*map(add, sums[kind], found)) if kind in sums else found
    return sums


class Straggler(NamedTuple):
    """Arrival statistics of a rank in the blocking calls of a communicator.

    Attributes:
        rank: of ``COMM_WORLD``.
        last: number of calls that this rank entered last.
        late: mean seconds after the first rank.
        latest: maximum seconds after the first rank.
        waits: seconds that others waited for this one as the last rank, summed over them.
        first: lowest rank of the communicator: parts of a split may share a name.
    """

    name: str
    rank: int
    calls: int
    last: int
    late: float
    latest: float
    waits: float
    first: int = 0

    def __str__(self) -> str:
        return (f"On {self.name}, rank {self.rank} was last in {self.last / self.calls:.0%} of "
                f"{count_text(self.calls, 'call')}, on average {time_text(self.late, 3)} after the "
                f"first rank, at most {time_text(self.latest, 3)}; others waited "
                f"{time_text(self.waits, 3)} for it in total.")


def stragglers(joined: JoinedRecords) -> list[Straggler]:
    """Return the statistics of all ranks with complete records, the longest waits first."""
    found = []
    for one in joined.matched:
        blocking = numpy.array([kind.title.removesuffix(" of objects") in METHODS
                                for kind in one.kinds], bool)[one.calls]
        if len(one.ranks) > 1 and blocking.any():
            found += arrivals(one.name, one.ranks, one.starts[:, blocking], one.waits[:, blocking])
    return sorted(found, key=lambda one: (-one.waits, one.name, one.rank))


def arrivals(name: str, ranks: Sequence[int], starts: numpy.ndarray,
             waits: numpy.ndarray) -> list[Straggler]:
    """Return the statistics of the ranks of a communicator, the longest waits first.

    Args:
        starts, waits: seconds, a row for each rank, a column for each call.
    """
    last, late = starts.argmax(0), starts - starts.min(0)
    found = [Straggler(name, rank, starts.shape[1], int((last == row).sum()),
                       float(late[row].mean()), float(late[row].max()),
                       float(waits[:, last == row].sum()), min(ranks))
             for row, rank in enumerate(ranks)]
    return sorted(found, key=lambda one: (-one.waits, one.rank))


def describe_stragglers(found: Sequence[Straggler]) -> list[str]:
    """Return sentences about the rank of each communicator that caused the longest wait."""
    worst: dict[tuple[str, int], Straggler] = {}
    for one in found:
        if one.waits > 0:
            worst.setdefault((one.name, one.first), one)
    return list(map(str, worst.values()))[:MOST_TOLD]
