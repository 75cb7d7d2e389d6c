"""Persistent collectives that hpccoll runs: prepared once, started many times."""

import time
from types import SimpleNamespace

import numpy
import pytest
from mpi.requested import OURS, mine, start, summed
from mpi4py import MPI

import hpccoll
from hpccoll.comm.requests import Prequest
from hpccoll.errors import CollectiveTimeout
from hpccoll.errors.mpi import DeadCommunicatorError, RequestError
from hpccoll.runtime.execution.executor import PreparedRun
from hpccoll.runtime.planning.binding import BoundPhase
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.runtime.progress.operations import PersistentOperation

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI library serves all requests")]


@pytest.fixture
def comm(world):
    assert world.layout  # until it is set up, the MPI library serves all nonblocking calls
    with world.using(**OURS):
        yield world
    assert not PROGRESS.operations


def test_a_persistent_request_sees_new_data_every_time(comm):
    given, out = numpy.empty(3000), numpy.empty(3000)
    requests = [comm.Allreduce_init(given, out), comm.Allreduce_init([given, 3000], [out, 3000])]
    for request in requests:
        assert request and request != MPI.REQUEST_NULL and isinstance(request, MPI.Prequest)
        for i in range(5):
            given[:], out[:] = mine(comm, 3000) + i, numpy.nan
            request.Start()
            (request.Wait, lambda: MPI.Request.Waitall([request]), request.wait)[i % 3]()
            assert (out == summed(comm, 3000) + comm.size * i).all()
            request.Wait()  # of an inactive one returns at once
            assert request.Test()
    for request in requests:
        request.Free()
        assert not request and request == MPI.REQUEST_NULL


def test_errors_of_a_later_run_reach_those_who_wait_for_all(comm):
    answers = [True, True, False]  # of the tests of the first run, from the end; then it breaks

    def test(tries):
        if len(answers) == 1:
            raise RuntimeError("something broke")
        return answers.pop()

    wait = test, (1,)
    execution = SimpleNamespace(program=[wait], prepared={0: [BoundPhase(0, [wait], wait, None)]},
                                title="broken", rank=comm.rank, spins=0, plan=None,
                                tag=0)
    context = SimpleNamespace(abandoned=[], config=comm._config, freed=False,
                              fail=lambda error, *details: error, timeouts=(60.0, 60.0),
                              limits=SimpleNamespace(spins=0))
    lasting = PersistentOperation(context, PreparedRun(execution), None, threaded=False)
    request = Prequest(context, tuple, lasting.free, lasting)
    request.Start()
    while not request.Test():
        pass
    request.Start()
    PROGRESS.step()
    with pytest.raises(RuntimeError, match="something broke"):
        MPI.Request.Waitall([request])
    assert context.abandoned == [lasting.run]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("copied", [False, True], ids=["in place", "copied"])
def test_tests_in_a_loop_end_in_every_run(monkeypatch, copied):
    """Also in a later run than the one whose tests have polled the other ranks first."""
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.8")
    world, column = MPI.Intracomm(MPI.COMM_WORLD), MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    comm, buffer = hpccoll.Comm(world.Dup()), numpy.zeros(6)
    comm.Barrier()
    with comm.using(**OURS):
        request = comm.Bcast_init([buffer, 1, column] if copied else buffer, root=1)
    if comm.rank == 0:
        request.Start()
        begun = time.monotonic()
        while not request.Test():
            time.sleep(0.001)
        assert time.monotonic() - begun > 0.25  # its tests have polled
        world.Barrier()
        request.Start()
        with pytest.raises(CollectiveTimeout):
            while not request.Test():
                assert time.monotonic() - begun < 20, "its Test says no for ever"
                time.sleep(0.001)
    else:
        time.sleep(0.4)
        request.Start()
        request.Wait()
        world.Barrier()
    world.Barrier()  # the communicator has messages on the way for good: not freed
    column.Free()


def test_requests_may_be_started_in_any_order(comm):
    outs = [numpy.full(500, numpy.nan) for _ in range(6)]
    requests = [comm.Allreduce_init(mine(comm, 500) + i, out) for i, out in enumerate(outs)]
    for turn in range(3):
        order = numpy.random.default_rng([comm.rank, turn]).permutation(len(outs))
        for i in order:
            outs[i][:] = numpy.nan
            requests[i].Start()
        MPI.Request.Waitall(requests)
        for i, out in enumerate(outs):
            assert (out == summed(comm, 500) + comm.size * i).all()
    for request in requests:
        request.Free()


def test_alltoall_in_place_reads_its_input_at_every_start(comm):
    both = numpy.empty(comm.size)
    request = comm.Alltoall_init(MPI.IN_PLACE, both)
    for i in range(3):
        both[:] = 100. * comm.rank + numpy.arange(comm.size) + i
        request.Start()
        request.Wait()
        assert (both == 100. * numpy.arange(comm.size) + comm.rank + i).all()
    request.Free()


def test_starting_all_raises_or_works_but_never_does_nothing(comm):
    out = numpy.full(4, numpy.nan)
    request = comm.Allreduce_init(mine(comm), out)
    with pytest.raises(MPI.Exception) as caught:
        MPI.Prequest.Startall([request])
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    with comm.using(**dict.fromkeys(OURS, "native")):
        native = comm.Bcast_init(numpy.zeros(1))
    Prequest.Startall([request, native])
    MPI.Request.Waitall([request, native])
    assert (out == summed(comm)).all()
    request.Free()
    native.Free()


def test_misuse_of_persistent_requests_is_loud(comm):
    request = comm.Allreduce_init(mine(comm, 200_000), numpy.empty(200_000))
    request.Start()
    active = request._active()
    if active:
        for wrong in (request.Start, request.Free):
            with pytest.raises(RequestError, match="active"):
                wrong()
    request.Wait()
    request.Free()
    for wrong in (request.Start, request.Free):
        with pytest.raises(RequestError, match="freed"):
            wrong()
    request.free()


def test_a_request_may_outlive_its_communicator(comm):
    dup = comm.Dup()
    with dup.using(**OURS):
        request = dup.Allreduce_init(mine(comm), numpy.empty(4))
        start(request).Wait()
    dup.Free()
    with pytest.raises(DeadCommunicatorError, match="communicator"):
        request.Start()
    request.Free()


def test_freeing_a_communicator_waits_for_its_collectives(comm):
    dup, out = comm.Dup(), numpy.full(50_000, numpy.nan)
    assert dup.layout  # sets it up
    with dup.using(**OURS):
        request = dup.Iallreduce(mine(comm, 50_000), out)
    dup.Free()
    assert not PROGRESS.operations
    request.Wait()
    assert (out == summed(comm, 50_000)).all()


def test_more_requests_than_tags_if_they_are_freed(comm):
    """Each rank frees in an order of its own, and starts what it prepared while others free."""
    given, out = mine(comm), numpy.empty(4)
    kept, turns = comm.Allreduce_init(given, out), comm._private()._turns
    comm._private()._persistent = turns - 6  # the others are taken to be in use
    for _ in range(5):
        requests = [comm.Allreduce_init(given, out) for _ in range(5)]
        for request in requests:
            out[:] = 0
            start(request).Wait()
            assert (out == summed(comm)).all()
        for request in requests[::1 if comm.rank % 2 else -1]:
            request.Free()
    start(kept).Wait()
    requests = [comm.Allreduce_init(given, out) for _ in range(6)]
    with pytest.raises(RequestError, match="Free"):
        comm.Allreduce_init(given, out)
    requests.pop(comm.rank % 6).Free()
    if comm.size in range(2, 6):
        with pytest.raises(RequestError, match="Free"):  # others use that one
            comm.Allreduce_init(given, out)
    for request in (kept, *requests):
        request.Free()
    comm.Allreduce_init(given, out).Free()


