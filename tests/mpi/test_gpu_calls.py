"""The benchmark of device memory, on the double."""

import sys
import tempfile
from pathlib import Path

import pytest
from mpi4py import MPI

pytest.importorskip("click")

import gpu_calls
from click.testing import CliRunner

from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.once]
WORLD = MPI.COMM_WORLD


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_calls, "SIZES", (8, 4096))
    monkeypatch.setattr(gpu_calls, "SECONDS", 1e-3)
    monkeypatch.setattr(gpu_calls, "device_facts", lambda cupy: {
        "device": "a double", "cuda": 0, "nccl": 0, "mps": False})
    machine = Devices()
    machine.first = WORLD.rank
    with tempfile.TemporaryDirectory() as folder:
        with installed(False, machine, Path(WORLD.bcast(folder))) as cupy:
            monkeypatch.setattr(gpu_calls, "start_device", lambda world: cupy)
            yield WORLD.bcast(str(tmp_path / "record.json"))
        WORLD.Barrier()


def test_two_runs_are_one_record_and_two_tables(record):
    for more in ([], ["--add"]):
        ran = CliRunner().invoke(gpu_calls.command, ["--json", record, *more])
        assert ran.exit_code == 0, ran.output
    if WORLD.rank:
        assert not ran.stdout
        return
    runs = gpu_calls.read_runs(record)
    assert len(runs) == 2 and runs[0]["environment"]["ranks"] == WORLD.size
    for run in runs:
        assert [each["way"] for each in run["results"]] == [
            way for way in gpu_calls.WAYS for _ in gpu_calls.SIZES]
        for each in run["results"]:
            assert each["right"] and not each["problem"]
            assert each["seconds"] >= each["host_seconds"] > 0
    shown = CliRunner().invoke(gpu_calls.command, ["--show", record]).stdout
    assert shown.count("| bytes | by hand | native | auto |") == 2 and "\n| 4K" in shown


def test_without_a_gpu_all_ranks_end(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    ran = CliRunner().invoke(gpu_calls.command, [])
    assert ran.exit_code == 2
    assert ran.stderr.count("needs CuPy") == (WORLD.rank == 0)
