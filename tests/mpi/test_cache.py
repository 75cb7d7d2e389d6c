"""Calls on the same arrays again: what may have changed in between, and must not go unseen."""

import time
import weakref

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.config import COMPILED, EXECUTORS
from hpccoll.errors import BrokenCommunicatorError, CommunicatorError, HpccollError
from hpccoll.runtime import context as contexts
from hpccoll.runtime.execution.compiled import BUILT

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


def interpreted(comm):
    """Tell whether plans are run by the interpreter."""
    return comm._calls is None


@pytest.fixture
def ours(world):
    """A communicator whose reductions are ours."""
    with world.using(allreduce="recursive_doubling", reduce="binomial", bcast="binomial"):
        yield world


def check(comm, source, sink, turn):
    if isinstance(source, numpy.ndarray):
        source[...] = comm.rank + turn
    else:
        sink[...] = comm.rank + turn
    comm.Allreduce(source, sink)
    assert (sink == comm.size * (comm.size - 1) // 2 + comm.size * turn).all()


def settled(comm, form, dtype="f8"):
    """Arrays that a prepared call serves."""
    source, sink = form(numpy.empty(6, dtype)), form(numpy.empty(6, dtype))
    for turn in range(5):
        check(comm, source, sink, turn)
    return source, sink


def unrecognised(comm):
    """Lists the calls from now on that take the long way."""
    seen = []
    comm._serve = lambda *call: (seen.append(call[0].name), type(comm)._serve(comm, *call))
    return seen


@VIEWS
def test_arrays_are_recognised(ours, form):
    source, sink = settled(ours, form)
    if ours.size > 1:
        seen = unrecognised(ours)
        check(ours, source, sink, 7)
        assert not seen


def test_a_barrier_is_prepared_once_and_holds_everybody_back(world):
    """The clock is that of the machine, the same for all ranks."""
    if world.size == 1:
        return
    with world.using(barrier="dissemination"):
        for turn in range(5):
            if world.rank == turn % world.size:
                time.sleep(0.01)
            entered = time.monotonic()
            world.Barrier()
            left = time.monotonic()
            assert world.allreduce(entered, MPI.MAX) <= world.allreduce(left, MPI.MIN)
        if not interpreted(world):
            assert len(unrecognised(world)) == 0 == len([world.Barrier() for _ in range(3)]) - 3
            return
        kept, = [each for each in contexts.existing_context(world).prepared.entries.values()
                 if each.plan.schedule.collective.name == "barrier"]
        ran = []
        kept.program = [(ran.append, (1,)), *kept.program]
        world.Barrier()
        assert ran


@VIEWS
def test_in_place(ours, form):
    sink = form(numpy.empty(5))
    for turn in range(5):
        check(ours, MPI.IN_PLACE, sink, turn)
    if ours.size > 1:
        seen = unrecognised(ours)
        check(ours, MPI.IN_PLACE, sink, 7)
        assert not seen
        check(ours, form(numpy.empty(5)), sink, 8)
        assert seen == ["allreduce"]


@VIEWS
def test_one_of_the_arrays_is_another(ours, form):
    source, sink = settled(ours, form)
    check(ours, form(numpy.empty(6)), sink, 8)
    check(ours, source, form(numpy.empty(6)), 9)
    check(ours, source, sink, 10)


@VIEWS
def test_a_number_that_another_array_has_now(ours, form):
    """What is gone leaves its number to the next one."""
    for turn in range(40):
        source, sink = form(numpy.empty(6)), form(numpy.empty(6))
        for more in range(4):
            check(ours, source, sink, turn + more)
        del source, sink
        check(ours, numpy.empty(12, "f4"), form(numpy.empty(12, "f4")), turn)
        check(ours, numpy.empty(6, "i8"), form(numpy.empty(6, "i8")), turn)


@VIEWS
def test_another_collective_on_the_same_arrays(ours, form):
    source, sink = settled(ours, form)
    for turn in range(5):
        check(ours, source, sink, turn)
        sink[...] = ours.rank
        ours.Bcast(sink, root=ours.size - 1)
        assert (sink == ours.size - 1).all()
        source[...] = ours.rank
        ours.Allreduce(source, sink, MPI.MAX)
        assert (sink == ours.size - 1).all()
        ours.Reduce(source, sink, root=0)
        assert ours.rank or (sink == ours.size * (ours.size - 1) // 2).all()


@VIEWS
def test_an_output_that_became_read_only(ours, form):
    source, sink = settled(ours, form)
    sink.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        ours.Allreduce(source, sink)
    sink.flags.writeable = True
    check(ours, source, sink, 3)


def test_arrays_with_another_shape_or_type_now(ours):
    source, sink = settled(ours, lambda array: array)
    source.shape = sink.shape = 2, 3
    check(ours, source, sink, 3)
    source.dtype = sink.dtype = "i8"
    check(ours, source, sink, 4)


def test_an_array_that_owns_its_memory_can_still_be_resized(ours):
    source, sink = settled(ours, lambda array: array)
    source.resize(9), sink.resize(9)
    check(ours, source, sink, 3)


def test_arrays_are_not_kept_alive(ours):
    for form in (lambda array: array, lambda array: array[:]):
        arrays = settled(ours, form)
        gone = [weakref.ref(array) for array in arrays]
        del arrays
        assert [reference() for reference in gone] == [None, None]


def test_prepared_calls_share_what_scratch_is_too_large_to_keep(world, monkeypatch):
    """Several hundred of them would hold as many times the largest message."""
    if not interpreted(world):
        return
    monkeypatch.setattr(contexts, "KEPT_SCRATCH", 1 << 10)
    pairs = [(numpy.empty(4000 + 100 * i), numpy.empty(4000 + 100 * i)) for i in range(6)]
    context = world._private()
    with world.using(allreduce="recursive_doubling"):
        for turn in range(4):
            for source, sink in pairs:
                source[:] = world.rank + turn
                world.Allreduce(source, sink)
                assert (sink == world.size * (world.size - 1) // 2 + world.size * turn).all()
        assert len(context.prepared) == len(pairs)
        scratches = [each.memory.scratch for each in context.prepared.entries.values()]
        large = {id(scratch.base) for scratch in scratches if scratch.nbytes > 1 << 10}
        assert len(large) <= 2 and (context._large() is not None) == bool(large)
        assert large or world.size != 2
        del scratches
        context.prepared.clear()
        world._cache.clear()
        assert context._large() is None


@VIEWS
def test_another_algorithm_is_wished_for(ours, form):
    source, sink = settled(ours, form)
    with ours.using(allreduce="native"):
        for turn in range(4):
            check(ours, source, sink, turn)
    check(ours, source, sink, 5)


@VIEWS
def test_what_was_prepared_may_be_given_up(ours, form):
    source, sink = settled(ours, form)
    if ours.size > 1:
        ours._context.prepared.clear()
    for turn in range(5):
        check(ours, source, sink, turn)


@VIEWS
def test_what_failed_half_way_is_not_started_again(ours, form):
    source, sink = settled(ours, form)
    if ours.size > 1 and interpreted(ours):
        execution, = contexts.existing_context(ours).prepared.entries.values()

        def fails():
            raise RuntimeError("half way")

        execution.program = [(fails, ())]
        with pytest.raises(RuntimeError, match="half way"):
            ours.Allreduce(source, sink)
        for _ in range(3):
            with pytest.raises(BrokenCommunicatorError, match="half way"):
                ours.Allreduce(source, sink)


# -- small calls of the MPI library's, told by their bytes ------------------------------------
@pytest.fixture
def theirs(world):
    """A communicator whose collectives are the MPI library's, and known to be."""
    with world.using(bcast="native", reduce="native", allreduce="native", alltoall="native",
                     reduce_scatter="native", allgather="native"):
        for dtype in "f8", "f4":
            every_small(world, dtype, 0)
        yield world


def every_small(comm, dtype, turn):
    """Make one call of each, the root another in each turn, and check the results."""
    mine, all_ = numpy.full(2, comm.rank + turn, dtype), numpy.empty(2 * comm.size, dtype)
    many = numpy.repeat(numpy.arange(comm.size, dtype=dtype), 2)
    one, root = numpy.empty(2, dtype), turn % comm.size
    total = comm.size * (comm.size - 1) // 2 + comm.size * turn
    comm.Allreduce(mine, one)
    assert (one == total).all()
    comm.Allgather(mine, all_)
    assert (all_ == many + turn).all()
    comm.Alltoall(all_ + comm.rank, many)
    assert (many == turn + comm.rank + numpy.repeat(numpy.arange(comm.size), 2)).all()
    comm.Reduce_scatter_block(all_, one)
    assert (one == comm.size * (comm.rank + turn)).all()
    one[...] = 7
    comm.Reduce(mine, one if comm.rank == root else None, root=root)
    assert (one == (total if comm.rank == root else 7)).all()
    comm.Bcast(one, root)
    assert (one == total).all()


def test_small_calls_take_the_short_way(theirs, monkeypatch):
    for turn in range(3):
        every_small(theirs, "f4", turn)  # with every root
    monkeypatch.setattr(type(theirs), "_serve", None)
    if theirs._calls is not None:
        monkeypatch.setattr(type(theirs), "_call", None)
    for turn in range(3):
        every_small(theirs, "f4", turn)
    monkeypatch.undo()
    every_small(theirs, "f8", 3)


def test_small_calls_that_are_not_alike_take_the_long_way(theirs):
    three, two, other = numpy.ones(3, "f4"), numpy.ones(2, "f4"), numpy.ones(2, "f8")
    size = theirs.size
    theirs.Allreduce(MPI.IN_PLACE, two)
    assert (two == size).all()
    two[...] = 1
    theirs.Allreduce(MPI.IN_PLACE, two)
    assert (two == size).all()
    theirs.Allreduce(numpy.full(2, theirs.rank, "f4"), two, MPI.MAX)
    assert (two == size - 1).all()
    theirs.Allreduce([numpy.ones(2, "f4"), MPI.FLOAT], two)
    assert (two == size).all()
    both = numpy.ones(4, "f4")
    theirs.Allreduce(both[:2], both[2:])
    assert both.tolist() == [1, 1, size, size]
    many = numpy.ones(2 * size, "f4")
    for wrong in (lambda: theirs.Allreduce(three, two), lambda: theirs.Allreduce(other, two),
                  lambda: theirs.Allreduce(two, other), lambda: theirs.Allreduce(two, two[:]),
                  lambda: theirs.Allreduce(two, two),
                  lambda: theirs.Allreduce(two, numpy.ones(2, "f4"), MPI.BAND),
                  lambda: theirs.Bcast(two, size), lambda: theirs.Bcast(two, -1),
                  lambda: theirs.Reduce(two, numpy.ones(2, "f4"), root=size),
                  lambda: theirs.Allgather(three, many),
                  lambda: theirs.Reduce_scatter_block(many, three),
                  lambda: theirs.Alltoall(many, numpy.ones(2 * size + size, "f4"))):
        with pytest.raises(HpccollError):
            wrong()
    theirs.Bcast([two, MPI.FLOAT])


def test_another_wish_for_small_calls(theirs):
    with theirs.using(allreduce="recursive_doubling", bcast="binomial"):
        for turn in range(4):
            every_small(theirs, "f4", turn)
        assert {place[0] for place in theirs._context.plans.entries} >= {"allreduce", "bcast"} or (
            theirs.size == 1)
    every_small(theirs, "f4", 4)


def test_small_calls_end_with_the_communicator(world):
    first = hpccoll.Comm(world.Dup())
    second = hpccoll.Comm(first)
    for comm in (first, second):
        with comm.using(allreduce="native"):
            comm.Allreduce(numpy.ones(2), numpy.empty(2))
    with second.using(allreduce="native"):
        assert second._cache or len(second._calls) == 1
        first.Free()
        with pytest.raises(CommunicatorError):
            second.Allreduce(numpy.ones(2), numpy.empty(2))
