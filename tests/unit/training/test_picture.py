"""Pictures of steps: what is drawn, and what cannot be."""

import sys

import pytest

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.training.picture import draw_step, new_figure, step_panel
from hpccoll.training.trace import (
    BLOCKED,
    COMPRESS,
    FLIGHT,
    PROGRAM,
    READY,
    STEP,
    StepTimeline,
    TimedSpan,
)

SPANS = [TimedSpan("w", READY, 1, 1), TimedSpan("bucket 0", COMPRESS, 1, 2),
         TimedSpan("bucket 0", FLIGHT, 2, 5), TimedSpan("bucket 1", FLIGHT, 5, 9),
         TimedSpan(PROGRAM, BLOCKED, 6, 8), TimedSpan(PROGRAM, STEP, 0, 8),
         TimedSpan("bucket 0", FLIGHT, 9, 10), TimedSpan(PROGRAM, STEP, 8, 12)]


def test_a_line_for_each_bucket_and_what_lies_outside_is_cut():
    pytest.importorskip("matplotlib")
    panel = new_figure(4, 3).subplots()
    step_panel(panel, SPANS, SPANS[5], "one step")
    assert [text.get_text() for text in panel.get_yticklabels()] == [
        PROGRAM, "bucket 0", "bucket 1"]
    bars = {(bar.get_x(), bar.get_width(), round(bar.get_y() + bar.get_height() / 2))
            for bar in panel.patches}
    assert bars == {(0, 8, 0), (6, 2, 0), (1, 1, 1), (2, 3, 1), (5, 3, 2)}


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_file(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"step.{suffix}"
    draw_step(StepTimeline({0: SPANS}), path, step=0)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("rank, step, problem", [
    (1, -1, "rank: .*rank 1"), (0, 2, "step: .*step 2"),
    (0, -3, "-3 .*rank 0.*2")])
def test_what_the_timeline_lacks(rank, step, problem, tmp_path):
    with pytest.raises(ArgumentError, match=problem):
        draw_step(StepTimeline({0: SPANS}), tmp_path / "x.png", rank, step)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HpccollError, match="matplotlib"):
        new_figure(1, 1)
