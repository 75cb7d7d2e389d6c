"""A machine as a picture: its levels as nested boxes, links between ranks as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any

from hpccoll.explain.plotting import (
    FAINT,
    FEW,
    GROUND,
    HEAD,
    INK,
    LABEL,
    SOFT,
    TICK,
    TITLE,
    new_figure,
    save,
)
from hpccoll.machine.levels import SWITCH
from hpccoll.tools.topo.job_map import JobMap
from hpccoll.tools.topo.links import Links
from hpccoll.tools.topo.text import name_of
from hpccoll.units import count_text

#: Inches: width, a row of boxes, what stands above and below, a heat map with its title.
WIDTH, ROW, ABOVE, BELOW, MAP = 11.0, 0.5, 0.85, 0.25, 5.0
#: Up to so many ranks have a number in their box, and a figure in the heat map.
LABELLED, FIGURES = 64, 10


def draw(machine: JobMap, links: Links | None, title: str, path: str) -> None:
    """Draw a machine into a file; the suffix names the format (png, svg, pdf)."""
    rows = len(machine.layout.names) + 1
    boxes = rows * ROW
    height = ABOVE + boxes + BELOW + (MAP if links else 0)
    figure = new_figure(WIDTH, height)
    figure.text(0.05, 1 - 0.32 / height, count_text(machine.layout.topology.size, "rank")
                + f", layout {machine.layout.topology}" * bool(machine.layout.names), color=INK,
                fontsize=HEAD, fontweight="bold", va="center")
    figure.text(0.05, 1 - 0.6 / height, title, color=SOFT, fontsize=TICK, va="center")
    _boxes(figure.add_axes((0.05, 1 - (ABOVE + boxes) / height, 0.9, boxes / height)), machine)
    if links:
        for left, values, unit, name, map in (
                (0.05, {k: v * 1e6 for k, v in links.latency.items()}, "us", "Latency", "YlOrRd"),
                (0.54, {k: v / 1e9 for k, v in links.bandwidth.items()}, "GB/s", "Bandwidth",
                 "YlGnBu")):
            axes = figure.add_axes((left + 0.02, 0.5 / height, 0.36, (MAP - 1.0) / height))
            bar = figure.add_axes((left + 0.39, 0.5 / height, 0.012, (MAP - 1.0) / height))
            _heat(axes, bar, machine, links.ranks, values, map)
            axes.set_title(f"{name} ({unit})", color=INK, fontsize=TITLE, loc="left")
            axes.set_xlabel("rank", color=SOFT, fontsize=LABEL)
            axes.set_ylabel("rank", color=SOFT, fontsize=LABEL)
    save(figure, path)


def scale_ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic scale; the ends, rounded, where there are none between.

    >>> scale_ticks(1.7, 9.6), scale_ticks(7.1, 7.4)
    ([2.0, 5.0], [7.1, 7.4])
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    found = [digit * 10.0 ** power for power in powers for digit in (1, 2, 5)
             if low <= digit * 10.0 ** power <= high]
    return found if len(found) > 1 else [float(f"{low:.2g}"), float(f"{high:.2g}")]


def _boxes(axes: Any, machine: JobMap) -> None:
    """A row for each level, the outermost on top; a box covers the ranks of its group."""
    from matplotlib.patches import Rectangle

    names, ranks = machine.layout.names, machine.layout.topology.ranks
    size = len(ranks)
    switches = names.count(SWITCH)
    axes.set_xlim(0, size)
    axes.set_ylim(len(names) + 1, 0)
    axes.axis("off")
    for depth, (level, starts) in enumerate(zip((*names, "rank"), _starts(machine))):
        for number, (start, stop) in enumerate(zip(starts, [*starts[1:], size])):
            gap = min(0.04 * size / 16, 0.1)
            colour = FEW[number % len(FEW)] if depth == 0 and names else SOFT
            axes.add_patch(Rectangle((start + gap, depth + 0.08), stop - start - 2 * gap, 0.84,
                                     facecolor=GROUND, edgecolor=colour, linewidth=1.2))
            text = (str(ranks[start]) if level == "rank"
                    else name_of(machine, ranks[start], level, switches - depth))
            # A box is as wide as its ranks; what does not fit is better left out.
            if (stop - start) / size * WIDTH * 12 > len(text) and len(starts) <= LABELLED:
                axes.text((start + stop) / 2, depth + 0.5, text, ha="center", va="center",
                          color=INK, fontsize=9)


def _starts(machine: JobMap) -> list[list[int]]:
    """First positions of the groups of every level, single ranks at last."""
    starts, level = [], [(0, machine.layout.topology.plain)]
    for _ in machine.layout.names:
        level = [(start + group[0], child) for start, topology in level
                 for group, child in zip(topology.groups(), topology.children)]
        starts.append([start for start, _ in level])
    return [*starts, list(range(machine.layout.topology.size))]


def _heat(axes: Any, bar: Any, machine: JobMap, ranks: Sequence[int],
          values: dict[tuple[int, int], float], colours: str) -> None:
    """A square for every pair of ranks, on a logarithmic scale; lines between groups."""
    from matplotlib.colors import LogNorm

    # Ranks of a group stand together, whatever their numbers.
    positions = machine.layout.topology.positions
    ranks, count = sorted(ranks, key=positions.__getitem__), len(ranks)
    square = [[float("nan")] * count for _ in range(count)]
    for i, a in enumerate(ranks):
        for j, b in enumerate(ranks):
            if a != b:
                square[i][j] = values.get((min(a, b), max(a, b)), float("nan"))
    low, high = min(values.values()), max(values.values())
    image = axes.imshow(square, cmap=colours, norm=LogNorm(low, max(high, low * 1.01)))
    if count <= FIGURES:
        for i in range(count):
            for j in range(count):
                if square[i][j] == square[i][j]:
                    dark = (square[i][j] / low) ** 2 > high / low
                    axes.text(j, i, f"{square[i][j]:.3g}", ha="center", va="center", fontsize=9,
                              color="white" if dark else INK)
    shown = range(0, count, max(1, count // 16))
    axes.set_xticks(list(shown), [str(ranks[n]) for n in shown], fontsize=TICK, color=SOFT)
    axes.set_yticks(list(shown), [str(ranks[n]) for n in shown], fontsize=TICK, color=SOFT)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    for depth, starts in enumerate(_starts(machine)[:-1]):
        for n in range(1, count):
            if any(positions[ranks[n - 1]] < start <= positions[ranks[n]] for start in starts):
                for line in (axes.axhline, axes.axvline):
                    line(n - 0.5, color="white", linewidth=max(3.0 - depth, 0.8))
    axes.figure.colorbar(image, cax=bar)
    ticks = scale_ticks(low, high)
    bar.set_yticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=TICK, color=SOFT)
    bar.minorticks_off()
    bar.tick_params(length=0)
    for spine in bar.spines.values():
        spine.set_visible(False)
