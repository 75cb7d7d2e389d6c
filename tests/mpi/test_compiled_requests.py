"""Compiled plans behind requests, on real ranks: order, threads, errors, and both executors."""

import gc
import random
import sys
import threading
import time
import weakref

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.requests import Prequest, Request
from hpccoll.errors import CollectiveTimeout
from hpccoll.errors.mpi import RequestError
from hpccoll.runtime.execution import compiled
from hpccoll.runtime.progress.engine import PROGRESS

pytestmark = [
    pytest.mark.skipif(not compiled.BUILT or MPI.COMM_WORLD.Get_size() == 1,
                       reason="the compiled executor was not built, or has no peers"),
    pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE,
                       reason="the MPI library serves all requests")]
WISHES = {"allreduce": "recursive_doubling", "bcast": "binomial", "reduce": "binomial",
          "allgather": "ring", "scan": "linear", "exscan": "linear", "alltoall": "pairwise",
          "reduce_scatter": "pairwise", "gather": "linear", "scatter": "linear",
          "barrier": "dissemination"}


@pytest.fixture
def comm(world):
    assert world.layout  # until it is set up, the MPI library serves all nonblocking calls
    with world.using(**WISHES):
        yield world
    assert not PROGRESS.operations


@pytest.mark.parametrize("count", [100, 300_007])
@pytest.mark.parametrize("form", ["nonblocking", "persistent"])
def test_it_is_over_while_the_program_computes_in_python(comm, form, count):
    """Without a call of ours, and without a moment for other threads of Python."""
    source, sink = numpy.arange(count) + 1. * comm.rank, numpy.zeros(count)
    lasting = comm.Allreduce_init(source, sink) if form == "persistent" else None
    before = sys.getswitchinterval()
    for _ in range(3):
        sink[:] = 0
        comm.Barrier()
        sys.setswitchinterval(1000)
        try:
            if lasting is not None:
                lasting.Start()
            request = lasting or comm.Iallreduce(source, sink)
            held, end = request._operation, time.monotonic() + 60
            while not held.ended:
                assert time.monotonic() < end
        finally:
            sys.setswitchinterval(before)
        request.Wait()
        assert (sink == comm.size * numpy.arange(count) + sum(range(comm.size))).all()
    if lasting is not None:
        lasting.Free()


def test_a_call_like_an_earlier_one_needs_no_python(comm, monkeypatch):
    comm.Iallreduce(numpy.ones(9), numpy.empty(9)).Wait()
    monkeypatch.setattr(type(comm), "_begin", None)
    for turn in range(50):
        sinks = [numpy.empty(9) for _ in range(3)]
        requests = [comm.Iallreduce(numpy.full(9, float(turn + i)), sink)
                    for i, sink in enumerate(sinks)]
        for request in requests if turn % 2 else reversed(requests):
            assert type(request).__name__ == "Request" and request != MPI.REQUEST_NULL
            request.Wait()
            assert request == MPI.REQUEST_NULL and request.Test()
        assert all((sink == (turn + i) * comm.size).all() for i, sink in enumerate(sinks))


@pytest.mark.parametrize("progress", ["thread", "calls"])
def test_waits_in_any_order_beside_blocking_calls(world, progress):
    """Whoever waits moves all others on, so that without the thread nobody waits for ever."""
    comm = hpccoll.Comm(world, progress=progress)
    own = random.Random(comm.rank)
    with comm.using(**WISHES):
        comm.Allreduce(numpy.ones(4), numpy.empty(4))  # which looks for measured times, in MPI
        kept = [(numpy.ones(3), numpy.empty(3)) for _ in range(3)]
        lasting = [comm.Allreduce_init(*pair) for pair in kept]
        for turn in range(40):
            pairs = [(numpy.full(5, float(turn + i)), numpy.empty(5)) for i in range(6)]
            requests = [comm.Iallreduce(*pair) for pair in pairs]
            for (given, _), request in zip(kept, lasting):
                given[:] = turn
                request.Start()
            waiting = [*requests, *lasting]
            own.shuffle(waiting)
            for request in waiting[:4]:
                request.Wait()
            sink = numpy.empty(4)
            comm.Allreduce(numpy.ones(4), sink)
            comm.Barrier()
            for request in waiting[4:]:
                while not request.Test():
                    pass
            assert (sink == comm.size).all()
            assert all((out == comm.size * turn).all() for _, out in kept)
            assert all((out == comm.size * (turn + i)).all() for i, (_, out) in enumerate(pairs))
    for request in lasting:
        request.Free()


def test_the_interpreter_takes_its_turn_in_the_lane(comm):
    """Wrappers of one communicator share its channels, whoever runs their calls."""
    other = hpccoll.Comm(comm)
    other._calls = None
    with other.using(**WISHES):
        for turn in range(30):
            outs = [numpy.empty(6) for _ in range(6)]
            requests = [(other if (i + comm.rank) % 3 else comm).Iallreduce(
                numpy.full(6, float(i)), out) for i, out in enumerate(outs)]
            order = list(range(6))
            random.Random(comm.rank + turn).shuffle(order)
            for i in order:
                requests[i].Wait()
            assert all((out == i * comm.size).all() for i, out in enumerate(outs))


def test_who_waits_in_the_library_sees_the_end(comm):
    kept = numpy.ones(3), numpy.empty(3)
    lasting = comm.Allreduce_init(*kept)
    for turn in range(10):
        outs = [numpy.empty(4) for _ in range(3)]
        requests = [comm.Iallreduce(numpy.full(4, float(i)), out) for i, out in enumerate(outs)]
        lasting.Start()
        (MPI.Request.Waitall, lambda all_: [MPI.Request.Waitany(all_) for _ in all_])[turn % 2](
            [*requests, lasting])
        assert all((out == i * comm.size).all() for i, out in enumerate(outs))
        assert (kept[1] == comm.size).all()
        for request in (*requests, lasting):
            assert request.Wait() and request.Test()
    lasting.Free()


def test_misuse_of_persistent_requests(comm):
    out = numpy.empty(4)
    request, unstarted = (comm.Allreduce_init(numpy.ones(4), out) for _ in range(2))
    unstarted.Free()
    with pytest.raises(RequestError, match="freed"):
        unstarted.Start()
    request.Start()
    for wrong in (request.Start, request.Free):
        with pytest.raises(RequestError, match="active"):
            wrong()
    request.Wait()
    assert (out == comm.size).all() and request.Wait() and request.Test()
    request.Start()
    request.Wait()
    request.Free()
    with pytest.raises(RequestError, match="freed"):
        request.Start()


def test_another_thread_waits(comm):
    out, results = numpy.empty(4), []
    lasting = comm.Allreduce_init(numpy.ones(4), out)
    for turn in range(20):
        lasting.Start()
        begun = comm.Iallreduce(numpy.full(4, float(turn)), numpy.empty(4))
        thread = threading.Thread(target=lambda: results.append(
            (lasting.Wait(), begun.Wait())))
        thread.start()
        comm.Barrier()
        thread.join()
        assert (out == comm.size).all()
    assert results == [(True, True)] * 20
    lasting.Free()


def test_what_is_over_keeps_nothing_alive(comm):
    for complete in (lambda r: r.Wait(), lambda r: MPI.Request.Waitall([r])):
        for _ in range(3):
            given = numpy.ones(5)
            alive = weakref.ref(given)
            request = comm.Iallreduce(given, numpy.empty(5))
            complete(request)
            del given
            deadline = time.monotonic() + 10
            while alive() is not None and time.monotonic() < deadline:
                gc.collect()
                time.sleep(0.001)  # the thread may just be looking at it
            assert alive() is None and request is not None


def test_requests_that_nobody_keeps(comm):
    out = numpy.empty(4)
    for turn in range(5):
        comm.Iallreduce(numpy.full(4, float(turn)), out)
        comm.Iallreduce(numpy.full(4, 1.), numpy.empty(4)).Wait()
        assert (out == turn * comm.size).all()  # they take turns
    while PROGRESS.operations:  # what ended is still to be seen by somebody
        PROGRESS.step()


def test_more_in_flight_than_are_kept(comm):
    outs = [numpy.empty(2) for _ in range(200)]
    requests = [comm.Iallreduce(numpy.full(2, float(i)), out) for i, out in enumerate(outs)]
    for request in reversed(requests):
        request.Wait()
    assert all((out == i * comm.size).all() for i, out in enumerate(outs))


@pytest.mark.parametrize("form", ["nonblocking", "persistent"])
def test_a_wait_in_vain_ends_with_round_and_ranks(monkeypatch, form):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.3")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    with comm.using(**WISHES):
        comm.Barrier()
        if form == "persistent":  # all ranks make one
            request = comm.Allreduce_init(numpy.ones(4), numpy.empty(4))
        if comm.rank == 0:
            start = time.monotonic()
            if form == "persistent":
                request.Start()
            else:
                request = comm.Iallreduce(numpy.ones(4), numpy.empty(4))
            with pytest.raises(CollectiveTimeout, match=r"recursive_doubling.*rank") as caught:
                request.Wait()
            assert caught.value.peers and 0 not in caught.value.peers
            assert 0.25 < time.monotonic() - start < 20
            if form == "persistent":
                with pytest.raises(RequestError, match="failed"):
                    request.Start()
    assert not PROGRESS.operations
    MPI.COMM_WORLD.Barrier()  # the communicator has messages on the way for good: not freed


def test_ranks_that_disagree_on_sizes(world):
    if world.size > 2:
        return  # ranks without the error would wait for one that has it
    child = hpccoll.Comm(world.Dup())
    with child.using(allgather="ring"):
        assert child.layout
        child.Iallgather(numpy.ones(2), numpy.empty(2 * child.size)).Wait()
        count = 3 if child.rank == 0 else 2
        request = child.Iallgather(numpy.ones(count), numpy.empty(count * child.size))
        with pytest.raises(hpccoll.HpccollError, match="count"):
            request.Wait()
    world.Barrier()
    child.Free()


@pytest.mark.parametrize("op", [MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.LAND],
                         ids=["sum", "prod", "max", "min", "land"])
def test_numbers_that_are_not_alike(world, op):
    """What begins in machine code goes on in Python where something else turns up."""
    native, big = MPI.Intracomm(world), 1 << 62
    alike = [(1.5, -2.25, 3e300, 0.1), (1, 2, 3, 4), (1, 2.5, 3, 4.5), (True, 2, 0.5, 3),
             (big, big, big, big), (big, 3, -big, 5), (1, 1 << 70, 2, 3),
             (float("nan"), 1., 2., 3.), (1., 2., 3., float("nan")), (0.0, -0.0, 0.0, -0.0),
             (numpy.float64(2), 3., 4., 5.)]
    if op in (MPI.SUM, MPI.PROD):  # which are those that arrays have
        alike.append((1., numpy.ones(3), 2., numpy.ones(3)))
    for values in alike:
        for shift in range(world.size):
            mine = values[(world.rank + shift) % 4]
            for _ in range(2):
                theirs, ours = native.allreduce(mine, op), world.allreduce(mine, op=op)
                assert type(ours) is type(theirs) and repr(ours) == repr(theirs)


def test_auto_by_the_method_takes_what_is_fast(world):
    """Where a rule holds, ours serve; persistent ones as long as they get channels of their own."""
    given, out = numpy.ones(4), numpy.empty(4)
    with world.using(allreduce_init="auto", iallreduce="auto"):
        ours = []
        for _ in range(80):
            request = world.Allreduce_init(given, out)
            ours.append(type(request) is Prequest)
            request.Start()
            request.Wait()
            assert (out == world.size).all()
            request.Free()
        begun = world.Iallreduce(given, out)
        assert (type(begun) is Request) == ours[0]
        begun.Wait()
    assert ours == sorted(ours, reverse=True) and not ours[-1]
    assert ours[0] == (world.size <= (4 if world._context.place.oversubscribed else 2))
