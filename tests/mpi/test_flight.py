"""Flight records of real ranks: on request, on an error, on a signal, of one that is in no call."""

import os
import signal
import time
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.guard import flight_signals
from hpccoll.guard.flight_record import RECORDER
from hpccoll.runtime.execution.built import BUILT
from hpccoll.tools.diagnose import diagnose, read

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
pytestmark = [pytest.mark.mpi(min_size=2)]
EXECUTORS = ["compiled", "python"] if BUILT else ["python"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One folder of all ranks, that of rank 0."""
    for name in ("failed", "folder"):
        monkeypatch.setattr(RECORDER, name, type(getattr(RECORDER, name))())
    return RAW.bcast(str(tmp_path), 0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_was_called_is_written_on_request(folder, monkeypatch, executor):
    """Fails where an executor notes no end, or not the beginning."""
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    data = numpy.ones(100)
    before = time.time()
    with comm.using(allreduce="ring", bcast="native"):
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, data)
        comm.Bcast(data, 0)
    path = comm.dump(folder)
    assert Path(path).exists()
    RAW.Barrier()
    files = read(Path(folder))
    assert len(files) == SIZE
    name = RECORDER.guards[comm._context.guard].name
    [mine] = [one for one in files[RANK]["communicators"] if one["id"] == name]
    # The ranks may have met before, in calls that are not named.
    calls = [call for call in mine["records"][str(RANK)]["calls"] if "collective" in call]
    assert [call["collective"] for call in calls] == ["allreduce"] * 3 + ["bcast"]
    assert all(abs(call["start"] - before) < 10 and call["end"] for call in calls)
    assert calls[0]["operator"] == "sum" and calls[0]["count"] == "100"
    RAW.Barrier()
    comm.Free()


def test_an_error_is_written_once_and_understood(folder, monkeypatch):
    monkeypatch.setenv("HPCCOLL_TRACE", folder)
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "3")
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    data = numpy.ones(10)
    with comm.using(allreduce="recursive_doubling"):
        comm.Allreduce(MPI.IN_PLACE, data)
        with pytest.raises(hpccoll.HpccollError):
            comm.Allreduce(MPI.IN_PLACE, data, MPI.MAX if RANK == 1 else MPI.SUM)
            comm.Allreduce(MPI.IN_PLACE, data)
    RAW.Barrier()
    verdict = diagnose(read(Path(folder))).verdict
    assert "Ranks disagree on the operator in call" in verdict and "rank 1 made" in verdict
    RAW.Barrier()


def test_a_signal_makes_a_rank_write_and_it_goes_on(folder, monkeypatch):
    monkeypatch.setenv("HPCCOLL_TRACE", folder)
    monkeypatch.setattr(RECORDER, "listening", 0)
    signal.set_wakeup_fd(-1)  # whatever a test before has set
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    with comm.using(barrier="dissemination"):
        comm.Barrier()
        os.kill(os.getpid(), signal.SIGUSR1)
        end = time.monotonic() + 5
        while not list(Path(folder).glob(f"flight-*-rank{RANK:05}.json")):
            assert time.monotonic() < end
            time.sleep(0.01)
        comm.Barrier()
    RAW.Barrier()
    assert {file["why"] for file in read(Path(folder))} == {"SIGUSR1"}
    RAW.Barrier()
    comm.Free()
    flight_signals.at_exit()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
