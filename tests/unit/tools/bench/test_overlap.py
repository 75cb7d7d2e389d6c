"""Overlap of nonblocking collectives and computation."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from mpi4py import MPI

from hpccoll.cli import main
from hpccoll.cli.bench_overlap import command
from hpccoll.tools.bench import overlap


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


@pytest.mark.parametrize("pure, compute, overlapped, percent", [
    (10, 10, 10, 100), (10, 10, 20, 0), (10, 12, 17, 50), (10, 10, 40, 0), (10, 12, 11, 100)])
def test_overlap_is_what_osu_means(pure, compute, overlapped, percent):
    made = overlap.Overlap("allreduce", "ring", 2, None, 8, "float32", "sum", False, 0, "numpy",
                           (pure, pure, 99), (10,) * 3, (compute,) * 3, (overlapped,) * 3,
                           (1,) * 3, 0, 0)
    assert made.percent == pytest.approx(percent)
    assert made.gain == pytest.approx(10 * (20 - overlapped))


@pytest.mark.parametrize("kind", overlap.WORK)
def test_work_lasts_as_long_as_asked(kind):
    work = overlap.Computation(MPI.COMM_SELF, kind)
    assert 0 < work.unit < 0.1
    assert work.units(0) == 1 and work.units(100 * work.unit) == 100


def test_kinds_of_work(tmp_path):
    path = tmp_path / "record.json"
    ran = bench("overlap", "barrier", "-i", "1", "--algorithm", "native", "--json", str(path),
                *(word for kind in ("python", "asleep", "python") for word in ("--work", kind)))
    assert ran.exit_code == 0, ran.output
    works = [result["work"] for result in json.loads(path.read_text())["overlap"]]
    assert works == ["python", "asleep"]
    ran = bench("overlap", "barrier", "--work", "music")
    assert ran.exit_code == 2
    assert "'music' is unknown; choose from numpy, python, asleep" in ran.stderr
    offered, = [each.type.choices for each in command.params if each.name == "works"]
    assert tuple(offered) == overlap.WORK


def test_processor_time_is_that_of_the_collective(monkeypatch):
    """Not of meeting the other ranks before it, nor of restoring its input, nor of the work."""
    clock = SimpleNamespace(now=0)

    def spend(seconds, value=None):
        clock.now += seconds
        return value
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(overlap, name, lambda: clock.now)
    request = SimpleNamespace(Test=lambda: spend(100), Wait=lambda: spend(1000))
    runner = overlap.OverlapRunner(
        SimpleNamespace(control=SimpleNamespace(Barrier=lambda: spend(1e6))), None, None,
        lambda: spend(10, request),
        SimpleNamespace(restorable=True, restore=lambda: spend(1e9), arguments=()))
    runner.time_overlap(2, SimpleNamespace(do=spend), 6, 2)
    assert runner.processor == [10 + 2 * 100 + 1000] * 2
    assert runner.alone == runner.compute == [6] * 2 and runner.overlapped == [1216] * 2


def test_overlap_command(tmp_path):
    path = tmp_path / "record.json"
    ran = bench("overlap", "allreduce", "barrier", "-m", "8:64", "-i", "4", "--tests", "2",
                "--json", str(path))
    assert ran.exit_code == 0, ran.output
    rows = [line for line in ran.output.splitlines() if not line.startswith("#")]
    assert len({line.index("|") for line in rows}) == 1 and "wrong elements: 0" in ran.output
    record = json.loads(path.read_text())
    assert record["results"] == [] and record["complete"]
    assert {(r["collective"], r["candidate"], r["work"]) for r in record["overlap"]} == {
        (*called, work) for work in ("numpy", "python") for called in (
            ("allreduce", "native"), ("allreduce", "recursive_doubling"),
            ("barrier", "native"), ("barrier", "dissemination"))}
    assert all(len(r["overlapped_seconds"]) == 4 and 0 <= r["statistics"]["overlap_percent"] <= 100
               for r in record["overlap"])
