"""Plot of one step: the phases of each bucket and of the program."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.training.report import steps_of
from hpccoll.training.trace import (
    BLOCKED,
    COMPRESS,
    FLIGHT,
    PROGRAM,
    READY,
    WAIT,
    StepTimeline,
    TimedSpan,
)
from hpccoll.units import time_text

#: Colours of text, axes and grids; colours of phases, safe for colour-blind readers (Okabe, Ito).
INK, SOFT, FAINT = "#222222", "#666666", "#dddddd"
COLOURS = {"computing": "#009e73", BLOCKED: "#d55e00", WAIT: FAINT, COMPRESS: "#cc79a7",
           FLIGHT: "#0072b2"}
#: Width of a plot and height of a line in inches; largest number of lines that increase the
#: height; number of line labels in an inch.
WIDTH, LINE, LINES, NAMES = 9.0, 0.26, 60, 4


def draw_step(timeline: StepTimeline, path: str | os.PathLike[str], rank: int = 0,
              step: int = -1) -> None:
    """Plot one step of one rank; the file suffix selects the format.

    Args:
        timeline: recorded or simulated timeline.
        path: path of the plot.
        rank: the rank.
        step: index among the complete steps; the last one by default.

    Raises:
        ArgumentError: the timeline has no such rank or step.
        HpccollError: matplotlib is not installed.
    """
    if rank not in timeline.tracks:
        raise ArgumentError("rank", f"the timeline has no rank {rank}")
    steps = steps_of(timeline.tracks[rank])
    if not -len(steps) <= step < len(steps):
        raise ArgumentError("step", f"the timeline has no step {step} of rank {rank}",
                            f"it has {len(steps)}")
    spans, chosen = timeline.tracks[rank], steps[step]
    lines = len({span.name for span in _clip_spans(spans, chosen) if span.phase == FLIGHT})
    figure = new_figure(WIDTH, 1.4 + LINE * min(lines, LINES))
    panel = figure.subplots()
    step_panel(panel, spans, chosen, f"one step of rank {rank}: "
                                     f"{time_text(chosen.stop - chosen.start)}")
    figure.tight_layout()
    figure.savefig(os.fspath(path), dpi=130, facecolor="white")


def step_panel(panel: Any, spans: Sequence[TimedSpan], step: TimedSpan, title: str) -> None:
    """Plot one step into a panel: the program on top, below it one line for each bucket."""
    style_panel(panel, title)
    inside = _clip_spans(spans, step)
    flown = sorted((span for span in inside if span.phase == FLIGHT), key=lambda s: s.start)
    names = [PROGRAM, *dict.fromkeys(span.name for span in flown)]
    rows = {name: row for row, name in enumerate(names)}
    panel.barh(0, step.stop - step.start, color=COLOURS["computing"], height=0.7,
               label="computing")
    for phase in (BLOCKED, WAIT, COMPRESS, FLIGHT):
        mine = [span for span in inside if span.phase == phase and span.name in rows]
        if mine:
            panel.barh([rows[span.name] for span in mine],
                       [span.stop - span.start for span in mine],
                       left=[span.start - step.start for span in mine], color=COLOURS[phase],
                       height=0.7, label=phase)
    ready = [span.start - step.start for span in inside if span.phase == READY]
    panel.plot(ready, [0] * len(ready), "|", color=INK, markersize=7, label="an array is ready")
    every = math.ceil(len(names) / (panel.figure.get_size_inches()[1] * NAMES))
    panel.set_yticks(range(0, len(names), every), names[::every])
    panel.invert_yaxis()
    panel.set_xlim(0, step.stop - step.start)
    panel.xaxis.set_major_formatter(lambda value, position: time_text(value, 3))
    panel.legend(frameon=False, fontsize=8, labelcolor=INK, ncols=6, loc="upper left",
                 bbox_to_anchor=(0, -0.25 if len(names) < 5 else -0.9 / len(names) - 0.03))


def _clip_spans(spans: Sequence[TimedSpan], step: TimedSpan) -> list[TimedSpan]:
    """Return the spans that overlap a step, clipped to it."""
    return [span._replace(start=max(span.start, step.start), stop=min(span.stop, step.stop))
            for span in spans if span.start <= step.stop and span.stop >= step.start]


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure; sizes in inches.

    Raises:
        HpccollError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HpccollError("matplotlib is not installed; run pip install "
                           "'hpccoll[plot]'") from error
    return Figure(figsize=(width, height))


def style_panel(panel: Any, title: str) -> None:
    """Set the title and the axis style of a panel."""
    panel.set_title(title, loc="left", fontsize=11, color=INK)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=SOFT, labelsize=9, length=0)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(FAINT)
