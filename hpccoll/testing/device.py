"""A device-array double: stands in for CuPy where there is no device, and is stricter.

    with installed(cuda_aware=True) as cupy:
        x = cupy.asarray(numpy.arange(8.0))

Arrays live in memory that host code cannot reach by accident: they refuse the buffer protocol,
NumPy functions and mixing with host arrays. Work on them is only queued; it happens when the
stream is synchronised, so that a message that leaves too early visibly carries old data.
:class:`Wire` is a transport that, like a CUDA-aware MPI library, reads and writes the memory at
once, whatever is still queued.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy

from hpccoll.arrays import device
from hpccoll.arrays.kernels import UFUNCS


class Stream:
    """Queued work; ``synchronized`` counts the calls that waited for it."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], Any]] = []
        self.synchronized = 0

    def synchronize(self) -> None:
        """Do everything that is queued, in order."""
        self.synchronized += 1
        while self.queue:
            self.queue.pop(0)()


class DeviceArray:
    """An array in device memory; ``raw`` is that memory, for transports and for checks."""

    __array_ufunc__ = None

    def __init__(self, raw: numpy.ndarray, stream: Stream):
        self.raw, self.stream = raw, stream

    def __array__(self, *args: Any, **kwargs: Any) -> numpy.ndarray:
        raise TypeError("implicit conversion of device memory to a NumPy array")

    def __array_function__(self, function: Callable, *args: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} on device memory")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.raw.__array_interface__, "version": 3, "stream": None}

    dtype = property(lambda self: self.raw.dtype)
    shape = property(lambda self: self.raw.shape)
    size = property(lambda self: self.raw.size)
    nbytes = property(lambda self: self.raw.nbytes)
    itemsize = property(lambda self: self.raw.itemsize)
    flags = property(lambda self: self.raw.flags)
    T = property(lambda self: self.like(self.raw.T))

    def like(self, raw: numpy.ndarray) -> DeviceArray:
        """Another view of this memory."""
        return DeviceArray(raw, self.stream)

    def reshape(self, *shape: int) -> DeviceArray:
        """The same memory in another shape."""
        return self.like(self.raw.reshape(*shape))

    def view(self, dtype: Any) -> DeviceArray:
        """The same memory as another type."""
        return self.like(self.raw.view(dtype))

    def copy(self) -> DeviceArray:
        """A copy on the device, once the stream gets there."""
        copy = self.like(numpy.empty_like(self.raw))
        copy[...] = self
        return copy

    def set(self, host: numpy.ndarray) -> None:
        """Copy host memory onto the device, after what is queued."""
        self.stream.queue.append(lambda: numpy.copyto(self.raw, host))
        self.stream.synchronize()

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, key: Any) -> DeviceArray:
        return self.like(self.raw[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        source = value if numpy.isscalar(value) else on_device(value)
        self.stream.queue.append(lambda: self.raw.__setitem__(key, source))


class DlpackArray:
    """Device memory with nothing but the DLPack protocol, like arrays of other libraries."""

    def __init__(self, array: DeviceArray):
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **kwargs: Any) -> DeviceArray:
        return self.array


def on_device(array: Any) -> numpy.ndarray:
    """The memory of a device array.

    Raises:
        TypeError: it is no device array; CuPy refuses such arguments, too.
    """
    if not isinstance(array, DeviceArray):
        raise TypeError(f"unsupported type {type(array)}: not device memory")
    return array.raw


def module() -> ModuleType:
    """Make a module with the functions of CuPy that hpccoll uses, on a stream of its own."""
    stream, cupy = Stream(), ModuleType("cupy")

    def asarray(obj: Any, dtype: Any = None) -> DeviceArray:
        if isinstance(obj, DeviceArray):
            return obj
        if hasattr(obj, "__cuda_array_interface__"):
            host = SimpleNamespace(__array_interface__=obj.__cuda_array_interface__)
            return DeviceArray(numpy.asarray(host), stream)
        return DeviceArray(numpy.array(obj, dtype), stream)

    def asnumpy(array: DeviceArray) -> numpy.ndarray:
        stream.synchronize()
        return on_device(array).copy()

    def ufunc(name: str) -> Callable:
        def apply(left: DeviceArray, right: DeviceArray, out: DeviceArray, **how: Any) -> None:
            operands = on_device(left), on_device(right)
            how["out"] = on_device(out)
            stream.queue.append(lambda: getattr(numpy, name)(*operands, **how))
        return apply

    def copyto(into: DeviceArray, source: DeviceArray) -> None:
        into[...] = source

    def empty(shape: Any, dtype: Any = float) -> DeviceArray:
        array = DeviceArray(numpy.empty(shape, dtype), stream)
        array.raw.view(numpy.uint8)[...] = 0xA5
        return array

    vars(cupy).update(
        {name: ufunc(name) for name in UFUNCS.values()}, ndarray=DeviceArray, asarray=asarray,
        asnumpy=asnumpy, copyto=copyto, empty=empty, from_dlpack=lambda obj: obj.__dlpack__(),
        cuda=SimpleNamespace(get_current_stream=lambda: stream))
    return cupy


@contextmanager
def installed(cuda_aware: bool) -> Iterator[ModuleType]:
    """Make ``import cupy`` return a double; ``cuda_aware`` says whether MPI moves its memory."""
    cupy, before = module(), sys.modules.get("cupy")
    sys.modules["cupy"] = cupy
    device.is_served.cache_clear()
    try:
        with patch.object(device, "mpi_moves_device_memory", lambda: cuda_aware):
            yield cupy
    finally:
        del sys.modules["cupy"]
        if before is not None:
            sys.modules["cupy"] = before
        device.is_served.cache_clear()


class Wire:
    """An endpoint that moves device memory at once, over another endpoint."""

    def __init__(self, endpoint: Any):
        self.endpoint, self.rank, self.size = endpoint, endpoint.rank, endpoint.size

    def direct(self, peers: Any, tag: int) -> bool:
        """Messages are not used in place."""
        return False

    def batch(self, postings: Any, tag: int, repeated: bool) -> Any:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return self.endpoint.batch([posting._replace(array=getattr(
            posting.array, "raw", posting.array)) for posting in postings], tag, repeated)
