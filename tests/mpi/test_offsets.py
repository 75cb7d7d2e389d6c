"""A rank that makes one call fewer or more than the others is named so, with its line."""

import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout
from hpccoll.errors.contract import ContractError

pytestmark = [pytest.mark.mpi(min_size=3), pytest.mark.timeout(60)]
RAW = MPI.Intracomm(MPI.COMM_WORLD)
ODD = RAW.Get_rank() == 1
OURS = {"allreduce": "recursive_doubling", "barrier": "dissemination"}
X, DEADLINE = numpy.ones(8), 2.5


@pytest.fixture
def comm():
    """A communicator on which all ranks have made the same calls."""
    found = hpccoll.Comm(RAW.Dup(), timeout=DEADLINE)
    with found.using(**OURS):
        for _ in range(4):
            found.Allreduce(X, numpy.empty_like(X))
        yield found
    RAW.Barrier()
    found.Free()


def rest(comm, seconds):
    """Come late to the call in which the others have given up."""
    time.sleep(seconds)
    with pytest.raises(BrokenCommunicatorError) as caught:
        comm.Allreduce(X, numpy.empty_like(X))
    return str(caught.value)


def test_one_call_fewer(comm):
    if ODD:
        text = rest(comm, DEADLINE + 1.5)
    else:
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)) as caught:
            comm.Allreduce(X, numpy.empty_like(X))
        text = str(caught.value)
    assert f"hpccoll: rank 1 is at {__file__}:" in text and "(one call behind)" in text, text


def test_one_call_more(comm):
    if ODD:
        with pytest.raises(CollectiveTimeout) as caught:
            comm.Allreduce(X, numpy.empty_like(X))
        text = str(caught.value)
    else:
        text = rest(comm, DEADLINE + 1.5)
    assert "rank 1 is one call ahead of all others: " in text, text
    assert f"rank 0 is at {__file__}:" in text, text


@pytest.mark.parametrize("more", [True, False])
def test_another_call_comes_next(comm, more):
    with pytest.raises(ContractError) as caught:
        if ODD == more:
            comm.Allreduce(X, numpy.empty_like(X))
        else:
            comm.Barrier()
        comm.Barrier()
        comm.Barrier()
    assert caught.value.ranks == (1,)
    assert f"rank 1 may be one call {'ahead' if more else 'behind'}: " in str(caught.value)
