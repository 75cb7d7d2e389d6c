"""The stand-in for CuPy: stricter than the real one, and as lazy."""

import sys
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.testing.exact import wrong
from support.gpu.device import DeviceArray, installed
from support.gpu.streams import CudaError, Devices


@pytest.mark.parametrize("use", [
    numpy.asarray, memoryview, bytes, numpy.sum, numpy.copy, lambda x: numpy.add(x, x),
    lambda x: numpy.copyto(numpy.zeros(4), x), lambda x: numpy.copyto(x, numpy.zeros(4)),
    lambda x: x.__setitem__(slice(None), numpy.zeros(4)), lambda x: numpy.zeros(4) + x,
    lambda x: numpy.zeros(4).__iadd__(x)])
def test_the_double_refuses_the_host(use):
    with installed(True) as cupy, pytest.raises(TypeError):
        use(cupy.asarray(numpy.arange(4.0)))


def test_work_happens_when_the_stream_is_synchronised():
    with installed(True) as cupy:
        one, into = cupy.asarray(numpy.arange(4.0)), cupy.empty(4)
        kernel = cupy.RawKernel('extern "C" __global__ void twice(double *into, const double *x, '
                                "long long n) { for (int i = 0; i < n; i++) into[i] = 2 * x[i]; }",
                                "twice")
        kernel((1,), (1,), (into, one, numpy.int64(4)))
        cupy.copyto(into[2:], one[:2])
        assert wrong(into.raw, numpy.array([0.0, 2, 0, 1])) == 4
        cupy.cuda.get_current_stream().synchronize()
        assert list(into.raw) == [0, 2, 0, 1]
        copied = one.copy()
        one.set(numpy.ones(4))
        assert list(cupy.asnumpy(copied)) == [0, 1, 2, 3] and list(one.raw) == [1] * 4
        assert list(one.view("u1").shape) == [32] and len(one) == 4 and one.itemsize == 8
        for args in (into, numpy.zeros(4), numpy.int64(4)), (into, one, 4), (into, one, None):
            with pytest.raises(TypeError, match="NumPy"):
                kernel((1,), (1,), args)
        foreign = SimpleNamespace(__cuda_array_interface__=one.__cuda_array_interface__)
        assert numpy.shares_memory(cupy.asarray(foreign).raw, one.raw)
        assert isinstance(one[1:3].reshape(2, 1).T, DeviceArray)
    assert sys.modules.get("cupy") is not cupy


def test_events_belong_to_a_device():
    machine = Devices(2)
    with installed(False, machine) as cupy:
        with cupy.cuda.Device(1):
            stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
        with pytest.raises(CudaError, match="InvalidResourceHandle"):
            stream.record()  # makes an event on the device that is current
        assert cupy.cuda.get_current_stream().wait_event(stream.record(event)) is None
