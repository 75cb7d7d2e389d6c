"""Two records compared: what became slower, and by how much.

The ratio is old / new of the medians, so above 1 the new run is faster. A candidate regressed
where its new median is longer than the old one by more than the tolerance, or where its new
results were wrong. Needs no MPI.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log
from typing import Any, NamedTuple

from rich.text import Text

from hpccoll.errors import HpccollError
from hpccoll.tools.bench.records import Entry, Key, Record

#: What of an environment makes two runs differ before anything is measured.
SAME = ("library", "mpi4py", "numpy", "python", "ranks", "hosts", "topology", "cpu", "cores",
        "thread_level", "executor", "buffers", "variables")
#: What of the settings does, beside what the environment says, and what it was before there was
#: such an option.
CHOSEN = {"uneven": False, "segment_bytes": 0, "warmup": None, "iterations": None, "seconds": 0.25,
          "sweeps": 1, "rotate": 1, "form": "blocking"}


class ComparedCase(NamedTuple):
    """One candidate on one case, in both records."""

    key: Key
    old: Entry
    new: Entry

    @property
    def ratio(self) -> float:
        """How many times faster the new one is."""
        return self.old.seconds / self.new.seconds

    def regressed(self, tolerance: float) -> bool:
        """Tell whether it became worse by more than the tolerance, a part of the old time."""
        return self.new.wrong > 0 or self.new.seconds > self.old.seconds * (1 + tolerance)


def pairs(old: Record, new: Record) -> list[ComparedCase]:
    """What both records have, in the order of the new one.

    Raises:
        HpccollError: they have nothing in common.
    """
    compared = [ComparedCase(key, old.entries[key], entry) for key, entry in new.entries.items()
             if key in old.entries]
    if not compared:
        raise HpccollError(f"{old.path!r} and {new.path!r} have no collective, size and candidate "
                           "in common")
    return compared


def lines(old: Record, new: Record, compared: list[ComparedCase],
          tolerance: float) -> Iterator[Text]:
    """The table; comment lines start with ``#``."""
    yield _said(f"old: {old.path}, {old.environment.get('time', '')}")
    yield _said(f"new: {new.path}, {new.environment.get('time', '')}")
    for (name, one), (_, two) in zip(_circumstances(old), _circumstances(new)):
        if one != two:
            yield _said(f"{name} differs: {_short(one)} and {_short(two)}", "yellow")
    for record, other in ((old, new), (new, old)):
        alone = sum(key not in other.entries for key in record.entries)
        if alone:
            yield _said(f"only in {record.path}: {alone} of {len(record.entries)} results")
    yield _said("ratio is old / new of the medians: above 1, the new one is faster")
    yield _said("")
    width = max(9, *(len(pair.key.candidate) for pair in compared))
    kind = max(10, *(len(pair.key.collective) for pair in compared))
    yield _said(f"{'collective':{kind}} {'ranks':>6} {'size':>11} {'candidate':{width}} "
                f"{'old p50(us)':>12} {'new p50(us)':>12} {'ratio':>7}")
    for pair in compared:
        yield _line(pair, kind, width, tolerance)
    yield _said("")
    for candidate in dict.fromkeys(pair.key.candidate for pair in compared):
        mine = [pair.ratio for pair in compared if pair.key.candidate == candidate]
        mean = exp(sum(map(log, mine)) / len(mine))
        yield _said(f"geometric mean of the ratio, {candidate}: {mean:.2f} ({len(mine)})")
    worse = sum(pair.regressed(tolerance) for pair in compared)
    yield _said(f"regressions beyond {100 * tolerance:g} %: {worse} of {len(compared)}",
                "bold red" if worse else "")


def _circumstances(record: Record) -> Iterator[tuple[str, Any]]:
    """What should be the same in two records, name by name."""
    for name in SAME:
        yield name, record.environment.get(name)
    for name, before in CHOSEN.items():
        yield name, record.settings.get(name, before)


def _line(pair: ComparedCase, kind: int, width: int, tolerance: float) -> Text:
    key, worse = pair.key, pair.regressed(tolerance)
    line = Text(f"  {key.collective:{kind}} {key.ranks:6} {key.nbytes:11} {key.candidate:{width}} "
                f"{pair.old.seconds * 1e6:12.2f} {pair.new.seconds * 1e6:12.2f} ")
    line.append(f"{pair.ratio:7.2f}", "red" if worse else
                "green" if pair.ratio > 1 + tolerance else "")
    if pair.new.wrong:
        line.append(f"  WRONG: {pair.new.wrong} elements", "bold red")
    elif worse:
        line.append("  regression", "red")
    return line


def _said(line: str, style: str = "") -> Text:
    return Text(f"# {line}".rstrip(), style or "dim")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 70 else f"{text[:67]}..."
