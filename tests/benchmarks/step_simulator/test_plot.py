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


@pytest.mark.slow
def test_over_ranks_a_line_for_each_way(tmp_path, monkeypatch):
    steps = [simulate_step("resnet50", nodes=n, shard=shard) for shard in (0, 3) for n in (2, 4, 8)]
    time, scaling, _ = panels(steps, tmp_path, monkeypatch)
    assert time.get_xlabel() == "ranks" and len(time.lines) == 2
    assert list(time.lines[0].get_xdata()) == [2, 4, 8]
    assert list(scaling.lines[1].get_ydata()) == [step.efficiency for step in steps[3:]]
