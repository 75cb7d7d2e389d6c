"""``hpccoll doctor`` on real ranks: facts of all come together, and all end with one status."""

import json

import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD


def doctor(*words):
    ran = CliRunner().invoke(main, ["doctor", "--json", *words])
    assert (ran.stdout != "") == (WORLD.rank == 0), ran.output
    return ran.exit_code, json.loads(WORLD.bcast(ran.stdout))


def levels(record, topic):
    return {each["level"] for each in record["findings"] if each["topic"] == topic}


def test_a_job_of_this_many_ranks():
    status, record = doctor("--ranks", str(WORLD.size))
    assert status == 0
    assert [facts["rank"] for facts in record["facts"]] == list(range(WORLD.size))
    assert all(facts["right"] for facts in record["facts"])
    assert levels(record, "world") == levels(record, "result") == {"ok"}
    assert not levels(record, "settings")  # no launcher gives ranks different ones
    assert record["facts"][0]["layout"] == str(WORLD.size)


def test_another_number_of_ranks():
    status, record = doctor("--ranks", str(WORLD.size + 1))
    assert status == 1 and levels(record, "world") == {"error"}


def test_unequal_settings(monkeypatch):
    if WORLD.rank == WORLD.size - 1:
        monkeypatch.setenv("HPCCOLL_TIMEOUT", "77")
    status, record = doctor()
    assert (status, "error" in levels(record, "settings")) == ((1, True) if WORLD.size > 1
                                                               else (0, False))


def test_settings_that_do_not_fit_the_job(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TOPOLOGY", f"{WORLD.size + 1}x2")
    status, record = doctor()
    assert status == 1 and levels(record, "settings") == {"error"}
