"""Without the compiled parts, as where there was no compiler: what runs, and who says so.

``tests/launch.py`` runs this on two ranks, and samples of the other tests, with this folder on
PYTHONPATH.
"""

import importlib
import json
import os

import numpy
import pytest
from launch import UNCOMPILED
from mpi4py import MPI

import hpccoll
from hpccoll.arrays import half
from hpccoll.errors import ArgumentError
from hpccoll.runtime.execution import compiled
from hpccoll.simulator import compiled_loop

pytestmark = pytest.mark.skipif(
    str(UNCOMPILED) not in os.environ.get("PYTHONPATH", "").split(os.pathsep),
    reason="the compiled parts are not taken away: tests/launch.py does that")
WORLD = MPI.COMM_WORLD
SMALL = ("--sizes", "64", "--seconds", "0.01", "--sweeps", "1", "--algorithm", "native,auto")


def run(*words):
    """What a command prints on rank 0, and its status."""
    pytest.importorskip("rich")
    from hpccoll.cli import main
    ran = pytest.importorskip("click.testing").CliRunner().invoke(main, words)
    return ran.exit_code, WORLD.bcast(ran.output)


@pytest.mark.parametrize("name", ["hpccoll.arrays._half", "hpccoll.runtime.execution._executor",
                                  "hpccoll.simulator._events"])
def test_they_are_absent(name):
    with pytest.raises(ImportError):
        importlib.import_module(name)
    assert not compiled.BUILT and not half.BUILT and not compiled_loop.is_available()


@pytest.mark.mpi
def test_doctor_says_what_runs():
    status, output = run("doctor")
    assert status == 0 and "python executor" in " ".join(output.split())


@pytest.mark.mpi
def test_bench_says_what_runs(tmp_path):
    file = WORLD.bcast(str(tmp_path / "record.json"))
    status, output = run("bench", "allreduce", *SMALL, "--json", file)
    assert status == 0 and "python executor" in " ".join(output.split())
    with open(file, encoding="utf-8") as record:
        assert json.load(record)["environment"]["executor"] == "python"


@pytest.mark.mpi
def test_asking_for_the_compiled_executor_is_an_error(monkeypatch):
    monkeypatch.setenv("HPCCOLL_EXECUTOR", "compiled")
    with pytest.raises(ArgumentError, match="install"):
        hpccoll.Comm(WORLD)
    monkeypatch.setenv("HPCCOLL_EXECUTOR", "python")
    hpccoll.Comm(WORLD.Dup()).Free()


@pytest.mark.mpi
@pytest.mark.parametrize("preference", ["auto", "recursive_doubling"])
def test_sums_of_half_precision_fall_back(preference):
    """To functions of NumPy, which round once; the same bits on both ranks."""
    dtype = numpy.dtype("f2")
    assert half.is_half(dtype) and half.compiled_ufunc(numpy.add, dtype) is None
    comm, mine, total = hpccoll.Comm(WORLD.Dup()), numpy.empty(700, "f2"), numpy.empty(700, "f2")
    mine[:] = numpy.random.default_rng(WORLD.rank).standard_normal(700)
    with comm.using(allreduce=preference):
        for _ in range(3):
            comm.Allreduce(mine, total)
    every = numpy.array(WORLD.allgather(mine))
    assert (total == every.astype("f4").sum(axis=0).astype("f2")).all()
    assert len(set(WORLD.allgather(total.tobytes()))) == 1
    comm.Free()
