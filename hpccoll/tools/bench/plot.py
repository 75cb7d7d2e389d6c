"""Plot: for every collective, the ratio to native and the bus bandwidth over size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpccoll.config import AUTO, NATIVE
from hpccoll.explain.plotting import (
    FAINT,
    FEW,
    INK,
    SOFT,
    TICK,
    dress,
    headline,
    name_axes,
    new_figure,
    ratio_axis,
    save,
    size_axis,
)
from hpccoll.machine.identity import library_name
from hpccoll.measure.results import ratios
from hpccoll.tools.bench import comparison_result
from hpccoll.tools.bench.report import Group
from hpccoll.units import count_text

#: Colours above and below a ratio of 1.
BETTER, WORSE = "#e8f4ea", "#fbecea"
#: Markers and dashes, changed when all colours are in use.
MARKS, DASHES = "os^DvP", ("-", "--", ":", "-.")
#: With more lines than this, shades would overlap: only auto has a shade.
SHADED = 4
#: Height in inches of one panel, of its margins, and of a line of the legend.
WIDTH, HEIGHT, ABOVE, BELOW, ENTRY = 6.0, 3.5, 0.95, 0.55, 0.26
#: Legend text of a node's memory limit.
LIMIT = "memory limit"
#: Left margin relative to the width; columns of the legend.
LEFT, COLUMNS = 0.07, 6


def draw(groups: Sequence[Group], environment: Mapping[str, Any], path: str) -> None:
    """Draw the results into a file; the suffix names the format (png, svg, pdf)."""
    rows: dict[str, list[Group]] = {}
    for group in groups:
        rows.setdefault(group[0].collective, []).append(group)
    labels = dict.fromkeys(r.candidate for group in groups for r in group)
    styles = {label: _style(number, label) for number, label in enumerate(
        sorted(labels, key=lambda label: label == NATIVE))}
    named = [*styles, *[LIMIT] * any(group[0].limit_seconds for group in groups)]
    above = ABOVE + ENTRY * -(-len(named) // COLUMNS)
    height = len(rows) * HEIGHT + above + BELOW
    figure = new_figure(2 * WIDTH, height)
    panels = figure.subplots(len(rows), 2, squeeze=False)
    figure.subplots_adjust(left=LEFT, right=0.985, top=1 - (above + 0.3) / height,
                           bottom=(BELOW + 0.1) / height, wspace=0.16,
                           hspace=0.75 / (HEIGHT - 0.75))
    shaded: set[str] = set()
    for (name, row), (left, right) in zip(rows.items(), panels):
        shaded |= _ratio_panel(left, name, row, styles)
        _bandwidth_panel(right, name, row, styles)
    hosts = len(environment["hosts"])
    headline(figure, LEFT, (1 - 0.36 / height, _title(list(rows), groups, environment)),
             (1 - 0.66 / height, f"medians; {_about_shades(shaded)}{count_text(hosts, 'host')}, "
              f"{environment['cpu']}, {environment['cores']} cores; mpi4py "
              f"{environment['mpi4py']}, hpccoll {environment['hpccoll']}"))
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()
             if line.get_label() in named}
    figure.legend([lines[label] for label in named], named, loc="upper left",
                  bbox_to_anchor=(LEFT, 1 - (ABOVE - 0.07) / height), ncols=COLUMNS,
                  frameon=False, fontsize=10, handlelength=1.8, columnspacing=1.6,
                  borderaxespad=0, borderpad=0, labelcolor=INK)
    save(figure, path)


def _ratio_panel(panel: Any, name: str, row: Sequence[Group],
                 styles: Mapping[str, dict]) -> set[str]:
    """Draw native time over candidate's time; return the labels of shaded lines."""
    series: dict[str, list[tuple[int, float]]] = {}
    spreads: dict[str, list[tuple[int, float, float]]] = {}
    for group in row:
        for label, ratio in ratios(group).items():
            series.setdefault(label, []).append((group[0].nbytes, ratio))
        for result in group:
            beside = comparison_result.compare_native(group, result)
            if beside is not None:
                spreads.setdefault(result.candidate, []).append(
                    (result.nbytes, beside.spread.low, beside.spread.high))
    _dress(panel, row, f"{name}: speed relative to the host MPI")
    points = [ratio for label in series for _, ratio in series[label]] or [1.0]
    low, high = min(0.7, min(points) / 1.15), max(1.45, max(points) * 1.15)
    ratio_axis(panel, low, high)
    panel.axhspan(1, high, color=BETTER, zorder=0, linewidth=0)
    panel.axhspan(low, 1, color=WORSE, zorder=0, linewidth=0)
    panel.axhline(1, color=SOFT, linewidth=1.6, zorder=1)
    shaded = {label for label, line in series.items() if len(line) > 1 and label != NATIVE
              and (len(series) <= SHADED or label == AUTO)}
    for label, line in series.items():
        if label != NATIVE:
            if label in shaded:
                nbytes, lows, highs = zip(*spreads[label])
                panel.fill_between(nbytes, lows, highs, color=styles[label]["color"], alpha=0.15,
                                   linewidth=0, zorder=2)
            panel.plot(*zip(*line), label=label, **styles[label])
    panel.text(0.985, 0.96, "faster than native", transform=panel.transAxes, ha="right",
               va="top", fontsize=TICK, color="#2e7d43", zorder=1.5)
    panel.text(0.985, 0.04, "slower than native", transform=panel.transAxes, ha="right",
               va="bottom", fontsize=TICK, color="#b0433a", zorder=1.5)
    name_axes(panel, up="native time / time")
    return shaded


def _bandwidth_panel(panel: Any, name: str, row: Sequence[Group],
                     styles: Mapping[str, dict]) -> None:
    """Draw the bus bandwidth of the median iteration; for a barrier, its time."""
    sized = row[0][0].nbytes > 0
    _dress(panel, row, f"{name}: bus bandwidth" if sized else f"{name}: time")
    series: dict[str, list[tuple[int, float]]] = {}
    for result in (r for group in row for r in group):
        value = (result.bus_bandwidth(result.median) / 1e9 if sized else result.median * 1e6)
        series.setdefault(result.candidate, []).append((result.nbytes, value))
    if any(value > 0 for line in series.values() for _, value in line):
        panel.set_yscale("log")
    panel.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    panel.yaxis.set_minor_formatter("")
    for label, line in series.items():
        panel.plot(*zip(*line), label=label, **styles[label])
    limits = [(group[0].nbytes, group[0].bus_bandwidth(group[0].limit_seconds) / 1e9)
              for group in row if group[0].limit_seconds]
    if limits:
        panel.plot(*zip(*limits), label=LIMIT, color=INK, linewidth=1.2, linestyle=(0, (1, 2)),
                   zorder=1.5)
    panel.set_ylabel("GB/s" if sized else "us", color=INK)


def _dress(panel: Any, row: Sequence[Group], title: str) -> None:
    """Set the axes common to both panels."""
    dress(panel, title)
    sizes = [group[0].nbytes for group in row]
    if sizes[0]:
        size_axis(panel, sizes)
    else:
        panel.set_xticks([])
    panel.margins(x=0.03)
    panel.grid(axis="y", which="major", color=FAINT, linewidth=0.8)


def _style(number: int, label: str) -> dict[str, Any]:
    if label == NATIVE:
        return {"color": SOFT, "linewidth": 2.2, "marker": "o", "markersize": 3.5, "zorder": 2}
    around = number // len(FEW)
    # If auto ran an algorithm that is drawn too, auto's line is on top.
    return {"color": FEW[number % len(FEW)], "linewidth": 1.8, "markersize": 4.5,
            "zorder": 3.5 if label == AUTO else 3,
            "marker": MARKS[around % len(MARKS)], "linestyle": DASHES[around % len(DASHES)],
            "markeredgecolor": "white", "markeredgewidth": 0.6}


def _about_shades(shaded: set[str]) -> str:
    """Return the explanation of shades; empty if there are none."""
    who = "auto" if shaded == {AUTO} else "a candidate"
    return f"shaded: how much {who} varied during the run; " if shaded else ""


def _title(names: Sequence[str], groups: Sequence[Group], environment: Mapping[str, Any]) -> str:
    """Return the title: collectives, machine, ranks."""
    known = [group[0] for group in groups]
    what = [names[0] if len(names) == 1 else f"{len(names)} collectives"]
    kind = [r.dtype for r in known if r.dtype][:1]
    kind += [r.op for r in known if r.op][:1]
    kind += ["in place" for r in known if r.in_place][:1]
    kind += [about.split(":")[0]] if (about := environment.get("calls")) else []
    ranks = environment["ranks"]
    return (", ".join(what + [" ".join(kind)] * bool(kind))
            + f", on {ranks} rank{'s' * (ranks != 1)}: hpccoll and "
            + library_name(environment["mpi"]))

