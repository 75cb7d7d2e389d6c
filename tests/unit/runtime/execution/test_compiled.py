"""The compiled executor on channels in this process: two ranks, or two threads, side by side."""

import itertools
import os
import sys
import threading
import time
from array import array

import numpy
import pytest

from hpccoll.arrays.kernels import UFUNCS, has_loop
from hpccoll.config import Config
from hpccoll.errors import ArgumentError
from hpccoll.runtime.execution import built, compiled
from hpccoll.runtime.execution.compiled_plan import (
    BASES,
    OFFSET_BITS,
    Instruction,
    MessageOverlap,
)
from hpccoll.transport.shm.channels import ELSEWHERE

if not compiled.BUILT:
    pytest.skip("the compiled executor was not built", allow_module_level=True)

from hpccoll.runtime.execution import _executor

PLACES, CELL = _executor.PLACES, 4096
#: Words of the costs that a receiver publishes, see ``_channels.h``.
READ_COST, TAKE_COST = PLACES + 2, PLACES + 3
INPUT, OUTPUT, SCRATCH, MESSAGE = (base << OFFSET_BITS for base in range(len(BASES)))


class Side(_executor.Counters):
    """A channel as one of its ranks sees it."""


class Wire:
    """The memory of a channel, its two sides, and the process that it reads messages from."""

    def __init__(self, process=0, regions=(0, 3)):
        self.process, self.regions = process, numpy.array(regions, "q")
        self.words, self.taken = numpy.zeros(16, "q"), numpy.zeros(16, "q")
        self.small = numpy.zeros((PLACES, _executor.SMALL), "u1")
        self.cells = numpy.zeros((PLACES, CELL), "u1")
        self.sides = Side(), Side()

    def side(self, receives):
        """What a compiled plan takes for a channel."""
        return (self.sides[receives], *(memory.__array_interface__["data"][0] for memory in (
            self.words, self.taken, self.small, self.cells)), CELL, self.process,
            *addresses(self.regions), 0)


def words(*steps):
    return array("q", [word for step in steps for word in (*step, *[0] * (8 - len(step)))])


def compiled_plan(code, channels=(), sizes=(64, 64), kernel=None, scratch=64, waiter=None,
                  yields=True,
                  **more):
    memory = numpy.zeros(scratch, "u1")
    return _executor.CompiledPlan(code, sizes, tuple(channels), kernel, memory, (), waiter or stuck,
                                  yields,
                                  **more)


def stuck(run):
    raise TimeoutError(f"at {run.at}")


def addresses(*arrays):
    return [one.__array_interface__["data"][0] for one in arrays]


def exchange(nbytes, way):
    """Send the input, take a message, and copy it to the output."""
    return words((Instruction.SEND, 0, 0, INPUT, nbytes),
                 (Instruction.TAKE, 0, 1, OUTPUT, nbytes),
                 (Instruction.COPY, 0, OUTPUT, MESSAGE, nbytes), (Instruction.TAKEN, 0, 1),
                 (Instruction.FLUSH, 0), (Instruction.END, 0))


@pytest.mark.parametrize("name", UFUNCS.values())
@pytest.mark.parametrize("char", "?bBhHiIlLqQfdgFDG")
def test_reductions_have_the_bits_of_numpy(name, char):
    ufunc, dtype = getattr(numpy, name), numpy.dtype(char)
    operator = next(key for key, value in UFUNCS.items() if value == name)
    assert _executor.has_loop(ufunc, dtype) is has_loop(operator, dtype)
    if not has_loop(operator, dtype):
        with pytest.raises(TypeError, match="loop"):
            compiled_plan(words((Instruction.END, 0)), kernel=(ufunc, dtype))
        return
    numbers = numpy.random.default_rng(1)
    for count in (1, 3, 8, 33):
        left, right = (numbers.integers(0, 256, count * dtype.itemsize, "u1").view(dtype)
                       if dtype.kind in "iuf" and char != "g" else
                       numbers.integers(0, 2, count).astype(dtype) for _ in range(2))
        both, size = numpy.concatenate([left, right]), count * dtype.itemsize
        into = numpy.zeros(count, dtype)
        code = words((Instruction.REDUCE, 0, 0, OUTPUT, INPUT, INPUT + size, count),
                     (Instruction.END, 0))
        with numpy.errstate(all="ignore"):
            compiled_plan(code, kernel=(ufunc, dtype),
                          sizes=(2 * size, size)).run(*addresses(both, into))
            wanted = ufunc(left, right, dtype=dtype)
            # Long doubles have bytes that mean nothing.
            assert (into == wanted).all() if char in "gG" else into.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("steps, problem", [
    ([(_executor.OPERATIONS, 0)], "instruction"),
    ([(Instruction.COPY, 0, OUTPUT, INPUT, 8)], "no end"),
    ([(Instruction.COPY, 0, OUTPUT, INPUT, 65)], "copy"),
    ([(Instruction.COPY, 0, OUTPUT + 60, INPUT, 8)], "copy"),
    ([(Instruction.COPY, 0, OUTPUT, INPUT, -8)], "copy"),
    ([(Instruction.COPY, 0, -8, INPUT, 8)], "copy"),
    ([(Instruction.COPY, 0, OUTPUT, MESSAGE, 8)], "copy"),
    ([(Instruction.COPY, 0, 4 << OFFSET_BITS, INPUT, 8)], "copy"),
    ([(Instruction.REDUCE, 0, 0, OUTPUT, INPUT, INPUT, 9)], "reduction"),
    ([(Instruction.REDUCE, 0, 0, OUTPUT + 4, INPUT, INPUT, 2)], "reduction"),
    ([(Instruction.REDUCE, 0, 0, OUTPUT, INPUT, INPUT, 1 << 62)], "many"),
    ([(Instruction.REDUCE, 0, 1, OUTPUT, INPUT, INPUT, 1)], "accumulator"),
    ([(Instruction.SEND, 0, 1, INPUT, 8)], "channel"),
    ([(Instruction.SEND, 0, 0, INPUT, 80)], "message.*bounds"),
    ([(Instruction.TAKE, 0, 0, 0, CELL + 1)], "message.*bounds"),
    ([(Instruction.TAKE, 0, 0, SCRATCH + 57, 8)], "message.*bounds"),
    ([(Instruction.TAKEN, 0, 0)], "taken"),
    ([(Instruction.TAKE, 0, 0, 0, 8), (Instruction.TAKE, 0, 0, 0, 8)], "bounds"),
    ([(Instruction.TAKE, 0, 0, 0, 8), (Instruction.END, 0)], "end"),
    ([(Instruction.TAKE, 0, 0, 0, 8), (Instruction.COPY, 0, OUTPUT, MESSAGE, 9)], "bounds"),
    ([(Instruction.END, 0), (Instruction.END, 0)], "end"),
])
def test_bounds_are_checked_when_a_plan_is_made(steps, problem):
    with pytest.raises(ValueError, match=problem):
        compiled_plan(words(*steps), [Wire().side(False)], kernel=(numpy.add, numpy.dtype("f8")))


def test_a_reduction_needs_a_kernel():
    code = words((Instruction.REDUCE, 0, 0, OUTPUT, INPUT, INPUT, 1), (Instruction.END, 0))
    with pytest.raises(ValueError, match="kernel"):
        compiled_plan(code)
    with pytest.raises(TypeError, match="kernel"):
        compiled_plan(code, kernel="add")


def test_half_an_instruction():
    with pytest.raises(ValueError, match="instruction"):
        compiled_plan(array("q", [0] * 9))


def test_messages_wait_for_cells_and_for_each_other():
    wire, back = Wire(), Wire()
    source, sink = numpy.arange(8.0), numpy.zeros(8)
    send = compiled_plan(words((Instruction.SEND, 0, 0, INPUT, 64), (Instruction.FLUSH, 0),
                               (Instruction.END, 0)), [wire.side(False)])
    for turn in range(PLACES):
        source[:] = turn
        send.run(*addresses(source, sink))
    with pytest.raises(TimeoutError, match="at 1"):  # every cell is full
        send.run(*addresses(source, sink))
    assert wire.sides[0].sent == PLACES + 1
    take = compiled_plan(words((Instruction.TAKE, 0, 0, OUTPUT, 64),
                               (Instruction.COPY, 0, OUTPUT, MESSAGE, 64), (Instruction.TAKEN, 0,
                                                                            0),
                               (Instruction.END, 0)), [wire.side(True)])
    for turn in range(PLACES):
        take.run(*addresses(source, sink))
        assert (sink == turn).all() and wire.sides[1].received == turn + 1
    run = take.begin(*addresses(source, sink))
    assert run.advance(0) == _executor.WAITING and run.at == 0
    with pytest.raises(ValueError, match="no message"):
        compiled_plan(words((Instruction.END, 0))).begin(0, 0).skip()
    run.skip()
    assert run.advance(0) == _executor.DONE and wire.sides[1].received == PLACES + 1
    del back


@pytest.mark.parametrize("kind", ["private", "registered"])
def test_a_message_longer_than_a_cell_is_read_where_it_is(kind):
    """Its sender waits until it has been read; registered memory is not even copied."""
    nbytes, sizes = 20 * CELL, (20 * CELL, 20 * CELL)
    message, total = numpy.arange(nbytes // 8), numpy.zeros(nbytes // 8, "q")
    regions = (1, 3, *addresses(message), nbytes, *addresses(message))
    wire = Wire(os.getpid(), regions if kind == "registered" else (0, 3))
    send = compiled_plan(words((Instruction.SEND, 0, 0, INPUT, nbytes), (Instruction.FLUSH, 0),
                               (Instruction.END, 0)), [wire.side(False)], sizes)
    take = compiled_plan(words((Instruction.TAKE, 0, 0, SCRATCH, nbytes),
                               (Instruction.REDUCE, 0, 0, OUTPUT, OUTPUT, MESSAGE, nbytes // 8),
                               (Instruction.TAKEN, 0, 0), (Instruction.END, 0)), [wire.side(True)],
                         sizes, (numpy.add, numpy.dtype("q")), scratch=nbytes)
    total[:] = 1
    sender = send.begin(*addresses(message, message))
    assert sender.advance(0) == _executor.WAITING
    assert take.begin(*addresses(message, total)).advance(0) == _executor.DONE
    assert (total == message + 1).all() and not wire.cells.any()
    assert sender.advance(0) == _executor.DONE


def test_a_message_that_python_has_put_aside_is_not_read_again():
    """Its sender was released, and may have other data there."""
    nbytes, message = 20 * CELL, numpy.ones(20 * CELL, "u1")
    wire, sizes = Wire(os.getpid()), (nbytes, nbytes)
    send = compiled_plan(words((Instruction.SEND, 0, 0, INPUT, nbytes), (Instruction.END, 0)),
                         [wire.side(False)], sizes)
    take = compiled_plan(words((Instruction.TAKE, 0, 0, OUTPUT, nbytes), (Instruction.TAKEN, 0, 0),
                               (Instruction.END, 0)), [wire.side(True)], sizes)
    send.run(*addresses(message, message))
    wire.taken[1 % PLACES] = 1
    landing = numpy.zeros(nbytes, "u1")
    assert take.begin(*addresses(message, landing)).advance(0) == _executor.ELSEWHERE
    assert not landing.any()


def test_a_sender_that_fails_while_its_memory_is_used_in_place_is_noticed():
    count, alarm, turns = 1 << 17, numpy.zeros(1, "q"), 400
    nbytes, message, total = 8 * count, numpy.ones(count, "q"), numpy.zeros(count, "q")
    wire = Wire(os.getpid(), (1, 3, *addresses(message), nbytes, *addresses(message)))
    send = compiled_plan(words((Instruction.SEND, 0, 0, INPUT, nbytes), (Instruction.FLUSH, 0),
                               (Instruction.END, 0)), [wire.side(False)], (nbytes, nbytes))
    adds = [(Instruction.REDUCE, 0, 0, OUTPUT, OUTPUT, MESSAGE, count)] * turns
    take = compiled_plan(words((Instruction.TAKE, 0, 0, SCRATCH, nbytes), *adds,
                               (Instruction.TAKEN, 0, 0), (Instruction.END, 0)), [wire.side(True)],
                         (nbytes, nbytes), (numpy.add, numpy.dtype("q")), scratch=nbytes,
                         alarm=addresses(alarm)[0])
    for fails in (False, True):
        sender, taker = (plan.begin(*addresses(message, total)) for plan in (send, take))
        assert sender.advance(0) == _executor.WAITING
        timer = threading.Timer(0.005, alarm.fill, [1])
        if fails:
            timer.start()
        found = taker.advance(0)
        assert found == (_executor.ELSEWHERE if fails else _executor.DONE)
    timer.join()
    assert taker.advance(0) == _executor.DONE  # who only looks goes on


@pytest.mark.parametrize("how, read, copy, take, is_read", [
    (MessageOverlap.EXCHANGED, 150, 80, 80, True), (MessageOverlap.EXCHANGED, 170, 80, 80, False),
    (MessageOverlap.ALONE, 150, 80, 80, True), (MessageOverlap.PIPELINED, 150, 80, 80, False),
    (MessageOverlap.PIPELINED, 70, 60, 80, True), (MessageOverlap.EXCHANGED, 0, 0, 0, True)])
def test_the_sender_chooses_the_faster_way(how, read, copy, take, is_read):
    """Of a message that fits a cell; one in many goes the other way, to be timed."""
    cell = 100_000
    wire = Wire(os.getpid())
    wire.cells = numpy.zeros((PLACES, cell), "u1")
    message = numpy.arange(cell // 8)
    channel = (*wire.side(False)[:5], cell, *wire.side(False)[6:])
    send = compiled_plan(words((Instruction.SEND, 0, 0, INPUT, cell, 0, how), (Instruction.END, 0)),
                         [channel], (cell, cell), yields=False)
    ways = []
    for number in range(1, 129):
        wire.taken[READ_COST], wire.taken[TAKE_COST], send.copy_cost = read, take, copy
        send.run(*addresses(message, message))
        ways.append(int(wire.words[number % PLACES]) & ELSEWHERE == ELSEWHERE)
        wire.taken[number % PLACES] = number
    assert ways.count(is_read) == 126 and ways[63] == ways[127] != is_read


def test_long_plans_run_without_the_gil():
    """As the calls of MPI libraries do: other threads go on."""
    nbytes, ticks, ended = 1 << 24, [], threading.Event()

    def tick():
        while not ended.is_set():
            ticks.append(1)
            time.sleep(1e-4)

    memory = numpy.ones(nbytes, "u1"), numpy.zeros(nbytes, "u1")
    copies = compiled_plan(words(*[(Instruction.COPY, 0, OUTPUT, INPUT, nbytes)] * 100,
                                 (Instruction.END, 0)), sizes=(nbytes, nbytes))
    thread, interval = threading.Thread(target=tick), sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(100)  # nobody is asked to release the GIL
    try:
        before = len(ticks)
        copies.run(*addresses(*memory))
        assert len(ticks) > before + 3
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()


def test_a_message_of_another_size_lies_elsewhere():
    wire, memory = Wire(), numpy.zeros(8)
    wire.words[1] = 1 << _executor.SIZE_BITS | 56
    take = compiled_plan(words((Instruction.TAKE, 0, 0, OUTPUT, 64), (Instruction.TAKEN, 0, 0),
                               (Instruction.END, 0)), [wire.side(True)])
    assert take.begin(*addresses(memory, memory)).advance() == _executor.ELSEWHERE


@pytest.mark.skipif(sys.platform != "linux", reason="there are no futexes")
@pytest.mark.parametrize("awaited", ["message", "cell"])
def test_ranks_on_shared_cores_sleep_until_a_peer_wakes_them(awaited):
    """Else they use up their share of the processor, and come late once a message is there."""
    wire, source, used = Wire(), numpy.arange(64, dtype="u1"), []
    send, take = ((Instruction.SEND, 0, 0, INPUT, 8), (Instruction.FLUSH, 0)), (
        (Instruction.TAKE, 0, 0, OUTPUT, 8), (Instruction.TAKEN, 0, 0))
    ends = [compiled_plan(words(*steps, (Instruction.END, 0)), [wire.side(receives)])
            for receives, steps in enumerate((send, take))]
    waiting, other = ends if awaited == "cell" else reversed(ends)
    here = addresses(source, numpy.zeros(64, "u1"))
    for _ in range(PLACES * (awaited == "cell")):
        ends[0].run(*here)

    def wait():
        start = time.monotonic(), time.thread_time()
        used.append(waiting.begin(*here).advance(10_000_000))
        used.extend((time.monotonic() - start[0], time.thread_time() - start[1]))
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    other.run(*here)
    thread.join()
    found, seconds, processor = used
    assert found == _executor.DONE and 0.2 < seconds < 5 and processor < 0.1


def test_who_runs_plans(monkeypatch):
    assert built.executor(Config()) == "compiled"
    assert built.executor(Config(executor="python")) == "python"
    monkeypatch.setattr(built, "BUILT", False)
    assert built.executor(Config()) == "python"
    with pytest.raises(ArgumentError, match="built"):
        built.executor(Config(executor="compiled"))


# -- calls ------------------------------------------------------------------------------------
class Owner:
    """Something with calls, and a method that is recognised."""

    def __init__(self):
        self._calls, self.slow = _executor.Calls(), []

    def method(self, sendbuf, recvbuf, op=max, root=0):
        """A method."""
        self.slow.append((sendbuf, recvbuf, op, root))


def test_what_is_recognised():
    served = []
    Owner.fast = _executor.Recognised(Owner.method, 3, "sron", ("sendbuf", "recvbuf", "op", "root"),
                                      (max, 0))
    one, x, y = Owner(), numpy.ones(4), numpy.ones(4)
    one.fast(x, y)
    assert len(one.slow) == 1
    target = lambda *args, **named: served.append((args, named))  # noqa: E731
    assert one._calls.store(3, "sron", (x, y, max, 0), target) and len(one._calls) == 1
    one.fast(x, y), one.fast(x, recvbuf=y), one.fast(numpy.zeros(4), numpy.zeros(4), root=0)
    assert len(served) == 3 and len(one.slow) == 1
    frozen = numpy.ones(4)
    frozen.flags.writeable = False
    for arguments in itertools.chain(
            [(x, y, min), (x, y, max, 1), (x, y, max, True), (x, y[:3]), (x.astype("f4"), y),
             (x, y.view("i8")), (x, frozen), (x, x), (x, None), (None, y), ([x, 0.5], y)],
            [(x, numpy.ones(8)[::2]), (x.reshape(2, 2).T, y), ([x, float], y), (x, "text")]):
        before = len(one.slow)
        one.fast(*arguments)
        assert len(one.slow) == before + 1 and len(served) == 3, arguments
    one.fast(frozen, y)
    assert len(served) == 4
    assert one._calls.store(3, "sron", ([x, 4, float], y, max, 0), target)
    one.fast([y, 4, float], x), one.fast([y, 3, float], x), one.fast([y, 4, int], x)
    assert len(served) == 5
    for bad in ((), (x,), (x, y, max, 0, 1)):
        with pytest.raises(TypeError):
            one.fast(*bad)
    with pytest.raises(TypeError):
        one.fast(x, y, none=1)
    one._calls.clear()
    one.fast(x, y)
    assert len(served) == 5


def test_calls_with_other_vectors_are_other_calls():
    Owner.fast = _executor.Recognised(Owner.method, 3, "sron", ("sendbuf", "recvbuf", "op", "root"),
                                      (max, 0))
    one, x, y, served = Owner(), numpy.ones(4), numpy.ones(4), []
    assert one._calls.store(3, "sron", ([x, (1, 2), (0, 2), float], y, max, 0),
                            lambda *args: served.append(args))
    for counts, displs in ((1, 2), (0, 2)), ([1, 2], numpy.array([0, 2])):
        one.fast([x, counts, displs, float], y)
    assert len(served) == 2 and not one.slow
    for counts, displs in (((2, 1), (0, 2)), ((1, 2), (0, 1)), ((1, 2), (1, 2)), ((1, 1), (0, 2)),
                           ((1, 2, 0), (0, 2, 0)), ((1, 2), None), ((1,), (0,))):
        before = len(one.slow)
        one.fast([x, counts, displs, float], y)
        assert len(one.slow) == before + 1, (counts, displs)
    assert len(served) == 2


def test_calls_of_many_sizes():
    calls, target = _executor.Calls(), [].append
    for count in range(3000):
        assert calls.store(1, "b", (numpy.ones(count, "u1"),), target)
        assert len(calls) == count % 2048 + 1
    assert not calls.store(1, "b", (numpy.ones(9)[::2],), target)
    with pytest.raises(ValueError):
        calls.store(1, "b", (), target)


def test_numbers_need_frames_that_are_long_enough():
    frames = compiled_plan(words((Instruction.END, 0)))
    rest = (0,) * 4, 0, None, _executor.CallGuard()
    with pytest.raises(ValueError, match="short"):
        _executor.Numbers(((frames, *addresses(numpy.zeros(8), numpy.zeros(8)), True),), 254, 253,
                          56,
                          57, *rest)
    with pytest.raises(TypeError):
        _executor.Numbers((("no compiled plan", 0, 0, True),), 254, 253, 55, 56, *rest)


def test_numbers_of_two_threads():
    """Each takes what the other one sent, in the order of the ranks."""
    from hpccoll.comm.objects.wire import FLOAT, INT

    wires, results = (Wire(), Wire()), {}

    def patient(run):
        while run.advance(100) != _executor.DONE:
            pass

    class Rank:
        allreduce = _executor.shortcut("allreduce", lambda self, value, op=None: "slow")

        def __init__(self, number):
            self.frames = numpy.zeros(64, "u1"), numpy.zeros(64, "u1")
            run = compiled_plan(exchange(64, number),
                                [wires[number].side(False),
                                 wires[1 - number].side(True)], waiter=patient)
            self._numbers = _executor.Numbers(((run, *addresses(*self.frames), not number),),
                                              FLOAT, INT, 55, 56, (1, 2, 3, 4), 0, self.frames,
                                              _executor.CallGuard())

        def _resume_allreduce(self, value, op, distance, exchanged):
            return value, distance, exchanged

    def work(number):
        rank = Rank(number)
        results[number] = [rank.allreduce(value[number]) for value in (
            (1.5, 2.25), (3, 4), (1, 2.5), (1 << 62, 1 << 62))] + [rank.allreduce("text"),
                                                                  rank.allreduce(1 << 80)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    alike = [3.75, 7, None, 1 << 63, "slow", "slow"]
    for number, mine in ((0, (1, 1, True)), (1, (2.5, 1, True))):
        alike[2] = mine
        assert results[number] == alike


def test_calls_enter_one_by_one():
    """A call inside a call of the same communicator is refused, and the first one goes on."""
    calls = []
    Owner.fast = _executor.Recognised(Owner.method, 3, "sron", ("sendbuf", "recvbuf", "op", "root"),
                                      (max, 0))
    one, x, y = Owner(), numpy.ones(4), numpy.ones(4)
    call_guard = _executor.CallGuard()

    def target(*args):
        calls.append(call_guard.owner_thread)
        with pytest.raises(RuntimeError):
            one.fast(x, y)
        return "done"

    assert one._calls.store(3, "sron", (x, y, max, 0), target)
    one._calls.guard(call_guard)
    assert (one.fast(x, y), calls, call_guard.owner_thread) == ("done", [threading.get_ident()], 0)
    with pytest.raises(TypeError):
        one._calls.guard(object())
