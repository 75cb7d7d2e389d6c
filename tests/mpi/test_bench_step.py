"""Training steps as a benchmark, on real ranks."""

import json

import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from training_steps import command

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD


def bench(*words):
    return CliRunner().invoke(command, [*map(str, words)])


@pytest.fixture
def record(tmp_path):
    return WORLD.bcast(str(tmp_path / "record.json"))


def test_all_candidates_take_their_steps(record):
    wanted = "none,exchange,exchange:bf16,at-once,views,allreduce"
    pytest.importorskip("ml_dtypes")
    try:
        import torch  # noqa: F401
        wanted += ",ddp,ddp:gloo"
    except ImportError:
        pass
    ran = bench("--gradients", "64K", "--layers", 3, "--backward", 0.01, "--steps", 2,
                "--candidates", wanted, "--json", record)
    assert ran.exit_code == 0, ran.output
    if WORLD.rank == 0:
        with open(record, encoding="utf-8") as file:
            found = json.load(file)
        assert {each["candidate"] for each in found["results"]} == set(wanted.split(","))
        assert all(len(each["seconds"]) == 2 and min(each["seconds"]) >= 0.01
                   for each in found["results"])
        assert found["arrays"] == 6 and found["environment"]["ranks"] == WORLD.size
        for name in wanted.split(","):
            assert name in ran.stdout
    else:
        assert not ran.stdout


def test_without_a_backward_pass_all_of_a_step_is_communication(record):
    ran = bench("--gradients", "64K", "--layers", 3, "--backward", 0, "--steps", 2,
                "--candidates", "at-once,allreduce", "--json", record)
    assert ran.exit_code == 0, ran.output
    if WORLD.rank == 0:
        with open(record, encoding="utf-8") as file:
            found = json.load(file)
        assert all(each["exposed_part"] == 1 for each in found["results"])


def test_bad_options_are_said_once():
    ran = bench("--candidates", "nonsense")
    assert ran.exit_code == 2
    assert ran.stderr.count("there is no 'nonsense'") == (WORLD.rank == 0)
