"""Tests on real ranks: ``mpiexec -n P python -m pytest --with-mpi tests/mpi`` on every rank.

The other ranks cannot know that a test has failed on one, and would wait for it: a failure is
shown, and ends the whole job.
"""

import faulthandler
import os
import sys
import threading

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm import first_calls

#: The MPI library runs the first call only, so that tests need not make nine to see what is tested.
first_calls.FIRST_CALLS = 1
#: Seconds until a rank that is to end the job ends itself.
LONGEST_ABORT = 20.0


def pytest_configure():
    """Say where every thread is before the stage's time is up, even where nobody gets the GIL."""
    seconds = float(os.environ.get("TESTS_DUMP_SECONDS", 0))
    if seconds:
        faulthandler.dump_traceback_later(seconds, file=sys.__stderr__)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if report.failed and MPI.COMM_WORLD.Get_size() > 1:
        sys.__stderr__.write(f"\n*** rank {MPI.COMM_WORLD.Get_rank()}: {report.nodeid} failed "
                             f"({report.when})\n{report.longreprtext}\n{report.capstderr}\n")
        sys.__stderr__.flush()
        # An MPI library may not come back from it, beside threads that are inside the library.
        last = threading.Timer(LONGEST_ABORT, os._exit, (1,))
        last.daemon = True
        last.start()
        MPI.COMM_WORLD.Abort(1)


@pytest.fixture
def world():
    """An ``hpccoll.Comm`` of all ranks, for one test."""
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    yield comm
    if comm != MPI.COMM_NULL:
        comm.Free()
