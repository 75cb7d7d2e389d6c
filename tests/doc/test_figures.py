"""Tables of the pages are what the records say; ``docs/figures.py`` writes them."""

import importlib.util
import json
import re
import sys

import pytest
from doc.pages import anchors
from launch import ROOT

SCRIPT = ROOT / "docs" / "figures.py"


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(text, name):
    """The rows of a table, without its head."""
    block = re.search(rf"<!-- table: {name} -->(.*?)<!-- end -->", text, re.DOTALL)[1]
    return [line for line in block.splitlines() if line.startswith("| ")][1:]


def test_pages_are_current(capture):
    status, output = capture(sys.executable, SCRIPT, "--check")
    assert status == 0, f"not current, run docs/figures.py: {output}"


def test_filling_again_changes_nothing(figures):
    for name in figures.PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.count("<!-- table:") == text.count("<!-- end -->") > 0
        assert figures.filled(text) == text


def test_a_stale_page_is_named_and_written(figures, tmp_path, monkeypatch, capsys):
    (tmp_path / "page.md").write_text("a\n<!-- table: machine -->\nold\n<!-- end -->\nb\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "PAGES", ("page.md",))
    assert figures.main(["--check"]) == 1
    assert capsys.readouterr().out == "page.md\n"
    assert "old" in (tmp_path / "page.md").read_text()
    assert figures.main([]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "old" not in text and text.startswith("a\n<!--") and text.endswith("-->\nb\n")
    assert figures.main(["--check"]) == 0


def test_unknown_blocks_are_errors(figures):
    with pytest.raises(KeyError):
        figures.filled("<!-- table: no-such -->\n<!-- end -->")


def test_numbers_are_those_of_the_records(figures):
    """One cell, by hand: 256 KiB on two ranks of MPICH."""
    record = json.loads((ROOT / "docs/data/allreduce/mpich-2.json").read_text())
    seconds = {result["candidate"]: result["statistics"]["p50_seconds"]
               for result in record["results"] if result["nbytes"] == 1 << 18}
    row = next(line for line in figures.allreduce() if line.startswith("| 256 KiB"))
    assert row.split(" | ")[1] == f"{seconds['native'] / seconds['auto']:.2f}"


@pytest.mark.parametrize("value, text", [(0.754, "0.75"), (9.56, "9.56"), (10.04, "10.0"),
                                         (99.94, "99.9"), (588.1, "588")])
def test_numbers_have_three_digits(figures, value, text):
    assert figures.number(value) == text


def test_the_mean_of_ratios_is_geometric(figures):
    assert figures.geometric_mean([4, 0.25, 8]) == pytest.approx(2)


@pytest.mark.parametrize("change, met", [({}, True), ({"at least": 2.01}, False),
                                         ({"at most": 2, "at least": None}, True),
                                         ({"at most": 1.99, "at least": None}, False)])
def test_goals_are_judged_as_printed(figures, tmp_path, monkeypatch, change, met):
    goal = {"group": "g", "goal": "x", "runs": ["mpich-2"], "reached": {"mpich-2": 1.996},
            "at least": 2, "why": {"all": "a reason"}, **change}
    goal = {name: value for name, value in goal.items() if value is not None}
    (tmp_path / "goals.json").write_text(json.dumps([goal]))
    monkeypatch.setattr(figures, "DATA", tmp_path)
    (_, row), = figures.goal_rows()
    assert row[3] == "2.00" and row[5] == ("met" if met else "**not met**")


def test_what_is_not_met_needs_a_reason(figures, tmp_path, monkeypatch):
    (tmp_path / "goals.json").write_text(json.dumps([
        {"group": "g", "goal": "x", "runs": ["mpich-2"], "reached": {"mpich-2": 1},
         "at least": 2}]))
    monkeypatch.setattr(figures, "DATA", tmp_path)
    with pytest.raises(ValueError, match="word"):
        list(figures.goal_rows())


def test_pages_stay_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(body(readme, "summary")) <= 12
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert len(performance.splitlines()) <= 165


def test_the_notebook_lists_its_entries():
    folder = ROOT / "docs" / "internal" / "notebook"
    listed = re.findall(r"^\| (\S+) \| \[[^]]+\]\((\S+?)#(\S+)\)",
                        (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    entries = {}
    for page in folder.glob("*.md"):
        if page.name == "README.md":
            continue
        _, *sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert sections, page.name
        for section in sections:
            anchor, = anchors(f"# {section.splitlines()[0]}")
            entries[page.name, anchor] = section
    assert sorted((page, anchor) for _, page, anchor in listed) == sorted(entries)
    for date, page, anchor in listed:
        entry = entries[page, anchor]
        assert entry.splitlines()[2].startswith(f"*{date}"), anchor
        assert all(entry.count(f"**{part}.**") == 1
                   for part in ("Question", "Set-up", "Result", "Decision")), anchor


def test_summaries_leave_out_disturbed_points(figures):
    """As ``hpccoll bench`` does; all points are in the tables of the records."""
    text = "\n".join(figures.worst_and_best())
    assert max(map(float, re.findall(r"to (\d+(?:\.\d+)?)", text))) <= figures.ABSURD
    chosen = figures.select("others", "impi-4", "auto", "reduce")
    assert max(point.ratio for point in chosen) > 300
    assert not max(chosen, key=lambda point: point.ratio).clear
