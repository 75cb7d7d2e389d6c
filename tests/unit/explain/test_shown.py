"""Schedules that show themselves: short as text, whole as a picture."""

import sys

import pytest

import hpccoll
from hpccoll import algorithms
from hpccoll.explain.shown import ShownSchedule


def test_a_small_schedule_prints_whole_and_a_large_one_how_it_begins():
    small, large = (hpccoll.schedule("allreduce", "rails", topology=layout)
                    for layout in ("1x3", "1024x8"))
    assert str(small).splitlines() == list(small.lines())
    assert len(str(large).splitlines()) < 12 and "8192 ranks in all" in str(large)
    assert len(repr(large)) < 150 and repr(large).startswith("<Schedule allreduce rails size=8192")


def test_it_is_the_schedule_of_the_table():
    mine, theirs = (make("bcast", "knomial", 9, root=2, k=3)
                    for make in (hpccoll.schedule, algorithms.schedule))
    assert isinstance(mine, ShownSchedule) and mine.digest == theirs.digest
    assert hpccoll.verify(mine) and mine == hpccoll.schedule("bcast", "knomial", 9, root=2, k=3)
    assert hpccoll.simulate(mine, "1M").seconds == hpccoll.simulate(theirs, 1 << 20).seconds


def test_it_shows_itself_in_a_notebook(tmp_path):
    pytest.importorskip("matplotlib")
    made = hpccoll.schedule("allreduce", "ring", 4)
    assert "<svg" in made._repr_svg_()
    html = made._repr_html_()
    assert "Proved" in html and "<svg" in html and "&lt;-&gt;" not in html[:20]
    made.draw(tmp_path / "x.svg", "1M")
    assert made.explain(nbytes=1 << 20).startswith("allreduce ring size=4")


def test_what_cannot_be_drawn_is_words(monkeypatch):
    assert hpccoll.schedule("allreduce", "ring", 300)._repr_svg_() is None
    assert "300 ranks in all" in hpccoll.schedule("allreduce", "ring", 300)._repr_html_()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    made = hpccoll.schedule("allreduce", "ring", 4)
    assert made._repr_svg_() is None and "<svg" not in made._repr_html_()


def test_a_report_is_a_few_lines():
    report = hpccoll.simulate(hpccoll.schedule("allreduce", "rails", topology="64x8"), "1G")
    assert len(str(report).splitlines()) <= 6 and len(repr(report)) < 150
    assert len(report.as_text().splitlines()) > 15
    assert "critical path" in report._repr_html_() and "<table>" in report._repr_html_()
