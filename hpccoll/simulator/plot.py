"""Plot: time over nodes or bytes, and the parts of the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpccoll.explain.plotting import (
    FAINT,
    FEW,
    HEAD,
    INK,
    SOFT,
    TICK,
    dress,
    legend,
    name_axes,
    new_figure,
    save,
    size_axis,
    time_axis,
)
from hpccoll.simulator.report import Report, parts
from hpccoll.simulator.shapes import Shape
from hpccoll.simulator.table import LEVEL, label, rates_of
from hpccoll.simulator.validation import NEAR, ComparedTimes, median_ratio, picks
from hpccoll.units import size_text, time_text

#: Size of a panel in inches, and the maximum number of panels in a row.
WIDTH, HEIGHT, ACROSS = 4.9, 3.9, 3
#: Parts of a critical path, and their colours.
PARTS = {"latency": "#56b4e9", "transfer": "#0072b2", "sharing": "#d55e00", "posting": "#cc79a7",
         "local work": "#009e73", "coming late": "#999999"}


def draw(reports: Sequence[tuple[int, Report]], path: str) -> None:
    """Draw simulations, each with its number of nodes; the suffix names the format."""
    nodes = list(dict.fromkeys(count for count, _ in reports))
    sizes = list(dict.fromkeys(report.nbytes for _, report in reports))
    over_nodes = len(nodes) >= len(sizes)
    panels = sizes if over_nodes else nodes
    lined = len(nodes) > 1 or len(sizes) > 1
    shown = panels[-ACROSS + 1:] if lined else []
    shape = reports[-1][1].machine.shape
    across = len(shown) + (2 if shape else 1)
    figure = new_figure(WIDTH * across, HEIGHT + 0.7)
    axes = figure.subplots(1, across, squeeze=False)[0]
    styles = {name: FEW[number % len(FEW)] for number, name in
              enumerate(dict.fromkeys(label(report) for _, report in reports))}
    for panel, chosen in zip(axes, shown):
        if over_nodes:
            mine: list[tuple[float, Report]] = [
                (count, r) for count, r in reports if r.nbytes == chosen]
            _lines(panel, mine, styles, f"{size_text(chosen)} per rank")
            panel.set_xscale("log", base=2)
            panel.set_xticks(nodes[::-(-len(nodes) // 8)] or nodes,
                             [f"{n:,}" for n in nodes[::-(-len(nodes) // 8)] or nodes])
            panel.set_xticks([], minor=True)
            name_axes(panel, "nodes")
        else:
            mine = [(r.nbytes, r) for count, r in reports if count == chosen]
            _lines(panel, mine, styles, f"{chosen:,} nodes")
            if any(sizes):
                size_axis(panel, sorted(filter(None, sizes)), 7)
    last_count, last = reports[-1]
    of_last = [r for count, r in reports if count == last_count and r.nbytes == last.nbytes]
    _bars(axes[len(shown)], of_last,
          f"critical path: {last_count:,} nodes, {size_text(last.nbytes)} per rank")
    if shape:
        _links(axes[-1], of_last, shape, {name: styles[name] for name in map(label, of_last)})
    where = ", ".join([last.machine.name, *([shape.describe()] if shape else [])])
    figure.suptitle(f"{last.schedule.collective.name} on {where}, simulated", x=0.02, ha="left",
                    color=INK, fontsize=HEAD, fontweight="bold")
    figure.text(0.02, 0.905, rates_of(last.machine), color=SOFT, fontsize=TICK)
    figure.tight_layout(rect=(0, 0, 1, 0.93), w_pad=0.6)
    save(figure, path, 130)


def draw_against(compared: Sequence[ComparedTimes], path: str) -> None:
    """Draw simulated over measured times, a point for every algorithm and size."""
    figure = new_figure(WIDTH, WIDTH)
    panel = figure.subplots()
    right = picks(compared)
    factor = median_ratio(compared)
    dress(panel, f"simulated over measured time: median {factor:.3g}\nselects well at "
                 f"{right.right} of {right.of} sizes")
    least, most = (choice(t for c in compared for t in (c.measured, c.simulated))
                   for choice in (min, max))
    ends = [least / 1.5, most * 1.5]
    panel.fill_between(ends, [t / NEAR for t in ends], [t * NEAR for t in ends], color=FAINT)
    panel.plot(ends, ends, color=SOFT, linewidth=0.8)
    for number, collective in enumerate(dict.fromkeys(c.collective for c in compared)):
        points = [(c.measured, c.simulated) for c in compared if c.collective == collective]
        panel.scatter(*zip(*points), s=14, label=collective, color=FEW[number % len(FEW)])
    panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(lambda value, position: time_text(value))
    name_axes(panel, "measured", "simulated")
    legend(panel, loc="upper left")
    figure.tight_layout()
    save(figure, path, 130)


def merge_series(series: dict[str, list[tuple[float, float]]]
                 ) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """Merge identical lines into one, with the names of all of them."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for name, line in series.items():
        alike = next((names for names, other in groups.items() if len(other) == len(line) and all(
            x == u and max(y, v) <= min(y, v) * LEVEL for (x, y), (u, v) in zip(line, other))), ())
        if alike:
            groups = {(*names, name) if names == alike else names: other
                      for names, other in groups.items()}
        else:
            groups[name,] = line
    return groups


def _lines(panel: Any, points: Sequence[tuple[float, Report]], styles: dict[str, str],
           title: str) -> None:
    """Draw the time of every algorithm over one variable."""
    dress(panel, title)
    series: dict[str, list[tuple[float, float]]] = {}
    for x, report in points:
        if x and report.seconds:
            series.setdefault(label(report), []).append((x, report.seconds))
    for names, line in merge_series(series).items():
        panel.plot(*zip(*line), label=" = ".join(names), color=styles[names[0]], marker="o",
                   markersize=4, linewidth=2)
    time_axis(panel, [y for line in series.values() for _, y in line])
    if series:
        # Room for the legend above the lines.
        low, high = panel.get_ylim()
        panel.set_ylim(low, high * (high / low) ** (0.09 * (len(series) + 1)))
        legend(panel)


def _bars(panel: Any, reports: Sequence[Report], title: str) -> None:
    """Draw one bar for every algorithm, the fastest on top."""
    dress(panel, title)
    reports = sorted(reports, key=lambda r: -r.seconds)
    spent = [parts(report) for report in reports]
    start = [0.0] * len(reports)
    for name, colour in PARTS.items():
        widths = [part[name] for part in spent]
        if any(widths):
            panel.barh(range(len(reports)), widths, left=start, color=colour, label=name,
                       height=0.62)
        start = [a + b for a, b in zip(start, widths)]
    panel.set_yticks(range(len(reports)), [label(report) for report in reports])
    panel.xaxis.set_major_formatter(lambda value, position: time_text(value, 3))
    panel.locator_params(axis="x", nbins=4)
    for row, report in enumerate(reports):
        panel.text(report.seconds, row, f" {time_text(report.seconds, 3)}", va="center",
                   fontsize=TICK, color=INK)
    panel.margins(x=0.18)
    panel.set_xlim(left=0)
    if any(start):
        legend(panel, loc="upper right")


def _links(panel: Any, reports: Sequence[Report], shape: Shape, styles: dict[str, str]) -> None:
    """Draw the utilisation of the links of a shape, the busiest link first."""
    dress(panel, f"{shape.links:,} links of the {shape.kind}, busiest first")
    for report in reports:
        reach, used = [0.0], [report.links[0].utilisation if report.links else 0.0]
        for use in report.links:
            reach.append(reach[-1] + use.alike / shape.links)
            used.append(use.utilisation)
        mean = sum((b - a) * u for a, b, u in zip(reach, reach[1:], used[1:]))
        panel.plot([*reach, reach[-1], 1.0], [*used, 0.0, 0.0], color=styles[label(report)],
                   linewidth=2, drawstyle="steps-pre",
                   label=f"{label(report)}: {mean:.0%} on average")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(lambda value, position: f"{value:.0%}")
    panel.set_xlim(0, 1)
    # Room for the legend above the lines.
    panel.set_ylim(0, 1.05 + 0.11 * len(reports))
    panel.set_yticks([0, 0.25, 0.5, 0.75, 1])
    name_axes(panel, "part of all links", "part of the time in use")
    legend(panel, loc="upper right")
