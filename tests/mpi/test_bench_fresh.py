"""``hpccoll bench fresh``: what it measures is right, and a wrong result is found."""

import io
import json

import numpy
import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from rich.console import Console

from hpccoll.cli import main
from hpccoll.tools.bench import fresh
from hpccoll.tools.bench.start import measure_start

WORLD = MPI.COMM_WORLD
pytestmark = pytest.mark.mpi


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(fresh, "CLASSES", (8, 4096))
    monkeypatch.setattr(fresh, "CALLS", 16)
    monkeypatch.setattr(fresh, "MADE", 14)
    monkeypatch.setattr(fresh, "KEPT", 3)
    monkeypatch.setattr(fresh, "BUSY", 20)
    monkeypatch.setattr(fresh, "measure_start", lambda: measure_start(2))


def test_what_is_measured(quick):
    text = io.StringIO()
    record = io.StringIO()
    root = WORLD.rank == 0
    outcome = fresh.run(WORLD, Console(file=text, width=100) if root else None,
                        record if root else None)
    assert outcome.failures == 0 and not outcome.interrupted
    assert [(one.method, one.nbytes) for one in outcome.sizes] == [
        (method, nbytes) for method in fresh.METHODS for nbytes in (8, 4096)]
    assert all(one.seconds > 0 < one.plain_seconds for one in outcome.sizes)
    assert [one.arrays for one in outcome.arrays] == ["same", "new"]
    assert [one.method for one in outcome.communicators] == ["Dup", "Split"]
    once, busy = outcome.footprints
    assert once.shared_bytes < 1 << 16 and once.files <= busy.files
    if not root:
        assert outcome.environment is None
        return
    for word in (*fresh.METHODS, "Dup, one Allreduce, Free", "with 1 call takes", "with 20 calls",
                 "a process without calls takes", "new arrays in each call: "):
        assert word in text.getvalue()
    found = json.loads(record.getvalue())
    assert found["start"]["seconds"] > 0 < found["start"]["plain_seconds"]
    assert len(found["sizes"]) == 12 and found["environment"]["ranks"] == WORLD.size


def test_every_call_of_a_class_has_its_own_size():
    for nbytes in fresh.CLASSES:
        sizes = fresh.sizes_of(nbytes)
        assert len(set(sizes)) == fresh.CALLS and sizes[0] * 8 == nbytes
        assert sizes[-1] <= 2 * sizes[0] + 64


def test_a_wrong_result_is_counted(quick, monkeypatch):
    class Wrong(fresh.Comm):
        def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
            MPI.Intracomm.Allreduce(self, sendbuf, recvbuf, op)
            recvbuf[:1] += 1

    monkeypatch.setattr(fresh, "METHODS", ("Allreduce",))
    monkeypatch.setattr(fresh, "Comm", Wrong)
    assert fresh.run(WORLD, None).failures == 4 * 16 * WORLD.size


def test_the_command(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(fresh, "METHODS", ("Bcast",))
    path = WORLD.bcast(str(tmp_path / "fresh.json"))
    ran = CliRunner().invoke(main, ["bench", "fresh", "--json", path])
    assert ran.exit_code == 0, ran.output
    WORLD.Barrier()
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    assert {one["method"] for one in record["sizes"]} == {"Bcast"}
    assert numpy.isfinite(record["communicators"][0]["seconds"])
    assert ("Bcast" in ran.stdout) == (WORLD.rank == 0)
