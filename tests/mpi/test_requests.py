"""Rules of requests that hold for every kind: nonblocking, persistent, native, compiled, Python."""

import gc
import itertools
import os
import random
import sys
import threading
import time
import weakref

import numpy
import pytest
from mpi.requested import KINDS, OURS, OURS_ONLY, Kind, kinds, mine, start, summed
from mpi4py import MPI

import hpccoll
from hpccoll.comm.requests import Prequest, Request
from hpccoll.comm.waitall import NATIVE
from hpccoll.errors import ArgumentError
from hpccoll.guard.pending_calls import NativeRequest
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.progress.engine import PROGRESS
from support.gpu.device import installed

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI library serves all requests")]
RAW = MPI.COMM_WORLD
R, OUR_R = MPI.Request, hpccoll.Request


def until(stop, function, *args):
    """Call until the result is ``stop``; other threads get their turn."""
    while function(*args) != stop:
        time.sleep(0)


#: Ways to complete all requests of a list.
COMPLETE = {  # methods are looked up late: mpi4py's are replaced
    "Wait": lambda r: [x.Wait() for x in r],
    "Wait, status": lambda r: [x.Wait(MPI.Status()) for x in r],
    "wait": lambda r: [x.wait() for x in reversed(r)],
    "Test": lambda r: [until(True, x.Test) for x in r],
    "test": lambda r: [until(True, lambda x=x: x.test()[0]) for x in r],
    "Get_status": lambda r: [x.Wait() for x in r if not until(True, x.Get_status)],
    "Waitall": lambda r: R.Waitall(r), "Waitall, tuple": lambda r: R.Waitall(tuple(r)),
    "waitall": lambda r: R.waitall(r),
    "Waitall, statuses": lambda r: R.Waitall(r, [MPI.Status() for _ in r]),
    "of persistent requests": lambda r: MPI.Prequest.Waitall(r),
    "Waitany": lambda r: until(MPI.UNDEFINED, lambda: R.Waitany(r)),
    "waitany": lambda r: until(MPI.UNDEFINED, lambda: R.waitany(r)[0]),
    "Waitsome": lambda r: until(None, lambda: R.Waitsome(r)),
    "waitsome": lambda r: until(None, lambda: R.waitsome(r)[0]),
    "Testall": lambda r: until(True, lambda: R.Testall(r)),
    "testall": lambda r: until(True, lambda: R.testall(r)[0]),
    "Testany": lambda r: until((MPI.UNDEFINED, True), lambda: R.Testany(r)),
    "testany": lambda r: until((MPI.UNDEFINED, True), lambda: R.testany(r)[:2]),
    "Testsome": lambda r: until(None, lambda: R.Testsome(r)),
    "testsome": lambda r: until(None, lambda: R.testsome(r)[0]),
    "hpccoll Waitall": OUR_R.Waitall,
    "hpccoll Waitall, statuses": lambda r: OUR_R.Waitall(
        tuple(r), [MPI.Status() for _ in r]),
    "hpccoll Waitany": lambda r: until(MPI.UNDEFINED, OUR_R.Waitany, r),
    "hpccoll Waitsome": lambda r: until(None, OUR_R.Waitsome, r, [MPI.Status() for _ in r]),
    "hpccoll Testall": lambda r: until(True, OUR_R.Testall, r)}


@pytest.fixture
def kind():
    """A test that is for no kind in particular takes nonblocking requests that Python runs."""
    return KINDS["I-compiled" if BUILT else "I-python"]


@pytest.fixture
def progress():
    return None


@pytest.fixture
def comm(kind, progress, monkeypatch):
    """A communicator for the kind of requests that a test is for."""
    comm = kind.communicator(monkeypatch, progress=progress)
    yield comm
    comm.Free()
    assert not PROGRESS.operations


def ways(names):
    """Run a test for ways to complete, and all kinds of requests."""
    return pytest.mark.parametrize("way, kind", [
        pytest.param(way, kind, id=f"{way}-{name}") for way in names
        for name, kind in KINDS.items()
        # MPICH 5.0 returns an error for persistent requests that are complete.
        if "estall" not in way or name != "init-native"])


@ways(COMPLETE)
def test_every_way_to_complete(kind, comm, way):
    """Also beside null requests, messages, and collectives that the MPI library runs."""
    sources, sinks = ([numpy.empty(count) for count in (50, 50, 50_000)] for _ in range(2))
    calls = [kind.prepare(comm, *pair) for pair in zip(sources, sinks)]
    left, halo, native = (comm.rank - 1) % comm.size, numpy.empty(1), numpy.empty(4)
    for turn in range(3):  # the second is like the first, and found in the cache
        for source, sink in zip(sources, sinks):
            source[:], sink[:] = mine(comm, source.size) + turn, numpy.nan
        null = MPI.Request(MPI.REQUEST_NULL)
        requests = [null, calls[0](), comm.Irecv(halo, left), calls[1](),
                    comm.Isend(numpy.full(1, comm.rank, "d"), (comm.rank + 1) % comm.size),
                    MPI.Request(MPI.REQUEST_NULL), comm.Ibarrier(), calls[2]()]
        with comm.using(iallreduce="native"):
            requests.append(comm.Iallreduce(mine(comm), native))
        if comm.size > 1 or kind.by != "native":  # one rank alone is not watched
            assert all(type(requests[i]) is kind.type for i in (1, 3, 7))
        assert all(isinstance(request, MPI.Request) for request in requests)
        COMPLETE[way](requests)
        for request in requests:
            assert request.Wait() is True and request.Test() is True  # complete stays complete
            assert request == MPI.REQUEST_NULL or isinstance(request, MPI.Prequest)
        for sink in sinks:
            assert (sink == summed(comm, sink.size) + comm.size * turn).all()
        assert (native == summed(comm)).all() and halo == left
    for i in (1, 3, 7):
        if kind.form == "init":
            assert requests[i] and requests[i] != MPI.REQUEST_NULL
            requests[i].Free()
        assert not requests[i] and requests[i] == MPI.REQUEST_NULL


#: Ways to complete one request that return True once it is complete, and may be called before.
ONCE = {
    "Test": lambda r: r.Test(), "test": lambda r: r.test()[0],
    "Get_status": lambda r: r.Get_status() and r.Wait(),
    "Testall": lambda r: R.Testall([r]), "testall": lambda r: R.testall([r])[0],
    "hpccoll Testall": lambda r: OUR_R.Testall([r]), "Testany": lambda r: R.Testany([r])[1],
    "Testsome": lambda r: bool(R.Testsome([r]))}
#: The same, but they wait.
WAITS = {
    "Wait": lambda r: r.Wait(), "wait": lambda r: r.wait() is None,
    "Waitall": lambda r: R.Waitall([r]), "Waitany": lambda r: R.Waitany([r]) == 0,
    "Waitsome": lambda r: R.Waitsome([r]) == [0]}


def dead(references):
    """Wait until objects are gone: the thread may just use one."""
    deadline = time.monotonic() + 10
    while any(one() is not None for one in references) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.001)
    return all(one() is None for one in references)


@pytest.mark.mpi(min_size=2)
@ways([*ONCE, *WAITS])
def test_a_finished_request_references_no_arrays(kind, comm, way):
    """A persistent one references them until it is freed, a native one as long as it lives."""
    for _ in range(2):  # the second call is found in the cache
        given, out = mine(comm, 50_000), numpy.zeros(50_000)
        alive = weakref.ref(given), weakref.ref(out)
        begin = kind.prepare(comm, given, out)
        if comm.rank == 0:
            request = begin()
            given = out = begin = None
            for _ in range(3 * (way in ONCE)):  # the others have not begun
                assert not ONCE[way](request)
            assert not any(one() is None for one in alive)
            RAW.Barrier()
        else:
            RAW.Barrier()
            request = begin()
            given = out = begin = None
        until(True, {**ONCE, **WAITS}[way], request)
        if kind.form == "init":
            assert not any(one() is None for one in alive)
            assert (alive[1]() == summed(comm, 50_000)).all()
            request.Free()
        if kind.by == "native":
            del request
        assert dead(alive)
    request = None


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("state", ["not set up", "set up", "off"])
def test_arrays_live_as_long_as_native_requests(monkeypatch, state):
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup()) if state == "not set up" else Kind(
        "I", "native").communicator(monkeypatch, CONTRACT="off" if state == "off" else "tags")
    for name in ("allreduce", "allgatherv", "alltoall", "exscan", "reduce_scatter_block"):
        for title in (f"I{name}", f"{name.capitalize()}_init"):
            source = numpy.ones(2 if "gather" in name else 2 * comm.size)
            sink = numpy.zeros(2 if "scatter" in name else 2 * comm.size)
            alive = weakref.ref(source), weakref.ref(sink)
            with comm.using(**{title.lower(): "native"}):
                request = getattr(comm, title)(source, sink)
            del source, sink
            gc.collect()
            assert all(one() is not None for one in alive), title
            if isinstance(request, MPI.Prequest):
                request.Start()
            assert state != "off" or not isinstance(request, NativeRequest)
            request.Wait()
            del request
            assert dead(alive), title
    comm.Free()


def test_buffers_live_until_the_end(comm):
    requests = [comm.Ibcast(numpy.full(30_000, float(i)), 0) for i in range(5)]
    gathered = numpy.full(comm.size, numpy.nan)
    requests.append(comm.Iallgather(numpy.full(1, float(comm.rank)), gathered))
    gc.collect()
    junk = [numpy.full(30_000, -1.) for _ in range(10)]
    MPI.Request.Waitall(requests)
    assert gathered.tolist() == list(range(comm.size)) and junk[0][0] == -1


@kinds(KINDS)
@pytest.mark.parametrize("progress", ["thread", "calls"])
def test_any_order_beside_blocking_calls(kind, comm, progress):
    """Each rank starts and waits in an order of its own; who waits moves all others on."""
    if kind.by == "python" and progress == "calls" and comm.size > 2:
        pytest.skip("known fault: ranks may wait for each other until the time-out")
    own, other = random.Random(comm.rank), comm
    if progress == "thread":
        other = kind.choose(hpccoll.Comm(comm))
        other._calls = None  # its calls are not found in machine code
    nonblocking, lasting = KINDS[f"I-{kind.by}"], []
    sources, sinks = numpy.empty((2, 12, 40))
    if kind.form == "init":
        lasting = [kind.prepare(comm, *pair) for pair in list(zip(sources, sinks))[:6]]
    large = mine(comm, 30_000), numpy.empty(30_000)
    for turn in range(8):
        sources[:], sinks[:] = numpy.arange(12)[:, None] + turn * comm.rank, numpy.nan
        # Ranks make nonblocking calls in one order, and start persistent ones in any.
        requests = [nonblocking.prepare(comm if comm.rank % 2 or i % 3 else other,
                                        sources[i], sinks[i])()
                    for i in range(len(lasting), 12)]
        requests += [begin() for begin in own.sample(lasting, len(lasting))]
        requests += [comm.Iallreduce(*large)] if turn % 3 == 0 else []
        own.shuffle(requests)
        for request in requests[:4]:
            request.Wait()
        comm.Allreduce(mine(comm), sink := numpy.empty(4))
        comm.Barrier()
        assert (sink == summed(comm)).all() and comm.allreduce(1) == comm.size
        R.Waitall(requests[4:8])
        for request in requests[8:]:
            until(True, request.Test)
        assert (large[1] == summed(comm, 30_000)).all()
        assert (sinks == comm.size * numpy.arange(12)[:, None] + turn * sum(range(comm.size))).all()
    for begin in lasting:
        request = begin()
        request.Wait()
        request.Free()


@pytest.mark.mpi(min_size=2)
@kinds(OURS_ONLY)
@pytest.mark.parametrize("count", [100, 300_007])
def test_progress_needs_no_help(kind, comm, count):
    """Compiled plans also need no moment for other threads of Python."""
    given, out = mine(comm, count), numpy.zeros(count)
    begin, before = kind.prepare(comm, given, out), sys.getswitchinterval()
    for _ in range(3):
        out[:] = 0
        comm.Barrier()
        sys.setswitchinterval(1000 if kind.by == "compiled" else before)
        try:
            request = begin()
            operation, end = request._operation, time.monotonic() + 60  # without a call of ours
            while not (operation.ended if kind.by == "compiled" else operation.over):
                assert time.monotonic() < end
                if kind.by == "python":
                    time.sleep(0.001)
        finally:
            sys.setswitchinterval(before)
        request.Wait()
        assert (out == summed(comm, count)).all()
    if kind.form == "init":
        request.Free()


@kinds(KINDS)
def test_another_thread_waits(kind, comm):
    out, results = numpy.empty(4), []
    begin = kind.prepare(comm, mine(comm), out)
    for _ in range(20):
        request = begin()
        thread = threading.Thread(target=lambda: results.append(request.Wait()))
        thread.start()
        comm.Barrier()
        thread.join()
        assert (out == summed(comm)).all()
    assert results == [True] * 20
    if kind.form == "init":
        request.Free()


@kinds({name: kind for name, kind in OURS_ONLY.items() if kind.form == "I"})
def test_many_requests_in_flight(kind, comm):
    """More than are kept, and requests that the program drops."""
    dropped = numpy.empty((5, 4))
    wanted = summed(comm) + comm.size * numpy.arange(5)[:, None]
    for turn, out in enumerate(dropped):
        comm.Iallreduce(mine(comm) + turn, out)
        comm.Iallreduce(numpy.full(4, 1.), numpy.empty(4)).Wait()
        assert kind.by == "python" or (out == wanted[turn]).all()  # compiled ones take turns
    outs = [numpy.empty(2) for _ in range(200)]
    requests = [comm.Iallreduce(numpy.full(2, float(i)), out) for i, out in enumerate(outs)]
    for request in reversed(requests):
        request.Wait()
    assert all((out == i * comm.size).all() for i, out in enumerate(outs))
    while PROGRESS.operations:  # what ended is still to be seen by somebody
        PROGRESS.step()
    assert (dropped == wanted).all()


@kinds({name: kind for name, kind in KINDS.items() if kind.form == "init"})
def test_starting_all_raises_or_works_but_never_does_nothing(kind, comm):
    out, native_out = numpy.full((2, 4), numpy.nan)
    request = comm.Allreduce_init(mine(comm), out)
    if kind.by != "native":
        with pytest.raises(MPI.Exception) as caught:
            MPI.Prequest.Startall([request])
        assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    with comm.using(allreduce="native"):
        native = comm.Allreduce_init(mine(comm), native_out)
    Prequest.Startall([request, native])
    MPI.Request.Waitall([request, native])
    assert (out == summed(comm)).all() and (native_out == out).all()
    request.Free()
    native.Free()


@kinds(OURS_ONLY)
def test_freeing_a_communicator_waits_for_its_collectives(kind, comm, monkeypatch):
    dup, out = kind.communicator(monkeypatch), numpy.full(50_000, numpy.nan)
    request = kind.prepare(dup, mine(comm, 50_000), out)()
    dup.Free()
    assert not PROGRESS.operations
    request.Wait()
    assert (out == summed(comm, 50_000)).all()


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
@pytest.mark.mpi(min_size=2)
def test_a_call_like_an_earlier_one_needs_no_python(comm, monkeypatch):
    comm.Iallreduce(numpy.ones(9), numpy.empty(9)).Wait()
    monkeypatch.setattr(type(comm), "_serve", None)
    for turn in range(20):
        sinks = [numpy.empty(9) for _ in range(3)]
        requests = [comm.Iallreduce(numpy.full(9, float(turn + i)), sink)
                    for i, sink in enumerate(sinks)]
        for request in requests if turn % 2 else reversed(requests):
            assert type(request).__name__ == "Request" and request != MPI.REQUEST_NULL
            request.Wait()
            assert request == MPI.REQUEST_NULL and request.Test()
        assert all((sink == (turn + i) * comm.size).all() for i, sink in enumerate(sinks))


def test_alltoall_in_place_reads_its_input_at_every_start(comm):
    both = numpy.empty(comm.size)
    request = comm.Alltoall_init(MPI.IN_PLACE, both)
    for i in range(3):
        both[:] = 100. * comm.rank + numpy.arange(comm.size) + i
        start(request).Wait()
        assert (both == 100. * numpy.arange(comm.size) + comm.rank + i).all()
    request.Free()


def test_the_thread_and_a_blocking_call_read_memory_at_once(world):
    """Messages too long for a slot are read from the sender's memory, by both on one node."""
    short, long = numpy.empty(25_000), numpy.empty(131_072)
    all_short, all_long = (numpy.empty((world.size, each.size)) for each in (short, long))
    with world.using(allgather_init="ring"):
        request = world.Allgather_init(short, all_short)
    with world.using(allgather="ring", segment_bytes=1 << 20):
        for turn in range(150):
            short[:], long[:] = 1000 * turn + world.rank, -1000 * turn - world.rank
            all_short[:] = all_long[:] = 0.5
            request.Start()
            world.Allgather(long, all_long)
            request.Wait()
            ranks = 1000 * turn + numpy.arange(world.size)[:, None]
            assert (all_short == ranks).all() and (all_long == -ranks).all()
    request.Free()


# -- which implementation runs a call -----------------------------------------------------------
def test_who_serves(world):
    given, out = mine(world), numpy.empty(4)
    with world.using(iallreduce="ring"):
        request = world.Iallreduce(given, out)
    assert (type(request) is Request) == (world.size == 1)  # it must not wait for the others
    assert type(request.Wait()) is bool and (out == summed(world)).all()
    assert world.layout
    for preference, ours in (({}, False), ({"allreduce": "auto"}, False),
                             ({"allreduce": "native"}, False),
                             ({"iallreduce": "ring"}, True), ({"allreduce": "ring"}, True),
                             ({"allreduce": "ring", "iallreduce": "native"}, False),
                             ({"allreduce_init": "ring"}, False), ({"ibcast": "binomial"}, False)):
        with world.using(**preference):
            request = world.Iallreduce(given, out)
        assert (type(request) is Request) == ours
        request.Wait()
        assert (out == summed(world)).all()
    many, sums = mine(world, 1 << 18), numpy.empty(1 << 18)
    for preference in ({"allreduce": "auto"}, {"iallreduce": "auto"}):
        with world.using(**preference):
            request = world.Iallreduce(many, sums)
        # On one rank, and where no rule holds, 'auto' is the MPI library's too.
        assert type(request) is not Request or "iallreduce" in preference
        request.Wait()
        assert (sums == summed(world, 1 << 18)).all()
    for preference, ours in (({}, False), ({"iallreduce": "ring"}, False),
                             ({"allreduce_init": "ring"}, True), ({"allreduce": "ring"}, True)):
        with world.using(**preference):
            request = world.Allreduce_init(given, out)
        assert (type(request) is Prequest) == ours
        request.Free()


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
@pytest.mark.mpi(min_size=2)
def test_auto_by_the_method_takes_what_is_fast(world):
    """Where a rule holds, ours serve; persistent ones as long as they get channels of their own."""
    assert world.layout
    given, out = numpy.ones(4), numpy.empty(4)
    with world.using(allreduce_init="auto", iallreduce="auto"):
        ours = []
        for _ in range(80):
            request = world.Allreduce_init(given, out)
            ours.append(type(request) is Prequest)
            start(request).Wait()
            assert (out == world.size).all()
            request.Free()
        begun = world.Iallreduce(given, out)
        assert (type(begun) is Request) == ours[0]
        begun.Wait()
    assert ours == sorted(ours, reverse=True) and not ours[-1]
    assert ours[0] == (world.size <= (4 if world._context.place.oversubscribed else 2))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("served", ["native", "ours"])
@pytest.mark.parametrize("name", ["barrier", "bcast", "allreduce"])
def test_the_first_call_of_a_communicator_does_not_wait(world, name, served):
    """A rank begins it, and then sends what another one wants before it comes to it."""
    buffer, result = numpy.full(10, 3.0), numpy.zeros(10)
    arguments = {"barrier": (), "bcast": (buffer,), "allreduce": (buffer, result)}[name]
    with world.using(**(OURS if served == "ours" else {})):
        begin = getattr(world, f"I{name}")
        for turn in range(2):
            if world.rank == 0:
                request = begin(*arguments)
                for other in range(1, world.size):
                    MPI.Comm.Ssend(world, numpy.ones(1), other)
            else:
                MPI.Comm.Recv(world, numpy.empty(1), 0)
                request = begin(*arguments)
            assert turn or type(request) not in (Request, NativeRequest)
            request.Wait()
            assert result[0] == (3 * world.size if name == "allreduce" else 0)
        for _ in range(2):  # the second one sets it up
            world.Barrier()
        for _ in range(2):  # the second one may be found in the cache
            request = world.Iallreduce(buffer, result)
            request.Wait()
    assert type(request) is (Request if served == "ours" else NativeRequest)


# -- lists of requests ---------------------------------------------------------------------------
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("progress", ["thread", "calls"])
@pytest.mark.parametrize("name", ["Waitany", "waitany", "Waitsome", "waitsome"])
def test_what_completes_first(comm, progress, name):
    """Here a message of a rank that enters the collective only afterwards."""
    ours = numpy.empty(50)
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.Recv(numpy.empty(1), other, 1)
            comm.Send(numpy.ones(1), other, 2)
        for other in range(1, comm.size):
            comm.Recv(numpy.empty(1), other, 3)
        comm.Iallreduce(mine(comm, 50), ours).Wait()
    else:
        requests = [comm.Iallreduce(mine(comm, 50), ours), MPI.Request(MPI.REQUEST_NULL),
                    comm.Irecv(bytearray(8), 0, 2)]
        begun = time.monotonic()
        for test in ("Testall", "testall", "Testany", "testany", "Testsome", "testsome"):
            found = getattr(MPI.Request, test)(requests)
            assert not any(request == MPI.REQUEST_NULL for request in requests[::2]), found
        assert time.monotonic() - begun < 1, "a test has waited"
        comm.Send(numpy.ones(1), 0, 1)
        found = getattr(MPI.Request, name)(requests)
        assert found in (2, (2, None), [2], ([2], [None])) or found[0] in (2, [2])
        comm.Send(numpy.ones(1), 0, 3)
        MPI.Request.Waitall(requests)
    assert (ours == summed(comm, 50)).all()


def test_lists_without_a_collective(comm):
    null = MPI.Request(MPI.REQUEST_NULL)
    assert MPI.Request.Waitall(requests=[null], statuses=None) is True
    assert MPI.Request.Waitany([null], status=MPI.Status()) == MPI.UNDEFINED
    assert MPI.Request.Testsome([]) is None and MPI.Request.testall([]) == (True, [])
    with pytest.raises(TypeError):
        MPI.Request.Waitall(None)
    for requests in ([], [null, null]):
        assert hpccoll.Request.Waitall(requests) is True
        assert hpccoll.Request.Waitany(requests) == MPI.UNDEFINED
        assert hpccoll.Request.Waitsome(requests) is None


# MPICH 5.0 forgets a persistent request that Get_status has seen complete, beside a pending one.
@kinds({name: kind for name, kind in KINDS.items() if name != "init-native"})
def test_places_and_statuses_are_those_of_mpi4py(kind, comm):
    """Beside a message that comes later, and one that has come."""
    word, left, right = numpy.empty(1), (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    begin = kind.prepare(comm, mine(comm), sink := numpy.empty(4))
    never, null = comm.Irecv(numpy.empty(1), left, 8), MPI.REQUEST_NULL
    for wait, wanted in ((hpccoll.Request.Waitany, 1), (hpccoll.Request.Waitsome, [1])):
        sink[:] = 0
        assert wait([never, request := begin()]) == wanted and (sink == summed(comm)).all()
    for requests in ([], [begin()]):
        requests = [null, comm.Irecv(word, left, 7), *requests]
        sent = comm.Isend(numpy.full(1, float(comm.rank)), right, 7)
        found = [MPI.Status() for _ in requests]
        assert hpccoll.Request.Waitall(requests, found) is True
        assert found[1].Get_source() == left and word[0] == left
        sent.Wait()
    comm.Isend(numpy.ones(1), right, 8).Wait()
    assert hpccoll.Request.Waitany([never]) == 0
    if kind.form == "init":
        request.Free()


@pytest.mark.mpi(min_size=2)
def test_calls_alone_move_on_what_is_left_to_them(world):
    comm = hpccoll.Comm(world, progress="calls")
    assert comm.layout
    out, other = numpy.full((2, 200_000), numpy.nan)
    with comm.using(allreduce="ring"), world.using(allreduce="ring"):
        left = comm.Iallreduce(mine(comm, 200_000), out)
        prepared = comm.Allreduce_init(mine(comm, 200_000), other)
        prepared.Start()
        threaded = world.Iallreduce(mine(comm, 4), numpy.empty(4))
    assert not left._operation.threaded and not prepared._operation.threaded
    NATIVE["Waitall"]([threaded])
    time.sleep(0.02)
    assert not left._operation.over and not prepared._operation.over
    until(True, left.Test)  # moves both on
    while not prepared.Get_status():
        left.Test()
    prepared.Wait()
    assert (out == summed(comm, 200_000)).all() and (other == out).all()
    prepared.Free()


def test_unknown_ways_to_make_progress_are_refused(world, monkeypatch):
    with pytest.raises(ArgumentError, match="'threads'"):
        hpccoll.Comm(world, progress="threads")
    monkeypatch.setenv("HPCCOLL_PROGRESS", "calls")
    assert hpccoll.Comm(world)._config.progress == "calls"


def test_the_thread_sleeps_while_there_is_nothing_to_do(comm):
    comm.Iallreduce(mine(comm, 100_000), numpy.empty(100_000)).Wait()
    if PROGRESS.worker.thread is not None:
        time.sleep(0.01)
        before = os.times()
        time.sleep(0.05)
        after = os.times()
        assert after.user + after.system - before.user - before.system < 0.04


def test_staged_device_memory(world):
    with installed(cuda_aware=False) as cupy:
        given, out = cupy.asarray(mine(world)), cupy.asarray(numpy.zeros(4))
        world.Allreduce(given, out)
        assert (cupy.asnumpy(out) == summed(world)).all()
        for name in ("Iallreduce", "Allreduce_init"):
            with world.using(allreduce="native"), pytest.raises(ArgumentError, match="device mem"):
                getattr(world, name)(given, out)
        with world.using(**OURS):
            request = world.Allreduce_init(given, out)
            for begin, complete in itertools.product(
                    (lambda: world.Iallreduce(given, out), lambda: start(request)),
                    (lambda r: r.Wait(), lambda r: MPI.Request.Waitall([r]))):
                given[...] = cupy.asarray(mine(world) + 1)
                out[...] = cupy.asarray(numpy.zeros(4))
                complete(begin())
                assert (cupy.asnumpy(out) == summed(world) + world.size).all()
            request.Free()
