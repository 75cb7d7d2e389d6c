"""What schedules and reports are as text: a few lines."""

import pytest

import hpccoll
from hpccoll import algorithms
from hpccoll.explain import as_text, draw


def test_a_small_schedule_prints_whole_and_a_large_one_how_it_begins():
    small, large = (hpccoll.schedule("allreduce", "rails", topology=layout)
                    for layout in ("1x3", "1024x8"))
    assert str(small).splitlines() == list(small.lines())
    assert len(str(large).splitlines()) < 12 and "8192 ranks in total" in str(large)
    assert len(repr(large)) < 150 and repr(large).startswith("<Schedule allreduce rails size=8192")


def test_it_is_the_schedule_of_the_table():
    assert hpccoll.schedule is algorithms.schedule
    mine = hpccoll.schedule("bcast", "knomial", 9, root=2, k=3)
    assert hpccoll.verify(mine) and mine == hpccoll.schedule("bcast", "knomial", 9, root=2, k=3)
    assert hpccoll.simulate(mine, "1M").seconds == hpccoll.simulate(mine, 1 << 20).seconds


def test_it_is_drawn_and_told_for_a_number_of_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    made = hpccoll.schedule("allreduce", "ring", 4)
    draw(made, tmp_path / "x.svg", "1M")
    assert "<svg" in (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert as_text(made, nbytes=1 << 20).startswith("allreduce ring size=4")


def test_a_report_is_a_few_lines():
    report = hpccoll.simulate(hpccoll.schedule("allreduce", "rails", topology="64x8"), "1G")
    assert len(str(report).splitlines()) <= 6 and len(repr(report)) < 150
    assert len(report.as_text().splitlines()) > 15
