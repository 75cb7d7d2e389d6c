"""Comparison of two records: regressions and their factors.

The ratio is old / new of the medians, so above 1 the new run is faster. A candidate regressed
if its new median is longer than the old one by more than the tolerance, or if its new results
were wrong. If native itself changed between the runs, the machine did, and no case is judged.
Needs no MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import exp, log
from typing import Any, NamedTuple

from rich.text import Text

from hpccoll.config import NATIVE
from hpccoll.errors import HpccollError
from hpccoll.explain.columns import WIDTH, FittedTable, Header, wrap_comment
from hpccoll.tools.bench.records import Entry, Key, Record
from hpccoll.units import count_text, size_text, time_text

#: Fields of the environment that must be equal in two comparable runs.
SAME = ("library", "mpi4py", "numpy", "python", "ranks", "hosts", "topology", "cpu", "cores",
        "shared_cache", "thread_level", "executor", "buffers", "variables")
#: Settings that must be equal as well, with their value in records older than the setting.
CHOSEN = {"uneven": False, "segment_bytes": 0, "warmup": None, "iterations": None, "seconds": 0.25,
          "sweeps": 1, "rotate": 1, "form": "blocking"}


class ComparedCase(NamedTuple):
    """One candidate on one case, in both records."""

    key: Key
    old: Entry
    new: Entry

    @property
    def ratio(self) -> float:
        """Return the old median divided by the new one."""
        return self.old.seconds / self.new.seconds

    def has_regressed(self, tolerance: float) -> bool:
        """Return True if its results are wrong, or its time grew by more than the tolerance."""
        return self.new.wrong > 0 or self.new.seconds > self.old.seconds * (1 + tolerance)


def pairs(old: Record, new: Record, collectives: Sequence[str] = ()) -> list[ComparedCase]:
    """Return the cases of both records, of some collectives or all, in the order of the new one."""
    compared = [ComparedCase(key, old.entries[key], entry) for key, entry in new.entries.items()
             if key in old.entries and (not collectives or key.collective in collectives)]
    if not compared:
        raise HpccollError(f"{old.path!r} and {new.path!r} share no "
                           f"{' or '.join(collectives) or 'collective'}, size and candidate")
    return compared


def native_moves(compared: Sequence[ComparedCase]) -> dict[Key, float]:
    """Return the factor, at least 1, between the native times of each case.

    With the same library, native is the same code in both records: a difference comes from the
    machine, and affects all candidates.
    """
    moves = {pair.key._replace(candidate=""): max(pair.ratio, 1 / pair.ratio)
             for pair in compared if pair.key.candidate == NATIVE}
    return {pair.key: moves.get(pair.key._replace(candidate=""), 1.0) for pair in compared}


def comparable_cases(old: Record, new: Record, compared: Sequence[ComparedCase], tolerance: float
                     ) -> list[ComparedCase]:
    """Return the cases with similar native times, where other candidates can be compared.

    With another MPI library native differs, and all cases are returned.
    """
    if old.library != new.library:
        return list(compared)
    moves = native_moves(compared)
    return [pair for pair in compared if pair.new.wrong
            or moves[pair.key] <= permitted_factor(tolerance)]


def permitted_factor(tolerance: float) -> float:
    """Return the permitted factor between native times for a tolerance."""
    return max(1.25, 1 + 2 * tolerance)


def lines(old: Record, new: Record, compared: list[ComparedCase], tolerance: float,
          width: int = WIDTH, full: bool = False) -> Iterator[Text]:
    """Return the lines of the table; comment lines start with ``#``."""
    said = partial(_wrap_line, width=width)
    yield from said(f"old: {old.path}, {old.environment.get('time', '')}")
    yield from said(f"new: {new.path}, {new.environment.get('time', '')}")
    for (name, one), (_, two) in zip(_circumstances(old), _circumstances(new)):
        if one != two:
            yield from said(f"{name} differs: {_short_text(one)} and {_short_text(two)}", "yellow")
    for record, other in ((old, new), (new, old)):
        alone = sum(key not in other.entries for key in record.entries)
        if alone:
            yield from said(f"only in {record.path}: {alone} of {len(record.entries)} results")
    yield from said("medians; ratio is old / new: above 1, the new one is faster")
    judged = {pair.key for pair in comparable_cases(old, new, compared, tolerance)}
    for name, group in groupby(compared, lambda pair: pair.key.collective):
        yield from _table(name, list(group), judged, tolerance, width, full)
    yield from said("")
    for candidate in dict.fromkeys(pair.key.candidate for pair in compared):
        mine = [pair.ratio for pair in compared if pair.key.candidate == candidate]
        mean = exp(sum(map(log, mine)) / len(mine))
        yield from said(f"geometric mean of the ratio, {candidate}: {mean:.2f} ({len(mine)})")
    yield from _summary(compared, judged, old, new, tolerance, said)


def _summary(compared: list[ComparedCase], judged: set[Key], old: Record, new: Record,
             tolerance: float, said: Callable[..., Iterator[Text]]) -> Iterator[Text]:
    worse = sum(pair.has_regressed(tolerance) for pair in compared if pair.key in judged)
    left = len(compared) - len(judged)
    if left:
        most = max(native_moves(compared).values())
        yield from said(f"not comparable: {left} of {len(compared)} results, because native "
                        f"changed by up to {most:.1f}x between the two runs; repeat both on an "
                        "idle machine, in alternation", "bold yellow")
    if judged:
        yield from said(f"regressions beyond {100 * tolerance:g} %: {worse} of {len(judged)}",
                        "bold red" if worse else "")


def _table(name: str, pairs: list[ComparedCase], judged: set[Key], tolerance: float, width: int,
           full: bool) -> Iterator[Text]:
    """Return the lines of one collective; fields common to all are in the title."""
    keys = [pair.key for pair in pairs]
    same = {field: {getattr(key, field) for key in keys}
            for field in ("ranks", "dtype", "op", "root", "in_place")}
    words = [name]
    words += [count_text(keys[0].ranks, "rank")] if len(same["ranks"]) == 1 else []
    words += [str(value) for field in ("dtype", "op")
              if len(same[field]) == 1 and (value := same[field].copy().pop())]
    yield from _wrap_line("")
    yield from _wrap_line(", ".join(words), "bold")
    varying = [field for field in same if len(same[field]) > 1]
    rows = [[size_text(pair.key.nbytes) if pair.key.nbytes else "-",
             *(str(getattr(pair.key, field)) for field in varying), pair.key.candidate,
             time_text(pair.old.seconds, 3), time_text(pair.new.seconds, 3), f"{pair.ratio:.2f}",
             _word(pair, judged, tolerance)] for pair in pairs]
    table = FittedTable(
        [Header("size"), *(Header(field) for field in varying), Header("candidate", right=False),
         Header("old"), Header("new"), Header("ratio"), Header("verdict", right=False)],
        rows, width, full)
    yield Text(table.head, "bold")
    for pair, row in zip(pairs, rows):
        text = Text(table.line(row))
        if pair.key in judged:
            text.stylize("red" if pair.has_regressed(tolerance) else
                         "green" if pair.ratio > 1 + tolerance else "")
        yield text


def _word(pair: ComparedCase, judged: set[Key], tolerance: float) -> str:
    if pair.new.wrong:
        return f"WRONG: {pair.new.wrong} elements"
    if pair.key not in judged:
        return "native moved"
    return "regression" if pair.has_regressed(tolerance) else (
        "faster" if pair.ratio > 1 + tolerance else "")


def _circumstances(record: Record) -> Iterator[tuple[str, Any]]:
    """Yield names and values that should be equal in two records."""
    for name in SAME:
        yield name, record.environment.get(name)
    for name, before in CHOSEN.items():
        yield name, record.settings.get(name, before)


def _wrap_line(line: str, style: str = "", width: int = WIDTH) -> Iterator[Text]:
    for part in wrap_comment(line, width) or ["#"]:
        yield Text(part, style or "dim")


def _short_text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 70 else f"{text[:67]}..."
