"""Ranks that disagree about a call: every one gets an error with the odd ranks and the field.

All ways on other numbers of ranks than three: ``TESTS_EVERY_WAY=1 mpiexec -n 8 python -m mpi4py -m
pytest --with-mpi tests/mpi/test_contract.py``, minutes. ``tests/broken.py`` shows them fail.
"""

import os
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import BrokenCommunicatorError, HpccollError
from hpccoll.errors.contract import ContractError
from hpccoll.runtime.compiled import BUILT

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
pytestmark = [pytest.mark.mpi(min_size=2)]
WISHES = {"allreduce": "recursive_doubling", "reduce": "binomial", "bcast": "binomial",
          "scan": "linear", "exscan": "linear", "reduce_scatter": "pairwise", "allgather": "ring",
          "alltoall": "pairwise", "gather": "linear", "scatter": "linear",
          "barrier": "dissemination"}
EXECUTORS = ["compiled", "python"] if BUILT else ["python"]
#: Seconds after which a rank has not learnt it at once, on a machine that is busy.
SOON = 10
#: Elements of a block: in cells, and where they lie.
SMALL, LARGE = 24, 50_000
#: Operators and element types of the same size that ranks may confuse, and the odd number.
TYPES = {"i8": "f8", "f8": "i8"}


def block(count, dtype="f8"):
    return numpy.ones(count, dtype)


def blocks(count, dtype="f8"):
    return numpy.ones(count * SIZE, dtype)


def at(root, array):
    return array if RANK == root else None


#: What is called of a count, a type, an operator and a root.
CALLS = {
    "allreduce": lambda c, n, t, op, root: c.Allreduce(block(n, t), block(n, t), op),
    "reduce": lambda c, n, t, op, root: c.Reduce(block(n, t), at(root, block(n, t)), op, root),
    "bcast": lambda c, n, t, op, root: c.Bcast(block(n, t), root),
    "scan": lambda c, n, t, op, root: c.Scan(block(n, t), block(n, t), op),
    "exscan": lambda c, n, t, op, root: c.Exscan(block(n, t), block(n, t), op),
    "reduce_scatter_block": lambda c, n, t, op, root: c.Reduce_scatter_block(
        blocks(n, t), block(n, t), op),
    "reduce_scatter": lambda c, n, t, op, root: c.Reduce_scatter(
        blocks(n, t), block(n, t), [n] * SIZE, op),
    "allgather": lambda c, n, t, op, root: c.Allgather(block(n, t), blocks(n, t)),
    "alltoall": lambda c, n, t, op, root: c.Alltoall(blocks(n, t), blocks(n, t)),
    "gather": lambda c, n, t, op, root: c.Gather(block(n, t), at(root, blocks(n, t)), root),
    "scatter": lambda c, n, t, op, root: c.Scatter(at(root, blocks(n, t)), block(n, t), root),
    "barrier": lambda c, n, t, op, root: c.Barrier()}
REDUCING = ("allreduce", "reduce", "scan", "exscan", "reduce_scatter_block", "reduce_scatter")
MOVING = ("bcast", "allgather", "alltoall", "gather", "scatter")
ROOTED = ("bcast", "reduce", "gather", "scatter")
#: Two collectives of which one rank calls the second one.
CONFUSED = [("allreduce", "bcast"), ("allreduce", "barrier"), ("scan", "exscan"),
            ("reduce", "bcast"), ("gather", "scatter"), ("allgather", "alltoall")]
#: (field, collective, collective of the odd rank)
WAYS = [*(("operator", name, name) for name in REDUCING),
        *(("dtype", name, name) for name in (*REDUCING, *MOVING)),
        *(("count", name, name) for name in (*REDUCING, *MOVING)),
        *(("root", name, name) for name in ROOTED),
        *(("collective", *pair) for pair in CONFUSED),
        ("algorithm", "allreduce", "allreduce")]


def communicator(monkeypatch, executor, shared="yes", timeout="20"):
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    monkeypatch.setenv("HPCCOLL_SHARED_MEMORY", shared)
    monkeypatch.setenv("HPCCOLL_TIMEOUT", timeout)
    return hpccoll.Comm(MPI.Intracomm(RAW).Dup())


def disagree(comm, field, usual, unusual, odd, count):
    """Call, one rank something else than the others; return the error of this rank."""
    arguments = [count, "f8", MPI.SUM, 0]
    name, wishes = usual, WISHES
    if RANK == odd:
        name = unusual
        if field == "algorithm":
            wishes = {**WISHES, "allreduce": "linear"}
        elif field != "collective":
            place = ("count", "dtype", "operator", "root").index(field)
            arguments[place] = (count + 1, "i8", MPI.MAX, 1)[place]
    with comm.using(**wishes):
        try:
            CALLS[name](comm, *arguments)
            return None
        except HpccollError as error:
            return error


def found(comm, *way, soon=True):
    """The error of this rank, at once; one that has left the call gets it from its next one."""
    start = time.monotonic()
    error = disagree(comm, *way)
    assert not soon or time.monotonic() - start < SOON, "only when the time was up"
    RAW.Barrier()
    if error is None:
        with comm.using(**WISHES), pytest.raises(ContractError) as caught:
            comm.Barrier()
        error = caught.value
    return error


def check(error, field, usual, unusual, odd):
    assert type(error) is ContractError, error
    assert error.field == field
    assert not error.absent
    names = {group.ranks: group.fields["collective"] for group in error.groups}
    others = tuple(rank for rank in range(SIZE) if rank != odd)
    assert names == {(odd,): unusual, others: usual}
    assert error.ranks == ((odd,) if SIZE > 2 else ())
    values = {group.ranks: group.fields[field] for group in error.groups}
    assert values[(odd,)] != values[others]
    assert all(value in str(error) for value in values.values() if value)


def end(comm, shared=True):
    """Every later call is refused, at once; and the communicator can be freed."""
    with comm.using(**WISHES):
        for call in (comm.Barrier, lambda: comm.Allreduce(block(3), block(3)),
                     lambda: comm.allreduce(1)):
            start = time.monotonic()
            with pytest.raises(BrokenCommunicatorError, match=r"gave up in .*ranks disagree on"):
                call()
            assert time.monotonic() - start < 5
    RAW.Barrier()
    if shared:  # else MPI has messages on the way that nobody will ever receive
        comm.Free()


#: All of them on three ranks, of which one is a minority; a sample elsewhere.
TRIED = WAYS if SIZE == 3 or os.environ.get("TESTS_EVERY_WAY") else WAYS[::6]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("way", TRIED, ids="-".join)
def test_every_rank_learns_who_differs_in_what(monkeypatch, way, executor):
    """At every minority position."""
    for odd in range(SIZE):
        comm = communicator(monkeypatch, executor)
        check(found(comm, *way, odd, SMALL), *way, odd)
        end(comm)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("way", [
    ("operator", "allreduce", "allreduce"), ("dtype", "bcast", "bcast"),
    ("count", "alltoall", "alltoall"), ("collective", "allreduce", "barrier")], ids="-".join)
def test_after_a_thousand_good_calls(monkeypatch, way, count, executor):
    comm = communicator(monkeypatch, executor)
    source, sink = block(count), block(count)
    with comm.using(**WISHES):
        for _ in range(1000 if count == SMALL else 100):
            comm.Allreduce(source, sink)
            comm.Bcast(sink, 0)
        assert (sink == SIZE).all()
    check(found(comm, *way, SIZE - 1, count), *way, SIZE - 1)
    end(comm)


def test_calls_in_another_order(monkeypatch):
    comm, source, sink = communicator(monkeypatch, ""), block(5), block(5)
    start = time.monotonic()
    with comm.using(**WISHES), pytest.raises(ContractError, match="collective in blocking call 2"):
        if RANK == 0:
            comm.Barrier()
        comm.Allreduce(source, sink)
        comm.Barrier()
    assert time.monotonic() - start < SOON
    end(comm)


def test_halves_blame_nobody(monkeypatch):
    if SIZE % 2:
        return
    comm = communicator(monkeypatch, "")
    with comm.using(**WISHES), pytest.raises(ContractError) as caught:
        comm.Allreduce(block(5), block(5), (MPI.SUM, MPI.MAX)[RANK % 2])
    assert not caught.value.ranks and caught.value.field == "operator"
    assert {group.fields["operator"] for group in caught.value.groups} == {"sum", "max"}
    assert all(__file__ in site for group in caught.value.groups for site in group.sites)
    assert all(group.sites for group in caught.value.groups)
    end(comm)


@pytest.mark.parametrize("begin", [
    lambda c, op: c.Iallreduce(block(500), block(500), op).Wait(),
    lambda c, op: started(c.Allreduce_init(block(500), block(500), op)).Wait()],
    ids=["nonblocking", "persistent"])
def test_requests(monkeypatch, begin):
    comm, start = communicator(monkeypatch, ""), time.monotonic()
    with comm.using(**WISHES), pytest.raises(ContractError, match="operator") as caught:
        begin(comm, MPI.MAX if RANK == 0 else MPI.SUM)
    assert caught.value.ranks == ((0,) if SIZE > 2 else ())
    assert time.monotonic() - start < 10  # not only when the time is up
    end(comm)


def started(request):
    request.Start()
    return request


@pytest.mark.parametrize("way", [
    ("operator", "allreduce", "allreduce"), ("count", "allreduce", "allreduce"),
    ("dtype", "allreduce", "allreduce"), ("algorithm", "allreduce", "allreduce")], ids="-".join)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_without_shared_memory(monkeypatch, way, count):
    """Where every rank waits for another one, tags that do not fit tell at once.

    With another algorithm ranks may wait for some that have no message for them: the time is up.
    """
    soon = way[0] != "algorithm"
    comm = communicator(monkeypatch, "", shared="no", **({} if soon else {"timeout": "4"}))
    check(found(comm, *way, SIZE - 1, count, soon=soon), *way, SIZE - 1)
    end(comm, shared=False)


def test_bytes_go_with_any_type(monkeypatch):
    """Where elements only move, some ranks may know them as bytes."""
    comm = communicator(monkeypatch, "")
    with comm.using(**WISHES):
        for _ in range(3):
            sink = block(8) * RANK
            comm.Bcast(sink.view("u1") if RANK == 0 else sink, 0)
            assert not sink.any()
            source, gathered = block(8) + RANK, blocks(8)
            if RANK:
                comm.Allgather(source.view("u1"), gathered.view("u1"))
            else:
                comm.Allgather(source, gathered)
            assert (gathered.reshape(SIZE, 8).T == numpy.arange(SIZE) + 1).all()
    comm.Free()


def test_off_compares_nothing(monkeypatch):
    monkeypatch.setenv("HPCCOLL_CONTRACT", "off")
    comm = communicator(monkeypatch, "")
    with comm.using(**WISHES):
        comm.Allreduce(block(5), block(5), MPI.MAX if RANK else MPI.SUM)
    comm.Free()


def test_the_levels_must_be_the_same(monkeypatch):
    monkeypatch.setenv("HPCCOLL_CONTRACT", "off" if RANK else "tags")
    comm = communicator(monkeypatch, "")
    with comm.using(**WISHES), pytest.raises(HpccollError, match="HPCCOLL_CONTRACT.*'off' on rank"):
        comm.Allreduce(block(5), block(5))


@pytest.mark.parametrize("wish", ["native", "auto", "recursive_doubling"])
@pytest.mark.parametrize("field", ["operator", "count", "collective", "objects"])
def test_always_compares_before_a_buffer_is_touched(monkeypatch, field, wish):
    """Calls of the MPI library's included; no rank gets away without an error."""
    comm = hpccoll.Comm(communicator(monkeypatch, ""), contract="always")
    sink, good = numpy.zeros(SMALL), numpy.zeros(SMALL)
    with comm.using(**{**WISHES, "allreduce": wish}):
        for turn in range(5):
            comm.Allreduce(block(SMALL) * turn, good)
            comm.Barrier()
            assert comm.allreduce(1) == SIZE
            assert (good == turn * SIZE).all()
        count = SMALL - (field == "count" and RANK == 0)
        with pytest.raises(ContractError) as caught:
            if field == "collective" and RANK == 0:
                comm.Bcast(sink, 0)
            elif field == "objects" and RANK == 0:
                comm.bcast(1, 0)
            else:
                comm.Allreduce(block(count), sink[:count],
                               MPI.MAX if field == "operator" and RANK == 0 else MPI.SUM)
    assert not sink.any()
    assert caught.value.field == ("collective" if field == "objects" else field)
    assert caught.value.ranks == ((0,) if SIZE > 2 else ())
    RAW.Barrier()
    comm.Free()
