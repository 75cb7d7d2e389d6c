"""Calls on the same arrays again: what may have changed in between, and must not go unseen."""

import os
import time
import weakref

import numpy
import pytest
from mpi.cases import Calls
from mpi4py import MPI

import hpccoll
from hpccoll.config import COMPILED, EXECUTORS
from hpccoll.errors import CommunicatorError, HpccollError
from hpccoll.runtime.execution.built import BUILT

VIEWS = pytest.mark.parametrize("form", [lambda array: array, lambda array: array[:]],
                                ids=["owner", "view"])


@pytest.fixture(params=EXECUTORS)
def world(request, monkeypatch):
    """An ``hpccoll.Comm`` of all ranks, with either executor."""
    if request.param == COMPILED and not BUILT:
        pytest.skip("the compiled executor was not built")
    monkeypatch.setenv("HPCCOLL_EXECUTOR", request.param)
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    yield comm
    comm.Free()


@pytest.fixture
def ours(world):
    """A communicator whose reductions are ours."""
    with world.using(allreduce="recursive_doubling", reduce="binomial", bcast="binomial"):
        yield world


def check(comm, source, sink, turn):
    """Make one call, and look at its result."""
    if isinstance(source, numpy.ndarray):
        source[...] = comm.rank + turn
    else:
        sink[...] = comm.rank + turn
    comm.Allreduce(source, sink)
    assert (sink == comm.size * (comm.size - 1) // 2 + comm.size * turn).all()


def settled(comm, form, dtype="f8"):
    """Arrays whose calls are found in the cache."""
    source, sink = form(numpy.empty(6, dtype)), form(numpy.empty(6, dtype))
    for turn in range(5):
        check(comm, source, sink, turn)
    return source, sink


def reshape(*arrays):
    for array in arrays:
        array.shape = 2, 3


def retype(*arrays):
    for array in arrays:
        array.dtype = "i8"


def call_others(comm, source, sink):
    """Calls of other collectives and operators on the same arrays."""
    sink[...] = comm.rank
    comm.Bcast(sink, root=comm.size - 1)
    assert (sink == comm.size - 1).all()
    source[...] = comm.rank
    comm.Allreduce(source, sink, MPI.MAX)
    assert (sink == comm.size - 1).all()
    comm.Reduce(source, sink, root=0)
    assert comm.rank or (sink == comm.size * (comm.size - 1) // 2).all()


def call_the_library(comm, source, sink):
    with comm.using(allreduce="native"):
        for turn in range(4):
            check(comm, source, sink, turn)


def freeze(comm, source, sink):
    """An output that became read-only is refused, and may become writable again."""
    sink.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        comm.Allreduce(source, sink)
    sink.flags.writeable = True


#: What happens to a communicator and two arrays between calls on these.
CHANGES = {
    "nothing": lambda *_: None,
    "other source": lambda comm, source, sink: check(comm, source.copy(), sink, 8),
    "other sink": lambda comm, source, sink: check(comm, source, sink.copy(), 8),
    "in place": lambda comm, source, sink: check(comm, MPI.IN_PLACE, sink, 8),
    "other collectives": call_others, "the library": call_the_library, "read-only": freeze,
    "other shape": lambda comm, *arrays: reshape(*arrays),
    "other type": lambda comm, *arrays: retype(*arrays),
    "forgotten": lambda comm, *_: comm.forget_calls()}


@VIEWS
@pytest.mark.parametrize("change", CHANGES)
def test_calls_before_and_after_a_change(ours, form, change):
    source, sink = settled(ours, form)
    for turn in range(4):
        CHANGES[change](ours, source, sink)
        check(ours, source, sink, turn + 9)


def test_an_array_that_owns_its_memory_can_still_be_resized(ours):
    source, sink = settled(ours, lambda array: array)
    source.resize(9), sink.resize(9)
    check(ours, source, sink, 3)


@VIEWS
@pytest.mark.parametrize("in_place", [False, True])
def test_arrays_are_recognised(ours, form, in_place):
    """Calls on them do not take the long way, which the interpreter always takes."""
    source, sink = MPI.IN_PLACE, form(numpy.empty(6))
    if not in_place:
        source, sink = settled(ours, form)
    for turn in range(5):
        check(ours, source, sink, turn)
    seen = []
    ours._serve = lambda *call: (seen.append(call[0].name), type(ours)._serve(ours, *call))
    check(ours, source, sink, 7)
    resolved = [] if os.environ["HPCCOLL_EXECUTOR"] == COMPILED else ["allreduce"]
    assert ours.size == 1 or seen == resolved
    if in_place:
        check(ours, form(numpy.empty(6)), sink, 8)
        assert ours.size == 1 or seen == [*resolved, "allreduce"]


@VIEWS
def test_a_number_that_another_array_has_now(ours, form):
    """What is gone leaves its number to the next one."""
    for turn in range(40):
        source, sink = settled(ours, form)
        gone = [weakref.ref(array) for array in (source, sink)]
        del source, sink
        assert [reference() for reference in gone] == [None, None]
        check(ours, numpy.empty(12, "f4"), form(numpy.empty(12, "f4")), turn)
        check(ours, numpy.empty(6, "i8"), form(numpy.empty(6, "i8")), turn)


@pytest.mark.mpi(min_size=2)
def test_a_barrier_holds_everybody_back(world):
    """The clock is that of the machine, the same for all ranks."""
    with world.using(barrier="dissemination"):
        for turn in range(5):
            if world.rank == turn % world.size:
                time.sleep(0.01)
            entered = time.monotonic()
            world.Barrier()
            left = time.monotonic()
            assert world.allreduce(entered, MPI.MAX) <= world.allreduce(left, MPI.MIN)


# -- small calls of the MPI library's, recognised by their bytes -------------------------------
@pytest.fixture
def theirs(world):
    """A communicator whose collectives are the MPI library's, and known to be."""
    with world.using(**dict.fromkeys(("bcast", "reduce", "allreduce", "alltoall", "reduce_scatter",
                                      "allgather"), "native")):
        every_small(world, 0)
        yield world


def every_small(comm, turn):
    """Make one call of each, the root another in each turn, and check the results."""
    for case in Calls(comm.rank, comm.size, "f4", 2, turn % comm.size, seed=turn).all():
        if case.method in ("Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block", "Reduce",
                           "Bcast") and "in place" not in case.title:
            case.fill()
            getattr(comm, case.method)(*case.args)
            case.check()


def test_small_calls_take_the_short_way(theirs, monkeypatch):
    """Until other algorithms are chosen, and after that."""
    for turn in range(3):
        every_small(theirs, turn)  # with every root
    monkeypatch.setattr(type(theirs), "_serve", None)
    if theirs._calls is not None:
        monkeypatch.setattr(type(theirs), "_call", None)
    for turn in range(3):
        every_small(theirs, turn)
    monkeypatch.undo()
    with theirs.using(allreduce="recursive_doubling", bcast="binomial"):
        for turn in range(4):
            every_small(theirs, turn)
        assert {place[0] for place in theirs._context.plans.entries} >= {"allreduce", "bcast"} or (
            theirs.size == 1)
    every_small(theirs, 4)


def test_small_calls_that_are_not_alike_take_the_long_way(theirs):
    three, two, other = numpy.ones(3, "f4"), numpy.ones(2, "f4"), numpy.ones(2, "f8")
    size, both, many = theirs.size, numpy.ones(4, "f4"), numpy.ones(2 * theirs.size, "f4")
    for args, wanted in (
            ((MPI.IN_PLACE, two), size), ((MPI.IN_PLACE, two), size),
            ((numpy.full(2, theirs.rank, "f4"), two, MPI.MAX), size - 1),
            (([numpy.ones(2, "f4"), MPI.FLOAT], two), size), ((both[:2], both[2:]), size)):
        args[1][...] = 1
        theirs.Allreduce(*args)
        assert (args[1] == wanted).all() and (both[:2] == 1).all()
    for method, *wrong in (
            ("Allreduce", three, two), ("Allreduce", other, two), ("Allreduce", two, other),
            ("Allreduce", two, two[:]), ("Allreduce", two, two),
            ("Allreduce", two, numpy.ones(2, "f4"), MPI.BAND), ("Bcast", two, size),
            ("Bcast", two, -1), ("Reduce", two, numpy.ones(2, "f4"), MPI.SUM, size),
            ("Allgather", three, many), ("Reduce_scatter_block", many, three),
            ("Alltoall", many, numpy.ones(2 * size + size, "f4"))):
        with pytest.raises(HpccollError):
            getattr(theirs, method)(*wrong)
    theirs.Bcast([two, MPI.FLOAT])


def test_small_calls_end_with_the_communicator(world):
    first = hpccoll.Comm(world.Dup())
    second = hpccoll.Comm(first)
    for comm in first, second:
        with comm.using(allreduce="native"):
            comm.Allreduce(numpy.ones(2), numpy.empty(2))
    with second.using(allreduce="native"):
        assert second._cache or len(second._calls) == 1
        first.Free()
        with pytest.raises(CommunicatorError):
            second.Allreduce(numpy.ones(2), numpy.empty(2))
