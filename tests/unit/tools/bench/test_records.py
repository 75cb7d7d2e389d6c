"""Records that are read: what is none."""

import json

import pytest
from unit.bench_records import OLD, bench, written

from hpccoll.errors import HpccollError
from hpccoll.tools.bench import records


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": 99}',
                                  '{"schema": 1, "results": [1]}', "\0",
                                  '{"schema": 1, "results": [], "environment": {"mpi": ""}, '
                                  '"settings": {"settings": 3}}',
                                  pytest.param("[" * 100_000, id="nested"),
                                  pytest.param("1" * 5000, id="digits")])
def test_no_record(tmp_path, text):
    (tmp_path / "b.json").write_text(text)
    ran = bench("compare", written(tmp_path / "a.json", OLD), str(tmp_path / "b.json"))
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "b.json" in ran.stderr and ran.stderr.count("\n") == 1


def test_a_median_that_is_none(tmp_path):
    with pytest.raises(HpccollError, match="a.json"):
        records.read(written(tmp_path / "a.json", {("allreduce", 8, "ring"): float("nan")}))


@pytest.mark.parametrize("change", [
    {"ranks": None}, {"ranks": "2"}, {"wrong": "many", "changed": "none"}, {"wrong": None},
    {"candidate": 3}, {"collective": None}, {"nbytes": "8"}, {"dtype": ["float32"]},
    {"statistics": 3}, {"statistics": {"p50_seconds": 0, "ratio": None}},
    {"statistics": {"p50_seconds": 10 ** 400, "ratio": None}},
    {"statistics": {"p50_seconds": 1e-320, "ratio": None}},
    {"statistics": {"p50_seconds": "1e-6", "ratio": None}},
    {"statistics": {"p50_seconds": 1e-6, "ratio": 0}},
    {"statistics": {"p50_seconds": 1e-6, "ratio": "1"}}])
def test_results_written_by_hand(tmp_path, change):
    path = tmp_path / "b.json"
    written(path, OLD)
    data = json.loads(path.read_text())
    data["results"][0] |= change
    path.write_text(json.dumps(data))
    ran = bench("compare", written(tmp_path / "a.json", OLD), str(path))
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "b.json" in ran.stderr and ran.stderr.count("\n") == 1
