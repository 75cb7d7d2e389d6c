"""Every way to say what a buffer is; wrong ones are in ``test_argument_errors.py``."""

import array

import numpy
import pytest
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from support.gpu.tensors import BFLOAT, Tensor

pytestmark = pytest.mark.mpi
SIZE, RANK = MPI.COMM_WORLD.Get_size(), MPI.COMM_WORLD.Get_rank()
D = MPI.DOUBLE
ONE, ALL = numpy.ones(2), numpy.ones(2 * SIZE)


@pytest.fixture(params=["auto", "ours"])
def comm(world, request):
    """A communicator, served as it likes or by hpccoll."""
    ours = {collective: next(iter(table)) for collective, table in ALGORITHMS.items()}
    with world.using(**(ours if request.param == "ours" else {})):
        yield world


def counting(comm, count=4):
    return numpy.arange(count) + 10. * comm.rank


@pytest.mark.parametrize("form", [
    lambda b: b, lambda b: [b, 4], lambda b: (b, 4), lambda b: [b, D], lambda b: [b, "d"],
    lambda b: [b, (4, 0)], lambda b: [b, [4, 0]], lambda b: [b, 4, D], lambda b: [b, 4, "d"],
    lambda b: [b, (4, 0), D], lambda b: [b, 4, 0, D], lambda b: [b, 4, None],
    lambda b: [b, None, D],
    lambda b: [b, (4, None), None], lambda b: [b.reshape(2, 2), D], lambda b: b.reshape(2, 2).T,
    lambda b: memoryview(b), lambda b: [memoryview(b).cast("B"), 4, D],
    lambda b: [b, numpy.int64(4), D]])
def test_simple_forms(comm, form):
    given, out = counting(comm), numpy.full(4, numpy.nan)
    comm.Allreduce(form(given), form(out))
    assert (out == comm.size * numpy.arange(4) + 10 * sum(range(comm.size))).all()
    buf = counting(comm)
    comm.Bcast(form(buf), comm.size - 1)
    assert (buf == numpy.arange(4) + 10 * (comm.size - 1)).all()


def test_displacements_are_elements(comm):
    given, out = counting(comm, 6), numpy.full(6, -1.)
    comm.Allreduce([given, (3, 2), D], [out, 3, 1, D])
    wanted = comm.size * numpy.arange(2, 5) + 10 * sum(range(comm.size))
    assert out[0] == -1 and (out[1:4] == wanted).all() and (out[4:] == -1).all()


def test_the_rest_of_the_buffer_counts_from_a_displacement(comm):
    given, out = counting(comm, 5), numpy.full(5, -1.)
    comm.Allreduce([given, (None, 2), D], [out, (None, 2), D])
    assert (out[:2] == -1).all()
    assert (out[2:] == comm.size * numpy.arange(2, 5) + 10 * sum(range(comm.size))).all()


def test_a_given_count_is_that_of_one_block(comm):
    size, given = comm.size, counting(comm, 2)
    out = numpy.full(2 * size + 1, -1.)
    comm.Allgather([given, 2, D], [out, 2, D])
    assert (out[:-1].reshape(size, 2) == numpy.arange(2) + 10. * numpy.arange(size)[:, None]).all()
    assert out[-1] == -1
    blocks = numpy.arange(2. * size) + 100 * comm.rank
    comm.Alltoall(blocks, [out, 2, D])
    wanted = 100. * numpy.arange(size)[:, None] + 2 * comm.rank + numpy.arange(2)
    assert (out[:-1].reshape(size, 2) == wanted).all()
    part = numpy.full(2, -1.)
    comm.Reduce_scatter_block([blocks, 2, D], part)
    assert (part == 100 * sum(range(size)) + size * (2 * comm.rank + numpy.arange(2))).all()
    comm.Scatter([blocks, 2, D] if comm.rank == 0 else None, [part, 2, D])
    assert (part == 2 * comm.rank + numpy.arange(2)).all()


@pytest.mark.parametrize("form", [
    lambda b, c, d: [b, c], lambda b, c, d: (b, c, D), lambda b, c, d: [b, (c, None)],
    lambda b, c, d: [b, (c, d)], lambda b, c, d: [b, (c, d), D], lambda b, c, d: [b, c, d, "d"],
    lambda b, c, d: [b, tuple(c), tuple(d), D],
    lambda b, c, d: [b, numpy.array(c), numpy.array(d), D],
    lambda b, c, d: [b, array.array("i", c), array.array("l", d), D]])
def test_vector_forms(comm, form):
    counts = [(r + 1) % 3 for r in range(comm.size)]
    displs = [sum(counts[:r]) for r in range(comm.size)]
    out = numpy.full(sum(counts), numpy.nan)
    comm.Allgatherv(numpy.full(counts[comm.rank], float(comm.rank)),
                    form(out, counts, displs))
    assert out.tolist() == [float(r) for r in range(comm.size) for _ in range(counts[r])]


def test_vector_forms_with_numbers(comm):
    size, out = comm.size, numpy.full(3 * comm.size, -1.)
    comm.Allgatherv(counting(comm, 2), [out, 2, 3, D])  # a stride of three
    assert (out.reshape(size, 3) == [[10. * r, 10. * r + 1, -1] for r in range(size)]).all()
    out = numpy.full(2 * size + 1, -1.)
    comm.Allgatherv(counting(comm, 3 if comm.rank == 0 else 2), out)  # split evenly
    assert out[:3].tolist() == [0, 1, 2] and (out >= 0).all()


def test_two_numbers_are_a_stride_in_a_tuple_and_counts_in_a_list(comm):
    if comm.size != 2:
        return
    for _ in range(3):  # both are kept, and found again
        out = numpy.full(7, -1.)
        comm.Allgatherv(counting(comm, 2), [out, (2, 5)])
        assert out.tolist() == [0, 1, -1, -1, -1, 10, 11]
        comm.Allgatherv(counting(comm, 2 if comm.rank == 0 else 5), [out, [2, 5]])
        assert out.tolist() == [0, 1, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("form", [
    lambda b, n: [b, [D] * n], lambda b, n: [b, ([1] * n, [0] * n), [D] * n],
    lambda b, n: [b, [1] * n, [0] * n, [D] * n]])
def test_w_forms(comm, form):
    given, out = counting(comm, 1), numpy.full(1, numpy.nan)
    if comm.size == 1:
        comm.Alltoallw(form(given, 1), form(out, 1))
        assert out == given
    else:
        places = [8 * r for r in range(comm.size)]
        out = numpy.full(comm.size, numpy.nan)
        comm.Alltoallw(form(given, comm.size), [out, ([1] * comm.size, places), [D] * comm.size])
        assert (out == 10. * numpy.arange(comm.size)).all()


@pytest.mark.parametrize("make", [
    lambda: bytearray(range(3)), lambda: array.array("h", range(3)),
    lambda: MPI.memory.fromaddress(0, 0), lambda: numpy.arange(3, dtype="u1")])
def test_objects_with_a_buffer(comm, make):
    given, out = make(), make()
    comm.Allreduce(given, out)
    assert list(out) == [comm.size * value for value in given]


def test_scalars_and_empty_arrays(comm):
    out = numpy.array(0.)
    comm.Allreduce(numpy.array(2.), out)
    assert out == 2 * comm.size
    comm.Allreduce(numpy.empty(0), numpy.empty((3, 0)))


def test_derived_types_and_bottom_are_for_the_mpi_library(comm):
    column = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    buf = numpy.arange(6.) + 100 * comm.rank
    comm.Bcast([buf, 1, column], 0)
    assert (buf[::2] == [0, 2, 4]).all() and (buf[1::2] == [1 + 100 * comm.rank + i
                                                            for i in (0, 2, 4)]).all()
    column.Free()
    buf = numpy.full(2, float(comm.rank))
    where = MPI.DOUBLE.Create_hindexed([2], [MPI.Get_address(buf)]).Commit()
    comm.Bcast([MPI.BOTTOM, 1, where], 0)
    assert (buf == 0).all()
    where.Free()


def test_none_means_in_place(comm):
    both = counting(comm)
    comm.Allreduce(None, both)
    assert (both == comm.size * numpy.arange(4) + 10 * sum(range(comm.size))).all()


# -- odd memory that mpi4py takes
@pytest.fixture(params=["{}", "I{}", "{}_init"])
def way(request):
    return request.param


def finish(comm, way, method, *args):
    """Call a method in one of the three ways, to the end."""
    request = getattr(comm, way.format(method if way[0] == "{" else method.lower()))(*args)
    if request is not None:
        if way == "{}_init":
            request.Start()
        request.Wait()
        if way == "{}_init":
            request.Free()


@pytest.mark.parametrize("root", {0, SIZE - 1})
def test_memory_of_other_kinds(comm, way, root):
    data = bytes(range(5))
    for make in (bytearray, lambda: memoryview(bytearray(5)), lambda: numpy.zeros(5, "u1"),
                 lambda: [bytearray(5), 5, MPI.BYTE], lambda: [bytearray(5), "B"],
                 lambda: MPI.memory.allocate(5)):
        got = make() if make is not bytearray else bytearray(5)
        finish(comm, way, "Bcast", data if RANK == root else got, root)
        obj = got[0] if isinstance(got, list) else got
        assert bytes(obj) == data or RANK == root
    got = Tensor([1, 2, 3] if RANK == root else [0, 0, 0])
    finish(comm, way, "Bcast", got, root)
    assert got.array.tolist() == [1, 2, 3]


def test_tensors(comm, way):
    got = Tensor([0, 0, 0])
    finish(comm, way, "Allreduce", Tensor([1, 2, RANK]), got)
    assert got.array.tolist() == [SIZE, 2 * SIZE, sum(range(SIZE))]
    finish(comm, way, "Allreduce", MPI.IN_PLACE, got)
    assert got.array.tolist() == [SIZE * SIZE, 2 * SIZE * SIZE, SIZE * sum(range(SIZE))]
    for code in (None, BFLOAT):  # which are only moved
        every = Tensor([0] * SIZE, code=code)
        finish(comm, way, "Allgather", Tensor([RANK], code=code), every)
        assert every.array.tolist() == list(range(SIZE))
        finish(comm, way, "Allgatherv", [Tensor([RANK + 1], code=code), MPI.UINT16_T],
               [every, [1] * SIZE, MPI.UINT16_T])
        assert every.array.tolist() == list(range(1, SIZE + 1))


@pytest.mark.parametrize("root", {0, SIZE - 1})
def test_none_where_a_rank_has_nothing(comm, way, root):
    here, out = RANK == root, numpy.zeros(2)
    finish(comm, way, "Reduce", ONE, out if here else None, MPI.SUM, root)
    assert (out == (SIZE if here else 0)).all()
    every = numpy.zeros(2 * SIZE)
    for method in ("Gather", "Gatherv"):
        finish(comm, way, method, ONE, every if here else None, root)
        assert (every == (1 if here else 0)).all()
        finish(comm, way, method, None if here else ONE, every if here else "nothing", root)
    for method in ("Scatter", "Scatterv"):
        out[:] = 0
        finish(comm, way, method, ALL if here else None, out, root)
        assert (out == 1).all()
        finish(comm, way, method, ALL.copy() if here else object(), None if here else out, root)
    nothing = [None, 0, D]
    finish(comm, way, "Allgatherv", nothing, [None, [0] * SIZE, D])
    finish(comm, way, "Allreduce", nothing, [None, 0, D])
    finish(comm, way, "Bcast", nothing, root)


@pytest.mark.parametrize("root", {0, SIZE - 1})
def test_absolute_addresses(comm, way, root):
    buf = numpy.full(3, float(RANK))
    where = D.Create_hindexed([3], [MPI.Get_address(buf)]).Commit()
    finish(comm, way, "Bcast", [MPI.BOTTOM, 1, where], root)
    assert (buf == root).all()
    where.Free()
    if MPI.Get_library_version().startswith("Open MPI"):
        return  # it refuses absolute displacements itself
    every = numpy.zeros(SIZE)
    places = [MPI.Get_address(every) + 8 * r for r in range(SIZE)]
    finish(comm, way, "Allgatherv", [numpy.array([float(RANK)]), MPI.BYTE],
           [MPI.BOTTOM, ([8] * SIZE, places), MPI.BYTE])
    assert every.tolist() == list(range(SIZE))


def test_typed_memory_of_any_kind(comm, way):
    """Where a type is given, that of the elements does not matter."""
    texts = numpy.array(["ab", "cd"] if RANK == 0 else ["", ""], "U2")
    finish(comm, way, "Bcast", [texts, MPI.BYTE], 0)
    assert texts.tolist() == ["ab", "cd"]
    times = numpy.array([7, 8] if RANK == 0 else [0, 0], "M8[s]")
    finish(comm, way, "Bcast", times.view("i8"), 0)
    assert times.astype("i8").tolist() == [7, 8]
    swapped = numpy.array([7, 8] if RANK == 0 else [0, 0], ">f8")
    finish(comm, way, "Bcast", [swapped, MPI.BYTE], 0)
    assert swapped.tolist() == [7, 8]


def test_user_operators_on_derived_types(comm, way):
    """Only the MPI library can apply them."""
    pairs = D.Create_contiguous(2).Commit()

    def add(left, right, datatype):
        total = numpy.frombuffer(right, "f8")
        total += numpy.frombuffer(left, "f8")

    op, out = MPI.Op.Create(add, commute=True), numpy.zeros(4)
    finish(comm, way, "Allreduce", [numpy.arange(4.0), 2, pairs], [out, 2, pairs], op)
    assert (out == SIZE * numpy.arange(4)).all()
    op.Free()
    pairs.Free()
