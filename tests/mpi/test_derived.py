"""Elements that lie apart on some ranks and side by side on others: legal, and common at roots."""

import weakref

import numpy
import pytest
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import BufferArgumentError

pytestmark = pytest.mark.mpi
D = MPI.DOUBLE
#: One, few, and enough for the algorithms of hpccoll that are chosen by size; and none, with ours:
#: both MPI libraries lose step where one rank has no elements, and another one without any bytes.
COUNTS = 1, 7, 6151


def counts(way):
    return COUNTS if way is None else (0, *COUNTS)


class Column:
    """A column of a matrix: ``count`` elements of a datatype as long as one of them."""

    def __init__(self, values, count):
        self.matrix = numpy.full((max(count, 1), 3), -1.0)
        self.matrix[:count, 1] = values
        apart = D.Create_vector(count, 1, 3)
        self.datatype = apart.Create_resized(0, D.Get_size()).Commit()
        apart.Free()
        self.spec = [self.matrix.reshape(-1)[1:], 1, self.datatype]

    @property
    def values(self):
        return self.matrix[:, 1]

    def free(self):
        assert (self.matrix[:, ::2] == -1).all(), "what lies between was changed"
        self.datatype.Free()


class Row:
    """The same elements side by side."""

    def __init__(self, values, count):
        self.values = numpy.full(count, -1.0)
        self.values[:] = values
        self.spec = self.values

    def free(self):
        pass


def mixed(comm, number, values, count):
    """A column on every second rank, beginning with one or the other."""
    return (Column if (comm.rank + number) % 2 else Row)(values, count)


def ways(collective):
    return [None, *(name for name in ALGORITHMS[collective])]


def wishing(comm, collective, way):
    return comm.using(**({} if way is None else {collective: way}))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("way", ways("bcast"))
def test_bcast(world, way, number):
    with wishing(world, "bcast", way):
        for count in counts(way):
            buf = mixed(world, number, numpy.arange(count) + 100.0 * world.rank, count)
            world.Bcast(buf.spec, world.size - 1)
            assert (buf.values[:count] == numpy.arange(count) + 100 * (world.size - 1)).all()
            buf.free()


def blocks(comm, count):
    """Whole blocks of all ranks, as elements and as columns of a matrix of one column a rank."""
    apart = D.Create_vector(count, 1, comm.size)
    return apart, apart.Create_resized(0, D.Get_size()).Commit()


@pytest.mark.parametrize("way", ways("scatter"))
def test_scatter_of_columns(world, way):
    """The root deals out the columns of a matrix; whoever gets one has it side by side."""
    with wishing(world, "scatter", way):
        for count in counts(way):
            apart, column = blocks(world, count)
            matrix = numpy.arange(float(count * world.size)).reshape(count, world.size)
            out = numpy.full(count, -1.0)
            world.Scatter([matrix, 1, column] if world.rank == 0 else None, out, 0)
            assert (out == numpy.arange(count) * world.size + world.rank).all()
            apart.Free(), column.Free()


@pytest.mark.parametrize("vector", [False, True], ids=["", "v"])
@pytest.mark.parametrize("way", ways("gather"))
def test_gather_into_columns(world, way, vector):
    root = world.size - 1
    with wishing(world, "gather", way):
        for count in counts(way):
            apart, column = blocks(world, count)
            matrix = numpy.full((count, world.size), -1.0)
            spec = [matrix, ([1] * world.size, range(world.size)), column] if vector else [
                matrix, 1, column]
            own = numpy.arange(count) + 1000.0 * world.rank
            (world.Gatherv if vector else world.Gather)(
                own, spec if world.rank == root else None, root)
            if world.rank == root:
                assert (matrix == numpy.arange(count)[:, None] + 1000 * numpy.arange(
                    world.size)).all()
            apart.Free(), column.Free()


@pytest.mark.parametrize("way", ways("allgather"))
def test_allgather(world, way):
    """Columns on even ranks, in place on one of them; rows on the others."""
    with wishing(world, "allgather", way):
        for count in counts(way):
            apart, column = blocks(world, count)
            own = numpy.arange(count) + 1000.0 * world.rank
            if world.rank % 2:
                found = numpy.full((world.size, count), -1.0)
                world.Allgather(own, found)
            else:
                matrix = numpy.full((count, world.size), -1.0)
                matrix[:, world.rank] = own
                world.Allgather(MPI.IN_PLACE if world.rank == 0 else own, [matrix, 1, column])
                found = matrix.T
            assert (found == numpy.arange(count) + 1000 * numpy.arange(world.size)[:, None]).all()
            apart.Free(), column.Free()


@pytest.mark.parametrize("method", ["Alltoall", "Alltoallv", "Alltoallw"])
@pytest.mark.parametrize("way", ways("alltoall"))
def test_alltoall(world, way, method):
    """Rank 0 sends columns and receives them; the others have them side by side."""
    p = world.size
    with wishing(world, "alltoall", way if method == "Alltoall" else way and "pairwise"):
        for count in counts(way):
            apart, column = blocks(world, count)
            given = numpy.arange(count) + 100.0 * world.rank + 10.0 * numpy.arange(p)[:, None]
            found = numpy.full((p, count), -1.0)
            if world.rank:
                specs = [given, found] if method == "Alltoall" else [
                    [each, ([count] * p, [i * count for i in range(p)]), D]
                    for each in (given, found)] if method == "Alltoallv" else [
                    [each, ([count] * p, [8 * i * count for i in range(p)]), [D] * p]
                    for each in (given, found)]
            else:
                matrices = numpy.ascontiguousarray(given.T), numpy.full((count, p), -1.0)
                specs = [[each, 1, column] if method == "Alltoall" else
                         [each, ([1] * p, range(p)), column] if method == "Alltoallv" else
                         [each, ([1] * p, [8 * i for i in range(p)]), [column] * p]
                         for each in matrices]
            getattr(world, method)(*specs)
            found = found if world.rank else matrices[1].T
            assert (found == numpy.arange(count) + 100 * numpy.arange(p)[:, None]
                    + 10 * world.rank).all()
            apart.Free(), column.Free()


def test_persistent_and_nonblocking(world):
    """Every start packs anew; a datatype may be freed once a call has begun."""
    with world.using(allgather_init="ring", iallgather="ring"):
        apart, column = blocks(world, 5)
        own, matrix = numpy.zeros(5), numpy.zeros((5, world.size))
        row = numpy.zeros((world.size, 5))
        out = [matrix, 1, column] if world.rank == 0 else row
        request = world.Allgather_init(own, out)
        for turn in range(3):
            own[:] = numpy.arange(5) + 100 * world.rank + 1000 * turn
            matrix[:] = row[:] = -1
            request.Start()
            request.Wait()
            found = matrix.T if world.rank == 0 else row
            wanted = numpy.arange(5) + 100 * numpy.arange(world.size)[:, None] + 1000 * turn
            assert (found == wanted).all()
        request.Free()
        matrix[:] = row[:] = -1
        begun = world.Iallgather(own, out)
        column.Free()
        begun.Wait()
        assert (found == wanted).all()
        apart.Free()


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


@pytest.mark.parametrize("way", [None, "binomial"])
def test_bottom_on_one_rank(world, way):
    with wishing(world, "bcast", way):
        buf = numpy.arange(3.0) + 10 * world.rank
        if world.rank == 0:
            where = D.Create_hindexed([3], [MPI.Get_address(buf)]).Commit()
            world.Bcast([MPI.BOTTOM, 1, where], 0)
            where.Free()
        else:
            world.Bcast(buf, 0)
        assert (buf == [0, 1, 2]).all()


@pytest.mark.parametrize("array, datatype", [
    (numpy.zeros(2, "S8"), MPI.BYTE), (numpy.zeros(4, "U1"), MPI.BYTE),
    (numpy.zeros(2, "M8[s]"), MPI.INT64_T), (numpy.zeros(2, ">f8"), D)],
    ids=lambda value: str(getattr(value, "dtype", "")))
def test_the_type_that_is_given_counts(world, array, datatype):
    """Texts, times and bytes in another order have no MPI type, but bytes like everything."""
    with world.using(bcast="binomial"):
        words = numpy.arange(16, dtype="u1") + 7 * world.rank
        if world.rank == 0:
            array = array.copy()
            array.view("u1")[:] = words
            world.Bcast([array, datatype], 0)
        else:
            world.Bcast(words, 0)
        assert (words == range(16)).all() or world.rank == 0


@pytest.mark.parametrize("way", [None, "binomial", "scatter_allgather"])
def test_a_datatype_may_reach_beyond_the_array(world, way):
    """A column is named by its first element."""
    with wishing(world, "bcast", way):
        matrix = numpy.arange(20.0).reshape(5, 4) + 100 * world.rank
        column = D.Create_vector(5, 1, 4).Commit()
        world.Bcast([matrix[0, 2:], 1, column], 0)
        wanted = numpy.arange(20.0).reshape(5, 4) + 100 * world.rank
        wanted[:, 2] -= 100 * world.rank
        assert (matrix == wanted).all()
        column.Free()


@pytest.mark.parametrize("method", ["Bcast", "Alltoallw"])
def test_elements_with_gaps_beside_those_without(world, method):
    """A pair of a double and an int takes 16 bytes of memory and has 12."""
    p, count = world.size, 700
    given = numpy.zeros(p * count, numpy.dtype("f8, i4", align=True))
    given["f0"], given["f1"] = numpy.arange(p * count) + 0.5, world.rank
    together = MPI.DOUBLE_INT.Create_contiguous(count).Commit()
    if method == "Bcast":
        with world.using(bcast="scatter_allgather"):
            out = given.copy()
            world.Bcast([out, p, together] if world.rank % 2 else [out, MPI.DOUBLE_INT], 0)
        assert (out["f0"] == given["f0"]).all() and (out["f1"] == 0).all()
    else:
        out = numpy.zeros_like(given)
        types = [together] * p if world.rank % 2 else [MPI.DOUBLE_INT] * p
        each = 1 if world.rank % 2 else count
        places = [16 * count * rank for rank in range(p)]
        with world.using(alltoall="pairwise"):
            world.Alltoallw(*([memory, ([each] * p, places), types] for memory in (given, out)))
        assert (out["f0"] == (numpy.arange(count) + count * world.rank + 0.5)[None, :].repeat(
            p, 0).reshape(-1)).all()
        assert (out["f1"] == numpy.arange(p).repeat(count)).all()
    together.Free()


def test_characters_beside_bytes(world):
    with world.using(bcast="binomial"):
        for turn in range(4):
            text = bytearray(b"text of %d bytes" % turn if world.rank == 0 else bytes(15))
            world.Bcast([text, MPI.CHAR] if world.rank == 0 else text, 0)
            assert bytes(text) == b"text of %d bytes" % turn


def test_pairs_again_and_again(world):
    """Their copies are made for every call: what was prepared for one does not serve the next."""
    pairs = numpy.zeros(5, numpy.dtype("f8, i4", align=True))
    with world.using(bcast="binomial"):
        for turn in range(6):
            pairs["f0"], pairs["f1"] = turn + world.rank, turn
            world.Bcast(pairs, 0)
            assert (pairs["f0"] == turn).all() and (pairs["f1"] == turn).all()


def test_a_rank_with_nothing(world):
    counts = [5 * (rank != 0) for rank in range(world.size)]
    out = numpy.full(sum(counts), -1.0)
    with world.using(allgather="ring"):
        world.Allgatherv([None, 0, D] if world.rank == 0 else numpy.full(5, float(world.rank)),
                         [out, counts])
    assert (out == numpy.arange(world.size).repeat(counts)).all()


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs MPI.THREAD_MULTIPLE")
def test_a_datatype_freed_before_the_start(world):
    apart, column = blocks(world, 3)
    matrix = numpy.zeros((3, world.size))
    with world.using(allgather_init="ring"):
        request = world.Allgather_init(numpy.full(3, float(world.rank)), [matrix, 1, column])
    apart.Free(), column.Free()
    for _ in range(2):
        matrix[:] = -1
        request.Start()
        request.Wait()
        assert (matrix == numpy.arange(world.size)).all()
    request.Free()


def test_memory_that_is_read_only(world):
    column = D.Create_vector(2, 1, 2).Commit()
    frozen = numpy.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(BufferArgumentError, match="read-only"):
        world.Allgather(numpy.zeros(2), [frozen, 1, column])
    column.Free()


def test_datatypes_are_given_back(world):
    """100,000 calls would exhaust what MPI libraries keep of types, were they not."""
    from resource import RUSAGE_SELF, getrusage

    column, buf = D.Create_vector(2, 1, 2).Commit(), numpy.zeros(3)
    with world.using(bcast="binomial"):
        for call in range(3000):
            if call == 1000:
                before = getrusage(RUSAGE_SELF).ru_maxrss
            world.Bcast([buf, 1, column], 0)
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 400  # KiB; a type is 200 bytes and more
    column.Free()
