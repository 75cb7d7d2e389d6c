"""Ranks that disagree about a call: every one gets an error with the odd ranks and the field.

All ways on any number of ranks, and after many good calls: ``tests/fault/mismatches.py``.
``tests/broken.py`` shows them fail.
"""

import time

import numpy
import pytest
from mpi.disagreeing import (
    LARGE,
    MOVED,
    RANK,
    RAW,
    REDUCING,
    SIZE,
    SMALL,
    WAYS,
    WISHES,
    block,
    check,
    disagree,
    method_of,
    rows,
)
from mpi4py import MPI

import hpccoll
from hpccoll.comm.contract import BEGUN, MADE
from hpccoll.errors import (
    BrokenCommunicatorError,
    CollectiveTimeout,
    ForeignMessage,
    HpccollError,
)
from hpccoll.errors.contract import ContractError
from hpccoll.runtime.execution.built import BUILT

pytestmark = [pytest.mark.mpi(min_size=2)]
EXECUTORS = ["compiled", "python"] if BUILT else ["python"]
#: Seconds after which a rank has not learnt it at once, on a machine that is busy.
SOON = 10


def communicator(monkeypatch, executor, shared="yes", timeout="20"):
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    monkeypatch.setenv("HPCCOLL_SHARED_MEMORY", shared)
    monkeypatch.setenv("HPCCOLL_TIMEOUT", timeout)
    return hpccoll.Comm(MPI.Intracomm(RAW).Dup())


def found(comm, *way, soon=True):
    """The error of this rank, at once; one that has left the call gets it from a later one.

    Where every rank has left it, a barrier brings it: the ranks that find it out may have let
    others go before, who learn it in the next barrier.
    """
    start = time.monotonic()
    error = disagree(comm, *way)
    assert not soon or time.monotonic() - start < SOON, "only when the time was up"
    RAW.Barrier()
    if error is None:
        with comm.using(**WISHES), pytest.raises(ContractError) as caught:
            for _ in range(2):
                comm.Barrier()
        error = caught.value
    return error


def end(comm, shared=True):
    """Every later call is refused, at once; and the communicator can be freed."""
    with comm.using(**WISHES):
        for call in (comm.Barrier, lambda: comm.Allreduce(block(3), block(3)),
                     lambda: comm.allreduce(1)):
            start = time.monotonic()
            with pytest.raises(BrokenCommunicatorError, match="disagree"):
                call()
            assert time.monotonic() - start < 5
    RAW.Barrier()
    if shared:  # else MPI has messages on the way that nobody will ever receive
        comm.Free()


#: All of them on three ranks, of which one is a minority; a sample elsewhere, and with the other
#: executor, which brings the same call hashes.
TRIED = {executor: WAYS[::step] for executor, step in zip(
    EXECUTORS, (1, 4) if SIZE == 3 else (6, 6) if SIZE <= 4 else (9,))}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("way, odd, executor", [
    pytest.param(way, number % SIZE, executor, id="-".join((*way, executor)))
    for executor, ways in TRIED.items() for number, way in enumerate(ways)])
def test_every_rank_learns_who_differs(monkeypatch, way, odd, executor):
    """The ranks are the odd one in turn."""
    comm = communicator(monkeypatch, executor)
    check(found(comm, *way, odd, SMALL), *way, odd)
    end(comm)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("way", [
    ("operator", "allreduce", "allreduce"), ("root", "bcast", "bcast"),
    ("count", "alltoall", "alltoall"), ("collective", "allreduce", "barrier")], ids="-".join)
def test_after_a_thousand_good_calls(monkeypatch, way, count, executor):
    comm = communicator(monkeypatch, executor)
    source, sink = block(count), block(count)
    with comm.using(**WISHES):
        for _ in range(1000 if count == SMALL and executor == "compiled" else 100):
            comm.Allreduce(source, sink)
            comm.Bcast(sink, 0)
        assert (sink == SIZE).all()
    check(found(comm, *way, SIZE - 1, count), *way, SIZE - 1)
    end(comm)


@pytest.mark.parametrize("way, form", [
    (("operator", "allreduce", "allreduce"), "{}"), (("operator", "allreduce", "allreduce"), "I{}"),
    (("dtype", "reduce", "reduce"), "{}"), (("dtype", "reduce", "reduce"), "I{}")],
    ids=lambda part: part if isinstance(part, str) else "-".join(part))
def test_calls_of_the_library_that_have_ended(monkeypatch, capfd, way, form):
    """It compares nothing: the data is wrong, and the next call says so."""
    comm = communicator(monkeypatch, "")
    native = dict.fromkeys(WISHES, "native")
    with comm.using(**native):
        for _ in range(100):
            comm.Barrier()
        error = disagree(comm, *way, SIZE - 1, SMALL, native, form)
        if error is None:  # some libraries notice some of them
            end_of_patience, guard = time.monotonic() + SOON, comm._private().guard
            while not guard.alarm_raised and time.monotonic() < end_of_patience:
                time.sleep(0.01)
            with pytest.raises(ContractError) as caught:
                comm.Barrier()
            error = caught.value
    check(error, *way, SIZE - 1)
    RAW.Barrier()
    told = RAW.allgather("result may be wrong" in capfd.readouterr().err)
    assert sum(told) <= 2
    end(comm)


@pytest.mark.parametrize("ends", ["program", "communicator"])
def test_calls_of_the_library_are_compared_at_the_end(monkeypatch, capfd, ends):
    """Of the communicator, or the program, if there is none after them; told once."""
    comm = communicator(monkeypatch, "")
    with comm.using(allreduce="native"):
        comm.Allreduce(block(3), block(3))
    library = comm._private().library
    monkeypatch.setattr(library, "poll", str)  # nobody looks before
    RAW.Barrier()
    with comm.using(allreduce="native"):
        comm.Allreduce(block(3), block(3), MPI.MAX if RANK == 0 else MPI.SUM)
    RAW.Barrier()
    if ends == "program":
        library.leave(0)
    comm.Free()
    told = capfd.readouterr().err
    near = RANK in (0, SIZE - 1)
    assert told.count(f"result may be wrong on rank {RANK}: ranks disagree on operator in blocking "
                      "call") == near, told


def test_calls_in_another_order(monkeypatch):
    comm, source, sink = communicator(monkeypatch, ""), block(5), block(5)
    start = time.monotonic()
    with comm.using(**WISHES), pytest.raises(ContractError, match="call 2"):
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
    comm.layout  # sets it up: until then the library serves nonblocking calls
    with comm.using(**WISHES), pytest.raises(ContractError, match="operator") as caught:
        begin(comm, MPI.MAX if RANK == 0 else MPI.SUM)
    assert caught.value.ranks == ((0,) if SIZE > 2 else ())
    assert time.monotonic() - start < 10  # not only when the time is up
    end(comm)


@pytest.mark.parametrize("field, title", [*rows(MADE), ("algorithm", "Allreduce_init")])
def test_persistent_calls_are_compared_when_they_are_made(monkeypatch, field, title):
    """Whoever serves them."""
    usual = unusual = method_of(title)
    if field == "collective":
        unusual = "allreduce"
    for served in ("native", "ours")[:1 + (usual in REDUCING)]:
        comm = communicator(monkeypatch, "")
        error = disagree(comm, field, usual, unusual, SIZE - 1, SMALL,
                         WISHES if served == "ours" else dict.fromkeys(WISHES, "native"), "{}_init")
        check(error, field, f"{usual}_init", f"{unusual}_init", SIZE - 1)
        end(comm)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("field, title", [*rows(BEGUN), ("algorithm", "Iallreduce")])
def test_nonblocking_calls_are_compared_by_their_messages(monkeypatch, field, title):
    usual = unusual = method_of(title)
    silent = field in ("collective", "algorithm")  # a rank may get no message at all
    if field == "collective":
        unusual = "allreduce"
    comm = communicator(monkeypatch, "", timeout="1" if silent else "20")
    with comm.using(**WISHES):
        comm.Barrier()
    RAW.Barrier()  # an alarm of a request does not wait for ranks in an earlier call
    error = disagree(comm, field, usual, unusual, SIZE - 1, SMALL, WISHES, "I{}")
    assert any(RAW.allgather(error is not None)), "each rank used what the others sent"
    if error is None:
        with comm.using(**WISHES), pytest.raises(HpccollError) as caught:
            comm.Barrier()
        error = caught.value
    # Whoever has only sent is in no call any more: then nobody can tell in what they differ.
    late = CollectiveTimeout if silent else ForeignMessage
    assert type(error) in (ContractError, ForeignMessage, BrokenCommunicatorError, late), error
    assert type(error) is not ContractError or error.field == field
    RAW.Barrier()
    comm.Free()


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
    comm = communicator(monkeypatch, "", shared="no", **({} if soon else {"timeout": "2"}))
    check(found(comm, *way, SIZE - 1, count, soon=soon), *way, SIZE - 1)
    end(comm, shared=False)


@pytest.mark.parametrize("way", MOVED, ids="-".join)
def test_types_of_moved_data_are_compared_before_each_call_at_always(monkeypatch, way):
    monkeypatch.setenv("HPCCOLL_CONTRACT", "always")
    comm = communicator(monkeypatch, "")
    check(found(comm, *way, SIZE - 1, SMALL), *way, SIZE - 1)
    end(comm)


def test_off_compares_nothing(monkeypatch):
    monkeypatch.setenv("HPCCOLL_CONTRACT", "off")
    comm = communicator(monkeypatch, "")
    with comm.using(**WISHES):
        comm.Allreduce(block(5), block(5), MPI.MAX if RANK else MPI.SUM)
    comm.Free()


@pytest.mark.parametrize("preference", ["native", "auto", "recursive_doubling"])
@pytest.mark.parametrize("field", ["operator", "count", "collective", "objects"])
def test_always_compares_before_a_buffer_is_touched(monkeypatch, field, preference):
    """Calls of the MPI library's included; no rank gets away without an error."""
    comm = hpccoll.Comm(communicator(monkeypatch, ""), contract="always")
    sink, good = numpy.zeros(SMALL), numpy.zeros(SMALL)
    with comm.using(**{**WISHES, "allreduce": preference}):
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
