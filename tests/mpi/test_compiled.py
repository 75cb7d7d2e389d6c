"""The compiled executor on real ranks: waits in vain, threads and signals, copies, ends."""

import os
import signal
import threading
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import CollectiveTimeout
from hpccoll.errors.mpi import DeadCommunicatorError
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.execution import compiled

if compiled.BUILT:
    pass
pytestmark = pytest.mark.skipif(not compiled.BUILT or MPI.COMM_WORLD.Get_size() == 1,
                                reason="the compiled executor was not built, or has no peers")


def test_arrays_that_are_new_in_every_call_need_no_preparation(world, monkeypatch):
    with world.using(allreduce="recursive_doubling"):
        world.Allreduce(numpy.ones(9), numpy.empty(9))
        monkeypatch.setattr(type(world), "_serve", None)
        for turn in range(50):
            sink = numpy.empty(9)
            world.Allreduce(numpy.full(9, float(turn)), sink)
            assert (sink == turn * world.size).all()
            world.Allreduce(recvbuf=sink, sendbuf=numpy.full(9, 1.0), op=MPI.SUM)
            assert (sink == world.size).all()


@pytest.fixture
def wait(monkeypatch):
    """A function that makes a communicator, and its call, for which others may come late."""
    made = []

    def waiting(timeout, executor="compiled"):
        monkeypatch.setenv("HPCCOLL_TIMEOUT", str(timeout))
        monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
        comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
        made.append(comm)
        comm.choose(allreduce="recursive_doubling")
        comm.Allreduce(numpy.ones(4), numpy.empty(4))
        return comm, lambda: comm.Allreduce(numpy.ones(4), numpy.empty(4))
    yield waiting
    MPI.COMM_WORLD.Barrier()
    made[0].Free()


@pytest.mark.parametrize("executor", ["compiled", "python"])
def test_a_wait_in_vain_ends_with_round_and_ranks(wait, executor):
    comm, call = wait(0.3, executor)
    start = time.monotonic()
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeout, match=r"recursive_doubling.*rank") as caught:
            call()
        # Of three ranks the last one's part is folded into another's before the rounds.
        folded = comm.size & (comm.size - 1) != 0
        assert caught.value.peers and 0 not in caught.value.peers
        assert folded or (caught.value.round == 0 and 1 in caught.value.peers)
        assert 0.25 < time.monotonic() - start < 20


def test_a_wait_can_be_interrupted(wait):
    comm, call = wait(60)
    if comm.rank == 0:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - start < 20
        timer.join()


def test_other_threads_run_while_one_waits(wait):
    (comm, call), ticks, stop = wait(60), [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(1)
            time.sleep(1e-4)

    if comm.rank == 1:
        time.sleep(0.5)  # ranks that share processors may be some tenths late themselves
    thread = threading.Thread(target=tick)
    thread.start()
    call()
    stop.set()
    thread.join()
    assert comm.rank or len(ticks) > 10


def test_a_freed_communicator(world):
    child = hpccoll.Comm(world.Dup())
    with child.using(allreduce="recursive_doubling"):
        for _ in range(3):
            child.Allreduce(numpy.ones(2), numpy.empty(2))
        assert len(child._calls) == 1 and len(existing_context(child).compiled_plans) == 1
        child.Free()
        assert not len(child._calls)
        with pytest.raises(DeadCommunicatorError):
            child.Allreduce(numpy.ones(2), numpy.empty(2))


def test_messages_are_read_where_copies_into_cells_are_slow(world):
    """Slow on one rank alone: the others find its messages where they are."""
    terms = [numpy.empty(30_000), world.empty(30_000)]
    results = [numpy.empty(30_000), world.empty(30_000)]
    ranks = sum(range(world.size))
    with world.using(allreduce="recursive_doubling"):
        terms[0][:] = 1
        world.Allreduce(terms[0], results[0])
        compiled_plan, = [bound.compiled_plan
                          for bound in world._private().compiled_plans.entries.values()]
        if compiled_plan is None:
            pytest.skip("the compiled executor does not run this call")
        for turn in range(130):
            if world.rank == 0:
                compiled_plan.copy_cost = 10 ** 9
            mine, result = terms[turn // 3 % 2], results[turn // 5 % 2]
            mine[:] = numpy.arange(30_000.0) + world.rank + turn
            result[:] = -1
            world.Allreduce(mine, result)
            assert (result == world.size * (numpy.arange(30_000.0) + turn) + ranks).all()
