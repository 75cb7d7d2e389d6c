"""Pictures of simulated steps."""

import pytest
from step_simulator import plot
from step_simulator.simulation import simulate_step

pytest.importorskip("matplotlib")


def panels(forecasts, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plot, "new_figure",
                        lambda *size: figures.append(new(*size)) or figures[-1])
    plot.draw(forecasts, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size > 1000
    return figures[0].axes


new = plot.new_figure


def test_one_step_is_drawn_alone(tmp_path, monkeypatch):
    step = simulate_step("resnet50", nodes=4, bucket_bytes=25 << 20)
    [panel] = panels([step], tmp_path, monkeypatch)
    assert "4 ranks, 25 MiB, plain" in panel.get_title(loc="left")


@pytest.mark.slow
def test_over_ranks_a_line_for_each_way(tmp_path, monkeypatch):
    steps = [simulate_step("resnet50", nodes=n, shard=shard) for shard in (0, 3) for n in (2, 4, 8)]
    time, scaling, _ = panels(steps, tmp_path, monkeypatch)
    assert time.get_xlabel() == "ranks" and len(time.lines) == 2
    assert list(time.lines[0].get_xdata()) == [2, 4, 8]
    assert list(scaling.lines[1].get_ydata()) == [step.efficiency for step in steps[3:]]


def test_over_buckets_where_ranks_are_the_same(tmp_path, monkeypatch):
    steps = [simulate_step("resnet50", bucket_bytes=n << 20) for n in (1, 4, 16)]
    time, *_ = panels(steps, tmp_path, monkeypatch)
    assert time.get_xlabel() == "bytes of a bucket"
    assert list(time.lines[0].get_xdata()) == [1 << 20, 4 << 20, 16 << 20]
