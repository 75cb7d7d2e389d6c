"""A rank that has no memory to wait in a call: the others are told, and do not wait for it."""

import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import CollectiveTimeout
from hpccoll.runtime.execution.built import BUILT

_testcapi = pytest.importorskip("_testcapi")
pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.timeout(120),
              pytest.mark.skipif(not BUILT, reason="the interpreter computes with NumPy")]
#: Which of the first allocations of a wait fails.
LAST = 12


@pytest.mark.filterwarnings(  # the allocation may be one of another thread
    "ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("number", range(1, LAST + 1))
def test_the_others_are_told(monkeypatch, number):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "10")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    source, sink, error = numpy.ones(8), numpy.zeros(8), None
    with comm.using(allreduce="ring"):  # the others need more messages of this rank
        for _ in range(4):
            comm.Allreduce(source, sink)
        MPI.COMM_WORLD.Barrier()
        try:
            if comm.rank == 0:
                _testcapi.set_nomemory(number, number + 1)
            else:
                time.sleep(0.05)
            comm.Allreduce(source, sink)
        except Exception as raised:
            error = raised
        finally:
            _testcapi.remove_mem_hooks()
    assert not isinstance(error, CollectiveTimeout)
    failed = MPI.COMM_WORLD.allgather(error is not None)
    assert failed[0] == any(failed)
    assert error is not None or (sink == comm.size).all()
