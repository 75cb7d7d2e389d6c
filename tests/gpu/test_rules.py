"""The rules of the stand-in for a device, tried on it and, where there is one, on a device.

What is true of one has to be true of the other: the tests without a device prove as much as these
rules are right. A test that waits on a device waits for a kernel that takes a while.
"""

import numpy
import pytest

from hpccoll.cuda.kernels import DeviceKernel
from hpccoll.cuda.nccl import nccl_library
from support.gpu.device import installed
from support.gpu.real_device import delay, device_reason

#: Elements that keep a device busy for a moment; the stand-in is as late as it may be with few.
MANY = {"device": 1 << 26, "double": 64}


@pytest.fixture(params=["double", "device"])
def place(request):
    """CuPy or its stand-in, and the number of elements that take a while."""
    if request.param == "double":
        with installed(True) as cupy:
            yield cupy, MANY["double"]
    else:
        if reason := device_reason():
            pytest.skip(reason)
        import cupy
        yield cupy, MANY["device"]


def busy(cupy, many):
    """An array whose elements, 0, become 1 on the current stream, not at once."""
    array = cupy.asarray(numpy.zeros(many, "f4"))
    ones = cupy.asarray(numpy.ones(many, "f4"))
    cupy.cuda.get_current_stream().synchronize()
    add = DeviceKernel(cupy, "max", numpy.dtype("f4"))
    if many == MANY["device"]:
        add(array[:1], ones[:1], array[:1])  # compiled before the clock runs
        delay(cupy, 0.3)  # longer than what the host does meanwhile
    for _ in range(8):
        add(array, ones, array)
    return array


def test_the_host_does_not_wait_for_what_it_queues(place):
    cupy, many = place
    with cupy.cuda.Stream(non_blocking=True) as stream:
        busy(cupy, many)
        assert not stream.done
        stream.synchronize()
        assert stream.done


def test_an_event_has_happened_when_what_is_before_it_has(place):
    cupy, many = place
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = busy(cupy, many)
        event = stream.record()
        assert not event.done
        event.synchronize()
        assert event.done and list(cupy.asnumpy(array[-3:])) == [1, 1, 1]


def test_who_asks_an_event_again_and_again_gets_it(place):
    cupy, many = place
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = busy(cupy, many)
        event = stream.record(cupy.cuda.Event(disable_timing=True))
        assert not event.done
        while not event.done:
            pass
        assert list(cupy.asnumpy(array[-3:])) == [1, 1, 1]


def test_work_outlives_its_stream(place):
    cupy, many = place
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = busy(cupy, many)
        event = stream.record()
    del stream
    event.synchronize()
    assert list(cupy.asnumpy(array[-3:])) == [1, 1, 1]


def test_a_stream_waits_for_an_event_of_another(place):
    cupy, many = place
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with one:
        array = busy(cupy, many)
        event = one.record()
    with other:
        other.wait_event(event)
        copy = array.copy()
        other.synchronize()
        assert event.done
    with one:
        assert list(cupy.asnumpy(copy[-3:])) == [1, 1, 1]


def test_streams_that_are_not_ordered_do_not_wait(place):
    cupy, many = place
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with one:
        array = busy(cupy, many)
        event = one.record()
    with other:
        few = cupy.asarray(numpy.zeros(4, "f4")).copy()
        other.synchronize()
        assert few.size == 4 and not event.done
    one.synchronize()
    assert array.size == many


def test_the_null_stream_waits_for_blocking_streams(place):
    cupy, many = place
    with cupy.cuda.Stream() as stream:
        array = busy(cupy, many)
        event = stream.record()
    last = cupy.asnumpy(array[-3:])  # on the null stream
    assert event.done and list(last) == [1, 1, 1]


def test_a_copy_into_pinned_memory_is_late(place):
    cupy, many = place
    host = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(4 * many), "f4", many)
    host[...] = 7
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = busy(cupy, many)
        array.get(stream=stream, out=host, blocking=False)
        assert host[-1] == 7
        stream.synchronize()
        assert host[-1] == 1


def test_a_copy_from_pinned_memory_reads_it_late(place):
    cupy, many = place
    host = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(4 * many), "f4", many)
    host[...] = 7
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = busy(cupy, many)
        array.set(host, stream=stream)
        host[...] = 8
        stream.synchronize()
        assert list(cupy.asnumpy(array[-3:])) == [8, 8, 8]


def test_a_stream_that_is_waited_for_ends_its_capture(place):
    cupy, _ = place
    array = cupy.asarray(numpy.zeros(4, "f4"))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        assert not stream.is_capturing()
        stream.begin_capture()
        assert stream.is_capturing()
        with pytest.raises(Exception, match="[Cc]apture"):
            stream.synchronize()
        with pytest.raises(Exception, match="[Cc]apture"):
            stream.end_capture()
        assert array.size == 4


def test_nccl_comes_after_what_is_on_its_stream(place):
    cupy, many = place
    try:
        nccl = nccl_library()
    except ImportError as error:
        pytest.skip(str(error))
    ranks = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array, into = busy(cupy, many), cupy.asarray(numpy.zeros(many, "f4"))
        kind = nccl.NCCL_FLOAT32
        nccl.groupStart()
        ranks.send(array.data.ptr, many, kind, 0, stream.ptr)
        ranks.recv(into.data.ptr, many, kind, 0, stream.ptr)
        nccl.groupEnd()
        ranks.allReduce(into.data.ptr, into.data.ptr, many, kind, nccl.NCCL_SUM, stream.ptr)
        assert not stream.done
        assert list(cupy.asnumpy(into[-3:])) == [1, 1, 1]
    ranks.check_async_error()
    ranks.destroy()


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_kernel_has_the_bits_of_the_processor(place, dtype):
    cupy, _ = place
    terms = [numpy.random.default_rng(seed).standard_normal(1001).astype(dtype)
             for seed in range(2)]
    into = cupy.empty(1001, dtype)
    DeviceKernel(cupy, "sum", numpy.dtype(dtype))(*map(cupy.asarray, terms), into)
    assert cupy.asnumpy(into).tobytes() == (terms[0] + terms[1]).tobytes()
