"""Every upper-case collective: three ways to call it, both ways to serve it, all kinds of data."""

import contextlib
import functools

import numpy
import pytest
from mpi.cases import METHODS, cases, movements, reductions
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.calls.call import METHODS as COLLECTIVE
from hpccoll.errors import ArgumentError
from hpccoll.ir.operators import OPERATORS
from hpccoll.testing import exact

pytestmark = pytest.mark.mpi
DTYPES = "?bBhHiIlLqQefdgFDG"
#: Types and operators do not depend on the number of ranks.
FEW = pytest.mark.skipif(MPI.COMM_WORLD.size > 4, reason="four ranks do as well")


def blocking(comm, case):
    case.fill()
    getattr(comm, case.method)(*case.args)
    case.check()


def nonblocking(comm, case):
    comm.layout  # until a communicator is set up the MPI library serves its nonblocking calls
    case.fill()
    request = getattr(comm, f"I{case.method.lower()}")(*case.args)
    assert isinstance(request, MPI.Request)
    request.Wait()
    case.check()


def persistent(comm, case):
    request = getattr(comm, f"{case.method}_init")(*case.args)
    assert isinstance(request, MPI.Prequest)
    for _ in range(2):
        case.fill()
        request.Start()
        request.Wait()
        case.check()
    request.Free()


def unless_refused(way, comm, case):
    """Run a case, which some algorithms rightly refuse.

    Some need equal blocks, and a gatherv of which only the root knows all counts cannot ask for
    them without waiting.
    """
    try:
        way(comm, case)
    except ArgumentError as error:
        assert error.argument == "algorithm"
        assert case.method in ("Alltoallv", "Alltoallw", "Gatherv", "Scatterv")


def serving(collective, index):
    """Name of an algorithm for a collective, the last for -1."""
    names = list(ALGORITHMS[collective])
    return names[index % len(names)]


@pytest.mark.parametrize("way", [blocking, nonblocking, persistent])
@pytest.mark.parametrize("index", ["auto", "native", 0, -1])
def test_every_method(world, way, index):
    preferences = {collective: index if isinstance(index, str) else serving(collective, index)
                   for collective in ALGORITHMS}
    seen = set()
    with world.using(**preferences):
        for root in {0, world.size - 1}:
            for count in (0, 1, 5):
                for case in cases(world.rank, world.size, "f8", count, root):
                    unless_refused(way, world, case)
                    seen.add(case.method)
    assert seen == set(METHODS)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_every_algorithm(world, collective):
    for name in ALGORITHMS[collective]:
        with world.using(**{collective: name}):
            for case in cases(world.rank, world.size, "i4", 40, world.size // 2):
                if COLLECTIVE[case.method.lower()] == collective:
                    case.title += f" {name}"
                    try:
                        blocking(world, case)
                        blocking(world, case)
                    except ArgumentError as error:
                        assert error.argument == "algorithm"
                        assert case.method in ("Alltoallv", "Alltoallw")


@pytest.mark.parametrize("way", [blocking, nonblocking, persistent])
def test_large_messages_go_in_segments(world, way):
    with world.using(**{c: serving(c, 0) for c in ALGORITHMS}, segment_bytes=4096):
        for case in cases(world.rank, world.size, "f4", 3001, 0):
            way(world, case)


@FEW
@pytest.mark.parametrize("index", ["auto", 0])
@pytest.mark.parametrize("op", [op for op in OPERATORS.values() if not op.pairs],
                         ids=lambda op: op.name)
def test_every_operator_on_every_type_it_is_defined_on(world, op, index):
    preference = {c: index if isinstance(index, str) else serving(c, index)
                  for c in ("allreduce", "reduce", "scan", "exscan", "reduce_scatter")}
    mpi_op = getattr(MPI, op.name.upper())
    with world.using(**preference):
        for dtype in map(numpy.dtype, DTYPES):
            # These inputs overflow, which MPI leaves open; Open MPI sometimes saturates.
            overflows = op.name in ("sum", "prod") and dtype.kind in "iu"
            if op.defined_on(dtype.kind) and not (index == "auto" and overflows):
                for case in reductions(world.rank, world.size, dtype, 7, 0, op.name, mpi_op):
                    if case.method == "Allreduce" or dtype.char in "?bdF":
                        case.title += f" {dtype}"
                        blocking(world, case)


@FEW
@pytest.mark.parametrize("index", ["auto", 0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_moved_bit_by_bit(world, dtype, index):
    preference = {c: index if isinstance(index, str) else serving(c, index) for c in ALGORITHMS}
    with world.using(**preference):
        for case in movements(world.rank, world.size, dtype, 3, 0):
            blocking(world, case)


@pytest.mark.parametrize("index", ["auto", 0])
@pytest.mark.parametrize("op", ["maxloc", "minloc"])
def test_pairs_of_value_and_index(world, op, index):
    preference = {c: index if isinstance(index, str) else serving(c, index)
                  for c in ("allreduce", "reduce", "scan", "exscan", "reduce_scatter")}
    with world.using(**preference):
        for kind, value in ((MPI.DOUBLE_INT, "f8"), (MPI.FLOAT_INT, "f4"), (MPI.TWOINT, "i4"),
                            (MPI.LONG_INT, "i8"), (MPI.SHORT_INT, "i2")):
            dtype = numpy.dtype([("value", value), ("index", "i4")], align=True)
            assert dtype.itemsize == kind.Get_extent()[1]
            given, out = exact.inputs(op, dtype, world.rank, world.size, 9), numpy.zeros(9, dtype)
            wanted = exact.exact_reduction(op, dtype, range(world.size), world.size, 9)
            # NumPy has no code for such types, so mpi4py wants to be told.
            world.Allreduce([given, kind], [out, kind], getattr(MPI, op.upper()))
            assert (out == wanted).all(), (kind.Get_name(), out, wanted)


def user_op(commute):
    """Composition of affine maps as an operator: associative, and the order shows."""
    def compose(left, right, datatype):
        a, b = numpy.frombuffer(left, "c16"), numpy.frombuffer(right, "c16")
        b[...] = exact.affine(a, b)
    return hpccoll.Op.Create(compose, commute, elementwise=True)


@pytest.mark.parametrize("way", [blocking, nonblocking, persistent])
def test_an_operator_that_does_not_commute(world, way):
    op = user_op(False)
    for collective in ("allreduce", "reduce", "scan", "exscan", "reduce_scatter"):
        for name, entry in ALGORITHMS[collective].items():
            with world.using(**{collective: name}):
                for case in reductions(world.rank, world.size, "c16", 6, 0, "affine", op):
                    if COLLECTIVE[case.method.lower()] != collective:
                        continue
                    case.title += f" {name}"
                    if entry.rank_order:
                        way(world, case)
                    else:
                        with pytest.raises(ArgumentError, match="rank order"):
                            way(world, case)
    op.Free()


WHOLE = 20


def product(left, right, datatype):
    """Of matrices: an operator that needs whole vectors, as with both MPI libraries."""
    a, b = numpy.frombuffer(left), numpy.frombuffer(right)
    assert a.size == WHOLE ** 2, "a part of the vector"
    b[...] = (a.reshape(WHOLE, WHOLE) @ b.reshape(WHOLE, WHOLE)).ravel()


@pytest.mark.parametrize("settings", [
    {}, {"determinism": "run"}, {"determinism": "size"}, {"determinism": "layout"},
    {"checksums": True}], ids=str)
def test_an_operator_of_the_program_gets_whole_vectors(world, settings):
    comm, op = hpccoll.Comm(world, **settings), MPI.Op.Create(product)
    draw = [numpy.random.default_rng(rank).integers(-1, 2, (WHOLE, WHOLE)).astype("f8")
            for rank in range(comm.size)]
    wanted, out = functools.reduce(numpy.matmul, draw), numpy.zeros((WHOLE, WHOLE))
    for name, *_ in [("auto",), *ALGORITHMS["allreduce"].items()]:
        out[...] = 0
        try:
            with comm.using(allreduce=name, segment_bytes="1K"):
                comm.Allreduce(draw[comm.rank], out, op)
        except ArgumentError as error:  # on all ranks, or those without it would wait
            entry = ALGORITHMS["allreduce"][name]
            assert not (entry.keeps_vectors_whole and entry.rank_order) or settings, error
        else:
            assert numpy.array_equal(out, wanted), name
    for name in ALGORITHMS["reduce"]:
        with contextlib.suppress(ArgumentError), comm.using(reduce=name, segment_bytes="1K"):
            out[...] = 0
            comm.Reduce(draw[comm.rank], out, op, root=0)
            assert comm.rank or numpy.array_equal(out, wanted), name
    comm.Reduce(draw[comm.rank], out, op, root=0)
    assert comm.rank or numpy.array_equal(out, wanted)
    op.Free()


@pytest.mark.parametrize("index", ["auto", 0])
def test_calls_that_repeat_see_new_data(world, index):
    preference = {c: index if isinstance(index, str) else serving(c, index) for c in ALGORITHMS}
    with world.using(**preference):
        for case in cases(world.rank, world.size, "f8", 5, 0):
            for _ in range(4):
                blocking(world, case)
            for array, values in case.inputs:
                array[...] = numpy.negative(values)
            if case.method in ("Allreduce", "Scan") and case.inputs:
                getattr(world, case.method)(*case.args)
                for made, wanted, _, checked in case.outputs:
                    assert (made.array[checked] == -wanted[checked]).all(), case.title


def test_the_environment_chooses_for_all_three_ways(monkeypatch):
    monkeypatch.setenv("HPCCOLL_ALGORITHM", ";".join(
        f"{collective}={serving(collective, 1)}" for collective in ALGORITHMS))
    comm = hpccoll.Comm(MPI.COMM_WORLD.Dup())
    for way in (blocking, nonblocking, persistent):
        for case in cases(comm.rank, comm.size, "f8", 4, 0):
            way(comm, case)
        request = comm.Iallreduce(numpy.ones(3), numpy.empty(3))
        assert isinstance(request, hpccoll.comm.requests.Request)
        request.Wait()
    comm.Free()
