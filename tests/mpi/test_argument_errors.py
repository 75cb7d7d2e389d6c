"""Arguments that are wrong: an error of hpccoll's, on the rank that has one, before any message.

``rows`` lists calls, the type of the error, the argument that its message names, and other words
of it. One rank alone makes every call: if anything were sent, it would wait for the others. What
looks odd but has a meaning to mpi4py is in ``test_specifications.py``.
"""

import re
from typing import Any, NamedTuple

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
from support.gpu.tensors import FLOAT8_E4M3FN, StubbornDeviceArray, StubbornTensor, Tensor

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
D = MPI.DOUBLE
ONE, ALL = numpy.ones(2), numpy.ones(2 * SIZE)
BLOCKS = [ALL, ([2] * SIZE, [16 * r for r in range(SIZE)]), [D] * SIZE]
OPERATOR = ("op", MPI.SUM)
WAYS = ("{}", "I{}", "{}_init")

#: Arguments of every method, in order, and those of them that are buffers and must be.
METHODS = {
    "Bcast": [("buf", ONE), ("root", RANK)],
    "Reduce": [("sendbuf", ONE), ("recvbuf", ONE.copy()), OPERATOR, ("root", RANK)],
    "Allreduce": [("sendbuf", ONE), ("recvbuf", ONE.copy()), OPERATOR],
    "Scan": [("sendbuf", ONE), ("recvbuf", ONE.copy()), OPERATOR],
    "Exscan": [("sendbuf", ONE), ("recvbuf", ONE.copy()), OPERATOR],
    "Reduce_scatter_block": [("sendbuf", ALL), ("recvbuf", ONE.copy()), OPERATOR],
    "Reduce_scatter": [("sendbuf", ALL), ("recvbuf", ONE.copy()), ("recvcounts", [2] * SIZE),
                       OPERATOR],
    "Allgather": [("sendbuf", ONE), ("recvbuf", ALL.copy())],
    "Allgatherv": [("sendbuf", ONE), ("recvbuf", ALL.copy())],
    "Gather": [("sendbuf", ONE), ("recvbuf", ALL.copy()), ("root", RANK)],
    "Gatherv": [("sendbuf", ONE), ("recvbuf", ALL.copy()), ("root", RANK)],
    "Scatter": [("sendbuf", ALL), ("recvbuf", ONE.copy()), ("root", RANK)],
    "Scatterv": [("sendbuf", ALL), ("recvbuf", ONE.copy()), ("root", RANK)],
    "Alltoall": [("sendbuf", ALL), ("recvbuf", ALL.copy())],
    "Alltoallv": [("sendbuf", ALL), ("recvbuf", ALL.copy())],
    "Alltoallw": [("sendbuf", BLOCKS), ("recvbuf", [ALL.copy(), *BLOCKS[1:]])],
}
#: What is no buffer to anybody, with the built-in exception that fits.
MALFORMED = {
    "a list": ([1.0, 2.0], TypeError), "a list of one": ([1.0], ValueError),
    "an empty list": ([], ValueError), "a long list": ([1.0, 2.0, 3.0, 4.0, 5.0], ValueError),
    "lists": ([[1.0, 2.0], [3.0, 4.0]], TypeError), "a string": ("text", TypeError),
    "a number": (5, TypeError), "an object": (object(), TypeError),
    "a range": (range(2), TypeError), "objects": (numpy.zeros(2, "O"), TypeError),
    "bytes of NumPy": (numpy.zeros(2, "S3"), TypeError),
    "text of NumPy": (numpy.zeros(2, "U2"), TypeError),
    "times": (numpy.zeros(2, "M8[s]"), TypeError),
    "durations": (numpy.zeros(2, "m8[s]"), TypeError),
    "void": (numpy.zeros(2, "V2"), TypeError),
    "a structure": (numpy.zeros(2, "f4, f4, i2"), TypeError),
    "byte order": (numpy.zeros(2, ">f8"), BufferError),
    "a tensor that raises": (StubbornTensor(), TypeError),
    "a device array that raises": (StubbornDeviceArray(), TypeError),
    "bottom": (MPI.BOTTOM, TypeError), "bottom with numbers": ([MPI.BOTTOM, 2, D], ValueError),
    "nothing with a count": ([None, 2, D], ValueError),
    "an unknown code": ([ONE, 2, "no such code"], TypeError),
    "a number as the type": ([ONE, 2, 5], TypeError), "no type": ([ONE, 2, MPI.DATATYPE_NULL],
                                                                  ValueError),
    "three counts": ([ONE, (1, 2, 3), D], ValueError),
    "a count with a fraction": ([ONE, 1.5, D], TypeError),
    "a dictionary of counts": ([ONE, 2, {"a": 1}, D], ValueError),
}
OTHERS = {
    "op": ["sum", None, max, MPI.OP_NULL, MPI.REPLACE, MPI.MAXLOC, D],
    "root": ["0", None, 0.0, -1, SIZE, 1 << 70, [0], numpy.zeros((2, 2), int), True],
    "recvcounts": ["2", 2, 2.0, [1.5] * SIZE, [[2]] * SIZE, [2] * (SIZE + 1), [-2] * SIZE,
                   [None] * SIZE, numpy.ones((SIZE, 2), int), object()],
}


def readonly(count=3):
    made = numpy.zeros(count)
    made.flags.writeable = False
    return made


class Wrong(NamedTuple):
    """A call, its error, the argument that the error names, and words of its message."""

    method: str
    args: tuple
    error: type
    argument: str
    words: str = ""


A, B, BIG, MANY = numpy.zeros(3), numpy.ones(3), numpy.zeros(8), numpy.ones(1 << 16)
PARTS = numpy.arange(12.)
FLOAT8 = Tensor(dtype="u1", code=FLOAT8_E4M3FN)
BELOW = numpy.zeros(SIZE + 5)
#: Calls that are wrong in ways of their own; the numbers of elements do not fit where no comment
#: says another thing.
WRONG = [
    Wrong("Allreduce", (A, numpy.zeros(4)), ArgumentError, "sendbuf"),
    Wrong("Allreduce", (A, B.astype("f4")), ArgumentError, "sendbuf"),
    Wrong("Allreduce", (A, readonly()), BufferError, "recvbuf"),
    Wrong("Allreduce", (A, [B, 4, D]), BufferArgumentError, "recvbuf"),
    Wrong("Allreduce", (A, [B, (2, 2), D]), BufferArgumentError, "recvbuf"),
    Wrong("Allreduce", (A, [B, -1, D]), ArgumentError, "recvbuf"),
    Wrong("Allreduce", (A, [B, 1.5, D]), ArgumentTypeError, "recvbuf"),
    Wrong("Allreduce", (BIG[:4], BIG[2:6]), BufferArgumentError, "recvbuf"),
    Wrong("Allreduce", (BIG[::2], numpy.zeros(4)), BufferArgumentError, "sendbuf"),
    # Known calls, on memory that cannot be used.
    Wrong("Allreduce", (PARTS[:4], BIG[::2]), BufferArgumentError, "recvbuf"),
    Wrong("Allreduce", (PARTS[:4], numpy.frombuffer(bytes(32), "f8")), BufferError, "recvbuf"),
    # mpi4py on MPICH raises for one buffer twice, too; it does not mean in place.
    *(Wrong(method, (both, both), BufferArgumentError, "recvbuf", "MPI.IN_PLACE")
      for method in ("Allreduce", "Scan", "Exscan") for both in (B, MANY)),
    Wrong("Reduce", (B, B, MPI.SUM, RANK), BufferArgumentError, "recvbuf", "MPI.IN_PLACE"),
    # Operators: not defined for the type, or none at all. A float8 is not added as a byte.
    *(Wrong("Allreduce", (A, B, op), ArgumentTypeError, "op") for op in (
        MPI.BAND, MPI.OP_NULL, MPI.MAXLOC)),
    Wrong("Allreduce", (A > 0, B > 0, MPI.SUM), ArgumentTypeError, "op"),
    Wrong("Allreduce", (A + 1j, B + 1j, MPI.MAX), ArgumentTypeError, "op"),
    Wrong("Scan", (A, B, MPI.BOR), ArgumentTypeError, "op"),
    Wrong("Reduce", (A, B, MPI.LXOR, RANK), ArgumentTypeError, "op"),
    *(Wrong("Allreduce", (A, B, op), ArgumentTypeError, "op", f"MPI.Op.*{remedy}")
      for op, remedy in (("sum", "MPI.SUM"), (numpy.add, "MPI.SUM"), (max, "MPI.MAX"),
                         ("MPI.PROD", "MPI.PROD"), (3, "MPI.Op.Create"))),
    *(Wrong("allreduce", (1.0, op), ArgumentTypeError, "op", remedy) for op, remedy in (
        ("sum", "MPI.SUM"), ("MPI.PROD", "MPI.PROD"), (3, "MPI.Op.Create"))),
    *(Wrong(method, (FLOAT8, FLOAT8, MPI.SUM, *root), ValueError, "recvbuf")
      for method, *root in (["Allreduce"], ["Reduce", RANK], ["Scan"], ["Exscan"])),
    # Sizes that do not go together.
    Wrong("Allgather", (A, numpy.zeros(4 * SIZE)), ArgumentError, "sendbuf"),
    Wrong("Allgather", (A, readonly(3 * SIZE)), BufferArgumentError, "recvbuf"),
    Wrong("Allgatherv", (A, [BIG, [3] * (SIZE + 1), D]), ArgumentError, "recvbuf"),
    Wrong("Alltoall", (numpy.zeros(SIZE), numpy.zeros(2 * SIZE)), ArgumentError, "sendbuf"),
    Wrong("Alltoallv", ([BIG, [9] * SIZE], [BIG.copy(), [1] * SIZE]), BufferArgumentError,
          "sendbuf"),
    Wrong("Reduce_scatter", (numpy.zeros(SIZE), numpy.zeros(2), [1] * SIZE), ArgumentError,
          "recvbuf"),
    Wrong("Reduce_scatter", (A, B, [3] * (SIZE + 1)), ArgumentError, "recvcounts"),
    Wrong("Reduce_scatter_block", (numpy.zeros(2 * SIZE), B), ArgumentError, "sendbuf"),
    # Counts that the call would have to ask the other ranks for.
    Wrong("Reduce_scatter", (MPI.IN_PLACE, ALL), ValueError, "recvcounts"),
    Wrong("Reduce_scatter", ("x", ONE), ValueError, "sendbuf"),
    Wrong("Reduce_scatter", (ALL, [1.0]), ValueError, "recvbuf"),
    Wrong("Reduce_scatter", (ALL, ONE.copy(), None, "sum"), ValueError, "op"),
    # mpi4py raises these errors.
    Wrong("Allreduce", (Tensor((0, 0)), Tensor((0, 0, 0)), MPI.SUM), ValueError, "sendbuf"),
    Wrong("Allreduce", ([1.0, 2.0], Tensor((0, 0)), MPI.SUM), ValueError, "sendbuf"),
    # Displacements below the memory that the array is a part of.
    *(Wrong("Allgatherv", (numpy.ones(1), [BELOW[below:], ([1] * SIZE, [-below - 1] * SIZE)]),
            BufferArgumentError, "recvbuf", f"displacement -{below + 1} do not fit")
      for below in (1, 5)),
    Wrong("Allgatherv", (numpy.ones(1), [BELOW, [-1] * SIZE]), ArgumentError, "recvbuf",
          "negative counts"),
    # Blocks of several types.
    *(Wrong("Alltoallw", tuple([spec, METHODS["Alltoallw"][1][1]] if name == "sendbuf"
                               else [BLOCKS, spec]), ValueError, name)
      for name in ("sendbuf", "recvbuf") for spec in (
          5, [ALL], [ALL, 3], [ALL, [D] * (SIZE + 1)], [ALL, ["d"] * SIZE],
          [ALL, ([1], [0]), [D] * (SIZE + 1)], [ALL, 1, 2, 3, 4],
          [ALL, ([1.5] * SIZE, [0] * SIZE), [D] * SIZE],
          [[1.0], ([1] * SIZE, [0] * SIZE), [D] * SIZE])),
    # Methods for objects.
    *(Wrong(method, (value, *between, root), HpccollError, "root")
      for method, value, *between in (("bcast", 1), ("reduce", 1, MPI.SUM), ("gather", 1),
                                      ("scatter", [1] * SIZE)) for root in (-1, SIZE, 1.5, None)),
    Wrong("allreduce", (1, 3), ArgumentError, "op"), Wrong("scan", (1, "sum"), ArgumentError, "op"),
    *(Wrong(method, (1, None), ArgumentError, "op") for method in ("exscan", "reduce")),
]


def rows(method):
    """Yield the wrong calls of a method."""
    parts: list[Any] = [value for _, value in METHODS.get(method, ())]
    for position, (argument, _) in enumerate(METHODS.get(method, ())):
        buffer = argument in ("buf", "sendbuf", "recvbuf")
        wrong = [*MALFORMED.values()] if buffer else [
            (value, ValueError) for value in OTHERS[argument]]
        # A root that scatters has its own block in place if there is no output.
        if argument == "buf" or argument == "recvbuf" and not method.startswith("Scatter"):
            wrong.append((None, ValueError))
        for value, error in wrong:
            if method == "Alltoallw" and value is not None:
                # Its specifications are others: only the buffer in them may be wrong like this.
                if isinstance(value, (list, numpy.ndarray)) or type(value) is type(MPI.BOTTOM):
                    continue
                value, error = [value, *BLOCKS[1:]], ValueError
            yield Wrong(method, (*parts[:position], value, *parts[position + 1:]), error, argument)
    yield from (row for row in WRONG if row.method == method)


@pytest.fixture(scope="module", params=["auto", "native", "ours"])
def comm(request):
    """A communicator that has everything it needs, and has made calls like the wrong ones."""
    made = hpccoll.Comm(MPI.Intracomm(WORLD).Dup())
    ours = {collective: next(iter(table)) for collective, table in ALGORITHMS.items()}
    made.choose(**{"auto": {}, "native": dict.fromkeys(ours, "native"), "ours": ours}[
        request.param])
    assert made.layout
    for _ in range(3):  # calls like these are not looked at as closely any more
        made.Reduce(ONE, ONE.copy())
        made.Reduce(B, B.copy())
        for both in B, MANY, ONE:
            made.Allreduce(both, both.copy())
            made.Scan(both, both.copy())
        made.Allreduce(PARTS[:4], numpy.zeros(12)[4:8])
    yield made
    made.Free()


def check(comm, name, row):
    """The call raises an error that names the argument and says what to do."""
    arrays = [arg for arg in row.args if isinstance(arg, numpy.ndarray)]
    before = [array.tobytes() for array in arrays]
    with pytest.raises(HpccollError) as caught:
        getattr(comm, name)(*row.args)
    error = caught.value
    assert isinstance(error, row.error) and isinstance(error, ArgumentError), (row, error)
    assert error.argument == row.argument, (row, error)
    assert str(error).startswith(f"{row.argument}: ") and re.search(row.words, str(error)), row
    assert before == [array.tobytes() for array in arrays], row


@pytest.mark.parametrize("way, method", [
    (way, method) for way in WAYS for method in {**METHODS, **dict.fromkeys(
        row.method for row in WRONG)} if method[0].isupper() or way == "{}"])
def test_one_rank_alone_gets_an_error(comm, way, method):
    listed = list(rows(method))
    assert listed
    for rank in range(SIZE):
        for row in listed if rank == RANK else ():
            check(comm, way.format(method if way[0] == "{" else method.lower()), row)
        comm.Barrier()
    out = numpy.zeros(1)  # no stray message is there to be received
    comm.Allreduce(numpy.ones(1), out)
    assert out == SIZE


def test_counts_that_the_ranks_are_asked_for(comm):
    out = numpy.zeros(2)
    comm.Reduce_scatter(ALL, out, None)
    assert (out == SIZE).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_predefined_operator_on_a_derived_type_is_an_error_with_a_name(way):
    """Every rank calls: some MPI libraries only look when they combine."""
    comm = hpccoll.Comm(MPI.Intracomm(WORLD).Dup())
    pairs = D.Create_contiguous(2).Commit()
    given, out = [ONE, 1, pairs], [numpy.zeros(2), 1, pairs]
    with pytest.raises(ArgumentError) as caught:
        getattr(comm, way.format("Allreduce" if way[0] == "{" else "allreduce"))(given, out)
    assert isinstance(caught.value, MPI.Exception) and caught.value.argument == "op"
    pairs.Free()
    comm.Free()


@pytest.mark.parametrize("set_up", [False, True])
def test_the_error_handler_of_the_communicator_is_called(set_up):
    """For errors of MPI's, with their class, as the library does; not for those of mpi4py's own."""
    seen, comm = [], hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    if set_up:
        assert comm.layout
    handler = MPI.Comm.Create_errhandler(
        lambda of, code: seen.append((of.handle, MPI.Get_error_class(code))))
    comm.Set_errhandler(handler)
    x, y, root, wrong = numpy.ones(2), numpy.ones(2), SIZE + 7, MPI.BAND
    for call, wanted in (
            (lambda: comm.Bcast(x, root), MPI.ERR_ROOT), (lambda: comm.Ibcast(x, root),
                                                          MPI.ERR_ROOT),
            (lambda: comm.Bcast_init(x, root), MPI.ERR_ROOT),
            (lambda: comm.Reduce(x, y, MPI.SUM, root), MPI.ERR_ROOT),
            (lambda: comm.Allreduce(x, y, wrong), MPI.ERR_OP),
            (lambda: comm.Iallreduce(x, y, wrong), MPI.ERR_OP),
            (lambda: comm.Allreduce_init(x, y, wrong), MPI.ERR_OP),
            (lambda: comm.Allreduce([x, 2, MPI.DATATYPE_NULL], y), MPI.ERR_TYPE),
            (lambda: comm.bcast(1, root), MPI.ERR_ROOT), (lambda: comm.gather(1, root),
                                                          MPI.ERR_ROOT),
            (lambda: comm.scatter([1] * SIZE, root), MPI.ERR_ROOT),
            (lambda: comm.reduce(1, MPI.SUM, root), MPI.ERR_ROOT)):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert seen == [(comm.handle, wanted)] and caught.value.Get_error_class() == wanted
        seen.clear()
    for call in (lambda: comm.Bcast([1.0], 0), lambda: comm.Allreduce(x, y, op="sum"),
                 lambda: comm.bcast(1, "root")):
        with pytest.raises((TypeError, ValueError)):
            call()
    assert not seen
    comm.Free()
    handler.Free()


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
