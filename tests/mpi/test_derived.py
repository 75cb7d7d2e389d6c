"""Derived datatypes: freed types, memory that a type alone describes, types with gaps."""

import weakref
from resource import RUSAGE_SELF, getrusage

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import BufferArgumentError

pytestmark = pytest.mark.mpi
D = MPI.DOUBLE


def column_of(comm, count):
    """A column of a matrix with one column for each rank, as long as an element."""
    apart = D.Create_vector(count, 1, comm.size)
    column = apart.Create_resized(0, D.Get_size()).Commit()
    apart.Free()
    return column


@pytest.mark.parametrize("way", ["nonblocking", pytest.param("persistent", marks=pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs MPI.THREAD_MULTIPLE"))])
def test_a_datatype_may_be_freed_while_a_request_needs_it(world, way):
    """Every start packs anew."""
    assert world.layout
    column, matrix = column_of(world, 5), numpy.zeros((5, world.size))
    own, row = numpy.zeros(5), numpy.zeros((world.size, 5))
    out = [matrix, 1, column] if world.rank == 0 else row
    with world.using(allgather_init="ring", iallgather="ring"):
        for turn in range(3 if way == "persistent" else 1):
            own[:] = numpy.arange(5) + 100 * world.rank + 1000 * turn
            matrix[:] = row[:] = -1
            if way == "nonblocking":
                request = world.Iallgather(own, out)
            elif not turn:
                request = world.Allgather_init(own, out)
            if not turn:
                column.Free()
            if way == "persistent":
                request.Start()
            request.Wait()
            found = matrix.T if world.rank == 0 else row
            wanted = numpy.arange(5) + 100 * numpy.arange(world.size)[:, None] + 1000 * turn
            assert (found == wanted).all()


def test_memory_stays_while_a_call_is_under_way(world):
    apart = D.Create_vector(1000, 1, 2).Commit()
    matrix = numpy.full(2000 * world.size, -1.0)
    alive = weakref.ref(matrix)
    world.layout  # sets it up: until then the library serves nonblocking calls
    with world.using(iallgather="ring"):
        begun = world.Iallgather(numpy.ones(1000), [matrix, 1, apart])
    del matrix
    assert alive() is not None
    begun.Wait()
    del begun
    apart.Free()


@pytest.mark.parametrize("algorithm", ["auto", "binomial", "scatter_allgather"])
def test_a_datatype_that_describes_the_memory(world, algorithm):
    """MPI.BOTTOM, and a column that is named by its first element."""
    with world.using(bcast=algorithm):
        buf = numpy.arange(3.0) + 10 * world.rank
        where = D.Create_hindexed([3], [MPI.Get_address(buf)]).Commit()
        world.Bcast(buf if world.rank else [MPI.BOTTOM, 1, where], 0)
        assert (buf == [0, 1, 2]).all()
        matrix = numpy.arange(20.0).reshape(5, 4) + 100 * world.rank
        column = D.Create_vector(5, 1, 4).Commit()
        world.Bcast([matrix[0, 2:], 1, column], 0)
        wanted = numpy.arange(20.0).reshape(5, 4) + 100 * world.rank
        wanted[:, 2] -= 100 * world.rank
        assert (matrix == wanted).all()
    where.Free(), column.Free()


@pytest.mark.parametrize("array, datatype", [
    (numpy.zeros(2, "S8"), MPI.BYTE), (numpy.zeros(4, "U1"), MPI.BYTE),
    (numpy.zeros(2, "M8[s]"), MPI.INT64_T), (numpy.zeros(2, ">f8"), D),
    (numpy.zeros(16, "u1"), MPI.CHAR)], ids=lambda value: str(getattr(value, "dtype", "")))
def test_the_type_that_is_given_counts(world, array, datatype):
    """Texts, times and bytes in another order have no MPI type, but bytes like everything."""
    with world.using(bcast="binomial"):
        for turn in range(4):
            words = numpy.arange(16, dtype="u1") + turn + 7 * world.rank
            if world.rank == 0:
                array = array.copy()
                array.view("u1")[:] = words
            world.Bcast([array, datatype] if world.rank == 0 else words, 0)
            assert world.rank == 0 or (words == numpy.arange(16) + turn).all()


@pytest.mark.parametrize("method", ["Bcast", "Alltoallw"])
def test_elements_with_gaps_beside_those_without(world, method):
    """A pair of a double and an int takes 16 bytes of memory and has 12. Copies are made anew."""
    p, count = world.size, 700
    given = numpy.zeros(p * count, numpy.dtype("f8, i4", align=True))
    together = MPI.DOUBLE_INT.Create_contiguous(count).Commit()
    odd = world.rank % 2
    for turn in range(4):
        given["f0"], given["f1"] = numpy.arange(p * count) + 0.5 + turn, world.rank
        out = given.copy() if method == "Bcast" else numpy.zeros_like(given)
        with world.using(bcast="scatter_allgather", alltoall="pairwise"):
            if method == "Bcast":
                world.Bcast([out, p, together] if odd else [out, MPI.DOUBLE_INT], 0)
                wanted = given["f0"], numpy.zeros(p * count)
            else:
                sizes = [1 if odd else count] * p, [16 * count * rank for rank in range(p)]
                world.Alltoallw(*([memory, sizes, [together if odd else MPI.DOUBLE_INT] * p]
                                  for memory in (given, out)))
                mine = given["f0"][count * world.rank:count * (world.rank + 1)]
                wanted = numpy.tile(mine, p), numpy.arange(p).repeat(count)
        assert (out["f0"] == wanted[0]).all() and (out["f1"] == wanted[1]).all()
    together.Free()


def test_ranks_with_nothing_and_with_memory_that_is_read_only(world):
    counts = [5 * (rank != 0) for rank in range(world.size)]
    out = numpy.full(sum(counts), -1.0)
    with world.using(allgather="ring"):
        world.Allgatherv([None, 0, D] if world.rank == 0 else numpy.full(5, float(world.rank)),
                         [out, counts])
    assert (out == numpy.arange(world.size).repeat(counts)).all()
    column, frozen = D.Create_vector(2, 1, 2).Commit(), numpy.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(BufferArgumentError, match="read-only"):
        world.Allgather(numpy.zeros(2), [frozen, 1, column])
    column.Free()


def test_datatypes_are_given_back(world):
    """100,000 calls would exhaust what MPI libraries keep of types, were they not."""
    column, buf = D.Create_vector(2, 1, 2).Commit(), numpy.zeros(3)
    with world.using(bcast="binomial"):
        for call in range(3000):
            if call == 1000:
                before = getrusage(RUSAGE_SELF).ru_maxrss
            world.Bcast([buf, 1, column], 0)
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 400  # KiB; a type is 200 bytes and more
    column.Free()
