"""``hpccoll status`` names from outside the rank that the others wait for, and stops nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.guard.job_status import JOB

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.timeout(90)]
RAW = MPI.Intracomm(MPI.COMM_WORLD)
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
STATUS = [sys.executable, "-m", "hpccoll", "status"]
#: It wakes the rank that it was started by.
WHILE_STOPPED = """
import os, subprocess, sys, time
time.sleep(0.3)
done = subprocess.run(sys.argv[2:], capture_output=True, text=True)
print(done.stdout, done.stderr)
os.kill(int(sys.argv[1]), 18)
"""


@pytest.fixture
def comm():
    found = hpccoll.Comm(RAW.Dup(), timeout=60)
    found.Set_name("grid")
    found.Barrier()
    if JOB.file is None:
        pytest.skip("the launcher gives the job no name")
    yield found
    RAW.Barrier()
    found.Free()


def status(*arguments):
    done = subprocess.run([*STATUS, *arguments], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("served", ["recursive_doubling", "native"])
def test_a_rank_that_is_late(comm, served):
    """It reads the state of all ranks itself, while the others wait for it."""
    x = numpy.ones(8)
    with comm.using(allreduce=served):
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, x)
        if RANK == 1:
            time.sleep(1.5)
            job, = json.loads(status(str(os.getpid()), "--json", "-"))
        comm.Allreduce(MPI.IN_PLACE, x)
    if RANK != 1:
        return
    assert [one["rank"] for one in job["ranks"]] == list(range(SIZE))
    assert job["ranks"][1]["pid"] == os.getpid() and job["ranks"][1]["communicator"] == "grid"
    for one in job["ranks"][:1] + job["ranks"][2:]:
        assert one["begun"] == job["ranks"][1]["begun"] + 1 and 1 < one["seconds"] < 20
        assert one["communicator"] == "grid" and "allreduce" in one["call"]
        assert one["state"] == ("in the MPI library" if served == "native" else "waiting")
        assert served == "native" or one["peers"]
    verdict, = job["verdict"]
    assert verdict.startswith("rank 1 is ") and "(one call behind); rank" in verdict
    assert f"in call {job['ranks'][0]['begun']} of grid, allreduce" in verdict


def test_a_stopped_rank_is_named_soon(comm):
    x = numpy.ones(8)
    with comm.using(allreduce="recursive_doubling"):
        comm.Allreduce(MPI.IN_PLACE, x)
        if RANK == 1:
            outside = subprocess.Popen(
                [sys.executable, "-c", WHILE_STOPPED, str(os.getpid()), *STATUS,
                 str(os.getpid())], stdout=subprocess.PIPE, text=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            text = outside.communicate()[0]
        comm.Allreduce(MPI.IN_PLACE, x)
    if RANK == 1:
        last = comm._private().guard.number - 1
        assert f"rank 1 is stopped; its last call was call {last}" in text
        assert "\nrank 1 is stopped; rank" in text and " of grid, allreduce" in text, text


def test_a_freed_communicator_is_not_listed(comm):
    other = hpccoll.Comm(RAW.Dup())
    other.Set_name("freed later")
    other.Barrier()
    other.Barrier()
    entry, = (entry for entry in JOB.comms.entries() if entry.name == "freed later")
    assert (entry.rank, entry.size) == (RANK, SIZE) and os.fstat(entry.file).st_ino == entry.inode
    other.Free()
    assert "freed later" not in [entry.name for entry in JOB.comms.entries()]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(entry.file)


def test_what_is_no_job():
    done = subprocess.run([*STATUS, "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "'1' is no process or job with ranks" in done.stderr
