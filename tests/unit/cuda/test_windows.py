"""Windows: what is on its way when, how much memory is pinned, and who waits for what."""

import threading
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.algorithms import schedule
from hpccoll.calls.layouts import vector_layout
from hpccoll.cuda import windows
from hpccoll.cuda.staging import StagedBuffer
from hpccoll.cuda.windows import WindowedBuffer
from hpccoll.ir.collectives import IN, OUT
from hpccoll.runtime.planning import plan as plans
from support.gpu.device import installed
from support.gpu.streams import CudaError, Devices

COUNT = 240


def plan(segment, count=COUNT, algorithm="ring"):
    built = schedule("allreduce", algorithm, 4)
    layout, longest = vector_layout(built, 0, count, False)
    return plans.make(built, 0, layout, longest, segment)


@pytest.fixture
def place():
    """A double, and a caller's stream on it."""
    machine = Devices()
    with installed(False, machine) as cupy:
        yield SimpleNamespace(cupy=cupy, machine=machine,
                              stream=cupy.cuda.Stream(non_blocking=True))


def windowed(place, plan, names=(IN,), shared=True):
    array = place.cupy.asarray(numpy.arange(COUNT, dtype="f4"))
    staged = StagedBuffer(place.cupy, array.device, place.stream, shared)
    return WindowedBuffer(plan, array, staged, names), array


def test_the_next_segments_are_loaded_while_the_first_runs(place):
    made, _ = windowed(place, plan(5))  # 60 elements a block: 12 segments
    made.begin(0)
    assert set(made.arrived) == {0, 1, 2}  # two run, one is loaded ahead, and more do not fit
    made.begin(1)
    assert set(made.arrived) == {0, 1, 2, 3} and len(made.windows) == 4
    assert not any(event.task.done for events in made.arrived.values() for event in events)
    assert made.inward is not made.outward and place.stream not in (made.inward, made.outward)


@pytest.mark.parametrize(("prefetch", "number"), [(1 << 20, 4), (0, 2)])
def test_pinned_memory_is_as_large_as_the_segments_under_way(place, monkeypatch, prefetch, number):
    monkeypatch.setattr(windows, "AHEAD_BYTES", prefetch)
    made, _ = windowed(place, plan(5))
    assert len(made.windows) == number
    # Four blocks, each at the beginning of a line of 64 bytes.
    assert place.machine.held["pinned"] == number * 4 * 64
    made.begin(0)
    assert max(made.arrived) == (2 if prefetch else 0)


def test_what_is_small_goes_through_one_window_on_the_callers_stream(place):
    made, _ = windowed(place, plan(0))
    assert len(made.windows) == 1 and made.inward is made.outward is place.stream
    assert place.machine.held["streams"] == 1  # the caller's
    made.begin(0)
    assert place.machine.calls["memcpyAsync"] == 1  # not one for each block


def test_a_large_segment_goes_block_by_block(place, monkeypatch):
    monkeypatch.setattr(windows, "FAIR", 64)
    made, _ = windowed(place, plan(0))
    made.begin(0)
    assert len(made.arrived[0]) == 3 and len(made.windows) == 1
    assert made.inward is not place.stream


def test_the_host_waits_for_nothing_but_asks(place):
    made, array = windowed(place, plan(5), (OUT,))
    made.begin(0)
    segment = made.plan.segments[0].program
    for phase in range(len(segment.phases)):
        while not made.can_start(0, phase):
            pass
        for message in segment.phases[phase].messages:
            if message.extent.buffer == OUT:
                made.view(0, message.extent)[...] = phase
        made.queue_stores(0, phase)
    made.staged.finish()
    calls = place.machine.calls
    assert not calls["eventSynchronize"] and not calls["streamSynchronize"]
    assert numpy.array_equal(array.raw, numpy.arange(COUNT))  # only queued
    place.stream.synchronize()
    assert not numpy.array_equal(array.raw, numpy.arange(COUNT))


def test_results_that_any_stream_may_read_are_there_at_the_end(place):
    made, array = windowed(place, plan(0), (OUT,), shared=False)
    made.begin(0)
    made.windows[0].view("f4")[...] = 7
    for phase in range(len(made.plan.segments[0].program.phases)):
        made.queue_stores(0, phase)
    made.staged.finish()
    assert set(array.raw.tolist()) == {7}


def test_a_fault_of_the_device_ends_the_waiting(place):
    made, _ = windowed(place, plan(5), (IN, OUT))
    made.begin(0)
    assert not made.can_start(0, 0)
    place.machine.fault = 700  # an illegal address, in any kernel of the process
    with pytest.raises(place.cupy.cuda.runtime.CUDARuntimeError, match="700"):
        made.can_start(0, 0)


def test_a_thread_asks_on_the_device_of_the_array():
    """A context on another device takes hundreds of megabytes there, of every process."""
    machine = Devices(2)
    with installed(False, machine) as cupy:
        with cupy.cuda.Device(1):
            place = SimpleNamespace(cupy=cupy, stream=cupy.cuda.Stream(non_blocking=True))
            made, _ = windowed(place, plan(5), (IN, OUT))
            made.begin(0)
        machine.contexts.clear()
        thread = threading.Thread(target=made.can_start, args=(0, 0))
        thread.start()
        thread.join()
        assert machine.contexts == {1}


def test_a_fault_of_the_first_copy_leaves_nothing_behind(place):
    array = place.cupy.asarray(numpy.arange(COUNT, dtype="f4"))
    staged = StagedBuffer(place.cupy, array.device, place.stream, True)
    call = SimpleNamespace(source=SimpleNamespace(array=array, staged=staged), sink=None)
    place.machine.faults["memcpyAsync"] = 2  # the third one
    with pytest.raises(CudaError):
        windows.windows_of(call, plan(5))
    place.machine.finish_all()  # what was queued before it finds its memory
