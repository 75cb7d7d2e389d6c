"""Compiled plans with messages to other nodes, on ranks of two: results, errors, ends."""

import os
import signal
import threading
import time

import numpy
import pytest
from mpi.cases import Calls
from mpi.disagreeing import disagree
from mpi.nodes import NODES, RANK, RAW, SIZE, near, on_nodes, remote_plans
from mpi4py import MPI

from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout, HpccollError
from hpccoll.guard import alarm
from hpccoll.runtime.execution import compiled
from hpccoll.transport.mpi import PersistentBatch, SingleBatch

pytestmark = pytest.mark.skipif(not compiled.BUILT or SIZE < 3 or SIZE > 5,
                                reason="the compiled executor was not built, or a node is missing")
#: What crosses nodes in every way: whole nodes, rails, and algorithms that know of none.
WISHES = [{"allreduce": "leader", "bcast": "leader", "reduce": "leader", "barrier": "leader",
           "allgather": "leader"},
          {"allreduce": "recursive_doubling", "bcast": "chain", "reduce": "chain",
           "allgather": "ring", "scan": "linear", "reduce_scatter": "pairwise",
           "alltoall": "pairwise", "gather": "linear", "scatter": "linear",
           "barrier": "dissemination"},
          {"allreduce": "ring", "bcast": "binomial", "reduce": "binomial", "allgather": "bruck",
           "scan": "recursive_doubling", "reduce_scatter": "circulant", "alltoall": "linear"}]


#: Operators of numbers, and of types that have others.
NUMERIC = (MPI.SUM, MPI.PROD, MPI.MAX)
OPERATORS = {"D": (MPI.SUM, MPI.PROD), "?": (MPI.LAND, MPI.LOR, MPI.LXOR)}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Who gave up waits less long for the others to do so, too."""
    monkeypatch.setattr(alarm, "LONGER", 0.5)


@pytest.mark.parametrize("placed", NODES)
@pytest.mark.parametrize("mixed", [False, True], ids=["compiled", "both executors"])
def test_results(monkeypatch, placed, mixed):
    """Of all executors beside each other, in calls of every form."""
    comm = on_nodes(monkeypatch, placed)
    if mixed and comm.rank % 2:
        comm._calls = None
    for preferences in WISHES:
        with comm.using(**preferences):
            for count, root in zip((0, 1, SIZE - 1, SIZE + 1, 1000, 7001), 3 * (0, SIZE - 1)):
                for cases in zip(*(Calls(RANK, SIZE, count=count, root=root, seed=seed).all()
                                   for seed in (0, 1))):
                    for data in (*cases, cases[0]):
                        cases[0].fill(data)
                        getattr(comm, cases[0].method)(*cases[0].args)
                        cases[0].check(data)
    assert bool(remote_plans(comm)) == (bool(near(placed)) and not (mixed and comm.rank % 2))
    comm.Free()


def sums(comm, terms, op=MPI.SUM):
    """The results of a few calls on the same memory."""
    results = []
    for name in ("leader", "recursive_doubling", "ring"):
        with comm.using(allreduce=name):
            sink = numpy.zeros_like(terms)
            for _ in range(3):
                comm.Allreduce(terms, sink, op)
            results.append(sink.tobytes())
    return results


@pytest.mark.parametrize("dtype", ["i1", "f4", "D", "?", "f2"])
def test_operators_have_the_bits_of_the_interpreter(monkeypatch, dtype):
    terms = numpy.random.default_rng(RANK).integers(0, 2, 50).astype(dtype)
    found = []
    for executor in ("compiled", "python"):
        monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
        comm = on_nodes(monkeypatch)
        found.append([sums(comm, terms, op) for op in OPERATORS.get(dtype, NUMERIC)])
        assert bool(remote_plans(comm)) == (executor == "compiled" and bool(near()))
        comm.Free()
    assert found[0] == found[1]


def test_a_pair_and_an_operator_of_a_program(monkeypatch):
    """What no compiled plan can run is the interpreter's, on every rank."""
    comm = on_nodes(monkeypatch)
    product = MPI.Op.Create(lambda left, right, kind: numpy.copyto(
        numpy.frombuffer(right, "f8"), numpy.frombuffer(right, "f8") * numpy.frombuffer(left, "f8")
    ), commute=True)
    with comm.using(allreduce="leader"):
        sink = numpy.zeros(3)
        pair = numpy.zeros(2, numpy.dtype([("value", "f8"), ("place", "i4")], align=True))
        comm.Allreduce(numpy.full(3, 2.0), sink, product)
        mine = pair.copy()
        mine["value"], mine["place"] = RANK, RANK
        comm.Allreduce([mine, 2, MPI.DOUBLE_INT], [pair, 2, MPI.DOUBLE_INT], MPI.MAXLOC)
    assert (sink == 2.0 ** SIZE).all() and (pair["place"] == SIZE - 1).all()
    assert not remote_plans(comm)
    product.Free()
    comm.Free()


def test_memory_that_comes_again_is_prepared_for(monkeypatch):
    """Messages on memory that is new are made for it; and nobody makes them a third time."""
    comm, made = on_nodes(monkeypatch), []
    for kind in (PersistentBatch, SingleBatch):
        def init(self, *more, _old=kind.__init__, _kind=kind):
            made.append(_kind)
            _old(self, *more)
        monkeypatch.setattr(kind, "__init__", init)
    source, sink = numpy.ones(5), numpy.zeros(5)
    with comm.using(allreduce="ring"):  # in which every rank has a neighbour on the other node
        for _ in range(6):
            comm.Allreduce(source, sink)
    assert (sink == SIZE).all()
    if near():
        per_run = len(remote_plans(comm)[0].owners[0].remote_messages.messages)
        assert made.count(SingleBatch) == made.count(PersistentBatch) == per_run
        assert len(comm._private().batches) == 1
    context = comm._private()
    comm.Free()
    assert not len(context.batches)


def test_requests_are_the_interpreters(monkeypatch):
    """They may be moved on by a thread that must not call MPI."""
    comm, sink = on_nodes(monkeypatch), numpy.zeros(4)
    with comm.using(allreduce="leader"):
        lasting = comm.Allreduce_init(numpy.ones(4), sink)
        for _ in range(3):
            lasting.Start()
            comm.Allreduce(numpy.ones(4), numpy.empty(4))
            comm.Iallreduce(numpy.ones(4), numpy.empty(4)).Wait()
            lasting.Wait()
            assert (sink == SIZE).all()
            sink[:] = 0
    lasting.Free()
    comm.Free()


def ready(monkeypatch, timeout, name="leader", **more):
    """A communicator on two nodes that has made a few calls."""
    monkeypatch.setenv("HPCCOLL_TIMEOUT", str(timeout))
    comm = on_nodes(monkeypatch, **more)
    with comm.using(allreduce=name):
        for _ in range(3):
            comm.Allreduce(numpy.ones(4), numpy.empty(4))
    return comm


@pytest.mark.parametrize("name", ["leader", "recursive_doubling"])
@pytest.mark.parametrize("late", [0, SIZE - 1])
def test_a_rank_that_does_not_come(monkeypatch, late, name):
    """Time is up on all others, and every later call is refused on every rank."""
    comm = ready(monkeypatch, 0.5, name)
    start = time.monotonic()
    with comm.using(allreduce=name):
        if comm.rank != late:
            with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)) as caught:
                comm.Allreduce(numpy.ones(4), numpy.empty(4))
            assert time.monotonic() - start < 15
            assert isinstance(caught.value, BrokenCommunicatorError) or caught.value.peers
        RAW.Barrier()
        with pytest.raises(BrokenCommunicatorError):
            for _ in range(2):  # the one that was late may have all messages of its first call
                comm.Allreduce(numpy.ones(4), numpy.empty(4))
    RAW.Barrier()


def test_a_wait_for_another_node_can_be_interrupted(monkeypatch):
    """Its messages may be under way still: what they use is kept, and nobody starts them again."""
    comm = ready(monkeypatch, 60, "recursive_doubling")
    rank = next(one for one in range(SIZE) if NODES["in order"].count(
        NODES["in order"][one]) > 1)
    if comm.rank == rank:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with comm.using(allreduce="recursive_doubling"), pytest.raises(KeyboardInterrupt):
            comm.Allreduce(numpy.ones(4), numpy.empty(4))
        assert time.monotonic() - start < 10
        timer.join()
        with pytest.raises(BrokenCommunicatorError):
            comm.Barrier()
    RAW.Barrier()


@pytest.mark.skipif(SIZE != 4, reason="of other numbers some only wait until the time is up")
@pytest.mark.parametrize("way", [("count", "allreduce", "allreduce"),
                                 ("operator", "allreduce", "allreduce"),
                                 ("dtype", "allreduce", "allreduce"),
                                 ("collective", "allreduce", "bcast")], ids="-".join)
@pytest.mark.parametrize("odd", [0, SIZE - 1])
def test_ranks_that_disagree_across_nodes(monkeypatch, way, odd):
    """Everyone gets the error; a rank that has left the call gets it from the next one."""
    preferences = {"allreduce": "recursive_doubling", "bcast": "binomial", "reduce": "binomial",
                   "barrier": "dissemination"}
    comm = ready(monkeypatch, 20, "recursive_doubling")
    start = time.monotonic()
    error = disagree(comm, *way, odd, 24, preferences)
    assert time.monotonic() - start < 10, "only when the time was up"
    RAW.Barrier()
    if error is None:
        with comm.using(**preferences), pytest.raises(HpccollError) as caught:
            comm.Barrier()
        error = caught.value
    # How much each is told of the others depends on who is still waiting when it asks.
    assert "ranks disagree on" in str(error)
    RAW.Barrier()
