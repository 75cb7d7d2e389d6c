"""The columns of docs/internal/promises.md that a run of the tests gives are those of the data."""

import importlib.util
import json
import sys

import pytest
from launch import ROOT

SCRIPT = ROOT / "docs" / "promises.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("promises", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(capture):
    status, output = capture(sys.executable, SCRIPT, "--check")
    assert status == 0, f"not current, run docs/promises.py: {output}"


def test_filling_again_changes_nothing_and_every_test_is_there(tool):
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.filled(text) == text
    rows = tool.BLOCK.search(text)[3].splitlines()
    assert sum(line.startswith("| ") for line in rows) > 20
    for words in tool.TIMED:
        assert any(line.startswith(f"| {words}") for line in rows), words


def test_results_are_counted_by_file(tool, tmp_path):
    name = "tests.unit.test_units"
    (tmp_path / "1.xml").write_text(
        f'<testsuites><testsuite><testcase classname="{name}" name="a"/>'
        f'<testcase classname="{name}.Class" name="b"><failure/></testcase>'
        f'<testcase classname="{name}" name="c"><skipped/></testcase></testsuite></testsuites>',
        encoding="utf-8")
    (tmp_path / "2.xml").write_text(
        f'<testsuite><testcase classname="{name}" name="a"/></testsuite>', encoding="utf-8")
    assert tool.read(tmp_path) == {
        "tests/unit/test_units.py": {"passed": 2, "failed": 1, "skipped": 1}}


def test_a_late_or_silent_rank_shows(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "DATA", tmp_path)
    said = {"library": "mpich", "fault": "kill", "served": "ours", "ranks": 2, "timeout": 6.0}
    (tmp_path / "mpich-all.json").write_text(json.dumps([
        {**said, "kind": "PeerLost", "right": True, "seconds": 0.25},
        {**said, "kind": "PeerLost", "right": False, "seconds": 13.5},
        {**said, "kind": "status 143", "right": False, "seconds": 0.1}]), encoding="utf-8")
    *_, row = tool.detection([])
    assert row == "| MPICH | killed | hpccoll | 2 | 3 | 3 | 1 | 1 | 6 | 6.88 | 13.50 |"
