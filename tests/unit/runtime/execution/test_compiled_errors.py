"""Steps of the compiled executor that fail, most without memory, leave the state before them."""

import ctypes
import sys
from functools import partial

import numpy
import pytest

from hpccoll.runtime.execution import compiled

if not compiled.BUILT:
    pytest.skip("the compiled executor was not built", allow_module_level=True)

from unit.runtime.execution.test_compiled import (
    INPUT,
    OUTPUT,
    Owner,
    Wire,
    addresses,
    compiled_plan,
    stuck,
    words,
)
from unit.runtime.execution.test_compiled_operations import (
    Request,
    Two,
    begin,
    finish,
    operation,
    persistent,
)

from hpccoll.runtime.execution import _executor
from hpccoll.runtime.execution.compiled_plan import Instruction
from hpccoll.runtime.progress.engine import PROGRESS

_testcapi = pytest.importorskip("_testcapi")
if not hasattr(_testcapi, "set_nomemory"):
    pytest.skip("this Python has no allocator that fails", allow_module_level=True)

MOST = 200
#: Offset of ``tp_clear`` in a type.
TP_CLEAR = 24 * ctypes.sizeof(ctypes.c_void_p)
CODE = words((Instruction.COPY, 0, OUTPUT, INPUT, 64), (Instruction.END, 0))
WIRE = Wire()
CHANNELS, KERNEL = (WIRE.side(False),), (numpy.add, numpy.dtype("d"))


def attempt(number, function, *args):
    """Call a function whose allocation of this number fails; None after a ``MemoryError``."""
    _testcapi.set_nomemory(number, number + 1)
    try:
        return function(*args)
    except MemoryError:
        return None
    finally:
        _testcapi.remove_mem_hooks()


def plan(memory, accumulator=None):
    return _executor.CompiledPlan(CODE, (64, 64), CHANNELS, KERNEL, memory, (), stuck, True,
                                  accumulator=accumulator)


def test_a_plan_holds_its_memory_in_place_and_a_failed_one_releases_it():
    memories = [bytearray(64), bytearray(64)]
    made = 0
    for number in range(1, MOST + 1):
        one = attempt(number, plan, *memories)
        if one is not None:
            made += 1
            for memory in memories:
                with pytest.raises(BufferError):
                    memory.append(0)
            source, sink = numpy.arange(8.), numpy.zeros(8)
            one.run(*addresses(source, sink))
            assert (sink == source).all()
        del one
        for memory in memories:
            memory.append(0)
            memory.pop()
    assert 0 < made < MOST
    with pytest.raises(BufferError):
        plan(bytes(64))


def test_a_cache_finds_what_it_stored_and_no_more():
    served, one = [], Owner()
    Owner.counted = _executor.Recognised(Owner.method, 3, "src", ("sendbuf", "recvbuf", "op"), ())
    counts, stored = list(range(100)), 0
    for number in range(1, MOST + 1):
        arguments = numpy.ones(number), numpy.ones(number), counts
        fails = number % 12 + 1  # a store has some ten allocations
        stored += bool(attempt(fails, one._calls.store, 3, "src", arguments, served.append))
        assert len(one._calls) == stored
        attempt(fails, one.counted, *arguments)
    assert 0 < stored < MOST
    for number in range(1, MOST + 1):
        arguments = numpy.ones(number), numpy.ones(number), counts
        assert one._calls.store(3, "src", arguments, len)
    assert len(one._calls) == MOST
    one._calls.clear()
    assert not len(one._calls)


def collect(one):
    """Do to an object what the collector does to members of a cycle; others may still use it."""
    clear = ctypes.c_void_p.from_address(id(type(one)) + TP_CLEAR).value
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(clear)(one)
    return one


def test_a_cache_that_was_collected_is_empty_and_takes_new_calls():
    one, x, y, served = Owner(), numpy.ones(4), numpy.ones(4), []
    Owner.again = _executor.Recognised(Owner.method, 3, "sr", ("sendbuf", "recvbuf"), ())
    for turn in range(2):
        assert one._calls.store(3, "sr", (x, y), lambda *_: served.append(turn))
        one.again(x, y)
        collect(one._calls)
        assert not len(one._calls)
        one.again(x, y)
        assert len(served) == len(one.slow) == turn + 1


def test_what_was_collected_raises_an_error():
    log = numpy.zeros(400, "q")
    place, = addresses(log)
    waits = compiled_plan(words((Instruction.TAKE, 0, 0, OUTPUT, 8), (Instruction.TAKEN, 0, 0),
                                (Instruction.END, 0)), [Wire().side(True)])
    for function in (partial(collect(waits).run, *addresses(numpy.ones(8), numpy.ones(8))),
                     collect(_executor.Noted(len, place, place, 0, len, len, None)),
                     collect(_executor.amid(0, 0, 0, len))):
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            function()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "made"])
def test_a_request_that_cannot_begin_leaves_nothing_behind(kept):
    two, queue, begun = Two(), _executor.RequestQueue(), 0
    here, there = two.begins(0, queue), two.begins(1)
    finish(begin(there, numpy.ones(8), numpy.zeros(8)), begin(here, numpy.ones(8), numpy.zeros(8)))
    for number in range(1, MOST + 1):
        if not kept:
            side, queue = two.rank(0), _executor.RequestQueue()
            ready = [operation(side, queue)]
            here = _executor.Begin(compiled_plan(side.code, side.channels), lambda _: ready.pop(),
                                   Request)
        source, outs = numpy.full(8, float(number)), (numpy.zeros(8), numpy.zeros(8))
        other = begin(there, -source, outs[1])
        places, buffers = addresses(source, outs[0]), (source, outs[0])
        before, sent = sys.getrefcount(buffers), two.wires[0].sides[0].sent
        one = attempt(number, here.begin, *places, buffers)
        if one is None:
            assert PROGRESS.operations == [other._operation] and queue.first is None
            assert sys.getrefcount(buffers) == before and two.wires[0].sides[0].sent == sent
            one = here.begin(*places, buffers)
        else:
            begun += 1
        held = one._operation
        if attempt(number, one.Wait) is not True:
            assert held.over
        finish(other)
        assert (outs[0] == -number).all() and (outs[1] == number).all() and not held.busy
    assert 0 < begun < MOST


def test_a_persistent_request_that_cannot_start_starts_later():
    two, started = Two(), 0
    there = two.begins(1)
    source, sink = numpy.zeros(8), numpy.zeros(8)
    request = persistent(two, source, sink)
    for number in range(1, MOST + 1):
        out = numpy.zeros(8)
        source[:] = number
        other = begin(there, -source, out)
        attempt(number, request.Start)
        if request._operation.over:
            assert PROGRESS.operations == [other._operation]
            assert request.Start() is None
        else:
            started += 1
        while attempt(number, request.Wait) is None:
            number += 1
        finish(other)
        assert (sink == -source).all() and (out == source).all()
    assert started


def test_without_a_thread_no_operation_begins(monkeypatch):
    """No message was sent then; the next one begins, and takes the place in the queue."""
    def wake():
        raise OSError("no thread")

    two = Two()
    here, there = two.begins(0, two.queue, True), two.begins(1)
    monkeypatch.setattr(PROGRESS, "lazy", True)
    monkeypatch.setattr(PROGRESS, "wake", wake, raising=False)
    for _ in range(3):
        with pytest.raises(OSError, match="no thread"):
            begin(here, numpy.ones(8), numpy.zeros(8))
        assert not PROGRESS.operations and two.queue.first is None
    assert not two.wires[0].sides[0].sent
    monkeypatch.undo()
    sink = numpy.zeros(8)
    finish(begin(here, numpy.ones(8), sink), begin(there, numpy.full(8, 3.), numpy.zeros(8)))
    assert (sink == 3).all()
