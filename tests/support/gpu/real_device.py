"""A real device, where there is one, in the place of its stand-in."""

import functools
from contextlib import contextmanager

import numpy

SPIN = r"""
__device__ long long now()
{
    long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
extern "C" __global__ void spin(long long nanoseconds)
{
    long long start = now();
    while (now() - start < nanoseconds);
}
"""


@functools.cache
def device_reason():
    """Why no device can be used here; ``None`` if one can."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: make cuda"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no device: {error}"
    return None


@contextmanager
def installed(*args, **kwargs):
    """CuPy itself, for what else uses ``support.gpu.device.installed``."""
    import cupy
    yield cupy


@functools.cache
def _spin():
    import cupy
    return cupy.RawKernel(SPIN, "spin")


def delay(cupy, seconds=3e-4):
    """Queue something that takes a while."""
    _spin()((1,), (1,), (numpy.int64(1e9 * seconds),))
