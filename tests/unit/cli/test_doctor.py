"""``hpccoll doctor`` on one rank."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.tools.doctor import facts


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Do not observe the load of other processes, which tests run beside."""
    monkeypatch.setattr(facts, "OBSERVED", 0.0)


def doctor(*words):
    return CliRunner().invoke(main, ["doctor", *words])


def test_command_alone():
    ran = doctor()
    assert ran.exit_code == 0, ran.output
    assert "1 rank, started by" in ran.stdout and "\x1b" not in ran.stdout
    assert "is correct" in ran.stdout


@pytest.mark.parametrize("width", [80, 100, 140])
def test_lines_fit_and_end_where_their_words_do(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = doctor().stdout.splitlines()
    assert max(map(len, lines)) <= width and not any(line.endswith(" ") for line in lines)


def test_command_json():
    ran = doctor("--json")
    record = json.loads(ran.stdout)
    assert record["schema"] == "hpccoll-doctor-1" and record["ranks"] == 1
    assert {each["topic"] for each in record["findings"]} >= {"world", "MPI", "layout"}
    assert record["facts"][0]["right"] is True


def test_status_says_whether_something_is_wrong(monkeypatch):
    assert doctor("--ranks", "2").exit_code == 1
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert doctor().exit_code == 0
    assert doctor("--strict").exit_code == 1
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "soon")
    ran = doctor()
    assert ran.exit_code == 1 and "HPCCOLL_TIMEOUT" in ran.stdout
    assert doctor("--ranks", "x").exit_code == 2


def test_log_of_a_job_that_failed_before(tmp_path):
    (tmp_path / "job.out").write_text("x\nAborting. unsupported PMI version PMIx. Aborting.\n")
    ran = doctor("--log", str(tmp_path / "job.out"))
    assert ran.exit_code == 1 and "Open MPI's mpiexec" in ran.stdout and "1 error" in ran.stdout
    record = json.loads(doctor("--log", str(tmp_path / "job.out"), "--json").stdout)
    assert [each["topic"] for each in record["findings"]] == ["launcher"]
    (tmp_path / "well.out").write_text("all is well\n")
    ran = doctor("--log", str(tmp_path / "well.out"))
    assert ran.exit_code == 0 and "no known failure" in ran.stdout
    ran = doctor("--log", str(tmp_path / "none.out"))
    assert ran.exit_code == 2 and "--log: cannot read" in ran.stderr
