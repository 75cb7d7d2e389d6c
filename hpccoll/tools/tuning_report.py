"""Report of a tuning: the fastest algorithm by size, and its speedup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import exp, log
from typing import NamedTuple

from hpccoll.algorithms.outside import column_names
from hpccoll.algorithms.table import is_ours
from hpccoll.config import NATIVE
from hpccoll.explain.columns import WIDTH, FittedTable, Header, wrap_comment
from hpccoll.machine.identity import library_name
from hpccoll.measure.noise import Doubt
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import DISTURBED, Curves, Disagreement, Fingerprint
from hpccoll.units import count_text, size_text, time_text

#: Maximum number of disturbed points listed individually.
NAMED = 6


class FastestPoint(NamedTuple):
    """One size of one kind of call: the fastest candidate, and native.

    Attributes:
        own: seconds of the user's algorithms, by label.
    """

    kind: str
    nbytes: int
    label: str
    seconds: float
    native: float | None
    own: Mapping[str, float] = {}

    @property
    def ratio(self) -> float:
        """Return the speedup over native."""
        return self.native / self.seconds if self.native else 0.0


def fastest_candidates(curves: Curves, tuned: JobTimes) -> list[FastestPoint]:
    """Return the fastest candidate of every size, by the rule of later jobs."""
    points = []
    for (collective, commutes), curve in curves.items():
        for nbytes, times in curve:
            known = {c: c.name == NATIVE or is_ours(collective, c.name) for c in times}
            ranking = [each for each in tuned.ranking(collective, commutes, nbytes)
                       if known.get(each[0], True)]
            if not ranking:  # no native time, which a probe must have
                continue
            best, seconds, predicted = ranking[0]
            native = next((t for c, t in times.items() if c.name == NATIVE), None)
            own = {c.label: t for c, t in times.items() if not known[c]}
            points.append(FastestPoint(
                collective if commutes else f"{collective}, ordered", nbytes,
                best.label + " (predicted)" * predicted, seconds, native, own))
    return points


def lines(machine: Fingerprint, points: Sequence[FastestPoint],
          doubtful: Sequence[Doubt], width: int = WIDTH,
          full: bool = False, stayed: Sequence[Disagreement] = (), hold: bool = True) -> list[str]:
    """Return the table; sizes with the same fastest candidate share a line, unless ``full``.

    Args:
        hold: False if the times may be wrong: without conclusions, unless ``full``.
    """
    library = library_name(machine.mpi).rpartition(" ")[0] or NATIVE
    lines = wrap_comment(f"{machine.mpi}, {machine.host}, {count_text(machine.ranks, 'rank')}, "
                         f"layout {machine.topology}", width)
    own = list(dict.fromkeys(label for point in points for label in point.own))
    rows: list[list[str]] = []
    marked: list[int] = []
    for (_, label), same in groupby(
            points, lambda p: (p.kind, (p.label, p.nbytes) if full else p.label)):
        group = list(same)
        name = label[0] if isinstance(label, tuple) else label
        marked += [len(rows)] if name != NATIVE else []
        rows.append([group[0].kind, _sizes(group), name, _range(_time, [
            p.seconds for p in group]), _range(_time, [
                p.native for p in group if p.native]), _range("{:.2f}".format, [
                    p.ratio for p in group if p.ratio and name != NATIVE]),
                     *(_range(_time, [p.own[one] for p in group if one in p.own])
                       for one in own)])
    last = ""
    for row in rows:
        row[0], last = ("" if row[0] == last else row[0]), row[0]
    table = FittedTable([Header("collective", right=False), Header("sizes"),
                         Header("fastest", right=False), Header("time", spare=1),
                         Header(library, spare=2),
                         Header("ratio",
                                meaning=f"time of {library} divided by that of the fastest"),
                         *(Header(name, meaning="its time, which is not saved")
                           for name in column_names(own))],
                        rows, width, full)
    lines += table.lines(marked) if rows else []
    conclusions = [*_summary(points, library), *_spoilt(doubtful, full)] if hold or full else []
    for line in (*table.legend(), "* an hpccoll algorithm", table.left_out(), *conclusions,
                 *_unchanged_remarks(stayed)):
        lines += wrap_comment(line, width)
    return lines


def _summary(points: Sequence[FastestPoint], library: str) -> list[str]:
    ours = [p for p in points if p.label != NATIVE and p.ratio]
    if not points:
        return []
    if not ours:
        return [f"{library} is fastest at all {len(points)} points"]
    if len(ours) == len(points):
        where, rest = f"all {len(points)} points", ""
    else:
        where, rest = f"{len(ours)} of {len(points)} points", f"; {library} at the others"
    mean = exp(sum(log(p.ratio) for p in ours) / len(ours))
    return [f"an hpccoll algorithm is fastest at {where}, {mean:.1f}x as fast as {library} "
            f"there{rest}"]


def _spoilt(doubtful: Sequence[Doubt], full: bool) -> list[str]:
    """Return remarks on disturbed points, and the remedy."""
    points = [doubt for doubt in doubtful if not doubt.label]
    single = [doubt for doubt in doubtful if doubt.label]
    lines = [f"{count_text(len(points), 'point')} disturbed by other processes" + (
        f", {_list_doubtful(points)}" if full else "")] if points else []
    lines += [f"{count_text(len(single), 'time')} of one candidate" + (
        f", {_list_doubtful(single)}" if full else "")] if single else []
    return ([f"not saved: {'; and '.join(lines)}; repeat it when the machine is idle" + (
        "" if full else "; --full lists them")] if lines else [])


def _unchanged_remarks(stayed: Sequence[Disagreement]) -> list[str]:
    """Return remarks on times of the table that the new ones did not change."""
    named = ", ".join(f"{each.collective} {size_text(each.nbytes)} {each.candidate.label} "
                      f"{_time(each.old)} (now {_time(each.new)})" for each in stayed[:NAMED])
    more = f" and {len(stayed) - NAMED} more" if len(stayed) > NAMED else ""
    return [f"not changed: {count_text(len(stayed), 'time')} of the table that differ from the new "
            f"ones by more than a factor of {DISTURBED:g}, {named}{more}; --replace uses the new "
            "ones"] if stayed else []


def _list_doubtful(doubtful: Sequence[Doubt]) -> str:
    """Return the first doubtful points, each with the reason."""
    named = ", ".join(
        f"{doubt.collective} {size_text(doubt.nbytes)}{' ' * bool(doubt.label)}{doubt.label} "
        + (f"(native took {doubt.ratio:.0f} times as long as the fastest)" if doubt.ratio else
           f"({doubt.late:.0f} times as long as a larger size)") for doubt in doubtful[:NAMED])
    return named + (f" and {len(doubtful) - NAMED} more" if len(doubtful) > NAMED else "")


def _time(seconds: float) -> str:
    return time_text(seconds, 3)


def _sizes(group: Sequence[FastestPoint]) -> str:
    low, high = group[0].nbytes, group[-1].nbytes
    return (size_text(low) if low == high else f"{size_text(low)} - {size_text(high)}"
            ) if high else "-"


def _range(text: Callable[[float], str], values: Sequence[float]) -> str:
    """Return the lowest and highest value, or the only one."""
    if not values:
        return "-"
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} - {high}"
