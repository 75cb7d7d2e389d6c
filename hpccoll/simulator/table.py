"""Table of several simulations: a block for every point, its fastest algorithm first.

A *point* is a number of nodes and a size. Values common to all points are in the header. Many
points get a line each, with the two fastest algorithms; ``full`` shows all algorithms of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpccoll.explain.columns import WIDTH, FittedTable, Header, wrap_comment
from hpccoll.ir.topology import Topology
from hpccoll.simulator.machine_model import Machine, names
from hpccoll.simulator.report import Report, parts
from hpccoll.units import count_text, rate_text, size_text, time_text

#: With more points than this, each has one line.
POINTS = 6
#: Times within this factor of the fastest count as equal.
LEVEL = 1.0005
_PLACE = (Header("nodes"), Header("ranks"), Header("size"))
_COLUMNS = (
    *_PLACE, Header("algorithm", right=False), Header("time"),
    Header("x best", meaning="time compared with the fastest (*)"),
    Header("rate", spare=1, meaning="bytes of a rank's vector over the time"),
    Header("busiest", right=False, spare=2,
           meaning="the busiest resource, and its share of the time"),
    Header("latency", spare=6, meaning="time until first bytes arrive, along the critical path; "
                                       "then transfer of bytes, delay by sharing, and local "
                                       "reducing and copying"),
    Header("transfer", spare=6), Header("sharing", spare=6), Header("local", spare=6),
    Header("idle", spare=6, meaning="mean over the ranks"))
_SHORT = (
    *_PLACE, Header("fastest", right=False, meaning="+1 if another one is equally fast"),
    Header("time"),
    Header("rate", spare=1, meaning="bytes of a rank's vector over the time"),
    Header("busiest", right=False, spare=2,
           meaning="the busiest resource, and its share of the time"),
    Header("next", right=False), Header("x best", meaning="time of the next over the fastest's"))


class SimulatedPoint(NamedTuple):
    """The simulations of one number of nodes and size, the fastest first."""

    nodes: int
    nbytes: float
    reports: tuple[Report, ...]


class SimulatedTable(NamedTuple):
    """Lines of text; ``best`` are the numbers of those that show a fastest algorithm."""

    lines: list[str]
    best: frozenset[int]


def points(reports: Sequence[tuple[int, Report]]) -> list[SimulatedPoint]:
    """Group simulations by number of nodes and size; the fastest of a group comes first."""
    grouped: dict[tuple[int, float], list[Report]] = {}
    for nodes, report in reports:
        grouped.setdefault((nodes, report.nbytes), []).append(report)
    return [SimulatedPoint(*place, tuple(sorted(same, key=lambda r: r.seconds)))
            for place, same in grouped.items()]


def simulated_table(reports: Sequence[tuple[int, Report]], width: int = WIDTH,
                    full: bool = False, layout: str = "") -> SimulatedTable:
    """Return a table of simulations of one collective on one machine.

    Args:
        reports: pairs of number of nodes and report.
        layout: layout of the ranks, unless it is a number of nodes of equal size.
    """
    grouped = points(reports)
    short = len(grouped) > POINTS and not full
    table = FittedTable(_SHORT if short else _COLUMNS, _rows(grouped, short), width, full)
    table.shown = [n for n in table.shown if n >= len(_PLACE) or _varies(grouped, n, layout)]
    lines = _header(grouped, layout, width)
    lines += ["", table.head]
    best, row = set(), 0
    for number, point in enumerate(grouped):
        if number and not short:
            lines.append("")
        for place in range(1 if short else len(point.reports)):
            fastest = point.reports[place].seconds <= point.reports[0].seconds * LEVEL
            if fastest:
                best.add(len(lines))
            lines.append(table.line(table.rows[row], fastest and not short))
            row += 1
    lines.append("")
    for line in (*table.legend(), _many(grouped, short), table.left_out(), summary(grouped)):
        lines += wrap_comment(line, width)
    return SimulatedTable(lines, frozenset(best))


def summary(grouped: Sequence[SimulatedPoint]) -> str:
    """Return a sentence on the number of points at which each algorithm is fastest, or equal.

    A point with one algorithm is not counted.
    """
    grouped = [point for point in grouped if len(point.reports) > 1]
    if not grouped:
        return ""
    wins: dict[tuple[str, ...], list[float]] = {}
    for point in grouped:
        first = point.reports[0].seconds
        level = tuple(sorted(label(r) for r in point.reports if r.seconds <= first * LEVEL))
        behind = [r.seconds for r in point.reports if r.seconds > first * LEVEL]
        wins.setdefault(level, []).append(behind[0] / first if behind and first else 1.0)
    several = len(grouped) > 1
    sentences = []
    for level, leads in sorted(wins.items(), key=lambda item: -len(item[1])):
        who = level[0] if len(level) == 1 else f"{', '.join(level[:-1])} and {level[-1]}"
        sentences.append(who + (" is" if len(level) == 1 else " are equal and") + " fastest"
                         + f" at {len(leads)} of {len(grouped)} points" * several
                         + _lead_text(leads))
    return "in simulation, " + "; ".join(sentences)


def _lead_text(leads: Sequence[float]) -> str:
    least, most = f"{min(leads):.3g}", f"{max(leads):.3g}"
    if most == "1":
        return ""
    return (f", {most} times" if least == most else f", {least} to {most} times"
            ) + " as fast as the next"


def label(report: Report) -> str:
    """Return the name of an algorithm and its parameters, as ``--algorithm`` takes them."""
    return report.schedule.algorithm + "".join(
        f":{name}={value}" for name, value in report.schedule.params)


def rates_of(machine: Machine) -> str:
    """Return a short text on the source of a machine's rates."""
    if machine.description.lower().startswith("measured"):
        return f"{machine.name} was {machine.description[0].lower()}{machine.description[1:]}"
    if machine.name in names():
        return (f"{machine.name} has peak rates from vendor data and typical latencies, not "
                "measurements")
    return f"{machine.name} has the values of its file, not measurements"


def level_note(machine: Machine, topology: Topology) -> str:
    """Return a remark if a layout's depth differs from the machine's levels; else empty."""
    levels = [level.name for level in machine.levels]
    depth, inner = topology.depth, topology.size > len(topology.groups())
    if depth > len(levels):
        return (f"the layout {topology} has {depth} levels and {machine.name} {len(levels)}: "
                f"deeper levels count as {levels[-1]}")
    if depth == len(levels) or not inner:
        return ""
    return (f"{machine.name} has the levels {', '.join(levels)}, and the layout {topology} is only "
            f"{depth} deep, so {', '.join(levels[depth:])} is not used; write --nodes N --ppn "
            f"{'x'.join('ABCDEF'[:len(levels) - 1])}")


def _header(grouped: Sequence[SimulatedPoint], layout: str, width: int) -> list[str]:
    first = grouped[0].reports[0]
    where = [layout and f"layout {layout}" or ("" if _varies(grouped, 0, layout) else
             count_text(grouped[0].nodes, "node")),
             "" if _varies(grouped, 1, layout) else count_text(first.schedule.size, "rank"),
             "" if _varies(grouped, 2, layout) or not first.nbytes else
             f"{size_text(first.nbytes)} per rank"]
    note = level_note(first.machine, Topology.parse(first.topology))
    shape = first.machine.shape
    sentences = (", ".join([f"{first.schedule.collective.name} on {first.machine.name}",
                            *([shape.describe()] if shape else []),
                            *filter(None, where)]),
            f"simulated; {rates_of(first.machine)}",
            first.conditions and first.conditions + (
                f"; medians of {len(first.repeats):,} repeats" if first.repeats else ""),
            f"note: {note}" if note else "")
    return [part for line in sentences for part in wrap_comment(line, width)]


def _varies(grouped: Sequence[SimulatedPoint], column: int, layout: str) -> bool:
    """Return True if a column of the place differs between points."""
    if column == 0 and layout:
        return False
    return len({_place(point)[column] for point in grouped}) > 1


def _place(point: SimulatedPoint) -> list[str]:
    return [f"{point.nodes:,}", f"{point.reports[0].schedule.size:,}", size_text(point.nbytes)]


def _rows(grouped: Sequence[SimulatedPoint], short: bool) -> list[list[str]]:
    rows = []
    for point in grouped:
        if short:
            fastest = point.reports[0]
            second = [r for r in point.reports if r.seconds > fastest.seconds * LEVEL][:1]
            level = sum(r.seconds <= fastest.seconds * LEVEL for r in point.reports)
            rows.append([*_place(point), label(fastest) + f" +{level - 1}" * (level > 1),
                         time_text(fastest.seconds), _rate(fastest), _busiest_resource(fastest),
                         label(second[0]) if second else "-",
                         _times(second[0], fastest) if second else "-"])
            continue
        for number, report in enumerate(point.reports):
            rows.append([*(["", "", ""] if number else _place(point)), label(report),
                         time_text(report.seconds), _times(report, point.reports[0]),
                         _rate(report), _busiest_resource(report), *_parts(report)])
    return rows


def _times(report: Report, best: Report) -> str:
    return f"{report.seconds / best.seconds:.2f}" if best.seconds else "-"


def _rate(report: Report) -> str:
    return rate_text(report.nbytes / report.seconds if report.seconds else 0.0)


def _busiest_resource(report: Report) -> str:
    busy = report.busiest[0] if report.busiest else None
    return f"{busy.kind} {100 * busy.utilisation:.0f} %" if busy else "-"


def _parts(report: Report) -> list[str]:
    """Return texts of the parts of the critical path, and of the ranks' idle time."""
    spent = parts(report)
    return [time_text(seconds) for seconds in (
        *(spent[what] for what in ("latency", "transfer", "sharing", "local work")),
        report.idle.mean)]


def _many(grouped: Sequence[SimulatedPoint], short: bool) -> str:
    """Return a remark if not all algorithms are shown."""
    most = max(len(point.reports) for point in grouped)
    return (f"{len(grouped)} points, one line each: --full shows all {most} algorithms of every "
            "point") if short and most > 2 else ""
