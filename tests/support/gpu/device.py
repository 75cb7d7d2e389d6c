"""A device-array double: stands in for CuPy where there is no device, and is stricter.

    with installed(cuda_aware=True) as cupy:
        x = cupy.asarray(numpy.arange(8.0))

Arrays live in memory that host code cannot reach by accident: they refuse the buffer protocol,
NumPy functions and mixing with host arrays, and where MPI cannot move them their addresses are none
of the host's. Work on them is only queued, on the current stream of the thread: see
:mod:`support.gpu.streams`, so that a message that leaves too early visibly carries old data.
:class:`Wire` is a transport that, like a CUDA-aware MPI library, reads and writes the memory at
once, whatever is still queued.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy

from hpccoll.cuda import device
from hpccoll.cuda import ipc as cuda_ipc
from hpccoll.cuda.device_paths import Answer
from hpccoll.transport import NOTHING
from support.gpu import ipc, nccl
from support.gpu.cuda_on_host import compile_kernel
from support.gpu.pinned import reach
from support.gpu.streams import CudaError, CudaStatus, Device, Devices, Event, Stream

#: What is added to addresses that the host must not use: no processor has such ones.
ELSEWHERE = 1 << 62


class Pointer(NamedTuple):
    """Where device memory is."""

    ptr: int


class MemoryPointer(NamedTuple):
    """A place in an allocation."""

    ptr: int
    mem: Any


class DeviceArray:
    """An array in device memory; ``raw`` is that memory, for transports and for checks."""

    __array_ufunc__ = None

    def __init__(self, raw: numpy.ndarray, machine: Devices, number: int, shift: int = 0):
        self.raw, self.machine, self.number, self.shift = raw, machine, number, shift
        machine.allocated(raw, number)

    def __array__(self, *args: Any, **kwargs: Any) -> numpy.ndarray:
        raise TypeError("implicit conversion of device memory to a NumPy array")

    def __array_function__(self, function: Callable, *args: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} on device memory")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        described = dict(self.raw.__array_interface__)
        address, constant = described["data"]
        return {**described, "data": (address + self.shift, constant), "version": 3,
                "stream": None}

    dtype = property(lambda self: self.raw.dtype)
    shape = property(lambda self: self.raw.shape)
    size = property(lambda self: self.raw.size)
    nbytes = property(lambda self: self.raw.nbytes)
    itemsize = property(lambda self: self.raw.itemsize)
    flags = property(lambda self: self.raw.flags)
    device = property(lambda self: Device(self.machine, self.number))
    data = property(lambda self: Pointer(self.raw.ctypes.data + self.shift))
    T = property(lambda self: self.like(self.raw.T))

    def like(self, raw: numpy.ndarray) -> DeviceArray:
        """Another view of this memory."""
        return DeviceArray(raw, self.machine, self.number, self.shift)

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

    def set(self, arr: numpy.ndarray, stream: Stream | None = None) -> None:
        """Copy host memory onto the device when its turn comes; other than pinned one at once."""
        self.machine.called("memcpyAsync")
        reached, pinned = reach(arr)
        if not pinned:
            reached = partial(numpy.copy, numpy.array(arr))
        queue(lambda: numpy.copyto(self.raw, reached()), self, stream=stream)

    def get(self, stream: Stream | None = None, order: Literal["C", "F"] = "C",
            out: numpy.ndarray | None = None, blocking: bool = True) -> numpy.ndarray:
        """Copy to the host; into pinned memory, without ``blocking``, when its turn comes."""
        self.machine.called("memcpyAsync")
        host = numpy.empty_like(self.raw, order=order) if out is None else out
        reached, pinned = reach(host)
        queue(lambda: numpy.copyto(reached(), self.raw), self, stream=stream)
        if blocking or not pinned:
            (stream or self.machine.current()).synchronize()
        return host

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, slices: Any) -> DeviceArray:
        return self.like(self.raw[slices])

    def __setitem__(self, slices: Any, value: Any) -> None:
        source = value if numpy.isscalar(value) else on_device(value)
        others = () if numpy.isscalar(value) else (value,)
        queue(lambda: self.raw.__setitem__(slices, source), self, *others)


def queue(run: Callable[[], Any], *arrays: DeviceArray, stream: Stream | None = None) -> None:
    """Queue work on arrays, on the current stream unless one is named."""
    machine = arrays[0].machine
    stream = (stream or machine.current()).meant
    if machine.share is not None:
        machine.share.check([array.raw for array in arrays])
    found = {machine.device, *(array.number for array in arrays)}
    if found != {stream.device_id}:
        raise CudaError(f"illegal memory access: a stream of device {stream.device_id}, "
                        f"the thread or memory on {sorted(found)}")
    stream.push(run)


class RawKernel:
    """A kernel from source, run by the processor when its turn comes."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()):
        self.code, self.name, self.options = code, name, options

    @property
    def kernel(self) -> Any:
        """What the source is compiled to; it is compiled now if it has not been."""
        return compile_kernel(self.code, self.name, self.options)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]
                 ) -> None:
        arrays = [one for one in args if isinstance(one, DeviceArray)]
        given = [numpy.int64(one.raw.ctypes.data) if isinstance(one, DeviceArray) else
                 on_host(one) for one in args]
        (blocks,), (threads,) = grid, block
        run = self.kernel
        arrays[0].machine.called("launchKernel")

        def work(kept: Any = arrays) -> None:
            # CuPy's pool gives memory to later work of the same stream, at the earliest.
            run(blocks, threads, given)

        queue(work, *arrays)


def on_host(number: Any) -> numpy.generic:
    """A number for a kernel."""
    if not isinstance(number, numpy.generic):
        raise TypeError(f"unsupported type {type(number)}: no number of NumPy")
    return number


class DlpackArray:
    """Device memory with nothing but the DLPack protocol, like arrays of other libraries."""

    def __init__(self, array: DeviceArray):
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **kwargs: Any) -> DeviceArray:
        return self.array


def on_device(array: Any) -> numpy.ndarray:
    """The memory of a device array."""
    if not isinstance(array, DeviceArray):
        raise TypeError(f"unsupported type {type(array)}: not device memory")
    return array.raw


def module(machine: Devices, shift: int = 0, folder: Path | None = None) -> ModuleType:
    """Make a module with the functions of CuPy that hpccoll uses, on a machine."""
    cupy = ModuleType("cupy")
    cupy.__spec__ = ModuleSpec("cupy", None)  # for those who look whether it is installed
    share = machine.share = ipc.SharedFolder(machine, folder, shift)

    def placed(raw: numpy.ndarray) -> DeviceArray:
        return DeviceArray(raw, machine, machine.device, shift)

    def asarray(a: Any, dtype: Any = None) -> DeviceArray:
        if isinstance(a, DeviceArray):
            return a
        if hasattr(a, "__cuda_array_interface__"):
            told = dict(a.__cuda_array_interface__)
            told["data"] = (told["data"][0] - shift, told["data"][1])
            return placed(numpy.asarray(SimpleNamespace(__array_interface__=told)))
        return placed(numpy.array(a, dtype))

    def asnumpy(a: DeviceArray) -> numpy.ndarray:
        on_device(a)
        with a.device:
            return a.get()

    def copyto(dst: DeviceArray, src: DeviceArray) -> None:
        dst[...] = src

    def empty(shape: Any, dtype: Any = float) -> DeviceArray:
        array = placed(numpy.empty(shape, dtype))
        array.raw.view(numpy.uint8)[...] = 0xA5
        return array

    def ndarray(shape: Any, dtype: Any = float, memptr: Any = None) -> DeviceArray:
        start = memptr.ptr - memptr.mem.ptr
        array = numpy.ndarray(shape, dtype, memptr.mem.data, start)
        return DeviceArray(array, machine, memptr.mem.device_id, shift)

    def event(block: bool = False, disable_timing: bool = False, interprocess: bool = False
              ) -> Event:
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        return ipc.SharedEvent(machine, share) if interprocess else Event(machine)

    def external(ptr: int, device_id: int = -1) -> Stream:
        known = [ref() for ref in machine.streams]
        return next((one for one in known if one is not None and one.ptr == ptr),
                    machine.nulls[machine.device if device_id < 0 else device_id])

    vars(cupy).update(
        ndarray=_class(ndarray), asarray=asarray, asnumpy=asnumpy, copyto=copyto, empty=empty,
        from_dlpack=lambda array: array.__dlpack__(), RawKernel=RawKernel,
        get_default_memory_pool=lambda: SimpleNamespace(
            free_all_blocks=lambda: machine.called("free_all_blocks")),
        cuda=SimpleNamespace(
            get_current_stream=lambda: machine.current(),
            alloc_pinned_memory=lambda size: machine.pin(size),
            Device=lambda device=None: Device(
                machine, machine.device if device is None else device),
            Event=event, Memory=lambda size: share.allocate(size),
            MemoryPointer=lambda mem, offset: MemoryPointer(mem.ptr + offset, mem),
            UnownedMemory=lambda ptr, size, owner, device_id=-1: share.seen(
                ptr, size, machine.device if device_id < 0 else device_id),
            Stream=lambda null=False, non_blocking=False: Stream(
                machine, machine.device, null, non_blocking),
            ExternalStream=external, nccl=nccl.library(machine, shift, folder),
            runtime=SimpleNamespace(
                is_hip=False, CUDARuntimeError=CudaStatus,
                eventQuery=lambda event: machine.events[event].query(),
                eventDestroy=lambda event: share.destroy(event),
                streamWaitEvent=lambda stream, event, flags=0: share.wait(
                    external(stream), event),
                ipcGetMemHandle=lambda devPtr: share.memory_handle(devPtr),
                ipcOpenMemHandle=lambda handle, flags=1: share.open_memory(handle),
                ipcCloseMemHandle=lambda devPtr: share.close_memory(devPtr),
                ipcGetEventHandle=lambda event: share.event_handle(event),
                ipcOpenEventHandle=lambda handle: share.open_event(handle),
                getDeviceCount=lambda: len(machine.nulls),
                deviceGetPCIBusId=lambda device: f"0000:{machine.first + device:02x}:00.0")))
    return cupy


def _class(make: Callable[..., DeviceArray]) -> type:
    """The class of a module's arrays, whose instances are made by a function."""
    class Kind(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> DeviceArray:
            return make(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, DeviceArray)

    return Kind("ndarray", (), {})


@contextmanager
def installed(cuda_aware: bool, machine: Devices | None = None, folder: Path | None = None
              ) -> Iterator[ModuleType]:
    """Make ``import cupy`` return a double; ``cuda_aware`` says whether MPI moves its memory."""
    cupy = module(machine or Devices(), 0 if cuda_aware else ELSEWHERE, folder)
    before = {name: sys.modules.get(name) for name in ("cupy", "cupy.cuda.nccl")}
    sys.modules["cupy"], sys.modules["cupy.cuda.nccl"] = cupy, cupy.cuda.nccl
    device.has_cupy.cache_clear()
    try:
        said = "so says the double"
        with (patch.object(device, "probe_mpi", lambda: Answer(cuda_aware, said)),
              patch.object(cuda_ipc, "probe_ipc", lambda: Answer(folder is not None, said))):
            yield cupy
    finally:
        for name, known in before.items():
            del sys.modules[name]
            if known is not None:
                sys.modules[name] = known
        device.has_cupy.cache_clear()


class Wire:
    """An endpoint that moves device memory at once, over another endpoint."""

    offers = NOTHING

    def __init__(self, endpoint: Any):
        self.endpoint, self.rank, self.size = endpoint, endpoint.rank, endpoint.size

    def direct(self, peers: Any, tag: int) -> bool:
        """Messages are not used in place."""
        return False

    def batch(self, postings: Any, tag: int, repeated: bool) -> Any:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return self.endpoint.batch([posting._replace(array=getattr(
            posting.array, "raw", posting.array)) for posting in postings], tag, repeated)
