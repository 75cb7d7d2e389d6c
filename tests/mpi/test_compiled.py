"""The compiled executor on real ranks: beside the interpreter, in waits in vain, on new arrays."""

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
from hpccoll.runtime import context as contexts
from hpccoll.runtime.execution import compiled

pytestmark = pytest.mark.skipif(not compiled.BUILT or MPI.COMM_WORLD.Get_size() == 1,
                                reason="the compiled executor was not built, or has no peers")
WISHES = {"allreduce": ("recursive_doubling", "ring"), "bcast": ("binomial", "chain"),
          "reduce": ("binomial", "linear"), "allgather": ("ring",), "scan": ("linear",),
          "reduce_scatter": ("pairwise",), "alltoall": ("pairwise",), "gather": ("linear",),
          "scatter": ("linear",), "barrier": ("dissemination",)}


def every_call(comm, count, dtype="f8", turn=0):
    """One call of each collective on arrays that are new, and their results."""
    size, rank = comm.size, comm.rank
    mine = (numpy.arange(count) + rank + turn).astype(dtype)
    many = (numpy.arange(count * size) + rank).astype(dtype)
    one, all_, root = numpy.empty_like(mine), numpy.empty_like(many), turn % size
    results = []

    def keep(array):
        results.append(array.copy())

    comm.Allreduce(mine, one), keep(one)
    comm.Allreduce(MPI.IN_PLACE, one, MPI.MAX), keep(one)
    comm.Reduce(mine, one if rank == root else None, root=root), keep(one)
    comm.Scan(mine, one), keep(one)
    comm.Bcast(one, root), keep(one)
    comm.Allgather(mine, all_), keep(all_)
    comm.Alltoall(all_, many), keep(many)
    comm.Reduce_scatter_block(many, one), keep(one)
    comm.Gather(mine, many if rank == root else None, root), keep(many)
    comm.Scatter(many if rank == root else None, one, root), keep(one)
    comm.Barrier()
    return results


@pytest.mark.parametrize("mixed", [False, True], ids=["compiled", "both executors"])
@pytest.mark.parametrize("number", [0, 1])
def test_results_are_the_librarys_whoever_runs_them(world, mixed, number):
    """Ranks with the interpreter and ranks with the compiled executor understand each other."""
    native = MPI.Intracomm(world)
    if mixed and world.rank % 2:
        world._calls = None
    with world.using(**{name: found[number % len(found)] for name, found in WISHES.items()}):
        for count in (1, 7, 1000, 4000, 9000, 40_000):
            for turn in range(3):
                for ours, theirs in zip(every_call(world, count, turn=turn),
                                        every_call(native, count, turn=turn)):
                    assert (ours == theirs).all()


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "f4", "g", "D", "?", "f2"])
@pytest.mark.parametrize("op", ["SUM", "PROD", "MAX", "LAND", "BXOR"])
def test_operators_have_the_bits_of_the_interpreter(world, dtype, op):
    numbers = numpy.random.default_rng(world.rank)
    source = numbers.integers(0, 2, 50).astype(dtype)
    results = []
    for calls in (world._calls, None):
        comm = hpccoll.Comm(world)
        if calls is None:
            comm._calls = None
        with comm.using(allreduce="recursive_doubling"):
            for _ in range(3):
                sink = numpy.zeros_like(source)
                try:
                    comm.Allreduce(source, sink, getattr(MPI, op))
                except hpccoll.HpccollError as error:
                    sink = type(error)
            results.append(sink if isinstance(sink, type) else sink.tobytes())
    assert results[0] == results[1] or dtype == "g"


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


def waiting_alone(monkeypatch, timeout):
    """A communicator whose rank 0 will wait for the others."""
    monkeypatch.setenv("HPCCOLL_TIMEOUT", str(timeout))
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    with comm.using(allreduce="recursive_doubling"):
        comm.Allreduce(numpy.ones(4), numpy.empty(4))
    return comm


@pytest.mark.parametrize("executor", ["compiled", "python"])
def test_a_wait_in_vain_ends_with_round_and_ranks(monkeypatch, executor):
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm = waiting_alone(monkeypatch, 0.3)
    start = time.monotonic()
    if comm.rank == 0:
        with (comm.using(allreduce="recursive_doubling"),
              pytest.raises(CollectiveTimeout, match=r"recursive_doubling.*rank") as caught):
            comm.Allreduce(numpy.ones(4), numpy.empty(4))
        # Of three ranks the last one's part is folded into another's before the rounds.
        folded = comm.size & (comm.size - 1) != 0
        assert caught.value.peers and 0 not in caught.value.peers
        assert folded or (caught.value.round == 0 and 1 in caught.value.peers)
        assert 0.25 < time.monotonic() - start < 20
    MPI.COMM_WORLD.Barrier()
    comm.Free()


def test_a_wait_can_be_interrupted(monkeypatch):
    comm = waiting_alone(monkeypatch, 60)
    if comm.rank == 0:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with comm.using(allreduce="recursive_doubling"), pytest.raises(KeyboardInterrupt):
            comm.Allreduce(numpy.ones(4), numpy.empty(4))
        assert time.monotonic() - start < 20
        timer.join()
    MPI.COMM_WORLD.Barrier()
    comm.Free()


def test_other_threads_run_while_one_waits(monkeypatch):
    comm, ticks, stop = waiting_alone(monkeypatch, 60), [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(1)
            time.sleep(1e-4)

    if comm.rank == 1:
        time.sleep(0.5)  # ranks that share processors may be some tenths late themselves
    thread = threading.Thread(target=tick)
    thread.start()
    with comm.using(allreduce="recursive_doubling"):
        comm.Allreduce(numpy.ones(4), numpy.empty(4))
    stop.set()
    thread.join()
    assert comm.rank or len(ticks) > 10
    comm.Free()


def test_two_threads_on_two_communicators(world):
    comms = [hpccoll.Comm(world.Dup()) for _ in range(2)]
    for comm in comms:
        comm.layout  # which is collective
    failures = []

    def work(comm):
        try:
            with comm.using(allreduce="recursive_doubling"):
                for turn in range(200):
                    sink = numpy.empty(3)
                    comm.Allreduce(numpy.full(3, float(turn)), sink)
                    assert (sink == turn * comm.size).all()
        except BaseException as error:
            failures.append(error)

    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    for comm in comms:
        comm.Free()


def test_ranks_that_disagree_on_sizes(world):
    """Every rank gets the same error as from the interpreter."""
    if world.size > 2:
        return  # ranks without the error would wait for one that has it
    child = hpccoll.Comm(world.Dup())
    with child.using(allgather="ring"):
        child.Allgather(numpy.ones(2), numpy.empty(2 * child.size))
        count = 3 if child.rank == 0 else 2
        try:
            child.Allgather(numpy.ones(count), numpy.empty(count * child.size))
        except hpccoll.HpccollError as error:
            assert "ranks disagree on count" in str(error)
        else:
            pytest.fail("no error")
    world.Barrier()
    child.Free()


def test_a_freed_communicator(world):
    child = hpccoll.Comm(world.Dup())
    with child.using(allreduce="recursive_doubling"):
        for _ in range(3):
            child.Allreduce(numpy.ones(2), numpy.empty(2))
        assert len(child._calls) == 1 and len(contexts.existing_context(child).compiled_plans) == 1
        child.Free()
        assert not len(child._calls)
        with pytest.raises(DeadCommunicatorError):
            child.Allreduce(numpy.ones(2), numpy.empty(2))


def test_persistent_collectives(world):
    sink, source = numpy.empty(5), numpy.empty(5)
    with world.using(allreduce="recursive_doubling"):
        requests = [world.Allreduce_init(source, sink), world.Allreduce_init(MPI.IN_PLACE, source)]
    for turn in range(20):
        source[:] = world.rank + turn
        total = world.size * (world.size - 1) // 2 + world.size * turn
        for request in requests:
            request.Start()
            if turn % 3:
                while not request.Test():
                    pass
            else:
                request.Wait()
            assert (sink == total).all()
        assert (source == total).all()
    for request in requests:
        request.Free()


def test_slow_copies_are_left_to_the_interpreter(world):
    """Where they are slow, on this rank alone, Python reads messages in place; and tries again.

    The others' compiled plans find messages elsewhere, in one call after the other, on memory of
    two calls.
    """
    terms = [numpy.empty(30_000), world.empty(30_000)]
    results = [numpy.empty(30_000), world.empty(30_000)]
    ranks = sum(range(world.size))
    with world.using(allreduce="recursive_doubling"):
        terms[0][:] = 1
        world.Allreduce(terms[0], results[0])
        compiled_plans = [bound.compiled_plan
                          for bound in world._private().compiled_plans.entries.values()]
        if not any(compiled_plans):
            pytest.skip("such messages are read in place here anyway")
        compiled_plan, = compiled_plans
        for turn in range(210):
            if world.rank == 0 and turn % 70 == 0:
                compiled_plan.copy_cost = 10 ** 9
            mine, result = terms[turn // 3 % 2], results[turn // 5 % 2]
            mine[:] = numpy.arange(30_000.0) + world.rank + turn
            result[:] = -1
            world.Allreduce(mine, result)
            assert (result == world.size * (numpy.arange(30_000.0) + turn) + ranks).all()
        if world.rank == 0 and compiled_plan.copy_cost < 10 ** 9:
            # Ranks with a processor each time their copies, and one call of 64 was such a try.
            assert not world._private().place.oversubscribed
            compiled_plan.copy_cost = 10 ** 9
            assert sum(not compiled_plan.should_fall_back() for _ in range(128)) == 2
            compiled_plan.copy_cost = 0
