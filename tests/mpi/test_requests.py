"""Requests of ours: real handles, progress in the background, misuse that is loud."""

import contextlib
import gc
import os
import time
import weakref

import numpy
import pytest
from mpi.requested import OURS, mine, start, summed
from mpi4py import MPI

import hpccoll
from hpccoll.comm.requests import Prequest, Request
from hpccoll.comm.waitall import NATIVE
from hpccoll.errors import ArgumentError, BrokenCommunicatorError, CollectiveTimeout
from hpccoll.errors.mpi import RequestError
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.progress.engine import PROGRESS
from support.gpu.device import installed

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI library serves all requests")]


@pytest.fixture
def comm(world):
    assert world.layout  # until it is set up, the MPI library serves all nonblocking calls
    with world.using(**OURS):
        yield world
    assert not PROGRESS.operations


def test_who_serves(world):
    given, out = mine(world), numpy.empty(4)
    with world.using(iallreduce="ring"):
        request = world.Iallreduce(given, out)
    assert (type(request) is Request) == (world.size == 1)  # it must not wait for the others
    assert type(request.Wait()) is bool and (out == summed(world)).all()
    assert world.layout
    for preference, ours in (({}, False), ({"allreduce": "auto"}, False),
                             ({"allreduce": "native"}, False),
                             ({"iallreduce": "ring"}, True), ({"allreduce": "ring"}, True),
                             ({"allreduce": "ring", "iallreduce": "native"}, False),
                             ({"allreduce_init": "ring"}, False), ({"ibcast": "binomial"}, False)):
        with world.using(**preference):
            request = world.Iallreduce(given, out)
        assert (type(request) is Request) == ours
        request.Wait()
        assert (out == summed(world)).all()
    many, sums = mine(world, 1 << 18), numpy.empty(1 << 18)
    for preference in ({"allreduce": "auto"}, {"iallreduce": "auto"}):
        with world.using(**preference):
            request = world.Iallreduce(many, sums)
        # On one rank, and where no rule holds, 'auto' is the MPI library's too.
        assert type(request) is not Request or "iallreduce" in preference
        request.Wait()
        assert (sums == summed(world, 1 << 18)).all()
    for preference, ours in (({}, False), ({"iallreduce": "ring"}, False),
                             ({"allreduce_init": "ring"}, True), ({"allreduce": "ring"}, True)):
        with world.using(**preference):
            request = world.Allreduce_init(given, out)
        assert (type(request) is Prequest) == ours
        request.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["barrier", "bcast", "allreduce"])
def test_the_first_call_of_a_communicator_does_not_wait(world, name):
    """The exchange by a nonblocking barrier: a rank begins it while others wait for a message."""
    buffer, result = numpy.full(10, 3.0), numpy.zeros(10)
    arguments = {"barrier": (), "bcast": (buffer,), "allreduce": (buffer, result)}[name]
    with world.using(**OURS):
        begin = getattr(world, f"I{name}")
        if world.rank == 0:
            request = begin(*arguments)
            for other in range(1, world.size):
                world.Send(numpy.ones(1), other)
        else:
            world.Recv(numpy.empty(1), 0)
            request = begin(*arguments)
        request.Wait()
        assert result[0] == (3 * world.size if name == "allreduce" else 0)
        world.Barrier()
        request = world.Iallreduce(buffer, result)
    assert type(request) is Request
    request.Wait()


@pytest.mark.parametrize("complete", [
    lambda r: MPI.Request.Waitall(r), lambda r: MPI.Request.waitall(r),
    lambda r: [MPI.Request.Waitany(r) for _ in r],
    lambda r: hpccoll.Request.Waitall(r), lambda r: hpccoll.Request.Waitall(tuple(r)),
    lambda r: [hpccoll.Request.Waitany(r) for _ in r],
    lambda r: [x for _ in r for x in hpccoll.Request.Waitsome(r) or ()],
    lambda r: [x for _ in r for x in MPI.Request.Waitsome(r) or ()],
    lambda r: [time.sleep(0) for _ in iter(lambda: MPI.Request.Testall(r), True)],
    lambda r: [x.Wait() for x in r], lambda r: [x.wait() for x in reversed(r)],
    lambda r: [time.sleep(0) for x in r for _ in iter(x.Test, True)],
    lambda r: [time.sleep(0) for x in r for _ in iter(lambda x=x: x.test()[0], True)],
    lambda r: [x.Wait() for x in r if not any(time.sleep(0) for _ in iter(x.Get_status, True))],
    lambda r: [x.Wait(MPI.Status()) for x in r]])
def test_every_way_to_complete(comm, complete):
    outs = [numpy.full(50_000, numpy.nan) for _ in range(4)]
    requests = [comm.Iallreduce(mine(comm, 50_000) + i, out) for i, out in enumerate(outs)]
    with comm.using(iallreduce="native"):
        native = numpy.full(4, numpy.nan)
        requests.insert(2, comm.Iallreduce(mine(comm), native))
        requests.append(comm.Irecv(numpy.empty(1), MPI.PROC_NULL))
    assert all(isinstance(request, MPI.Request) for request in requests)
    complete(requests)
    assert all(request == MPI.REQUEST_NULL for request in requests)
    for request in requests:
        request.Wait()  # of a request that is over returns at once
        assert request.Test()
    for i, out in enumerate(outs):
        assert (out == summed(comm, 50_000) + comm.size * i).all()
    assert (native == summed(comm)).all()


def test_many_in_flight_are_waited_for_in_another_order_on_every_rank(comm):
    outs = [numpy.full(1000, numpy.nan) for _ in range(12)]
    requests = [comm.Iallreduce(mine(comm, 1000) + i, out) for i, out in enumerate(outs)]
    barrier, scan = comm.Ibarrier(), numpy.empty(4)
    scanned = comm.Iscan(mine(comm), scan)
    order = numpy.random.default_rng(comm.rank).permutation(len(outs))
    for i in order:
        requests[i].Wait()
        assert (outs[i] == summed(comm, 1000) + comm.size * i).all()
    scanned.Wait()
    barrier.Wait()
    assert (scan == sum(numpy.arange(4) + 10. * r for r in range(comm.rank + 1))).all()


def test_blocking_calls_between_start_and_wait(comm):
    out, other = numpy.full(100_000, numpy.nan), numpy.full(3, float(comm.rank))
    request = comm.Iallreduce(mine(comm, 100_000), out)
    for root in range(comm.size):
        other[:] = comm.rank
        comm.Bcast(other, root)
        assert (other == root).all()
    assert comm.allreduce(1) == comm.size
    comm.Barrier()
    request.Wait()
    assert (out == summed(comm, 100_000)).all()


@pytest.mark.mpi(min_size=2)
def test_progress_needs_no_help(comm):
    out = numpy.full(200_000, numpy.nan)
    request = comm.Iallreduce(mine(comm, 200_000), out)
    deadline = time.monotonic() + 60
    while not request._operation.over and time.monotonic() < deadline:
        time.sleep(0.001)
    assert request._operation.over and (out == summed(comm, 200_000)).all()
    request.Wait()


def test_the_thread_and_a_blocking_call_read_memory_at_once(world):
    """Messages too long for a slot are read from the sender's memory, by both on one node."""
    short, long = numpy.empty(25_000), numpy.empty(131_072)
    all_short, all_long = (numpy.empty((world.size, each.size)) for each in (short, long))
    with world.using(allgather_init="ring"):
        request = world.Allgather_init(short, all_short)
    with world.using(allgather="ring", segment_bytes=1 << 20):
        for turn in range(150):
            short[:], long[:] = 1000 * turn + world.rank, -1000 * turn - world.rank
            all_short[:] = all_long[:] = 0.5
            request.Start()
            world.Allgather(long, all_long)
            request.Wait()
            ranks = 1000 * turn + numpy.arange(world.size)[:, None]
            assert (all_short == ranks).all() and (all_long == -ranks).all()
    request.Free()


#: Ways to complete a request: those that may be called before the end return True at the end.
TESTS = {
    "Test": lambda r: r.Test(), "test": lambda r: r.test()[0],
    "Get_status": lambda r: r.Get_status() and r.Wait(),
    "Testall": lambda r: MPI.Request.Testall([r]), "testall": lambda r: MPI.Request.testall([r])[0],
    "hpccoll Testall": lambda r: hpccoll.Request.Testall([r]),
    "Testany": lambda r: MPI.Request.Testany([r])[1],
    "Testsome": lambda r: bool(MPI.Request.Testsome([r]))}
WAITS = {
    "Wait": lambda r: r.Wait(), "wait": lambda r: r.wait() is None,
    "Waitall": lambda r: MPI.Request.Waitall([r]),
    "Waitany": lambda r: MPI.Request.Waitany([r]) == 0,
    "Waitsome": lambda r: MPI.Request.Waitsome([r]) == [0]}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("executor", ["compiled", "python"] if BUILT else ["python"])
@pytest.mark.parametrize("form", ["I", "init"])
@pytest.mark.parametrize("way", [*TESTS, *WAITS])
def test_a_finished_request_references_no_arrays(world, monkeypatch, way, form, executor):
    """A persistent one references them until it is freed."""
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm, native = hpccoll.Comm(world.Dup()), MPI.Intracomm(world)
    assert comm.layout
    given, out = mine(comm, 50_000), numpy.zeros(50_000)
    alive = weakref.ref(given), weakref.ref(out)

    with comm.using(allreduce="ring"):
        lasting = comm.Allreduce_init(given, out) if form == "init" else None
        if comm.rank == 0:
            request = start(lasting) if lasting else comm.Iallreduce(given, out)
            for _ in range(3 * (way in TESTS)):  # the others have not begun
                assert not TESTS[way](request)
            native.Barrier()
        else:
            native.Barrier()
            request = start(lasting) if lasting else comm.Iallreduce(given, out)
    while not {**TESTS, **WAITS}[way](request):
        time.sleep(0)
    assert (out == summed(comm, 50_000)).all()
    if lasting:
        request.Free()
    del given, out
    deadline = time.monotonic() + 10
    while (alive[0]() is not None or alive[1]() is not None) and time.monotonic() < deadline:
        time.sleep(0.01)  # the thread may just be looking at it
    assert alive[0]() is alive[1]() is None and request is not None
    comm.Free()


def test_buffers_live_until_the_end(comm):
    requests = [comm.Ibcast(numpy.full(30_000, float(i)), 0) for i in range(5)]
    gathered = numpy.full(comm.size, numpy.nan)
    requests.append(comm.Iallgather(numpy.full(1, float(comm.rank)), gathered))
    gc.collect()
    junk = [numpy.full(30_000, -1.) for _ in range(10)]
    MPI.Request.Waitall(requests)
    assert gathered.tolist() == list(range(comm.size)) and junk[0][0] == -1
    assert all(r._operation.buffers is None for r in requests)


@pytest.mark.mpi(min_size=2)
def test_wishes_that_would_have_to_wait_are_refused(world):
    counts = [r % 3 for r in range(world.size)]
    out = numpy.empty(sum(counts))
    arguments = (numpy.full(counts[world.rank], 1. + world.rank),
                 [out, counts] if world.rank == 0 else None)
    with world.using(gather="binomial"):
        with pytest.raises(ArgumentError, match="only the root"):
            world.Igatherv(*arguments)
    with world.using(gather="linear"):
        world.Igatherv(*arguments).Wait()
    if world.rank == 0:
        assert out.tolist() == [1. + r for r in range(world.size) for _ in range(counts[r])]


def test_misuse_is_loud(comm):
    request = comm.Iallreduce(mine(comm), numpy.empty(4))
    for refuse in (request.Cancel, request.cancel):
        with pytest.raises(RequestError, match="cancelled"):
            refuse()
    assert isinstance(RequestError("text"), MPI.Exception)
    if not request._operation.over:
        with pytest.raises(RequestError, match="pending"):
            request.Free()
    request.Wait()


def waits(seconds, monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", str(seconds))
    return hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("begin", [
    lambda c: c.Iallreduce(mine(c), numpy.empty(4)).Wait(),
    lambda c: start(c.Allreduce_init(mine(c), numpy.empty(4))).Wait()])
def test_waiting_for_a_rank_that_does_not_come_ends(monkeypatch, begin):
    comm = waits(0.2, monkeypatch)
    with comm.using(**OURS):
        comm.Barrier()
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeout) as caught:
                begin(comm)
            assert caught.value.rank == 0 and caught.value.peers and caught.value.seconds == 0.2
    assert not PROGRESS.operations
    MPI.COMM_WORLD.Barrier()  # the communicator has messages on the way for good: not freed


@pytest.mark.mpi(min_size=2)
def test_a_request_that_failed_cannot_be_started_again(monkeypatch):
    comm = waits(0.2, monkeypatch)
    with comm.using(**OURS):
        request = comm.Bcast_init(numpy.zeros(1), 0)
        if comm.rank == 1:
            with pytest.raises(CollectiveTimeout):
                start(request).Wait()
            assert request  # still to be freed
            with pytest.raises(RequestError, match="failed"):
                request.Start()
    MPI.COMM_WORLD.Barrier()


def test_errors_of_the_thread_reach_those_who_wait_for_all(comm, capfd):
    request = comm.Iallreduce(mine(comm, 100_000), numpy.empty(100_000))
    operation = request._operation
    MPI.COMM_WORLD.Barrier()  # a rank that begins later may hear that the others gave up
    with operation.lock:
        broken = not operation.over
        if broken:
            operation._complete(RuntimeError("something broke"))
    if broken:
        with pytest.raises(MPI.Exception):  # as of a method that was looked up before
            NATIVE["Waitall"]([request])
        assert "something broke" in capfd.readouterr().err
        with pytest.raises(RuntimeError, match="something broke"):
            request.Wait()
    else:
        with contextlib.suppress(BrokenCommunicatorError):  # it may hear of the others here, too
            request.Wait()
    MPI.COMM_WORLD.Barrier()


# -- device memory the MPI library cannot move -----------------------------------------------
def test_staged_device_memory(world):
    with installed(cuda_aware=False) as cupy:
        given, out = cupy.asarray(mine(world)), cupy.asarray(numpy.zeros(4))
        world.Allreduce(given, out)
        assert (cupy.asnumpy(out) == summed(world)).all()
        for name in ("Iallreduce", "Allreduce_init"):
            with world.using(allreduce="native"), pytest.raises(ArgumentError, match="device mem"):
                getattr(world, name)(given, out)
        with world.using(**OURS):
            for complete in (lambda r: r.Wait(), lambda r: MPI.Request.Waitall([r])):
                out[...] = cupy.asarray(numpy.zeros(4))
                complete(world.Iallreduce(given, out))
                assert (cupy.asnumpy(out) == summed(world)).all()
            request = world.Allreduce_init(given, out)
            for i in range(2):
                given[...] = cupy.asarray(mine(world) + i)
                start(request).Wait()
                assert (cupy.asnumpy(out) == summed(world) + world.size * i).all()
            request.Free()


@pytest.mark.mpi(min_size=2)
def test_calls_alone_move_on_what_is_left_to_them(world):
    comm = hpccoll.Comm(world, progress="calls")
    assert comm.layout
    out, other = numpy.full((2, 200_000), numpy.nan)
    with comm.using(allreduce="ring"), world.using(allreduce="ring"):
        left = comm.Iallreduce(mine(comm, 200_000), out)
        prepared = comm.Allreduce_init(mine(comm, 200_000), other)
        prepared.Start()
        threaded = world.Iallreduce(mine(comm, 4), numpy.empty(4))
    assert not left._operation.threaded and not prepared._operation.threaded
    NATIVE["Waitall"]([threaded])
    time.sleep(0.02)
    assert not left._operation.over and not prepared._operation.over
    while not left.Test():  # moves both on
        time.sleep(0)
    while not prepared.Get_status():
        left.Test()
    prepared.Wait()
    assert (out == summed(comm, 200_000)).all() and (other == out).all()
    prepared.Free()


def test_unknown_ways_to_make_progress_are_refused(world, monkeypatch):
    with pytest.raises(ArgumentError, match="'threads'"):
        hpccoll.Comm(world, progress="threads")
    monkeypatch.setenv("HPCCOLL_PROGRESS", "calls")
    assert hpccoll.Comm(world)._config.progress == "calls"


def test_the_thread_sleeps_while_there_is_nothing_to_do(comm):
    comm.Iallreduce(mine(comm, 100_000), numpy.empty(100_000)).Wait()
    if PROGRESS.thread is not None:
        time.sleep(0.01)
        before = time.thread_time(), os.times()
        time.sleep(0.05)
        after = os.times()
        assert after.user + after.system - before[1].user - before[1].system < 0.04
