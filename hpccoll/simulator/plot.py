"""The picture: time over nodes or bytes, and what the critical path spends it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpccoll.explain.plotting import new_figure
from hpccoll.explain.space_time import FAINT, FEW, INK, SOFT
from hpccoll.simulator.report import Report
from hpccoll.simulator.validation import NEAR, Compared, picks
from hpccoll.units import size_text, time_text

#: Inches of a panel, and the most panels side by side.
WIDTH, HEIGHT, ACROSS = 6.2, 4.0, 3
#: What a critical path is made of, and the colours of it.
PARTS = {"latency": "#56b4e9", "transfer": "#0072b2", "sharing": "#d55e00", "posting": "#cc79a7",
         "local work": "#009e73"}


def draw(reports: Sequence[tuple[int, Report]], path: str) -> None:
    """Draw simulations, each with its number of nodes; the suffix names the format."""
    nodes = list(dict.fromkeys(count for count, _ in reports))
    sizes = list(dict.fromkeys(report.nbytes for _, report in reports))
    over_nodes = len(nodes) >= len(sizes)
    panels = sizes if over_nodes else nodes
    lined = len(nodes) > 1 or len(sizes) > 1
    shown = panels[-ACROSS + 1:] if lined else []
    figure = new_figure(WIDTH * (len(shown) + 1), HEIGHT + 0.7)
    axes = figure.subplots(1, len(shown) + 1, squeeze=False)[0]
    styles = {label: FEW[number % len(FEW)] for number, label in
              enumerate(dict.fromkeys(_label(report) for _, report in reports))}
    for panel, chosen in zip(axes, shown):
        if over_nodes:
            mine: list[tuple[float, Report]] = [
                (count, r) for count, r in reports if r.nbytes == chosen]
            _lines(panel, mine, styles, "nodes", f"{size_text(chosen)} per rank", "{:g}".format)
        else:
            mine = [(r.nbytes, r) for count, r in reports if count == chosen]
            _lines(panel, mine, styles, "bytes", f"{chosen:,} nodes",
                   lambda x: size_text(x, unit="").replace(" ", "") if x >= 1 else "")
    last_count, last = reports[-1]
    _bars(axes[-1], [r for count, r in reports if count == last_count and r.nbytes == last.nbytes],
          f"critical path: {last_count:,} nodes, {size_text(last.nbytes)} per rank")
    figure.suptitle(f"{last.schedule.collective.name} on {last.machine.name}, simulated",
                    x=0.02, ha="left", color=INK, fontsize=14, fontweight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=130, facecolor="white")


def draw_against(compared: Sequence[Compared], path: str) -> None:
    """Draw simulated over measured times, a point for every algorithm and size."""
    figure = new_figure(WIDTH, WIDTH)
    panel = figure.subplots()
    right = picks(compared)
    _dress(panel, f"simulated over measured time: picks {right.right} of {right.of} sizes well")
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
    panel.set_xlabel("measured", color=INK)
    panel.set_ylabel("simulated", color=INK)
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=130, facecolor="white")


def _label(report: Report) -> str:
    return report.schedule.algorithm + "".join(
        f" {name}={value}" for name, value in report.schedule.params)


def _lines(panel: Any, points: Sequence[tuple[float, Report]], styles: dict[str, str], name: str,
           title: str, text: Callable[[float], str]) -> None:
    """Time of every algorithm over one variable."""
    _dress(panel, title)
    series: dict[str, list[tuple[float, float]]] = {}
    for x, report in points:
        if x and report.seconds:
            series.setdefault(_label(report), []).append((x, report.seconds))
    for label, line in series.items():
        panel.plot(*zip(*line), label=label, color=styles[label], marker="o", markersize=4,
                   linewidth=1.8)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter(lambda value, position: text(value))
    panel.yaxis.set_major_formatter(lambda value, position: time_text(value))
    values = [y for line in series.values() for _, y in line] or [1.0]
    few = max(values) < 100 * min(values)
    panel.yaxis.set_minor_formatter(
        lambda value, position: time_text(value) if few and f"{value:e}"[0] in "125" else "")
    panel.grid(axis="y", color=FAINT, linewidth=0.8)
    panel.set_xlabel(name, color=INK)
    if series:
        panel.legend(frameon=False, fontsize=9, labelcolor=INK)


def _bars(panel: Any, reports: Sequence[Report], title: str) -> None:
    """One bar for every algorithm, the fastest on top."""
    _dress(panel, title)
    reports = sorted(reports, key=lambda r: -r.seconds)
    parts = [{**{name: sum(getattr(cost, name) for cost in report.critical)
                 for name in PARTS if name != "local work"},
              "local work": report.local_seconds} for report in reports]
    start = [0.0] * len(reports)
    for name, colour in PARTS.items():
        widths = [part[name] for part in parts]
        if any(widths):
            panel.barh(range(len(reports)), widths, left=start, color=colour, label=name,
                       height=0.62)
        start = [a + b for a, b in zip(start, widths)]
    panel.set_yticks(range(len(reports)), [_label(report) for report in reports])
    panel.xaxis.set_major_formatter(lambda value, position: time_text(value))
    panel.tick_params(axis="x", labelrotation=20)
    for row, report in enumerate(reports):
        panel.text(report.seconds, row, f" {time_text(report.seconds)}", va="center", fontsize=9,
                   color=INK)
    panel.margins(x=0.18)
    panel.set_xlim(left=0)
    if any(start):
        panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper right")


def _dress(panel: Any, title: str) -> None:
    panel.set_title(title, loc="left", fontsize=11, color=INK)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=SOFT, labelsize=9, length=0)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(FAINT)
