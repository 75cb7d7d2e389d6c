"""What a process notes, gathered; files at the program's end."""

import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError
from hpccoll.measure.profiling import observer as module
from hpccoll.measure.profiling.observer import OBSERVER, Observer, gather_records, stats
from hpccoll.measure.profiling.record import CallSums, read

from .made import ALLREDUCE, rank_record


def test_too_many_communicators_share_a_record(monkeypatch):
    monkeypatch.setattr(module, "MOST_COMMUNICATORS", 3)
    observer = Observer()
    records = [observer.record_of(MPI.COMM_SELF) for _ in range(5)]
    assert [record.number for record in records[:2]] == [0, 1]
    assert records[2] is records[3] is records[4] and records[2].ranks == ()


@pytest.mark.parametrize("most, kept", [(100, 3), (2, 2)])
def test_gathered_records_are_cut(monkeypatch, most, kept):
    monkeypatch.setattr(module, "GATHERED", most)
    mine = rank_record(0, [(ALLREDUCE, number, number + 1.0) for number in range(3)], 1)
    [found] = gather_records(MPI.COMM_SELF, mine)
    assert len(found.communicators[0].calls()) == kept
    assert found.communicators[0].sums() == {0: CallSums(3, 3.0)}


def test_nobody_counts_unless_asked(monkeypatch):
    monkeypatch.delenv("HPCCOLL_PROFILE", raising=False)
    monkeypatch.delenv("HPCCOLL_TRACE", raising=False)
    with pytest.raises(ArgumentError, match="HPCCOLL_PROF"):
        hpccoll.Comm(MPI.COMM_SELF).stats()


def test_of_one_communicator(monkeypatch):
    monkeypatch.setattr(OBSERVER, "records", [])
    monkeypatch.setenv("HPCCOLL_PROFILE", "yes")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_SELF).Dup())
    assert stats(comm, None, False).rows == ()
    comm.Barrier()
    for all_ranks in (False, True):
        assert [row.title for row in comm.stats(all_ranks).rows] == ["barrier"]
    comm.Free()


PROGRAM = """
import sys
from mpi4py import MPI
import hpccoll
comm = hpccoll.Comm(MPI.COMM_WORLD)
comm.Barrier()
comm.Split().allreduce(1)
if "finalize" in sys.argv:
    MPI.Finalize()
if "raise" in sys.argv:
    raise RuntimeError
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "finalize", "raise"])
def test_a_file_is_written_however_the_program_ends(tmp_path, end):
    folder = tmp_path / "deep" / "traces"
    subprocess.run([sys.executable, "-c", PROGRAM, end], check=not end == "raise", timeout=60,
                   env={"HPCCOLL_TRACE": str(folder), "PATH": "/bin",
                        "PYTHONPATH": str(Path(hpccoll.__file__).parents[1])},
                   capture_output=True)
    [record], ranks = read(folder)
    assert ranks == 1 and len(record.ahead) == 2
    assert [one.kinds[0].title for one in record.communicators] == [
        "barrier", "allreduce of objects"]
