"""Calls of torch.distributed beside Gloo's as a benchmark, on real ranks."""

import json

import pytest
from mpi4py import MPI

pytest.importorskip("torch")
pytest.importorskip("click")
pytest.importorskip("rich")

import torch
import torch_calls
from click.testing import CliRunner

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_calls, "SIZES", (8, 1000))
    monkeypatch.setattr(torch_calls, "MODELS", {1: (20, 2)})
    monkeypatch.setattr(torch_calls, "TURN", 1e-4)
    return WORLD.bcast(str(tmp_path / "record.json"))


@pytest.mark.parametrize(("only", "calls", "steps"), [(None, 10, 1), ("calls", 10, 0),
                                                      ("steps", 0, 1)])
def test_calls_and_steps(record, only, calls, steps):
    words = ["--only", only] if only else []
    ran = CliRunner().invoke(torch_calls.command, [*words, "--json", record])
    assert ran.exit_code == 0, ran.output
    assert not torch.distributed.is_initialized()
    if WORLD.rank:
        assert not ran.stdout
        return
    with open(record, encoding="utf-8") as file:
        found = json.load(file)
    assert found["environment"]["ranks"] == WORLD.size
    names = [each["what"] for each in found["results"]]
    assert names.count("DDP step") == steps and len(names) == calls + steps
    for each in found["results"]:
        assert each["seconds"]["hpccoll"] > 0 and each["seconds"]["gloo"] > 0
        assert ("no communication" in each["seconds"]) == (each["what"] == "DDP step")
        assert each["what"] in ran.stdout


def test_the_ratio_of_steps_leaves_out_what_computing_takes():
    seconds = {torch_calls.OURS: 3.0, torch_calls.GLOO: 6.0}
    assert torch_calls.BesideGloo("broadcast", 8, seconds).ratio == 2.0
    silent = {**seconds, torch_calls.SILENT: 2.0}
    assert torch_calls.BesideGloo("DDP step", 8, silent).ratio == 4.0


def test_bad_options_are_said_once():
    ran = CliRunner().invoke(torch_calls.command, ["--json", "/nowhere/at/all.json"])
    assert ran.exit_code == 2
    assert ran.stderr.count("/nowhere/at") == (WORLD.rank == 0)
