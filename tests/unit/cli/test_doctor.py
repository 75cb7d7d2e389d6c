"""``hpccoll doctor`` on one rank."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main


def doctor(*words):
    return CliRunner().invoke(main, ["doctor", *words])


def test_command_alone():
    ran = doctor()
    assert ran.exit_code == 0, ran.output
    assert "1 rank, started by" in ran.stdout and "\x1b" not in ran.stdout
    assert "was right" in ran.stdout


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
