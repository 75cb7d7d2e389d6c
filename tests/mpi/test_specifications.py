"""Every way to say what a buffer is, and every way to say it wrong."""

import array

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import (
    ArgumentError,
    ArgumentTypeError,
    BufferArgumentError,
    CommunicatorError,
    HpccollError,
)

pytestmark = pytest.mark.mpi
D = MPI.DOUBLE


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


def readonly(count=3):
    made = numpy.zeros(count)
    made.flags.writeable = False
    return made


A, B = numpy.zeros(3), numpy.ones(3)
BIG = numpy.zeros(8)
#: Method, arguments, class of the error, name of the argument.
WRONG = [
    ("Allreduce", lambda c: (A, numpy.zeros(4)), ArgumentError, "sendbuf"),
    ("Allreduce", lambda c: (A, B.astype("f4")), ArgumentError, "sendbuf"),
    ("Allreduce", lambda c: (A, readonly()), BufferArgumentError, "recvbuf"),
    ("Allreduce", lambda c: (A, [B, 4, D]), BufferArgumentError, "recvbuf"),
    ("Allreduce", lambda c: (A, [B, (2, 2), D]), BufferArgumentError, "recvbuf"),
    ("Allreduce", lambda c: (A, [B, -1, D]), ArgumentError, "recvbuf"),
    ("Allreduce", lambda c: (A, [B, 1.5, D]), ArgumentTypeError, "recvbuf"),
    ("Allreduce", lambda c: (BIG[:4], BIG[2:6]), BufferArgumentError, "recvbuf"),
    ("Allreduce", lambda c: (BIG[::2], numpy.zeros(4)), BufferArgumentError, "sendbuf"),
    ("Allreduce", lambda c: (A, B, "sum"), ArgumentTypeError, "op"),
    ("Allreduce", lambda c: (A, B, MPI.BAND), ArgumentTypeError, "op"),
    ("Allreduce", lambda c: (A, B, MPI.OP_NULL), ArgumentTypeError, "op"),
    ("Allreduce", lambda c: (A, B, MPI.MAXLOC), ArgumentTypeError, "op"),
    ("Allreduce", lambda c: (A > 0, B > 0, MPI.SUM), ArgumentTypeError, "op"),
    ("Allreduce", lambda c: (A + 1j, B + 1j, MPI.MAX), ArgumentTypeError, "op"),
    ("Scan", lambda c: (A, B, MPI.BOR), ArgumentTypeError, "op"),
    ("Reduce", lambda c: (A, B, MPI.LXOR), ArgumentTypeError, "op"),
    ("Bcast", lambda c: (B, c.size), ArgumentError, "root"),
    ("Bcast", lambda c: (B, -1), ArgumentError, "root"),
    ("Bcast", lambda c: (B, True), ArgumentTypeError, "root"),
    ("Bcast", lambda c: (B, None), ArgumentTypeError, "root"),
    ("Bcast", lambda c: (B, 0.), ArgumentTypeError, "root"),
    ("Reduce", lambda c: (A, B, MPI.SUM, c.size), ArgumentError, "root"),
    ("Gather", lambda c: (A, numpy.zeros(3 * c.size), -2), ArgumentError, "root"),
    ("Scatter", lambda c: (numpy.zeros(3 * c.size), B, c.size), ArgumentError, "root"),
    ("Allgather", lambda c: (A, numpy.zeros(4 * c.size)), ArgumentError, "sendbuf"),
    ("Allgather", lambda c: (A, readonly(3 * c.size)), BufferArgumentError, "recvbuf"),
    ("Allgatherv", lambda c: (A, [BIG, [3] * (c.size + 1), D]), ArgumentError, "recvbuf"),
    ("Alltoall", lambda c: (numpy.zeros(c.size), numpy.zeros(2 * c.size)), ArgumentError,
     "sendbuf"),
    ("Alltoallv", lambda c: ([BIG, [9] * c.size], [BIG.copy(), [1] * c.size]),
     BufferArgumentError, "sendbuf"),
    ("Reduce_scatter", lambda c: (numpy.zeros(c.size), numpy.zeros(2), [1] * c.size),
     ArgumentError, "recvbuf"),
    ("Reduce_scatter", lambda c: (A, B, [3] * (c.size + 1)), ArgumentError, "recvcounts"),
    ("Reduce_scatter", lambda c: (A, B, [1.5] * c.size), ArgumentTypeError, "recvcounts"),
    ("Reduce_scatter", lambda c: (A, B, [[1]] * c.size), ArgumentTypeError, "recvcounts"),
    ("Reduce_scatter_block", lambda c: (numpy.zeros(2 * c.size), B), ArgumentError, "sendbuf"),
]


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
@pytest.mark.parametrize("method, arguments, error, argument", WRONG)
def test_bad_arguments_raise_everywhere_before_any_message(comm, way, method, arguments, error,
                                                           argument):
    name = way.format(method if way[0] == "{" else method.lower())
    args = arguments(comm)
    arrays = [a for a in args if isinstance(a, numpy.ndarray)]
    before = [a.copy() for a in arrays]
    with pytest.raises(error) as caught:
        getattr(comm, name)(*args)
    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument}: ")
    assert all((a == b).all() for a, b in zip(arrays, before))
    comm.Barrier()  # nobody is left waiting, and no stray message is there to be received
    out = numpy.zeros(1)
    comm.Allreduce(numpy.ones(1), out)
    assert out == comm.size


@pytest.mark.parametrize("method, args", [
    ("bcast", (1, -1)), ("bcast", (1, None)), ("reduce", (1, MPI.SUM, 99)), ("allreduce", (1, 3)),
    ("scan", (1, "sum")), ("exscan", (1, None)), ("reduce", (1, None))])
def test_bad_arguments_of_lower_case_methods(world, method, args):
    with pytest.raises(ArgumentError) as caught:
        getattr(world, method)(*args)
    assert caught.value.argument in ("root", "op")
    assert world.allreduce(1) == world.size


def test_errors_are_what_a_user_would_catch(world):
    with pytest.raises(MPI.Exception) as caught:
        world.Bcast(numpy.zeros(1), world.size)
    assert caught.value.Get_error_class() == MPI.ERR_ROOT
    with pytest.raises(MPI.Exception) as caught:
        world.Allreduce(numpy.zeros(1, "?"), numpy.zeros(1, "?"))
    assert caught.value.Get_error_class() == MPI.ERR_OP
    with pytest.raises(TypeError):
        world.Allreduce(A, B, max)
    with pytest.raises(BufferError):
        world.Allreduce(A, readonly())
    for nonsense in (object(), 1.5, [1., 2.], "text"):
        with pytest.raises((TypeError, ValueError, KeyError)):
            world.Allreduce(nonsense, B)
    for dtype in ("O", "S3", "U2", "M8[s]", "m8[s]"):
        for preferences in ({}, {"allreduce": "ring"}):
            with world.using(**preferences), pytest.raises((KeyError, BufferError, ValueError)):
                world.Allreduce(numpy.zeros(2, dtype), numpy.zeros(2, dtype))
    with pytest.raises(BufferError):
        world.Allreduce(A.astype(">f8"), B.astype(">f8"))


@pytest.mark.parametrize("count", [4, 1 << 16])
@pytest.mark.parametrize("call", [
    lambda c, b: c.Allreduce(b, b), lambda c, b: c.Iallreduce(b, b),
    lambda c, b: c.Allreduce_init(b, b), lambda c, b: c.Reduce(b, b, root=c.rank),
    lambda c, b: c.Scan(b, b), lambda c, b: c.Exscan(b, b)])
def test_the_same_buffer_twice_is_refused_as_by_mpi4py(comm, call, count):
    """However well the call is known: mpi4py on MPICH says that buffers must not be aliased.

    Was once taken for in place, so that a program could work with hpccoll and fail without.
    """
    both, other = numpy.ones(count), numpy.zeros(count)
    for _ in range(3):
        comm.Allreduce(both, other)
        comm.Scan(both, other)
    with pytest.raises(BufferArgumentError, match="MPI.IN_PLACE"):
        call(comm, both)
    assert (both == 1).all()


@pytest.mark.parametrize("op, remedy", [
    ("sum", "MPI.SUM"), (numpy.add, "MPI.SUM"), (max, "MPI.MAX"),
    ("MPI.PROD", "MPI.PROD"), (3, "MPI.Op.Create")])
def test_what_is_no_operator_is_told_which_one_is(world, op, remedy):
    with pytest.raises(ArgumentTypeError, match=f"MPI.Op.*{remedy}"):
        world.Allreduce(numpy.ones(2), numpy.ones(2), op=op)
    if not callable(op):
        with pytest.raises(ArgumentTypeError, match=remedy):
            world.allreduce(1.0, op=op)


def test_remedies_can_work(world):
    """What cannot serve is not what the error says to choose."""
    if world.size == 1:
        return
    comm = hpccoll.Comm(world.Dup(), determinism="size")
    for preference in ("native", "ring"):
        with comm.using(allreduce=preference), pytest.raises(ArgumentError) as told:
            comm.Allreduce(MPI.IN_PLACE, numpy.ones(3))
        remedy = str(told.value).partition("choose ")[2]
        assert "recursive_doubling" in remedy and preference not in remedy.split(", ")
    for name in remedy.partition(": ")[2].split(", "):
        with comm.using(allreduce=name):
            comm.Allreduce(MPI.IN_PLACE, numpy.ones(3))
    comm.Free()


def test_bytes_may_be_written_as_people_write_them(world):
    with world.using(allreduce="ring", segment_bytes="64K"):
        assert world._preferences["allreduce"].segment_bytes == 1 << 16
    assert world.explain("allreduce", "1M") == world.explain("allreduce", nbytes=1 << 20)
    with pytest.raises(ArgumentError, match="segment_bytes: .*'64Q'"):
        world.using(allreduce="ring", segment_bytes="64Q")


def test_counts_may_be_whatever_counts(comm):
    for _ in range(3):
        for count in (1, numpy.int64(1), numpy.array(1)):
            out = numpy.zeros(1)
            comm.Reduce_scatter(numpy.ones(comm.size), out, [count] * comm.size)
            assert out == comm.size


def test_none_means_in_place(comm):
    both = counting(comm)
    comm.Allreduce(None, both)
    assert (both == comm.size * numpy.arange(4) + 10 * sum(range(comm.size))).all()


@pytest.mark.parametrize("preferences, names", [
    ({"allreduce": "rings"}, "mean 'ring'"), ({"all_reduce": "ring"}, "allreduce"),
    ({"iallreduce": "nonsense"}, "ring, allpairs"), ({"allreduce": 7}, "algorithm"),
    ({"allreduce": ("ring", {"k": 2})}, "parameter"),
    ({"bcast": ("knomial", {"k": 0})}, "positive"),
    ({"segment_bytes": -1, "allreduce": "ring"}, "bytes")])
def test_unknown_algorithms_are_refused_with_a_list(world, preferences, names):
    with pytest.raises(ArgumentError, match=names):
        with world.using(**preferences):
            world.Allreduce(A, B)
            world.Bcast(B)
    world.Barrier()


@pytest.mark.parametrize("variable, text", [
    ("HPCCOLL_ALGORITHM", "allreduce=rings"), ("HPCCOLL_ALGORITHM", "allreduce"),
    ("HPCCOLL_SEGMENT_BYTES", "-1"), ("HPCCOLL_TIMEOUT", "soon"), ("HPCCOLL_TOPOLOGY", "2xx"),
    ("HPCCOLL_NO_SUCH_THING", "1")])
def test_malformed_environment_names_the_variable(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    with pytest.raises(ArgumentError) as caught:
        hpccoll.Comm(MPI.COMM_WORLD)
    assert caught.value.argument == variable and variable in str(caught.value)


@pytest.mark.parametrize("text", ["2xx", "0", "-1", "", f"{MPI.COMM_WORLD.Get_size() + 1}"])
def test_malformed_layout(text):
    with pytest.raises(ArgumentError, match="^layout: ") as caught:
        hpccoll.Comm(MPI.COMM_WORLD, layout=text)
    assert caught.value.argument == "layout"


def test_dead_communicators(world):
    wrapper, dup = hpccoll.Comm(world), world.Dup()
    other, again = hpccoll.Comm(dup), hpccoll.Comm(dup)
    out = numpy.zeros(1)
    for comm in (dup, other):
        comm.Allreduce(numpy.ones(1), out)
        comm.Allreduce(numpy.ones(1), out)
    dup.Free()
    for comm in (dup, other, again, hpccoll.Comm(), hpccoll.Comm(MPI.COMM_NULL)):
        for call in (lambda c: c.Barrier(), lambda c: c.Allreduce(numpy.ones(1), out),
                     lambda c: c.Ibarrier(), lambda c: c.Bcast_init(out), lambda c: c.bcast(1),
                     lambda c: c.allreduce(1), lambda c: c.layout, lambda c: c.Free()):
            with pytest.raises(CommunicatorError) as caught:
                call(comm)
            assert isinstance(caught.value, MPI.Exception)
            assert isinstance(caught.value, HpccollError)
    wrapper.Barrier()
    assert wrapper == world


@pytest.mark.parametrize("spoil", [
    lambda a: a[::2], lambda a: numpy.frombuffer(a.tobytes(), a.dtype)[:4]])
def test_parts_that_cannot_be_used_are_named_after_calls_like_theirs(world, spoil):
    given, out = numpy.arange(12.)[:4], numpy.zeros(12)
    bad = spoil(numpy.zeros(8))
    before = bad.tobytes()
    with world.using(allreduce="native"):
        for _ in range(3):
            world.Allreduce(given, out[4:8])
        with pytest.raises(BufferArgumentError, match="recvbuf"):
            world.Allreduce(given, bad)
    assert bad.tobytes() == before
