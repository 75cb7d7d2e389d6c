"""Compiled plans behind requests, on channels in this process: turns, tokens, and who ends what."""

import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import BrokenCommunicatorError
from hpccoll.runtime.execution import compiled

if not compiled.BUILT:
    pytest.skip("the compiled executor was not built", allow_module_level=True)

from unit.runtime.execution.test_compiled import Wire, addresses, compiled_plan, exchange

from hpccoll.runtime.execution import _executor
from hpccoll.runtime.execution.compiled_operations import CompiledOperation
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.runtime.progress.operations import NULL, Operation, cell
from support.no_guard import NoGuard

NOBODY = numpy.zeros(8)


class Request(MPI.Request):
    """A request, as far as machine code is concerned."""

    Wait = _executor.shortcut("Wait", lambda self, status=None: "slow")
    Test = _executor.shortcut("Test", lambda self, status=None: "slow")
    Start = _executor.shortcut("Start", lambda self: "slow")
    _operation = None


def context():
    return SimpleNamespace(compiled_operations=set(), abandoned=[], timeouts=(1, 1),
                           guard=NoGuard(), fail=lambda error, *details: error)


#: What looks after runs that wait long, for the thread of Python: no message lies elsewhere.
ATTENDANCE = SimpleNamespace(plan=SimpleNamespace(schedule=SimpleNamespace(title="")), tag=0,
                             context=SimpleNamespace(timeouts=(100, 100)),
                             remote_messages=None, code=SimpleNamespace(words=[0] * 1000))


def operation(code, queue=None, threaded=False):
    """One that runs on no memory yet."""
    owned = compiled_plan(code.code, code.channels)
    made = CompiledOperation.__new__(CompiledOperation)
    stand_in = SimpleNamespace(begin=owned.begin, owners=(ATTENDANCE,))
    made.__init__(context(), stand_in, None, queue, threaded)
    return made


@pytest.fixture
def undisturbed():
    """No other thread of Python runs while this one computes, and that of progress looks on."""
    before = sys.getswitchinterval()
    PROGRESS.waiters.add(before)
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)
    PROGRESS.waiters.discard(before)


class Two:
    """Both sides of an exchange of 64 bytes; a queue for the first rank."""

    def __init__(self):
        self.wires, self.queue = (Wire(), Wire()), _executor.RequestQueue()

    def rank(self, number):
        return SimpleNamespace(code=exchange(64, number), channels=[
            self.wires[number].side(False), self.wires[1 - number].side(True)])

    def begins(self, number, queue=None, threaded=False):
        side = self.rank(number)
        return _executor.Begin(compiled_plan(side.code, side.channels),
                               lambda one: operation(side, queue, threaded), Request)


def begin(begins, source, sink):
    return begins.begin(*addresses(source, sink), (source, sink))


def test_a_request_begins_and_ends():
    two = Two()
    here, there = two.begins(0, two.queue), two.begins(1)
    for turn in range(5):
        outs = numpy.zeros(8), numpy.zeros(8)
        one = begin(here, numpy.full(8, 1. + turn), outs[0])
        held = one._operation
        assert cell(one).value != NULL and PROGRESS.operations == [held] and not held.over
        assert one.Test() == "slow" and two.queue.first is held
        other = begin(there, numpy.full(8, -1. - turn), outs[1])
        assert one.Wait() is True and one.Wait() == "slow" and one._operation is None
        assert two.queue.first is None and held.over and cell(one).value == NULL
        assert other.Test(None) is True and not PROGRESS.operations
        assert (outs[0] == -1 - turn).all() and (outs[1] == 1 + turn).all()


def test_operations_of_a_lane_take_turns():
    two = Two()
    here, there = two.begins(0, two.queue), two.begins(1, _executor.RequestQueue())
    sinks = [[numpy.zeros(8) for _ in range(6)] for _ in range(2)]
    ours = [begin(here, numpy.full(8, 1. + i), sink) for i, sink in enumerate(sinks[0])]
    assert two.wires[0].sides[0].sent == 1  # the others wait for their turn
    theirs = [begin(there, numpy.full(8, -1. - i), sink) for i, sink in enumerate(sinks[1])]
    # The last one first: it moves those before it on.
    pending = [*reversed(ours), *theirs]
    for _ in range(50):
        pending = [request for request in pending if request.Test() is not True]
    assert not pending and not PROGRESS.operations
    for i in range(6):
        assert (sinks[0][i] == -1 - i).all() and (sinks[1][i] == 1 + i).all()


def test_somebody_else_ends_it():
    """Then MPI has to hear of it, and the operation is not used again by this request."""
    two = Two()
    here, there = two.begins(0, two.queue), two.begins(1)
    one = begin(here, numpy.ones(8), numpy.zeros(8))
    other = begin(there, numpy.ones(8), numpy.zeros(8))
    PROGRESS.step()
    assert not PROGRESS.operations and one._operation.over and one._operation.token is None
    assert one.Wait() == "slow"
    MPI.Request.Waitall([one, other])
    assert cell(one).value == NULL == cell(other).value


def test_who_waits_for_its_turn_sees_those_before_it_move():
    """Its time is not up while they do: its own compiled plan has not begun."""
    two = Two()
    here, there = two.begins(0, two.queue), two.begins(1, _executor.RequestQueue())
    ours = [begin(here, numpy.ones(8), numpy.zeros(8)) for _ in range(3)]
    theirs, last, vain = [], ours[-1]._operation, []
    last.linger = vain.append
    look = last.poll_callback()
    for turn in range(1, 3):
        theirs.append(begin(there, numpy.ones(8), numpy.zeros(8)))
        PROGRESS.step()
        assert last.run.at == (turn == 2) and two.queue.first is ours[turn]._operation
        look()
        assert len(vain) == turn - 1
        look()
        assert len(vain) == turn
    finish(*ours, *theirs, begin(there, numpy.ones(8), numpy.zeros(8)))


@pytest.mark.parametrize("threaded", [False, True], ids=["calls", "thread"])
def test_after_a_failure_nobody_begins(undisturbed, threaded):
    """Other ranks would take the next one's messages for those that are missing of the failed."""
    two = Two()
    here = two.begins(0, two.queue, threaded)
    failing, next_one = (begin(here, numpy.ones(8), numpy.zeros(8)) for _ in range(2))
    held, waiting = failing._operation, next_one._operation
    waiting.context.guard = SimpleNamespace(failure=None)
    held._complete(OSError("broken"))
    assert two.queue.first is None and held.error and held.context.abandoned
    begin(here, numpy.ones(8), numpy.zeros(8))._operation._complete(OSError("refused"))
    others = Two()
    ended_meanwhile([begin(others.begins(i, None, True), numpy.ones(8), numpy.zeros(8))
                     for i in range(2)])  # by then the thread has seen those before it twice
    assert next_one.Test() == "slow" and not waiting.progress() and not waiting.over
    waiting.context.guard.failure = OSError("broken")
    assert waiting.progress() and waiting.over
    assert isinstance(waiting.error, BrokenCommunicatorError)
    assert two.wires[0].sides[0].sent == 1
    for request in (failing, next_one):
        request._operation.quiet = True
        MPI.Request.Wait(request)
    PROGRESS.step()
    assert not PROGRESS.operations and two.queue.first is None


def test_after_a_failure_the_interpreter_begins_nothing():
    queue = _executor.RequestQueue()
    failing, following = (Operation(context(), SimpleNamespace(
        start=lambda: None, done=False, progress=lambda: False, title="", plan=None, tag=0),
        None, None, False, queue) for _ in range(2))
    assert failing.started and queue.first is failing and not following.started
    following.context.guard = SimpleNamespace(failure=None)
    failing._complete(OSError("broken"))
    assert queue.first is None and not following.progress() and not following.over
    following.context.guard.failure = failing.error
    assert following.progress() and isinstance(following.error, BrokenCommunicatorError)
    assert not following.started
    for one in (failing, following):
        one.quiet = True
        one.token.Wait()
    assert not PROGRESS.operations


@pytest.mark.parametrize("waits", [False, True], ids=["looks again", "waits for it"])
def test_who_waits_does_not_run_what_was_taken_out_of_service(waits):
    """Its memory is the caller's again, who has had the error."""
    two, sink = Two(), numpy.zeros(8)
    one = begin(two.begins(0), numpy.ones(8), sink)
    held, found = one._operation, []
    assert held.claim()
    waiter = threading.Thread(target=lambda: found.append(held.attempt(3_000_000)))
    if waits:
        waiter.start()
    other = begin(two.begins(1), numpy.ones(8), numpy.zeros(8))
    held._complete(OSError("broken"))
    if waits:
        waiter.join()
    else:
        held.attempt(0)
    assert not held.ended and not sink.any() and not held.busy
    held.quiet = True
    MPI.Request.Wait(one)
    finish(other)


def test_python_fetches_nothing_for_what_is_over():
    two = Two()
    one = begin(two.begins(0), numpy.ones(8), numpy.zeros(8))
    held = one._operation
    held.slow_path = SimpleNamespace(fetched=lambda: pytest.fail("it was asked"))
    held._complete(OSError("broken"))
    assert not held._fetch(_executor.ELSEWHERE) and not held.busy
    held.quiet = True
    MPI.Request.Wait(one)


def test_a_persistent_request_starts_again():
    two = Two()
    there = two.begins(1)
    source, sink = numpy.zeros(8), numpy.zeros(8)
    request = persistent(two, source, sink)
    again = request._operation
    for turn in range(4):
        source[:] = turn
        out = numpy.zeros(8)
        assert request.Start() is None and request.Start() == "slow"
        with pytest.raises(RuntimeError, match="pending"):
            again.begin(request)
        begin(there, numpy.full(8, 5. + turn), out).Wait()
        assert request.Wait() is True and (sink == 5 + turn).all() and (out == turn).all()
        assert request.Wait() == "slow"


def persistent(two, source, sink):
    """A persistent request of the first rank's."""
    side, request = two.rank(0), Request()
    run = compiled_plan(side.code, side.channels)
    request._operation = again = CompiledOperation.__new__(CompiledOperation)
    again.__init__(context(), SimpleNamespace(
        begin=lambda *_: run.begin(*addresses(source, sink), (source, sink)), owners=(ATTENDANCE,)),
        None, None, False)
    return request


def test_a_start_waits_for_who_still_looks(undisturbed):
    """At the run before, which has ended: that is no run under way."""
    two, looking = Two(), threading.Lock()
    request = persistent(two, numpy.ones(8), numpy.zeros(8))
    again = request._operation

    def look():
        with looking:
            again.give_back()
    assert again.claim()
    looking.acquire()
    looker = threading.Thread(target=look)
    looker.start()
    looking.release()  # which does not make it run: this one has the interpreter
    assert again.busy and request.Start() is None
    looker.join()
    finish(begin(two.begins(1), numpy.ones(8), numpy.zeros(8)), request)


def ended_meanwhile(requests):
    """Wait without a call of ours, and without giving the interpreter up."""
    operations, end = [request._operation for request in requests], time.monotonic() + 20
    while not all(one.ended for one in operations):
        assert time.monotonic() < end
    return operations


def finish(*requests):
    """Wait for requests; the thread of Python may have concluded some."""
    for request in requests:
        if request.Wait() == "slow":
            MPI.Request.Wait(request)
    assert not PROGRESS.operations


def test_operations_move_on_while_nobody_calls(undisturbed):
    """In the order of their lane, and MPI and Python hear of it only from who waits."""
    two, count = Two(), 20
    here, there = (two.begins(number, _executor.RequestQueue(), True) for number in range(2))
    sinks = [[numpy.zeros(8) for _ in range(count)] for _ in range(2)]
    ours = [begin(here, numpy.full(8, 1. + i), sink) for i, sink in enumerate(sinks[0])]
    theirs = [begin(there, numpy.full(8, -1. - i), sink) for i, sink in enumerate(sinks[1])]
    held = ended_meanwhile([*ours, *theirs])
    assert not any(one.over for one in held) and len(PROGRESS.operations) == 2 * count
    finish(*reversed(ours), *theirs)
    for i in range(count):
        assert (sinks[0][i] == -1 - i).all() and (sinks[1][i] == 1 + i).all()


def test_what_python_claims_is_left_alone(undisturbed):
    two = Two()
    one = begin(two.begins(0, None, True), numpy.ones(8), numpy.zeros(8))
    assert one._operation.claim() and not one._operation.claim()
    other = begin(two.begins(1, None, True), numpy.ones(8), numpy.zeros(8))
    later = Two()
    others = [begin(later.begins(i, None, True), numpy.ones(8), numpy.zeros(8)) for i in range(2)]
    ended_meanwhile([other, *others])  # by then the thread has seen the first one several times
    assert not one._operation.ended and one._operation.busy
    one._operation.give_back()
    ended_meanwhile([one])
    finish(one, other, *others)


def test_a_failure_waits_for_who_runs_it(undisturbed):
    """And then nobody runs it any more: its messages stay where they are."""
    two = Two()
    one = begin(two.begins(0, two.queue, True), numpy.ones(8), numpy.zeros(8))
    held = one._operation
    held._complete(OSError("broken"))
    other = begin(two.begins(1, None, True), numpy.ones(8), numpy.zeros(8))
    ended_meanwhile([other])
    assert not held.ended and held.over and two.queue.first is None
    held.quiet = True
    MPI.Request.Wait(one)
    finish(other)


def test_waits_and_the_thread_take_turns():
    """Many short operations: whoever is first runs one, and every result is right."""
    two, thrown = Two(), random.Random(1)
    here, there = (two.begins(number, _executor.RequestQueue(), True) for number in range(2))
    for turn in range(300):
        outs = numpy.zeros(8), numpy.zeros(8)
        one = begin(here, numpy.full(8, 1. + turn), outs[0])
        other = begin(there, numpy.full(8, -1. - turn), outs[1])
        for _ in range(thrown.choice((0, 10, 1000))):
            pass
        finish(*thrown.sample((one, other), 2))
        assert (outs[0] == -1 - turn).all() and (outs[1] == 1 + turn).all()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are not listed")
def test_signals_are_for_others_but_its_own_faults_are_not():
    two = Two()
    finish(*(begin(two.begins(i, None, True), numpy.ones(8), numpy.zeros(8)) for i in range(2)))
    blocked, = (int(status.partition("SigBlk:")[2].split()[0], 16) for status in (
        task.read_text() for task in Path("/proc/self/task").glob("*/status"))
        if status.startswith("Name:\thpccoll plans"))
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    for one in {signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, *faults}:
        assert bool(blocked >> one - 1 & 1) == (one not in faults)


def test_misuse():
    with pytest.raises(ValueError, match="shortcut"):
        _executor.shortcut("Fly", len)
    bare = _executor.CompiledRun()
    with pytest.raises(ValueError, match="prepared"):
        bare.begin(Request())
    with pytest.raises(TypeError):
        bare.prepare(NOBODY, None, False)
    assert _executor.RequestQueue().first is None
