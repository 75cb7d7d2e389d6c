"""Waiting for several requests by ``hpccoll.Request``: in every form, and not for ever."""

import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout, HpccollError
from hpccoll.errors.contract import ContractError

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
ODD = SIZE - 1
pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI library serves all requests")]
FORMS = {"Waitall": hpccoll.Request.Waitall, "Waitany": hpccoll.Request.Waitany,
         "Waitsome": hpccoll.Request.Waitsome}


def communicator(monkeypatch, timeout="20"):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", timeout)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    for _ in range(2):  # the second one sets it up
        comm.Barrier()
    return comm


def begun(comm, served, sink, count=3):
    with comm.using(iallreduce=served):
        return comm.Iallreduce(numpy.ones(count), sink)


def test_what_is_complete_and_where(monkeypatch):
    """As mpi4py has it: places, statuses, nothing active, no collective among them."""
    comm, null = communicator(monkeypatch), MPI.REQUEST_NULL
    for requests in ([], [null, null]):
        assert hpccoll.Request.Waitall(requests) is True
        assert hpccoll.Request.Waitany(requests) == MPI.UNDEFINED
        assert hpccoll.Request.Waitsome(requests) is None
    peer, word = (RANK + 1) % SIZE, numpy.empty(1)
    left = (RANK - 1) % SIZE
    for served in ("native", "ring", ""):  # without a collective, too
        received = comm.Irecv(word, left, 7)
        requests = [null, received, *([begun(comm, served, numpy.zeros(3))] if served else [])]
        RAW.Barrier()
        sent = comm.Isend(numpy.full(1, float(RANK)), peer, 7)
        statuses = [MPI.Status() for _ in requests]
        assert hpccoll.Request.Waitall(requests, statuses) is True
        assert statuses[1].Get_source() == left and word[0] == left
        assert not any(map(MPI.Request.__bool__, requests))
        sent.Wait()
    waited = begun(comm, "native", numpy.zeros(3))
    never = comm.Irecv(numpy.empty(1), left, 8)
    assert hpccoll.Request.Waitany([never, waited]) == 1
    waited = begun(comm, "ring", sink := numpy.zeros(3))
    assert hpccoll.Request.Waitsome([never, waited]) == [1] and (sink == SIZE).all()
    RAW.Barrier()
    comm.Isend(numpy.ones(1), peer, 8).Wait()
    assert hpccoll.Request.Waitany([never]) == 0
    comm.Free()


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("served", ["native", "ring"])
@pytest.mark.parametrize("form", FORMS)
def test_a_rank_that_does_not_come_is_named(monkeypatch, form, served):
    """Beside a message that nobody sends, and a collective that all come to."""
    comm = communicator(monkeypatch, "1")
    requests = [comm.Irecv(numpy.empty(1), RANK, 9)] if form == "Waitall" else []
    start = time.monotonic()
    if RANK != ODD:
        request = begun(comm, served, numpy.zeros(100), 100)
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)) as caught:
            FORMS[form]([*requests, request])
        assert 0.9 < time.monotonic() - start < 8
        assert f"rank {ODD} is at " in str(caught.value)
    RAW.Barrier()
    kinds = (ContractError, BrokenCommunicatorError) if RANK == ODD else BrokenCommunicatorError
    with comm.using(allreduce="recursive_doubling"), pytest.raises(kinds):
        comm.Allreduce(numpy.ones(3), numpy.ones(3))
    for one in requests:
        one.Cancel()
        MPI.Request.Wait(one)
    if served == "native":  # so that the library has nothing left to do
        if RANK == ODD:
            MPI.Intracomm.Iallreduce(comm, numpy.ones(100), numpy.ones(100)).Wait()
        else:
            MPI.Request.Wait(request)


def test_a_complete_one_is_not_waited_for(monkeypatch, recwarn):
    """A rank that is late to what is waited for beside it is no failure of that, nor reported."""
    monkeypatch.setenv("HPCCOLL_REPORT", "0.5")
    comm = communicator(monkeypatch, "1")
    with comm.using(allreduce_init="native"):
        request = comm.Allreduce_init(numpy.ones(3), sink := numpy.zeros(3))
    RAW.Barrier()
    request.Start()
    word = numpy.empty(1)
    message = comm.Irecv(word, (RANK - 1) % SIZE, 7)
    if RANK == 0:
        while not MPI.Request.Get_status(request):
            pass
        time.sleep(1.6)  # longer than the deadline
    else:
        hpccoll.Request.Waitall([request, message])
    sent = comm.Isend(numpy.ones(1), (RANK + 1) % SIZE, 7)
    if RANK == 0:
        hpccoll.Request.Waitall([request, message])
    sent.Wait()
    assert (sink == SIZE).all() and word[0] == 1
    assert not [one for one in recwarn if "allreduce" in str(one.message)]
    request.Free()
    comm.Free()


def test_what_went_wrong_is_raised_itself(monkeypatch):
    """Not as an ``MPI.Exception`` that says nothing, as ``MPI.Request.Waitall`` must."""
    comm = communicator(monkeypatch)
    with comm.using(iallreduce="ring"):
        request = comm.Iallreduce(numpy.ones(50), numpy.zeros(50),
                                  MPI.MAX if RANK == 0 else MPI.SUM)
    with pytest.raises(HpccollError, match="operator"):
        hpccoll.Request.Waitall([request])
    RAW.Barrier()
