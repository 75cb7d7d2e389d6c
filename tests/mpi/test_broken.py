"""A communicator on which a call failed: nobody gets wrong data, nobody waits, all are told."""

import os
import signal
import threading
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout
from hpccoll.guard import alarm
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.context import LANE_BYTES
from hpccoll.runtime.execution.built import BUILT

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
pytestmark = [pytest.mark.mpi(min_size=2)]
OURS = {"allreduce": "recursive_doubling", "bcast": "linear", "barrier": "dissemination"}
#: Both, where they are the fewest ranks: how many there are changes nothing of what they do.
EXECUTORS = (["compiled", *[pytest.param("python", marks=pytest.mark.once)] * (SIZE == 2)]
             if BUILT else ["python"])
#: Elements: in cells, and read from their sender's memory or sent by a rendezvous of the library.
COUNTS = {"small": 8, "large": 1_500_000}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Who gave up waits less long for the others to do so, too."""
    monkeypatch.setattr(alarm, "LONGER", 0.5)


def communicator(monkeypatch, executor="", shared="yes", timeout="1"):
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    monkeypatch.setenv("HPCCOLL_SHARED_MEMORY", shared)
    monkeypatch.setenv("HPCCOLL_TIMEOUT", timeout)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    with comm.using(**OURS):
        comm.Barrier()
    return comm


def begin(form, comm, buffer):
    """A broadcast from rank 0, in one of its forms, to the end."""
    if form == "blocking":
        comm.Bcast(buffer, 0)
    elif form == "nonblocking":
        comm.Ibcast(buffer, 0).Wait()
    else:
        request = comm.Bcast_init(buffer, 0)
        RAW.Barrier()  # as with every library, making one may wait for the others
        request.Start()
        request.Wait()


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("size", COUNTS)
@pytest.mark.parametrize("shared", ["yes", "no"], ids=["shared memory", "messages"])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
def test_a_late_rank_never_gets_what_the_sender_had_later(monkeypatch, form, executor, shared,
                                                         size):
    """The root gives up and writes other data to its buffer; the other ranks come after that."""
    comm = communicator(monkeypatch, executor, shared)
    buffer = numpy.full(COUNTS[size], 1.0 if RANK == 0 else -1.0)
    with comm.using(**OURS):
        if RANK == 0:
            gave_up = False
            try:
                begin(form, comm, buffer)
            except CollectiveTimeout:
                gave_up = True
            buffer[:] = 666.0
            if not gave_up:  # small messages leave at once: the call was good
                assert size == "small"
            RAW.bcast(gave_up, 0)
        else:
            gave_up = RAW.bcast(None, 0)
            start = time.monotonic()
            if gave_up:
                with pytest.raises(BrokenCommunicatorError, match="rank 0"):
                    begin(form, comm, buffer)
                assert time.monotonic() - start < 5
            else:
                begin(form, comm, buffer)
                assert (buffer == 1).all()
    RAW.Barrier()


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("shared", ["yes", "no"], ids=["shared memory", "messages"])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("form", ["blocking", "nonblocking", "lower case"])
def test_every_later_call_of_every_rank_is_refused(monkeypatch, form, executor, shared):
    """A retry by who gave up, and calls of ranks that hear of it only now."""
    comm = communicator(monkeypatch, executor, shared)
    with comm.using(**OURS):
        source, sink = numpy.ones(4), numpy.zeros(4)
        lasting = comm.Allreduce_init(source, sink)
        for _ in range(4):
            comm.Allreduce(source, sink)
        comm.allreduce(1)
        sink[:] = 0
        calls = [lambda: comm.Allreduce(source, sink), comm.Barrier,
                 lambda: comm.Iallreduce(source, sink).Wait()]
        later = [lambda: comm.Allreduce_init(source, sink), lambda: comm.allreduce(1),
                 lambda: comm.Bcast(sink, 0), lambda: comm.empty(3),
                 lambda: comm.Gather(source, numpy.empty(4 * SIZE), 0)]
        if RANK == 0:
            with pytest.raises(CollectiveTimeout):
                {"blocking": calls[0], "nonblocking": calls[2],
                 "lower case": lambda: comm.allreduce(1)}[form]()
        RAW.Barrier()
        text = r"^hpccoll: rank \d.*: rank 0 failed in .*allreduce.* at .*CollectiveTimeout"
        start = time.monotonic()
        with pytest.raises(BrokenCommunicatorError, match=text):
            lasting.Start()
        for _ in range(2):
            for call in (*calls, *later):
                with pytest.raises(BrokenCommunicatorError, match=text):
                    call()
        assert time.monotonic() - start < 10
        assert not sink.any()
    RAW.Barrier()
    other = hpccoll.Comm(MPI.Intracomm(RAW).Dup())  # and others are whole
    with other.using(**OURS):
        other.Allreduce(source, sink)
    assert (sink == SIZE).all()
    other.Free()


@pytest.mark.skipif(not BUILT or MPI.Query_thread() < MPI.THREAD_MULTIPLE,
                    reason="requests do not share channels")
@pytest.mark.parametrize("ends, contract", [("by Ctrl-C", ""), ("in time", "off")])
def test_the_next_request_sends_nothing(monkeypatch, ends, contract):
    """Others would take its messages for those that are missing, and have a sum of both calls."""
    if contract:
        monkeypatch.setenv("HPCCOLL_CONTRACT", contract)
    comm = hpccoll.Comm(communicator(monkeypatch, timeout="60" if ends == "by Ctrl-C" else "1"),
                        progress="calls" if RANK else "thread")
    sinks = numpy.zeros((2, 3 * LANE_BYTES // 8))  # three segments, of which rank 0 sends two
    with comm.using(**OURS):
        if RANK == 0:
            RAW.Barrier()  # and nothing of rank 1's moves on until rank 0 has failed
        failing, following = [comm.Iallreduce(numpy.full(sink.size, 1.0 + turn), sink)
                              for turn, sink in enumerate(sinks)]
        if RANK:
            RAW.Barrier()
        if RANK == 0 and ends == "by Ctrl-C":
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                failing.Wait()
            timer.join()
        elif RANK == 0:
            with pytest.raises(CollectiveTimeout):
                failing.Wait()
        RAW.Barrier()
        start = time.monotonic()
        if RANK:
            with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)):
                failing.Wait()
        RAW.Barrier()  # until then rank 0 moves on what it can
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)):
            while not following.Test() if ends == "in time" else following.Wait():
                assert time.monotonic() - start < 20, "its Test says no for ever"
        assert time.monotonic() - start < 20
    RAW.Barrier()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_ranks_that_wait_learn_at_once(monkeypatch, executor):
    """What a rank waits for will never come: nobody waits until his own time is up."""
    comm, source, sink = communicator(monkeypatch, executor, timeout="60"), *numpy.ones((2, 4))
    start = time.monotonic()
    with comm.using(**OURS):
        if RANK == 0:
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                comm.Allreduce(source, sink)
            timer.join()
        elif RANK == 1:  # whom rank 0 waits for
            time.sleep(1)
            with pytest.raises(BrokenCommunicatorError, match="rank 0.*KeyboardInterrupt"):
                comm.Allreduce(source, sink)
        else:
            with pytest.raises(BrokenCommunicatorError, match="rank 0.*KeyboardInterrupt"):
                comm.Allreduce(source, sink)
    assert time.monotonic() - start < 20
    RAW.Barrier()
    comm.Free()


def test_all_wrappers_of_a_communicator_refuse(monkeypatch):
    comm = communicator(monkeypatch)
    wrapper, child = hpccoll.Comm(comm), hpccoll.Comm(comm.Dup())
    with wrapper.using(**OURS), comm.using(**OURS):
        wrapper.Allreduce(numpy.ones(4), numpy.empty(4))
        if RANK == 0:
            with pytest.raises(CollectiveTimeout):
                comm.Barrier()
        RAW.Barrier()
        for one in (wrapper, comm):
            with pytest.raises(BrokenCommunicatorError, match="barrier"):
                one.Barrier()
            with pytest.raises(BrokenCommunicatorError, match="barrier"):
                one.Allreduce(numpy.ones(4), numpy.empty(4))
    RAW.Barrier()  # ranks that have heard first have waited for what the others say
    with child.using(**OURS):
        child.Barrier()
    RAW.Barrier()
    comm.Free()
    child.Free()


def test_what_failed_and_no_call_has_raised_is_raised_by_free(monkeypatch):
    """As where the last call of a program was queued, and never happens."""
    comm = communicator(monkeypatch)
    RAW.Barrier()  # its first call may not be over on all ranks
    if RANK == 0:
        error = CollectiveTimeout("allreduce", 0, 0, (1,), 1.0)
        existing_context(comm).guard.fail(error, "allreduce", None, 0, in_thread=True)
        with pytest.raises(CollectiveTimeout, match="allreduce.*rank 0"):
            comm.Free()
    else:
        comm.Free()
    assert comm == MPI.COMM_NULL
    RAW.Barrier()
