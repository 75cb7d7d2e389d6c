"""Profile of a program: a row for each kind of call, over all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, NamedTuple

from hpccoll.explain.columns import FittedTable, Header
from hpccoll.machine.identity import library_name
from hpccoll.measure.profiling.merge import (
    JoinedRecords,
    MatchedSums,
    Straggler,
    describe_stragglers,
    stragglers,
    waits_by_kind,
)
from hpccoll.measure.profiling.phases import reduced_by_kind
from hpccoll.measure.profiling.record import INIT, OBJECTS, WAIT, CallKind
from hpccoll.units import count_text, short_size_text, time_text

#: Maximum sizes of a method with one algorithm that have their own rows; more share one.
MOST_SIZES = 4
#: Columns of text, and columns dropped on narrow terminals; maximum rows of a fitted table.
TEXT, SPARE, LINES = ("call", "algorithm"), ("max/mean",), 20
HEADS = ("call", "bytes", "count", "time", "waits", "algorithm", "max/mean", "vs native")


def method_and_bytes(title: str, nbytes: int) -> tuple[str, str]:
    """Return the name in mpi4py of a kind of calls, and its bytes."""
    if nbytes == OBJECTS:
        return title.split()[0], "objects"
    return title.capitalize(), short_size_text(nbytes)


class CallRow(NamedTuple):
    """Calls of one kind, or of one method on a range of sizes.

    Attributes:
        least, most: bytes; -1 for objects.
        what: type and operator, if all calls agree.
        by_rank: calls of each rank.
        seconds: in them and in the waits for their requests; mean of the ranks.
        waiting: seconds of that in which a rank waited for other ranks or for a request; mean
            of the ranks. ``None`` if unknown.
        imbalance: longest time of a rank divided by the mean.
        ratio: native time divided by hpccoll's, if a sample was measured.
        saved: seconds saved against native, by the sample; negative for a loss.
        skew: seconds between the first and the last rank of a call, mean of the calls that all
            ranks made.
        last: the rank of ``COMM_WORLD`` that entered most of these last, and its part of them.
        reduces: seconds of a call in reductions, if known.
    """

    title: str
    least: int
    most: int
    what: str
    served: str
    by_rank: tuple[int, ...]
    seconds: float
    waiting: float | None
    imbalance: float
    ratio: float | None = None
    saved: float | None = None
    skew: float | None = None
    last: tuple[int, float] | None = None
    reduces: float | None = None

    @property
    def a_call(self) -> float:
        """Return the seconds of a call; mean of the calls of all ranks."""
        return self.seconds * len(self.by_rank) / max(sum(self.by_rank), 1)

    @property
    def waits(self) -> float | None:
        """Return the part of the time that is waiting, if known."""
        if self.waiting is None:
            return None
        return self.waiting / self.seconds if self.seconds else 0.0

    @property
    def calls(self) -> int:
        """Return the maximum over the ranks."""
        return max(self.by_rank)

    @property
    def sizes(self) -> str:
        """Return the bytes, or the range, as text."""
        least, most = (method_and_bytes(self.title, one)[1] for one in (self.least, self.most))
        return least if least == most else f"{least}-{most}"

    @property
    def method(self) -> str:
        """Return the method's name in mpi4py."""
        return method_and_bytes(self.title, self.least)[0]

    def as_json(self) -> dict[str, Any]:
        """Return plain data, whose size does not depend on the number of ranks."""
        return {"calls" if name == "by_rank" else name: self.calls if name == "by_rank" else value
                for name, value in self._asdict().items()}

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of :data:`HEADS`."""
        return (self.method, self.sizes, f"{self.calls:,}", time_text(self.seconds, 3),
                "" if self.waits is None else f"{self.waits:.0%}",
                self.served, f"{self.imbalance:.2f}",
                "" if self.ratio is None else f"{self.ratio:.2f}")


@dataclass(frozen=True)
class Profile:
    """Summary of the collectives of a program.

    Attributes:
        ranks: number of ranks with a record.
        seconds: between the first and the last recorded event; mean of the ranks.
        rows: longest time first.
        stragglers: arrival statistics of the ranks of each communicator, the latest first.
    """

    ranks: int
    seconds: float
    rows: Sequence[CallRow]
    details: Sequence[CallRow]
    stragglers: Sequence[Straggler] = ()

    @property
    def collective_seconds(self) -> float:
        """Return the seconds in collectives; mean of the ranks."""
        return sum(row.seconds for row in self.rows)

    @property
    def waiting_seconds(self) -> float:
        """Return the seconds in which ranks waited for others; mean of the ranks."""
        return sum(row.waiting or 0.0 for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"format": "hpccoll profile 1", "ranks": self.ranks, "seconds": self.seconds,
                "collective_seconds": self.collective_seconds,
                "waiting_seconds": self.waiting_seconds, "served_part": self.served_part,
                "saved_seconds": self.saved_seconds, "calls": self.calls,
                "rows": [row.as_json() for row in self.details],
                "stragglers": [one._asdict() for one in self.stragglers]}

    @property
    def calls(self) -> int:
        """Return the calls of the rank with the most: a call may have another size on each rank."""
        return max((sum(one) for one in zip(*(row.by_rank for row in self.rows))), default=0)

    @property
    def served_part(self) -> float:
        """Return the part of the calls that hpccoll ran."""
        calls = sum(sum(row.by_rank) for row in self.rows)
        return sum(sum(row.by_rank) for row in self.rows if row.served != "native") / max(calls, 1)

    @property
    def saved_seconds(self) -> float | None:
        """Return the seconds saved against the MPI library; ``None`` without a sample."""
        saved = [row.saved for row in self.details if row.saved is not None]
        return sum(saved) if saved else None

    def summary(self) -> str:
        """Return what collectives cost, and what hpccoll saved, as a paragraph."""
        took = self.collective_seconds
        text = (f"{count_text(self.ranks, 'rank')}: collectives took "
                f"{took / (self.seconds or 1):.0%} of {time_text(self.seconds, 3)}; "
                f"hpccoll ran {self.served_part:.0%} of the calls")
        if any(row.waiting is not None for row in self.rows) and took:
            text += f"; {self.waiting_seconds / took:.0%} of the time in them was waiting"
            if self.stragglers and (worst := self.stragglers[0]).waits:
                text += f", {worst.waits / self.ranks / took:.0%} for rank {worst.rank}"
        if (saved := self.saved_seconds) is not None:
            text += (". In a sample measured after the run, hpccoll "
                     f"{'saved' if saved >= 0 else 'lost'} {time_text(abs(saved), 3)} against "
                     f"{library_name()}")
        return text + "."

    def remarks(self) -> list[str]:
        """Return sentences about late ranks, and about what is not counted."""
        return [*describe_stragglers(self.stragglers),
                *["Messages (Send, Recv and others) are not counted."] * bool(self.rows)]

    def lines(self, width: int = 0) -> list[str]:
        """Return the profile as text: a summary, the longest rows, and remarks.

        Args:
            width: of a line; 0 for all rows and columns in lines of any length.
        """
        def wrap_all(sentences: list[str]) -> list[str]:
            return sentences if not width else [part for sentence in sentences for part in wrap(
                sentence, width, break_long_words=False, break_on_hyphens=False)]

        rows = self.rows[:LINES] if width else self.rows
        table = FittedTable([Header(head, head not in TEXT, int(head in SPARE)) for head in HEADS],
                            [row.cells() for row in rows], width, not width)
        more = [f"{len(self.rows) - len(rows)} more rows"] if len(self.rows) > len(rows) else []
        more += [f"column {name}" for name in table.hidden]
        rest = [*([f"--json also has {' and '.join(more)}."] if more else []), *self.remarks()]
        return [*wrap_all([self.summary()]), *(["", *table.lines()] if rows else []),
                *(["", *wrap_all(rest)] if rest else [])]

    def __str__(self) -> str:
        return "\n".join(self.lines()) + "\n"


def profile(joined: JoinedRecords) -> Profile:
    """Summarize the records of ranks."""
    ranks = len(joined.records)
    times: dict[CallKind, list[float]] = defaultdict(lambda: [0.0] * ranks)
    counts: dict[CallKind, list[int]] = defaultdict(lambda: [0] * ranks)
    waited: dict[CallKind, float] = defaultdict(float)
    for index, record in enumerate(joined.records):
        for one in record.communicators:
            for kind, sums in zip(one.kinds, one.sums):
                if not sums.calls:
                    continue
                is_wait = kind.title.endswith(WAIT)
                kind = kind._replace(title=kind.title.removesuffix(WAIT), root=-1)
                times[kind][index] += sums.seconds
                if is_wait:  # counted with its call
                    waited[kind] += sums.seconds
                else:
                    counts[kind][index] += sums.calls
    matched, reduced = waits_by_kind(joined), reduced_by_kind(joined.records)
    details = [_row(kind, counts[kind], times[kind], waited[kind], matched.get(kind))._replace(
        reduces=reduced.get(kind)) for kind in times]
    details.sort(key=lambda row: -row.seconds)
    lasted = sum(record.ended - record.began for record in joined.records) / max(ranks, 1)
    return Profile(ranks, lasted, rows_of(details), tuple(details), tuple(stragglers(joined)))


def _row(kind: CallKind, counts: Sequence[int], times: Sequence[float], waited: float,
         matched: MatchedSums | None) -> CallRow:
    ranks = len(times)
    mean = sum(times) / ranks
    waiting = skew = last = None
    if kind.title.startswith("i") or kind.title.endswith(INIT):
        waiting = waited / ranks
    elif matched is not None and ranks > 1:
        # The kept calls represent all of them.
        waiting = mean * (matched.waits / matched.seconds if matched.seconds else 0.0)
    if matched is not None and ranks > 1:
        (rank, times_last), calls = matched.lasts.most_common(1)[0], matched.lasts.total()
        skew, last = matched.skews / calls, (rank, times_last / calls)
    return CallRow(kind.title, kind.nbytes, kind.nbytes, kind.what, kind.served, tuple(counts),
                   mean, waiting, max(times) / mean if mean else 1.0, skew=skew, last=last)


def rows_of(details: Iterable[CallRow]) -> tuple[CallRow, ...]:
    """Return condensed rows: many sizes of a method with one algorithm share one."""
    groups: dict[tuple[str, str], list[CallRow]] = defaultdict(list)
    for row in details:
        groups[row.title, row.served].append(row)
    rows = [one for group in groups.values()
            for one in (group if len(group) <= MOST_SIZES else [_merge_rows(group)])]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _merge_rows(group: Sequence[CallRow]) -> CallRow:
    seconds = sum(row.seconds for row in group)
    known = [row for row in group if row.waiting is not None]
    saved = [row.saved for row in group if row.saved is not None]
    ours = [row.seconds for row in group if row.saved is not None]
    what = {row.what for row in group}
    return CallRow(
        group[0].title, min(row.least for row in group), max(row.most for row in group),
        what.pop() if len(what) == 1 else "", group[0].served,
        tuple(map(sum, zip(*(row.by_rank for row in group)))), seconds,
        sum(row.waiting or 0.0 for row in known) if known else None,
        sum(row.imbalance * row.seconds for row in group) / seconds if seconds else 1.0,
        (sum(ours) + sum(saved)) / sum(ours) if saved and sum(ours) else None,
        sum(saved) if saved else None)


def add_comparison(found: Profile, ratios: Mapping[CallRow, tuple[float, float]]) -> Profile:
    """Return the profile with the sample's results: time ratios, and seconds saved per call."""
    details = [row._replace(ratio=ratios[row][0], saved=ratios[row][1] * row.calls)
               if row in ratios else row for row in found.details]
    return replace(found, details=tuple(details), rows=rows_of(details))
