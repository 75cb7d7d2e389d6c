"""Threads: each on a communicator of its own; a second one on the same communicator is refused.

``tests/broken.py`` shows them fail: without the call guard two threads on one communicator take
each other's messages.
"""

import sys
import threading
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.lifetime import Lifetime
from hpccoll.errors import ConcurrentCallError
from hpccoll.runtime.execution.built import BUILT

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI has no MPI.THREAD_MULTIPLE")]
RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
EXECUTORS = ["compiled", "python"] if BUILT else ["python"]
OURS = {"allreduce": "recursive_doubling", "iallreduce": "recursive_doubling",
        "bcast": "binomial", "barrier": "dissemination"}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("preference", ["ours", "native", "auto", "large"])
def test_two_threads_on_two_communicators(monkeypatch, preference, executor):
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comms = [hpccoll.Comm(MPI.Intracomm(RAW).Dup()) for _ in range(2)]
    for comm in comms:
        MPI.Intracomm.allreduce(comm, 0)  # mpi4py's first one is not for threads, see sharp-bits.md
    count = 100_000 if preference == "large" else 50
    preferences = OURS if preference in ("ours", "large") else dict.fromkeys(OURS, preference)
    over = []

    def work(comm):
        x, y = numpy.ones(count), numpy.zeros(count)
        with comm.using(**preferences):
            for turn in range(30 if preference == "large" else 150):
                x[:] = turn
                comm.Allreduce(x, y)
                assert (y == turn * SIZE).all()
                assert comm.allreduce(turn) == turn * SIZE
                if turn % 10 == 0:
                    y[:] = 0
                    comm.Iallreduce(x, y).Wait()
                    assert (y == turn * SIZE).all()
                    comm.Barrier()
        over.append(comm)

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(over) == 2
    for comm in comms:
        comm.Free()


@pytest.mark.parametrize("count", [50, 300_000])
@pytest.mark.parametrize("executor, preference", [(executor, "ours") for executor in EXECUTORS]
                         + [("compiled", "native")] * BUILT)
def test_two_threads_on_one_communicator(monkeypatch, executor, preference, count):
    """Rank 0 is refused whatever it calls; the call under way is not disturbed."""
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    with comm.using(**(OURS if preference == "ours" else dict.fromkeys(OURS, "native"))):
        x, y, other = numpy.ones(count), numpy.zeros(count), numpy.zeros(count)
        for _ in range(4):
            comm.Allreduce(x, y)
            comm.allreduce(1)
        calls = [lambda: comm.Allreduce(x, other), comm.Barrier, lambda: comm.allreduce(1),
                 lambda: comm.Iallreduce(x, other), lambda: comm.bcast(1),
                 lambda: comm.Allreduce_init(x, other), lambda: comm.empty(3),
                 lambda: hpccoll.Comm(comm).Bcast(other, 0)]
        y[:] = 0
        if RANK == 0:
            line = sys._getframe().f_lineno + 1
            first = threading.Thread(target=lambda: comm.Allreduce(x, y), name="the first")
            first.start()
            time.sleep(0.2)
            for call in calls:
                with pytest.raises(ConcurrentCallError, match="'the first'") as caught:
                    call()
                assert caught.value.other.endswith(f"{__file__}:{line}")
                assert __file__ in caught.value.site != caught.value.other
            RAW.Barrier()
            first.join()
        else:
            RAW.Barrier()
            comm.Allreduce(x, y)
        assert (y == SIZE).all() and not other.any()
        for _ in range(3):
            comm.Allreduce(x, other)  # nothing is broken
            assert (other == SIZE).all() and comm.allreduce(1) == SIZE
    comm.Free()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("preference", ["ours", "native"])
def test_a_thread_between_the_parts_of_a_call(monkeypatch, executor, preference):
    """Calls that consist of calls admit those of their own thread only."""
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm, errors = hpccoll.Comm(MPI.Intracomm(RAW).Dup()), []
    x, y = numpy.ones(50), numpy.zeros(50)

    def intrude():
        for call in (comm.Barrier, lambda: comm.Allreduce(x, numpy.zeros(50)),
                     lambda: comm.allreduce(1)):
            try:
                call()
            except ConcurrentCallError as error:
                errors.append(error)

    with comm.using(**(OURS if preference == "ours" else dict.fromkeys(OURS, "native"))):
        for _ in range(3):
            comm.Allreduce(x, y)
            comm.allreduce(1)
        with comm._check_alive().call_guard, comm._outside():
            comm.Allreduce(x, y)
            thread = threading.Thread(target=intrude)
            thread.start()
            thread.join()
            comm.Allreduce(x, y)
        assert len(errors) == 3 and threading.main_thread().name in str(errors[0])
        comm.Barrier()
    comm.Free()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_call_inside_a_call(monkeypatch, executor):
    """An operator that makes a collective on the communicator that calls it."""
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm, own = (hpccoll.Comm(MPI.Intracomm(RAW).Dup()) for _ in range(2))
    with pytest.raises(hpccoll.HpccollError, match="operators"):
        comm.allreduce(1, lambda a, b: comm.allreduce(a))
    assert comm.allreduce(1) == SIZE
    assert comm.allreduce(1, lambda a, b: MPI.COMM_SELF.allreduce(a + b)) == SIZE
    comm.Free()
    own.Free()


def test_threads_wrap_a_communicator_at_the_same_time(world, monkeypatch):
    """They share its state; so with the first communicator of a process, whose log is made once."""
    create, raw, found = Lifetime.__init__, MPI.Intracomm(world).Dup(), []

    def create_slowly(self):
        time.sleep(0.02)
        create(self)
    monkeypatch.setattr(Lifetime, "__init__", create_slowly)
    threads = [threading.Thread(target=lambda: found.append(hpccoll.Comm(raw))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(comm._check_alive()) for comm in found}) == 1 and len(found) == 4
    found[0].Free()


def test_wrappers_of_one_communicator_share_the_entrance(world):
    other = hpccoll.Comm(MPI.Intracomm(world))
    assert other._check_alive().call_guard is world._check_alive().call_guard
    assert world.Dup()._check_alive().call_guard is not other._check_alive().call_guard
