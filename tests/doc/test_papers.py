"""What docs/papers.py counts is what the page says of the papers' algorithms."""

import importlib.util

import pytest
from launch import ROOT

from hpccoll.algorithms import schedule
from hpccoll.proof.verifier import verify

PAGE = (ROOT / "docs" / "internal" / "papers.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def papers():
    spec = importlib.util.spec_from_file_location("papers", ROOT / "docs" / "papers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_torus_on_all_links_is_optimal_where_dimensions_are_equal(papers):
    rows = 0
    for shape, (one, every) in papers.torus():
        assert f"{one:.3f}" == "3.000"
        x, y, z = shape.split("x")
        assert (f"{every:.3f}" == "1.000") is (x == y == z)
        row = [line for line in PAGE.splitlines() if line.startswith(f"| {shape} |")]
        assert all(line.endswith(f"| {one:.3f} | {every:.3f} |") for line in row)
        rows += len(row)
    assert rows == 4


def test_trivance_takes_log3_steps_and_a_third_of_the_links(papers):
    ratios = []
    for size, steps in ((9, 2), (27, 3), (81, 4)):
        found = papers.rivals(size)
        ours = found["Trivance, latency"]
        assert (len(ours), sum(ours)) == (steps, (size - 1) / 2)
        one_way = papers.loads(schedule("allreduce", papers.BRUCK, size), "right")
        assert sum(one_way) == 3 * sum(ours)
        ratios.append(f"{sum(found['Bruck']) / sum(ours):.2f}")
        if size == 27:
            gains = dict(papers.gains(found))
            part = [gains[n] for n in papers.SIZES if 1 << 10 <= n <= 1 << 20]
            said = f"{min(part):.0%}"[:-1], f"{max(part):.0%}", f"{-gains[1 << 22]:.0%}"
            assert "27 ranks: {} to {} from 1 KiB to 1 MiB; {} slower at 4 MiB".format(
                *said).replace("%", " %") in PAGE
    assert f"{', '.join(ratios)} where they take the shorter way" in PAGE


def test_the_rivals_are_right_as_well(papers):
    verify(schedule("allreduce", papers.BRUCK, 9))
    verify(schedule("allreduce", papers.SWING, 8))


def test_the_picture_is_drawn(papers, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(papers, "RINGS", {9: 8, 27: 32})
    monkeypatch.setattr(papers, "torus", lambda: iter(()))
    papers.main(str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert "one way round (the paper: 3)" in capsys.readouterr().out
