"""Figures: formats and folders that a picture can be drawn into."""

import sys

import pytest

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain import plotting


def test_formats_and_folders(tmp_path):
    pytest.importorskip("matplotlib")
    plotting.check(str(tmp_path / "x.png"))
    for path, problem in ((tmp_path / "x.xyz", "has an unknown suffix"),
                          (tmp_path / "no" / "x.png", "cannot write")):
        with pytest.raises(ArgumentError, match=problem):
            plotting.check(str(path))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HpccollError, match=r"'hpccoll\[plot\]'"):
        plotting.new_figure(1, 1)


@pytest.mark.parametrize("low, high", [(0.7, 1.45), (0.7, 3.6), (0.9, 1.1), (0.01, 5), (0.7, 25)])
def test_ratios_can_be_read_off(low, high):
    """1x and 2x alone were once all that an axis named, and a point of 3.2x was read as 2.7x."""
    ticks = plotting.ratio_ticks(low, high)
    assert 1 in ticks and ticks == sorted(set(ticks)) and 3 <= len(ticks) <= 12
    assert all(low <= tick <= high for tick in ticks)
    if high > 1.6 and low > 0.2:
        assert 1.5 in ticks
    if 3 < high < 30 and low > 0.2:
        assert 3 in ticks
