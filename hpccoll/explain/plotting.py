"""Plots: the common style sheet, figures without a screen, and output files.

All plots of the package use these colours, ticks and spines. Text is large enough to be readable in
a page with a plot width of 830 pixels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import Any

from hpccoll.atomic_file import is_writable
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.units import short_size_text, time_text

#: Distinct colours for few items, also for common colour blindness (after Okabe and Ito).
FEW = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")
#: Colours of text, secondary text, grids and axes, and backgrounds.
INK, SOFT, FAINT, GROUND = "#22262d", "#6b7380", "#dfe3e8", "#f4f6f8"
#: Text sizes in points: titles of plots and panels, labels, ticks.
HEAD, TITLE, LABEL, TICK = 15, 12, 10.5, 10
#: Candidate tick labels of a ratio axis, and their maximum number.
RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.75, 2,
          2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
MOST_TICKS = 9
#: Labels with priority if not all fit, after 1.
ROUND = (0.5, 1.5, 2, 3, 5, 10, 0.2, 0.1, 20, 50, 100)
TIMES = "\N{MULTIPLICATION SIGN}"


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HpccollError("matplotlib is not installed; run pip install "
                           "'hpccoll[plot]'") from error
    return Figure(figsize=(width, height))


def check(path: str, option: str = "--plot") -> None:
    """Raise unless a plot can be written to the file of an option."""
    formats = new_figure(1, 1).canvas.get_supported_filetypes()
    if path.rpartition(".")[2].lower() not in formats:
        raise ArgumentError(option, f"{path!r} has an unknown suffix",
                            f"choose from {', '.join(sorted(formats))}")
    if not is_writable(path):
        raise ArgumentError(option, f"cannot write {path!r}")


def dress(panel: Any, title: str) -> None:
    """Apply the common style of panels."""
    panel.set_title(title, loc="left", fontsize=TITLE, color=INK)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=SOFT, labelsize=TICK, length=0)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(FAINT)


def name_axes(panel: Any, across: str = "", up: str = "") -> None:
    """Set the names of the axes."""
    if across:
        panel.set_xlabel(across, color=INK, fontsize=LABEL)
    if up:
        panel.set_ylabel(up, color=INK, fontsize=LABEL)


def legend(panel: Any, **more: Any) -> None:
    """Name the lines of a panel, without a frame."""
    panel.legend(frameon=False, fontsize=TICK, labelcolor=INK, **more)


def headline(figure: Any, left: float, title: tuple[float, str], note: tuple[float, str],
             size: float = TICK) -> None:
    """Write the title of a figure and a smaller note below it, each with its height."""
    figure.text(left, *title, color=INK, fontsize=HEAD, fontweight="bold", va="center")
    figure.text(left, *note, color=SOFT, fontsize=size, va="center")


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return the tick ratios between two ends: 1 and enough others to read points off.

    >>> ratio_ticks(0.7, 3.6)
    [0.7, 1, 1.2, 1.5, 2, 2.5, 3]
    """
    within = [r for r in RATIOS if low <= r <= high]
    important = [r for r in (1, *ROUND) if r in within]
    shown: list[float] = []
    apart = (high / low) ** (1 / MOST_TICKS)
    for ratio in (*important, *within):
        at = bisect_left(shown, ratio)
        left = shown[at - 1] if at else 0
        right = shown[at] if at < len(shown) else inf
        if ratio != right and ratio >= left * apart * 0.999 and right >= ratio * apart * 0.999:
            shown.insert(at, ratio)
    return shown


def ratio_axis(panel: Any, low: float, high: float) -> None:
    """Set a logarithmic axis of ratios with readable ticks."""
    panel.set_yscale("log", base=2)
    panel.set_ylim(low, high)
    ticks = ratio_ticks(low, high)
    panel.set_yticks(ticks, [f"{tick:g}{TIMES}" for tick in ticks])
    panel.set_yticks([], minor=True)
    panel.grid(axis="y", which="major", color=FAINT, linewidth=0.8)


def time_axis(panel: Any, values: Sequence[float]) -> None:
    """Set a logarithmic axis of times; a small range has ticks at 2 and 5 as well."""
    panel.set_yscale("log")
    few = bool(values) and max(values) < 100 * min(values)
    panel.yaxis.set_major_formatter(lambda value, position: time_text(value, 3))
    panel.yaxis.set_minor_formatter(
        lambda value, position: time_text(value, 3)
        if few and f"{value:e}"[0] in "235" else "")
    panel.grid(axis="y", color=FAINT, linewidth=0.8)


def size_axis(panel: Any, sizes: Sequence[float], most: int = 10) -> None:
    """Set a logarithmic axis of bytes; the last size has a label, and others that fit."""
    panel.set_xscale("log", base=2)
    least = (sizes[-1] / sizes[0]) ** (1 / most)
    shown = [sizes[-1]]
    for nbytes in reversed(sizes):
        if nbytes * least <= shown[-1]:
            shown.append(nbytes)
    panel.set_xticks(shown, [short_size_text(int(nbytes)) for nbytes in shown])
    panel.set_xticks([], minor=True)
    name_axes(panel, "bytes")


def save(figure: Any, path: Any, dpi: int = 150, **more: Any) -> None:
    """Write a plot on white; the suffix selects the format."""
    try:
        figure.savefig(path, dpi=dpi, facecolor="white", **more)
    except OSError as error:
        raise ArgumentError("path", f"cannot write {str(path)!r}: {error.strerror}") from error
