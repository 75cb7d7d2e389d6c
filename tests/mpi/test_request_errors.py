"""Requests that fail or are misused: nobody waits for ever, and the error names the missing
ranks."""

import contextlib
import signal
import time

import numpy
import pytest
from mpi.requested import KINDS, OURS_ONLY, kinds, mine, start, summed
from mpi4py import MPI

import hpccoll
from hpccoll.comm.waitall import NATIVE
from hpccoll.errors import ArgumentError, BrokenCommunicatorError, CollectiveTimeout, HpccollError
from hpccoll.errors.contract import ContractError
from hpccoll.errors.mpi import DeadCommunicatorError, RequestError
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.progress.engine import PROGRESS

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
ODD = SIZE - 1
pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI library serves all requests")]
MISSING = CollectiveTimeout, BrokenCommunicatorError
LASTING = {name: kind for name, kind in KINDS.items() if kind.form == "init"}
I_NATIVE, INIT_NATIVE = KINDS["I-native"], KINDS["init-native"]
#: Ways to wait that have a deadline.
WAYS = {"Wait": lambda r, others: r.Wait(),
        "Waitall": lambda r, others: hpccoll.Request.Waitall([*others, r]),
        "Waitany": lambda r, others: hpccoll.Request.Waitany([r]),
        "Waitsome": lambda r, others: hpccoll.Request.Waitsome([r])}


def come_late(kind, comm, begin, request, source, sink):
    """Let the missing rank come, so that the MPI library has nothing left to do."""
    if kind.by == "native":
        if RANK != ODD:
            MPI.Request.Wait(request)
        elif kind.form == "I":
            MPI.Intracomm.Iallreduce(comm, source, sink).Wait()
        else:
            begin().Wait()
        assert (sink == SIZE).all()


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("way, kind", [
    pytest.param(way, kind, id=f"{way}-{name}") for name, kind in KINDS.items() for way in (
        WAYS if kind.form == "I" else ["Wait"])])
def test_a_rank_that_does_not_come_is_named(monkeypatch, kind, way):
    """Also beside a message that nobody sends; a failed request cannot be started again."""
    seconds = 1.0 if kind.by == "native" or way == "Waitall" else 0.3
    comm = kind.communicator(monkeypatch, seconds)
    source, sink = numpy.ones(100), numpy.zeros(100)
    begin, request = kind.prepare(comm, source, sink), None
    messages = [comm.Irecv(numpy.empty(1), RANK, 9)] if way == "Waitall" else []
    RAW.Barrier()
    if RANK != ODD:
        begun, request = time.monotonic(), begin()
        with pytest.raises(MISSING) as caught:
            WAYS[way](request, messages)
        assert 0.9 * seconds < time.monotonic() - begun < 20
        place = " is at " if seconds == 1 else ""  # ranks look for others at intervals
        assert f"rank {ODD}{place}" in str(caught.value) and "allreduce" in str(caught.value)
        if isinstance(caught.value, CollectiveTimeout):
            # Which start of a persistent request another rank is in is not known.
            assert caught.value.peers == (ODD,) or kind != I_NATIVE
            assert RANK not in caught.value.peers and caught.value.seconds == seconds
        if kind.form == "init" and kind.by != "native":
            assert request  # still to be freed
            with pytest.raises(RequestError, match="failed"):
                request.Start()
    assert not PROGRESS.operations
    RAW.Barrier()
    # Where calls are known, those who began one have disagreed with a rank that comes with another.
    errors = (ContractError, BrokenCommunicatorError) if RANK == ODD else BrokenCommunicatorError
    with comm.using(allreduce="recursive_doubling"), pytest.raises(errors, match=f"rank.*{ODD}"):
        comm.Allreduce(source, sink)
    for message in messages:
        message.Cancel()
        MPI.Request.Wait(message)
    come_late(kind, comm, begin, request, source, sink)
    RAW.Barrier()  # the communicator has messages on the way for good: not freed


@pytest.mark.parametrize("name", NATIVE)
def test_the_methods_of_mpi4py_end_where_a_rank_does_not_come(monkeypatch, name):
    """Tests in a loop, too; a null request beside it aborts MPICH's own methods."""
    kind = KINDS["I-compiled" if BUILT else "I-python"]
    comm, method = kind.communicator(monkeypatch, 0.3), getattr(MPI.Request, name)
    if RANK != ODD:
        requests = [kind.prepare(comm, numpy.ones(100), numpy.zeros(100))(),
                    MPI.Request(MPI.REQUEST_NULL)]
        begun = time.monotonic()
        with pytest.raises(MISSING):
            while time.monotonic() - begun < 20:
                method(requests)
        assert time.monotonic() - begun < 20
    RAW.Barrier()


def test_without_a_common_log_nobody_is_known_to_have_come(monkeypatch):
    comm = I_NATIVE.communicator(monkeypatch, 1, SHARED_MEMORY="no")
    source, sink, request = numpy.ones(3), numpy.zeros(3), None
    if RANK != ODD:
        request = comm.Iallreduce(source, sink)
        with pytest.raises(MISSING, match=f"rank {ODD} is alive") as caught:
            request.Wait()
        assert not isinstance(caught.value, CollectiveTimeout) or caught.value.peers == tuple(
            rank for rank in range(SIZE) if rank != RANK)
    RAW.Barrier()
    come_late(I_NATIVE, comm, None, request, source, sink)


@kinds({name: kind for name, kind in KINDS.items() if kind.by == "native"})
def test_others_see_who_waits(monkeypatch, kind):
    """In whichever request it waits: also in one that is not the last that it has begun."""
    comm, sinks = kind.communicator(monkeypatch), [numpy.zeros(3) for _ in range(2)]
    calls = [kind.prepare(comm, numpy.ones(3), sink) for sink in sinks]
    RAW.Barrier()
    if RANK != ODD:
        requests = [begin() for begin in calls]
        requests[0].Wait()
    else:
        end, guard = time.monotonic() + 5, comm._private().guard
        while time.monotonic() < end:
            seen = [one.rank for one in guard.activities()
                    if one.state == "waiting" and "native allreduce" in one.call]
            if len(seen) == SIZE - 1:
                break
        assert seen == list(range(ODD))
        requests = [begin() for begin in calls]
    MPI.Request.Waitall(requests)
    assert all((sink == SIZE).all() for sink in sinks)
    RAW.Barrier()


def test_who_fails_again_and_again_keeps_the_request_once(monkeypatch):
    comm, request = I_NATIVE.communicator(monkeypatch, 1), None
    source, sink = numpy.ones(3), numpy.zeros(3)
    if RANK != ODD:
        request = comm.Iallreduce(source, sink)
        for _ in range(3):
            with pytest.raises(MISSING):
                request.Wait()
        assert sum(one is request for one in comm._private().abandoned) == 1
    RAW.Barrier()
    come_late(I_NATIVE, comm, None, request, source, sink)


def test_who_only_tests_hears_of_it(monkeypatch):
    """Testing has no deadline of its own: it does not wait."""
    comm, request = I_NATIVE.communicator(monkeypatch, 1), None
    source, sink = numpy.ones(3), numpy.zeros(3)
    if RANK != ODD:
        request = comm.Iallreduce(source, sink)
        if RANK == 0 and SIZE > 2:
            with pytest.raises(BrokenCommunicatorError):
                while not request.Test():
                    time.sleep(0.01)
        elif SIZE > 2:
            with pytest.raises(MISSING):
                request.Wait()
        else:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert not request.Test()
    RAW.Barrier()
    come_late(I_NATIVE, comm, None, request, source, sink)


@pytest.mark.parametrize("copied", [False, True], ids=["in place", "copied"])
def test_tests_in_a_loop_end_in_every_run(monkeypatch, copied):
    """Also in a later run than the one whose tests have polled the other ranks first."""
    column, buffer = MPI.DOUBLE.Create_vector(3, 1, 2).Commit(), numpy.zeros(6)
    comm = LASTING["init-python"].communicator(monkeypatch, 0.8)
    request = comm.Bcast_init([buffer, 1, column] if copied else buffer, root=1)
    if RANK == 0:
        begun = time.monotonic()
        request.Start()
        while not request.Test():
            time.sleep(0.001)
        assert time.monotonic() - begun > 0.25  # its tests have polled
        RAW.Barrier()
        request.Start()
        with pytest.raises(CollectiveTimeout):
            while not request.Test():
                assert time.monotonic() - begun < 20, "its Test says no for ever"
                time.sleep(0.001)
    else:
        time.sleep(0.4)
        start(request).Wait()
        RAW.Barrier()
    RAW.Barrier()  # the communicator has messages on the way for good: not freed
    column.Free()


# -- what is no failure --------------------------------------------------------------------------
def test_late_is_no_failure(monkeypatch):
    """By half the deadline."""
    comm = I_NATIVE.communicator(monkeypatch, 2)
    for late in range(min(SIZE, 2)):
        if RANK == late:
            time.sleep(1)
        comm.Iallreduce(numpy.ones(3), sink := numpy.zeros(3)).Wait()
        assert (sink == SIZE).all()
    comm.Free()


def test_a_complete_one_is_not_waited_for(monkeypatch, recwarn):
    """A rank that is late to what is waited for beside it is no failure of that, nor reported."""
    comm = INIT_NATIVE.communicator(monkeypatch, 1, REPORT="0.5")
    begin = INIT_NATIVE.prepare(comm, numpy.ones(3), sink := numpy.zeros(3))
    RAW.Barrier()
    request, word = begin(), numpy.empty(1)
    message = comm.Irecv(word, (RANK - 1) % SIZE, 7)
    if RANK == 0:
        while not MPI.Request.Get_status(request):
            pass
        time.sleep(1.6)  # longer than the deadline
    else:
        hpccoll.Request.Waitall([request, message])
    sent = comm.Isend(numpy.ones(1), (RANK + 1) % SIZE, 7)
    if RANK == 0:
        hpccoll.Request.Waitall([request, message])
    sent.Wait()
    assert (sink == SIZE).all() and word[0] == 1
    assert not [one for one in recwarn if "allreduce" in str(one.message)]
    request.Free()
    comm.Free()


def test_requests_are_counted_with_blocking_calls(monkeypatch):
    """Many under way, waited for from the last to the first, among calls of both kinds."""
    comm = I_NATIVE.communicator(monkeypatch)
    sinks, requests = [numpy.zeros(3) for _ in range(20)], []
    for turn, sink in enumerate(sinks):
        requests.append(comm.Iallreduce(mine(comm, 3), sink))
        with comm.using(allreduce="native" if turn % 2 else "recursive_doubling"):
            comm.Allreduce(mine(comm, 3), out := numpy.zeros(3))
        assert (out == summed(comm, 3)).all()
    numbers = [request.number for request in requests]
    assert numbers == sorted(numbers) and RAW.allgather(numbers) == [numbers] * SIZE
    for request in reversed(requests):
        request.Wait()
    assert all((sink == summed(comm, 3)).all() for sink in sinks)
    comm.Free()


def test_ctrl_c_leaves_the_wait_and_not_the_request(monkeypatch):
    comm, sink = I_NATIVE.communicator(monkeypatch), numpy.zeros(3)
    if RANK == 0:
        request = comm.Iallreduce(numpy.ones(3), sink)

        def interrupt(*_):
            raise KeyboardInterrupt
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(KeyboardInterrupt):
                request.Wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        RAW.Barrier()
    else:
        RAW.Barrier()
        request = comm.Iallreduce(numpy.ones(3), sink)
    request.Wait()
    assert (sink == SIZE).all()
    comm.Barrier()
    comm.Free()


# -- misuse --------------------------------------------------------------------------------------
@pytest.fixture
def comm(monkeypatch, kind):
    comm = kind.communicator(monkeypatch)
    yield comm
    comm.Free()
    assert not PROGRESS.operations


@pytest.fixture
def kind():
    return KINDS["I-python"]


@kinds(OURS_ONLY)
def test_misuse_is_loud(kind, comm):
    begin, out = kind.prepare(comm, mine(comm, 9), out := numpy.empty(9)), out
    if RANK:
        RAW.Barrier()
    request = begin()
    wrong = {"cancelled": (request.Cancel, request.cancel)}
    if RANK == 0:  # it has to wait for the others
        wrong |= {"pending": (request.Free,)} if kind.form == "I" else {
            "active": (request.Start, request.Free)}
    for words, calls in wrong.items():
        for call in calls:
            with pytest.raises(RequestError, match=words) as caught:
                call()
            assert isinstance(caught.value, MPI.Exception)
    if RANK == 0:
        RAW.Barrier()
    request.Wait()
    assert (out == summed(comm, 9)).all()
    if kind.form == "init":
        begin().Wait()
        request.Free()
        for call in (request.Start, request.Free):
            with pytest.raises(RequestError, match="freed"):
                call()
        request.free()


@kinds({name: kind for name, kind in LASTING.items() if kind.by != "native"})
def test_a_request_may_outlive_its_communicator(kind, monkeypatch):
    comm = kind.communicator(monkeypatch)
    request = kind.prepare(comm, mine(comm), numpy.empty(4))()
    request.Wait()
    comm.Free()
    with pytest.raises(DeadCommunicatorError, match="communicator"):
        request.Start()
    request.Free()


def test_more_requests_than_tags_if_they_are_freed(comm):
    """Each rank frees in an order of its own, and starts what it prepared while others free."""
    given, out = mine(comm), numpy.empty(4)
    kept, turns = comm.Allreduce_init(given, out), comm._private()._turns
    comm._private()._persistent = turns - 6  # the others are taken to be in use
    for _ in range(5):
        requests = [comm.Allreduce_init(given, out) for _ in range(5)]
        for request in requests:
            out[:] = 0
            start(request).Wait()
            assert (out == summed(comm)).all()
        for request in requests[::1 if RANK % 2 else -1]:
            request.Free()
    start(kept).Wait()
    requests = [comm.Allreduce_init(given, out) for _ in range(6)]
    with pytest.raises(RequestError, match="Free"):
        comm.Allreduce_init(given, out)
    requests.pop(RANK % 6).Free()
    if SIZE in range(2, 6):
        with pytest.raises(RequestError, match="Free"):  # others use that one
            comm.Allreduce_init(given, out)
    for request in (kept, *requests):
        request.Free()
    comm.Allreduce_init(given, out).Free()


def test_wishes_that_would_have_to_wait_are_refused(world):
    counts = [r % 3 for r in range(SIZE)]
    out = numpy.empty(sum(counts))
    arguments = numpy.full(counts[RANK], 1. + RANK), [out, counts] if RANK == 0 else None
    with world.using(gather="binomial"), pytest.raises(ArgumentError, match="only the root"):
        world.Igatherv(*arguments)
    with world.using(gather="linear"):
        world.Igatherv(*arguments).Wait()
    if RANK == 0:
        assert out.tolist() == [1. + r for r in range(SIZE) for _ in range(counts[r])]


@kinds(KINDS)
def test_wrong_arguments_are_no_call(kind, comm):
    """They are refused before anything is sent, and are not counted."""
    for _ in range(2):
        if RANK == 0:
            with pytest.raises(ValueError):
                kind.prepare(comm, numpy.ones(3), numpy.ones(4))()
        request = kind.prepare(comm, numpy.ones(3), sink := numpy.zeros(3))()
        request.Wait()
        assert (sink == SIZE).all()
        if kind.form == "init":
            request.Free()


# -- errors on the way ---------------------------------------------------------------------------
@pytest.mark.parametrize("wait", [
    lambda r: r.Wait(), lambda r: hpccoll.Request.Waitall([r])], ids=["Wait", "Waitall"])
@pytest.mark.parametrize("field", ["count", "operator"])
@kinds({name: kind for name, kind in OURS_ONLY.items() if kind.form == "I"})
def test_what_went_wrong_is_raised_itself(monkeypatch, kind, field, wait):
    """Not as an ``MPI.Exception`` that says nothing, as ``MPI.Request.Waitall`` must."""
    comm = kind.communicator(monkeypatch)
    comm.Iallgather(numpy.ones(2), numpy.empty(2 * SIZE)).Wait()
    if field == "count":
        if SIZE > 2:
            return  # ranks without the error would wait for one that has it
    count, op = (3, MPI.MAX) if RANK == 0 else (2, MPI.SUM)
    # A rank that begins later than the others have found it out hears it there.
    with pytest.raises(HpccollError, match=field):
        wait(comm.Iallgather(numpy.ones(count), numpy.empty(count * SIZE)) if field == "count"
             else comm.Iallreduce(numpy.ones(50), numpy.zeros(50), op))
    RAW.Barrier()


def test_errors_of_the_thread_reach_those_who_wait_for_all(comm, capfd):
    request = comm.Iallreduce(mine(comm, 100_000), numpy.empty(100_000))
    operation = request._operation
    RAW.Barrier()  # a rank that begins later may hear that the others gave up
    with operation.lock:
        broken = not operation.over
        if broken:
            operation._complete(RuntimeError("something broke"))
    if broken:
        with pytest.raises(MPI.Exception):  # as of a method that was looked up before
            NATIVE["Waitall"]([request])
        assert "something broke" in capfd.readouterr().err
        with pytest.raises(RuntimeError, match="something broke"):
            request.Wait()
    else:
        with contextlib.suppress(BrokenCommunicatorError):  # it may hear of the others here, too
            request.Wait()
    RAW.Barrier()
