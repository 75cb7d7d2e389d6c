"""Figures: formats and folders that a picture can be drawn into."""

import sys

import pytest

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain import plotting


def test_formats_and_folders(tmp_path):
    pytest.importorskip("matplotlib")
    plotting.check(str(tmp_path / "x.png"))
    for path, problem in ((tmp_path / "x.xyz", "ends in no known format"),
                          (tmp_path / "no" / "x.png", "cannot write")):
        with pytest.raises(ArgumentError, match=problem):
            plotting.check(str(path))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HpccollError, match=r"pip install 'hpccoll\[plot\]'"):
        plotting.new_figure(1, 1)
