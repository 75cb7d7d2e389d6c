"""Arguments that the MPI standard and mpi4py permit, in programs that were not written for
hpccoll."""

import numpy
import pytest
from mpi.disagreeing import WISHES
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.runtime.execution.built import BUILT

D = MPI.DOUBLE
pytestmark = pytest.mark.mpi
FORMS = pytest.mark.parametrize("form", ["{}", "I{}", "{}_init"])


def finisher(comm, form):
    """Return a function that makes a call in one of its forms, and waits for it."""
    def finish(method, *args):
        request = getattr(comm, form.format(method.lower() if form[0] == "I" else method))(*args)
        if form == "{}_init":
            request.Start()
        if request is not None:
            request.Wait()
            if form == "{}_init":
                request.Free()
    return finish


@pytest.mark.parametrize("executor", ["compiled", "python"] if BUILT else ["python"])
@FORMS
def test_counts_are_arrays_of_any_integers_and_any_stride(world, monkeypatch, executor, form):
    """Of every method with counts, in each of its forms; a key of the caches is made of them."""
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm, size = hpccoll.Comm(world.Dup()), world.size
    finish = finisher(comm, form)
    table = numpy.arange(size * size).reshape(size, size) % 3 + 1

    for kind in ("i1", "u2", "i4", "u4", "i8", "u8"):
        numbers = table.astype(kind)
        for counts in (numbers[:, 0], numbers[0], numbers[::-1, 0]):
            own, many = int(counts[comm.rank]), int(counts.sum())
            wanted = numpy.repeat(numpy.arange(size), counts.astype("i8"))
            displs = numpy.cumsum(counts).astype(kind) - counts
            for _ in range(2):
                part, whole = numpy.empty(own), numpy.empty(many)
                finish("Reduce_scatter", numpy.ones(many), part, counts)
                assert (part == size).all()
                finish("Allgatherv", numpy.full(own, comm.rank * 1.), [whole, (counts, displs)])
                assert (whole == wanted).all()
                finish("Gatherv", numpy.full(own, comm.rank * 1.), [whole, counts, displs, D], 0)
                assert comm.rank or (whole == wanted).all()
                finish("Scatterv", [wanted * 1., counts], part, 0)
                assert (part == comm.rank).all()
                sent = numpy.full(size * own, comm.rank * 1.)
                finish("Alltoallv", [sent, numpy.full(size, own).astype(kind)], [whole, counts])
                assert (whole == wanted).all()
                finish("Alltoallw", [sent, (numpy.full(size, own).astype(kind),
                                            numpy.arange(size) * 8 * own), [D] * size],
                       [whole, (counts, displs.astype("i8") * 8), [D] * size])
                assert (whole == wanted).all()
    comm.Free()


@pytest.fixture(params=["auto", "ours", "python"])
def comm(world, request, monkeypatch):
    """A communicator, served as it likes or by hpccoll, also without the compiled executor."""
    if request.param == "python":
        monkeypatch.setenv("HPCCOLL_EXECUTOR", "python")
    ours = {collective: next(iter(table)) for collective, table in ALGORITHMS.items()}
    comm = hpccoll.Comm(world.Dup())
    with comm.using(**({} if request.param == "auto" else ours)):
        yield comm
    comm.Free()


@FORMS
def test_only_the_root_writes_and_reads_what_is_the_roots(comm, form):
    """Programs pass the arrays on every rank; inputs keep their values, too."""
    size, rank, finish = comm.size, comm.rank, finisher(comm, form)
    for dtype in "?bBhHiIqQfdFD":
        for root in {0, size - 1}:
            own, whole = numpy.ones(3, dtype), numpy.repeat(numpy.arange(size), 3).astype(dtype)
            for method, args in (
                    ("Reduce", (MPI.LOR if dtype == "?" else MPI.SUM,)), ("Gather", ()),
                    ("Gatherv", ())):
                got = numpy.full(3 if method == "Reduce" else 3 * size, 7).astype(dtype)
                before = got.copy()
                finish(method, own, [got, [3] * size] if method == "Gatherv" else got, *args, root)
                wanted = own.astype("O") * size if method == "Reduce" else numpy.tile(own, size)
                assert (got == (wanted.astype(dtype) if rank == root else before)).all(), method
                assert (own == 1).all()
            for method in "Scatter", "Scatterv":
                given = whole if rank == root else whole[::-1].copy()
                before, got = given.copy(), own.copy()
                finish(method, [given, [3] * size] if method == "Scatterv" else given, got, root)
                assert (got == whole[3 * rank]).all() and (given == before).all()


@pytest.mark.parametrize("kind", [D, None], ids=["double", "derived"])
def test_empty_blocks_have_any_displacement(comm, kind):
    """MPI ignores it; programs write -1. Derived datatypes are packed."""
    size, rank = comm.size, comm.rank
    kind = kind or MPI.DOUBLE.Create_contiguous(1).Commit()
    for marks in ([0] + [-1] * (size - 1), [0] + [-1000] * (size - 1)):
        counts, own = [3] + [0] * (size - 1), 3 * (rank == 0)
        one, out = numpy.full(own, 5.0), numpy.zeros(3)
        for _ in range(2):
            comm.Allgatherv([one, kind], [out, (counts, marks), kind])
            assert (out == 5).all()
            comm.Gatherv([one + 1, kind], [out, counts, marks, kind], 0)
            comm.Scatterv([out, (counts, marks), kind], [one, kind], 0)
            assert (one == 6).all()
            comm.Alltoallv([one, [own] + [0] * (size - 1), [0] + [-1] * (size - 1), kind],
                           [out, [own] + [0] * (size - 1), marks, kind])
            comm.Alltoallw([one, ([own] + [0] * (size - 1), marks), [kind] * size],
                           [out, ([own] + [0] * (size - 1), marks), [kind] * size])
            assert rank or (out == 6).all()
            one[...] = 5
    if kind != D:
        kind.Free()


@FORMS
def test_displacements_reach_back_into_a_larger_array(comm, form):
    """The address below a view belongs to its owner, a larger array or a tensor's storage."""
    size, rank, finish = comm.size, comm.rank, finisher(comm, form)
    ones, back = [1] * size, [-1 - i for i in range(size)]
    for half in (lambda whole: whole[size:], lambda whole: memoryview(whole)[size:]):
        for _ in range(3):
            whole, own = numpy.zeros(2 * size), numpy.array([rank + 1.0])
            wanted = numpy.arange(size, 0.0, -1)
            finish("Allgatherv", own, [half(whole), (ones, back), D])
            assert (whole[:size] == wanted).all() and not whole[size:].any()
            own[...] = 0
            finish("Scatterv", [half(whole), (ones, back), D], own, 0)
            assert own == rank + 1
            whole[...] = 0
            finish("Gatherv", own, [half(whole), ones, back, D], 0)
            assert (whole[:size] == wanted * (rank == 0)).all()
            given = numpy.zeros(2 * size)
            given[:size] = 10 * rank + wanted
            finish("Alltoallv", [half(given), ones, back, D], [half(whole), ones, back, D])
            assert (whole[:size] == 10 * (wanted - 1) + rank + 1).all()
            whole[...] = 0
            finish("Alltoallw", [half(given), (ones, [8 * d for d in back]), [D] * size],
                   [half(whole), (ones, [8 * d for d in back]), [D] * size])
            assert (whole[:size] == 10 * (wanted - 1) + rank + 1).all()


@pytest.mark.parametrize("preferences", [WISHES, dict.fromkeys(WISHES, "native"), {}],
                         ids=["ours", "native", "auto"])
@pytest.mark.parametrize("kind", ["u1", "i8", "f4", "c16"])
def test_data_that_only_moves_has_any_type(world, kind, preferences):
    """Between ranks, and between the buffers of one: the bytes are those of the numbers."""
    comm, size, rank = hpccoll.Comm(world.Dup()), world.size, world.rank

    def named(other, array):
        return array.view(kind) if other else array

    with comm.using(**preferences):
        for count in (8, 8, 8, 16, 24, 4096):
            sink = numpy.ones(count) * rank
            comm.Bcast(named(rank == 0, sink), 0)
            assert not sink.any()
            width = 8 * count // numpy.dtype(kind).itemsize
            for sent, received in ((rank > 0, rank > 0), (True, False), (False, True)):
                source, gathered = numpy.ones(count) + rank, numpy.ones(count * size)
                wanted = numpy.repeat(numpy.arange(size) + 1.0, count)
                comm.Allgather(named(sent, source), named(received, gathered))
                assert (gathered == wanted).all()
                comm.Scatter(named(sent, gathered), named(received, source), 0)
                assert (source == rank + 1).all()
                result = numpy.ones(count * size)
                comm.Alltoall(named(sent, gathered), named(received, result))
                assert (result == rank + 1).all()
                result = numpy.ones(count * size)
                comm.Alltoallv([named(sent, gathered), [width if sent else count] * size],
                               [named(received, result), [width if received else count] * size])
                assert (result == rank + 1).all()
                request = comm.Gather_init(named(sent, source), named(received, gathered), 0)
                gathered[...] = 0
                request.Start()
                request.Wait()
                assert rank or (gathered == wanted).all()
    comm.Free()
