"""Calls on the same arrays again: what may have changed in between, and must not go unseen."""

import weakref

import numpy
import pytest
from mpi4py import MPI

VIEWS = pytest.mark.parametrize("form", [lambda array: array, lambda array: array[:]],
                                ids=["owner", "view"])


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


def hits(comm):
    """Counts the calls that are recognised by their arrays."""
    seen = []
    for number, (*call, same, execution) in comm._shapes.repeats.items():
        def noted(source, sink, same=same):
            seen.append(same(source, sink))
            return seen[-1]
        comm._shapes.repeats[number] = *call, noted, execution
    return seen


@VIEWS
def test_arrays_are_recognised(ours, form):
    source, sink = settled(ours, form)
    if ours.size > 1:
        seen = hits(ours)
        check(ours, source, sink, 7)
        assert seen == [True]


@VIEWS
def test_in_place(ours, form):
    sink = form(numpy.empty(5))
    for turn in range(5):
        check(ours, MPI.IN_PLACE, sink, turn)
    if ours.size > 1:
        seen = hits(ours)
        check(ours, MPI.IN_PLACE, sink, 7)
        check(ours, form(numpy.empty(5)), sink, 8)
        assert seen == [True, False]


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
        ours._state.prepared.clear()
    for turn in range(5):
        check(ours, source, sink, turn)


@VIEWS
def test_what_failed_half_way_is_not_started_again(ours, form):
    source, sink = settled(ours, form)
    if ours.size > 1:
        execution = ours._shapes.repeats[id(sink)][3]

        def fails():
            raise RuntimeError("half way")

        execution.hot = [((), fails, None, ())]
        with pytest.raises(RuntimeError, match="half way"):
            ours.Allreduce(source, sink)
    for turn in range(5):
        check(ours, source, sink, turn)
