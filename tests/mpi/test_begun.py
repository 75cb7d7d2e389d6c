"""Nonblocking and persistent collectives that the MPI library runs: nobody waits for ever."""

import gc
import signal
import time
import weakref

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout
from hpccoll.errors.contract import ContractError
from hpccoll.guard.pending_calls import NativePrequest, NativeRequest

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
ODD = SIZE - 1
pytestmark = pytest.mark.mpi(min_size=2)
NATIVE = {"allreduce": "native", "barrier": "native", "iallreduce": "native",
          "allreduce_init": "native"}


def communicator(monkeypatch, timeout="20", **settings):
    for name, value in {"HPCCOLL_TIMEOUT": timeout, **settings}.items():
        monkeypatch.setenv(name, value)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    for _ in range(2):  # the second one sets it up
        comm.Barrier()
    return comm


def begun(comm, form, source, sink):
    """An allreduce that the library runs, under way."""
    with comm.using(**NATIVE):
        if form == "nonblocking":
            return comm.Iallreduce(source, sink)
        request = comm.Allreduce_init(source, sink)
    RAW.Barrier()  # making one may wait for the others
    request.Start()
    return request


FORMS = {"nonblocking": NativeRequest, "persistent": NativePrequest}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("complete", [
    lambda request: request.Wait(), lambda request: request.Wait(MPI.Status()),
    lambda request: request.wait(), lambda request: MPI.Request.Waitall([request]),
    lambda request: hpccoll.Request.Waitall([request]),
    lambda request: hpccoll.Request.Waitany([MPI.REQUEST_NULL, request]),
    lambda request: hpccoll.Request.Waitsome([request], [MPI.Status()]),
    lambda request: [time.sleep(0) for _ in iter(request.Test, True)],
    lambda request: [time.sleep(0) for _ in iter(lambda: request.test()[0], True)]])
def test_every_way_to_complete(monkeypatch, form, complete):
    comm = communicator(monkeypatch)
    for turn in range(3):  # the second is like the first, and found as that
        source, sink = numpy.full(5, RANK + turn, "d"), numpy.zeros(5)
        request = begun(comm, form, source, sink)
        assert type(request) is FORMS[form] and isinstance(request, MPI.Request)
        complete(request)
        assert (sink == sum(range(turn, turn + SIZE))).all()
        assert request.Wait() is True and request.Test() is True  # complete stays complete
        if form == "persistent":
            request.Free()
        assert not request
    comm.Free()


@pytest.mark.parametrize("state", ["not set up", "set up", "off"])
def test_arrays_live_as_long_as_the_request(monkeypatch, state):
    """The program drops its references while the library still uses the memory."""
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup()) if state == "not set up" else communicator(
        monkeypatch, HPCCOLL_CONTRACT="off" if state == "off" else "tags")
    for name in ("allreduce", "allgatherv", "alltoall", "exscan", "reduce_scatter_block"):
        for title in (f"I{name}", f"{name.capitalize()}_init"):
            source = numpy.ones(2 if "gather" in name else 2 * SIZE)
            sink = numpy.zeros(2 if "scatter" in name else 2 * SIZE)
            alive = weakref.ref(source), weakref.ref(sink)
            with comm.using(**{title.lower(): "native"}):
                request = getattr(comm, title)(source, sink)
            del source, sink
            gc.collect()
            assert all(one() is not None for one in alive), title
            if isinstance(request, MPI.Prequest):
                request.Start()
            request.Wait()
            del request
            gc.collect()
            assert all(one() is None for one in alive), title
    comm.Free()


def test_the_first_call_waits_for_nobody():
    """A rank begins a barrier and then sends what another one wants before it comes to it."""
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    for _ in range(2):
        if RANK == 0:
            request = comm.Ibarrier()
            for other in range(1, SIZE):
                RAW.Ssend(numpy.ones(1), other)
        else:
            RAW.Recv(numpy.empty(1), 0)
            request = comm.Ibarrier()
        assert not isinstance(request, NativeRequest)
        request.Wait()
    comm.Barrier()  # by the library, without set-up
    assert not isinstance(request := comm.Ibarrier(), NativeRequest)
    request.Wait()
    comm.Barrier()
    request = comm.Ibarrier()  # like the others, but not found as them
    assert type(request) is NativeRequest
    request.Wait()
    comm.Free()


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("shared", ["yes", "no"])
def test_a_rank_that_does_not_come_is_named(monkeypatch, shared):
    comm = communicator(monkeypatch, "1", HPCCOLL_SHARED_MEMORY=shared)
    source, sink = numpy.ones(3), numpy.zeros(3)
    start = time.monotonic()
    if RANK != ODD:
        request = begun(comm, "nonblocking", source, sink)
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)) as caught:
            request.Wait()
        assert 0.9 < time.monotonic() - start < 8
        if isinstance(caught.value, CollectiveTimeout):
            # Without a common log nobody is known to have come.
            others = tuple(rank for rank in range(SIZE) if rank != RANK)
            assert caught.value.peers == ((ODD,) if shared == "yes" else others)
        assert f"rank {ODD} is {'at ' if shared == 'yes' else 'alive'}" in str(caught.value)
    RAW.Barrier()
    # Where calls are known, those who began one have disagreed with a rank that comes with another.
    kinds = (ContractError, BrokenCommunicatorError) if RANK == ODD else BrokenCommunicatorError
    with (comm.using(allreduce="recursive_doubling"),
          pytest.raises(kinds, match=f"rank.*{ODD}")):
        comm.Allreduce(source, sink)
    # Now it comes, so that the library has nothing left to do.
    if RANK == ODD:
        MPI.Intracomm.Iallreduce(comm, source, sink).Wait()
    else:
        MPI.Request.Wait(request)


def test_a_persistent_one_that_is_not_started_is_an_error(monkeypatch):
    comm = communicator(monkeypatch, "1")
    with comm.using(**NATIVE):
        request = comm.Allreduce_init(numpy.ones(3), sink := numpy.zeros(3))
    if RANK != ODD:
        request.Start()
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError), match="native allreduce"):
            request.Wait()
    RAW.Barrier()
    if RANK == ODD:
        MPI.Prequest.Start(request)
    MPI.Request.Wait(request)
    assert (sink == SIZE).all()


@pytest.mark.parametrize("form", FORMS)
def test_others_see_who_waits(monkeypatch, form):
    """In whichever request it waits: also in one that is not the last that it has begun."""
    comm = communicator(monkeypatch)
    sinks = [numpy.zeros(3) for _ in range(2)]
    if RANK != ODD:
        requests = [begun(comm, form, numpy.ones(3), sink) for sink in sinks]
        requests[0].Wait()
    else:
        if form == "persistent":
            with comm.using(**NATIVE):  # a barrier after each, as in begun()
                requests = [(comm.Allreduce_init(numpy.ones(3), sink), RAW.Barrier())[0]
                            for sink in sinks]
        end, guard = time.monotonic() + 5, comm._private().guard
        while time.monotonic() < end:
            seen = [one.rank for one in guard.activities()
                    if one.state == "waiting" and "native allreduce" in one.call]
            if len(seen) == SIZE - 1:
                break
        assert seen == list(range(ODD))
        if form == "persistent":
            MPI.Prequest.Startall(requests)
        else:
            requests = [begun(comm, form, numpy.ones(3), sink) for sink in sinks]
    MPI.Request.Waitall(requests)
    assert all((sink == SIZE).all() for sink in sinks)
    RAW.Barrier()


def test_who_fails_again_and_again_keeps_the_request_once(monkeypatch):
    comm = communicator(monkeypatch, "1")
    source, sink = numpy.ones(3), numpy.zeros(3)
    if RANK != ODD:
        request = begun(comm, "nonblocking", source, sink)
        for _ in range(3):
            with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)):
                request.Wait()
        assert sum(one is request for one in comm._private().abandoned) == 1
    RAW.Barrier()
    if RANK == ODD:
        MPI.Intracomm.Iallreduce(comm, source, sink).Wait()
    else:
        MPI.Request.Wait(request)


def test_who_only_tests_hears_of_it(monkeypatch):
    """Testing has no deadline of its own: it does not wait."""
    comm = communicator(monkeypatch, "1")
    source, sink = numpy.ones(3), numpy.zeros(3)
    if RANK != ODD:
        request = begun(comm, "nonblocking", source, sink)
        if RANK == 0 and SIZE > 2:
            with pytest.raises(BrokenCommunicatorError):
                while not request.Test():
                    time.sleep(0.01)
        elif SIZE > 2:
            with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)):
                request.Wait()
        else:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert not request.Test()
    RAW.Barrier()
    if RANK == ODD:
        MPI.Intracomm.Iallreduce(comm, source, sink).Wait()
    else:
        MPI.Request.Wait(request)
    assert (sink == SIZE).all()


def test_late_is_no_failure(monkeypatch):
    """By half the deadline."""
    comm = communicator(monkeypatch, "2")
    for late in range(min(SIZE, 2)):
        source, sink = numpy.ones(3), numpy.zeros(3)
        if RANK == late:
            time.sleep(1)
        begun(comm, "nonblocking", source, sink).Wait()
        assert (sink == SIZE).all()
    comm.Free()


def test_requests_are_counted_with_blocking_calls(monkeypatch):
    """Many under way, waited for from the last to the first, among calls of both kinds."""
    comm = communicator(monkeypatch)
    source, sinks = numpy.full(3, RANK + 1.0), [numpy.zeros(3) for _ in range(20)]
    requests = []
    for turn, sink in enumerate(sinks):
        requests.append(begun(comm, "nonblocking", source, sink))
        with comm.using(allreduce="native" if turn % 2 else "recursive_doubling"):
            comm.Allreduce(source, out := numpy.zeros(3))
        assert (out == SIZE * (SIZE + 1) / 2).all()
    numbers = [request.number for request in requests]
    assert numbers == sorted(numbers) and RAW.allgather(numbers) == [numbers] * SIZE
    for request in reversed(requests):
        request.Wait()
    assert all((sink == SIZE * (SIZE + 1) / 2).all() for sink in sinks)
    comm.Free()


def test_ctrl_c_leaves_the_wait_and_not_the_request(monkeypatch):
    comm = communicator(monkeypatch)
    source, sink = numpy.ones(3), numpy.zeros(3)
    if RANK == 0:
        request = begun(comm, "nonblocking", source, sink)

        def interrupt(*_):
            raise KeyboardInterrupt
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(KeyboardInterrupt):
                request.Wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        RAW.Barrier()
    else:
        RAW.Barrier()
        request = begun(comm, "nonblocking", source, sink)
    request.Wait()
    assert (sink == SIZE).all()
    comm.Barrier()
    comm.Free()


def test_wrong_arguments_are_no_call(monkeypatch):
    """They are refused before anything is sent, and are not counted."""
    comm = communicator(monkeypatch)
    for _ in range(2):
        with comm.using(**NATIVE):
            if RANK == 0:
                with pytest.raises(ValueError):
                    comm.Iallreduce(numpy.ones(3), numpy.ones(4))
            comm.Iallreduce(numpy.ones(3), sink := numpy.zeros(3)).Wait()
        assert (sink == SIZE).all()
    comm.Free()


def test_off_watches_no_request(monkeypatch):
    comm = communicator(monkeypatch, HPCCOLL_CONTRACT="off")
    request = begun(comm, "nonblocking", numpy.ones(3), sink := numpy.zeros(3))
    assert not isinstance(request, NativeRequest)
    request.Wait()
    assert (sink == SIZE).all()
    comm.Free()
