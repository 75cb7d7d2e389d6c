"""The picture of simulated steps: time and scaling over nodes or bucket sizes, and one step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hpccoll.training.picture import FAINT, INK, new_figure, step_panel, style_panel
from hpccoll.training.report import steps_of
from hpccoll.units import size_text, time_text
from step_simulator.simulation import StepForecast

#: Inches of a panel; colours of lines, distinct to the colour-blind.
WIDTH, HEIGHT = 4.6, 3.8
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw(forecasts: Sequence[StepForecast], path: str | os.PathLike[str]) -> None:
    """Draw simulated steps; the suffix names the format.

    Over the numbers of ranks where these differ, or else over bucket sizes; the last one's step
    stands below, so that a page shows all at a size that can be read. A single one is drawn alone.

    Raises:
        HpccollError: matplotlib is not installed.
    """
    last = forecasts[-1]
    over_ranks = len({f.ranks for f in forecasts}) > 1
    rows = 2 if len(forecasts) > 1 else 1
    figure = new_figure(2 * WIDTH, HEIGHT * rows)
    grid = figure.add_gridspec(rows, 2)
    if rows > 1:
        axes = [figure.add_subplot(grid[0, column]) for column in (0, 1)]
        ends = {f.topology for f in forecasts}
        title = "step" if over_ranks or len(ends) > 1 else f"step on {last.ranks:,} ranks"
        _lines(axes[0], forecasts, over_ranks, title, lambda f: f.seconds)
        axes[0].yaxis.set_major_formatter(lambda value, position: time_text(value, 3))
        _lines(axes[1], forecasts, over_ranks, "scaling efficiency", lambda f: f.efficiency)
        axes[1].yaxis.set_major_formatter(lambda value, position: f"{value:.0%}")
        axes[1].set_ylim(0, 1.02)
        axes[0].set_ylim(bottom=0)
    spans = last.timeline.tracks[0]
    step_panel(figure.add_subplot(grid[-1, :]), spans, steps_of(spans)[-1],
               f"{last.ranks:,} ranks, {_label(last, True)}: {time_text(last.seconds)}")
    figure.suptitle(f"{last.model.name} on {last.machine}, simulated", x=0.02, ha="left",
                    color=INK, fontsize=14, fontweight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(os.fspath(path), dpi=130, facecolor="white")


def _lines(panel: Any, forecasts: Sequence[StepForecast], over_ranks: bool, title: str,
           value: Any) -> None:
    style_panel(panel, title)
    series: dict[str, list[tuple[int, float]]] = {}
    for f in forecasts:
        series.setdefault(_label(f, over_ranks), []).append(
            (f.ranks if over_ranks else f.plan.bucket_bytes, value(f)))
    for (label, line), colour in zip(series.items(), COLOURS * len(series)):
        panel.plot(*zip(*line), label=label, color=colour, marker="o", markersize=4, linewidth=1.8)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(
        lambda x, position: f"{x:g}" if over_ranks else size_text(x, unit="").replace(" ", ""))
    panel.grid(axis="y", color=FAINT, linewidth=0.8)
    panel.set_xlabel("ranks" if over_ranks else "bytes of a bucket", color=INK)
    panel.legend(frameon=False, fontsize=9, labelcolor=INK)


def _label(f: StepForecast, with_bucket: bool) -> str:
    """What tells one line from the others."""
    words = [size_text(f.plan.bucket_bytes)] if with_bucket else []
    words += [f"ZeRO {f.plan.shard}"] if f.plan.shard else []
    return ", ".join([*words, f.plan.compress if f.plan.compress != "none" else "plain"])
