"""Malformed buffers: an error of hpccoll's, on the rank that has one, before any message.

One rank alone makes every call: if anything were sent, it would wait for the others. And what looks
odd but has a meaning to mpi4py keeps it.
"""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError, HpccollError
from support.gpu.tensors import BFLOAT, FLOAT8_E4M3FN, StubbornDeviceArray, StubbornTensor, Tensor

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
D = MPI.DOUBLE
ONE, ALL = numpy.ones(2), numpy.ones(2 * SIZE)
BLOCKS = [ALL, ([2] * SIZE, [16 * r for r in range(SIZE)]), [D] * SIZE]
OPERATOR = ("op", MPI.SUM)

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
CASES = [(method, position, argument) for method, parts in METHODS.items()
         for position, (argument, _) in enumerate(parts)]


@pytest.fixture(scope="module", params=["auto", "ours"])
def comm(request):
    """A communicator that has everything it needs, served as it likes or by hpccoll."""
    made = hpccoll.Comm(MPI.Intracomm(WORLD).Dup())
    ours = {collective: next(iter(table)) for collective, table in ALGORITHMS.items()}
    with made.using(**(ours if request.param == "ours" else {})):
        made.layout
        made.Allreduce(ONE, ONE.copy())
        for _ in range(3):  # calls like these are not looked at as closely any more
            made.Reduce(ONE, ONE.copy())
        yield made
    made.Free()


def in_turn(comm, call):
    """Let every rank call alone."""
    for rank in range(SIZE):
        if rank == RANK:
            call()
        comm.Barrier()


def refuses(comm, name, args, argument, builtin=ValueError):
    """The call raises an error that names the argument and says what to do."""
    before = [arg.tobytes() for arg in args if isinstance(arg, numpy.ndarray)]
    with pytest.raises(HpccollError) as caught:
        getattr(comm, name)(*args)
    error = caught.value
    assert isinstance(error, builtin) and isinstance(error, ArgumentError), error
    assert error.argument == argument and str(error).startswith(f"{argument}: "), error
    assert before == [arg.tobytes() for arg in args if isinstance(arg, numpy.ndarray)]


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
@pytest.mark.parametrize("method, position, argument", CASES)
def test_one_rank_alone_gets_an_error(comm, way, method, position, argument):
    name = way.format(method if way[0] == "{" else method.lower())
    parts = [value for _, value in METHODS[method]]

    def calls():
        for spec, builtin in MALFORMED.values() if argument in ("buf", "sendbuf", "recvbuf") else [
                (other, ValueError) for other in OTHERS[argument]]:
            if method == "Alltoallw":
                # Its specifications are others: only the buffer in them may be malformed like this.
                if isinstance(spec, (list, numpy.ndarray)) or type(spec) is type(MPI.BOTTOM):
                    continue
                spec = [spec, *BLOCKS[1:]]
                builtin = ValueError
            args = [*parts[:position], spec, *parts[position + 1:]]
            refuses(comm, name, args, argument, builtin)

    in_turn(comm, calls)
    works(comm)


def works(comm):
    """Nobody is left waiting, and no stray message is there to be received."""
    out = numpy.zeros(1)
    comm.Allreduce(numpy.ones(1), out)
    assert out == SIZE


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
@pytest.mark.parametrize("method, argument", [
    (method, argument) for method, _, argument in CASES
    # A root that scatters has its own block in place if there is no output.
    if argument == "buf" or argument == "recvbuf" and not method.startswith("Scatter")])
def test_none_where_a_buffer_is_needed(comm, way, method, argument):
    name = way.format(method if way[0] == "{" else method.lower())
    args = [None if name == argument else value for name, value in METHODS[method]]
    in_turn(comm, lambda: refuses(comm, name, args, argument))
    works(comm)


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
@pytest.mark.parametrize("spec", [5, [ALL], [ALL, 3], [ALL, [D] * (SIZE + 1)], [ALL, ["d"] * SIZE],
                                  [ALL, ([1], [0]), [D] * (SIZE + 1)], [ALL, 1, 2, 3, 4],
                                  [ALL, ([1.5] * SIZE, [0] * SIZE), [D] * SIZE],
                                  [[1.0], ([1] * SIZE, [0] * SIZE), [D] * SIZE]], ids=str)
@pytest.mark.parametrize("position", [0, 1])
def test_blocks_of_several_types(comm, way, spec, position):
    args = [value for _, value in METHODS["Alltoallw"]]
    args[position] = spec
    name = way.format("Alltoallw" if way[0] == "{" else "alltoallw")
    in_turn(comm, lambda: refuses(comm, name, args, ("sendbuf", "recvbuf")[position]))
    works(comm)


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
@pytest.mark.parametrize("method", ["Reduce", "Allreduce", "Scan", "Exscan"])
def test_float8_of_other_frameworks_is_not_added_as_bytes(comm, way, method):
    name = way.format(method if way[0] == "{" else method.lower())
    args = [value for _, value in METHODS[method]]
    args[:2] = [Tensor(dtype="u1", code=FLOAT8_E4M3FN) for _ in range(2)]
    in_turn(comm, lambda: refuses(comm, name, args, "recvbuf"))
    works(comm)


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
def test_buffers_that_do_not_go_together_where_mpi4py_looks(comm, way):
    """Each is for mpi4py, which raises before it sends anything."""
    name = way.format("Allreduce" if way[0] == "{" else "allreduce")
    two = Tensor((0, 0)), Tensor((0, 0, 0))
    in_turn(comm, lambda: refuses(comm, name, [*two, MPI.SUM], "sendbuf"))
    in_turn(comm, lambda: refuses(comm, name, [[1.0, 2.0], two[0], MPI.SUM], "sendbuf"))
    in_turn(comm, lambda: refuses(comm, name, [two[0], two[0], "sum"], "op"))
    works(comm)


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
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


@pytest.mark.parametrize("way", ["{}", "I{}", "{}_init"])
def test_a_reduce_scatter_that_has_to_ask_for_its_counts(comm, way):
    name = way.format("Reduce_scatter" if way[0] == "{" else "reduce_scatter")
    out = numpy.zeros(2)
    if way == "{}":
        comm.Reduce_scatter(ALL, out, None)
        assert (out == SIZE).all()
    for args, argument in (([MPI.IN_PLACE, ALL.copy()], "recvcounts"), (["x", out], "sendbuf"),
                           ([ALL, [1.0]], "recvbuf"), ([ALL, out, None, "sum"], "op")):
        in_turn(comm, lambda: refuses(comm, name, args, argument))
    works(comm)


# -- what mpi4py serves ----------------------------------------------------------------------
def finish(comm, way, method, *args):
    """Call a method in one of the three ways, to the end."""
    request = getattr(comm, way.format(method if way[0] == "{" else method.lower()))(*args)
    if request is not None:
        if way == "{}_init":
            request.Start()
        request.Wait()
        if way == "{}_init":
            request.Free()


@pytest.fixture(params=["{}", "I{}", "{}_init"])
def way(request):
    return request.param


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


@pytest.mark.parametrize("set_up", [False, True])
def test_the_error_handler_of_the_communicator_is_called(set_up):
    """For errors of MPI's, with their class, as the library does; not for those of mpi4py's own.

    Looked at as well: registered and other device memory, which take the same way; errors of the
    library's, which has called the handler; of requests, which have no handler of their own.
    """
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
