"""Device arrays: detection, and access of collectives to their memory.

CuPy is imported at the first device array. A child process tests if the MPI library can move device
memory, because a library that cannot do it crashes.

Work is ordered after the current stream of the caller (CuPy's, or PyTorch's for its tensors), and
before the work that the caller queues there afterwards. Current streams are per thread, so the
stream is read once and passed on.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy

from hpccoll.cuda.device_paths import Answer
from hpccoll.cuda.node_answers import NODE_ANSWERS
from hpccoll.cuda.staging import StagedBuffer
from hpccoll.errors import ArgumentError, BufferArgumentError

#: DLPack device types of host memory: ordinary, and pinned by CUDA or ROCm.
HOST_TYPES = frozenset({1, 3, 11})

_PROBE = """
import sys, cupy
from mpi4py import MPI
cupy.cuda.Device(int(sys.argv[1])).use()
source, sink = cupy.arange(4096, dtype="f4"), cupy.zeros(4096, dtype="f4")
cupy.cuda.get_current_stream().synchronize()
MPI.COMM_SELF.Sendrecv(source, 0, 0, sink, 0, 0)
sys.exit(0 if bool((source == sink).all()) else 1)
"""


def is_device(obj: Any) -> bool:
    """Return True if an object holds device memory."""
    where = getattr(obj, "__dlpack_device__", None)
    if where is not None and int(where()[0]) in HOST_TYPES:
        return False  # before the next line, which is slow for CPU tensors
    return hasattr(obj, "__cuda_array_interface__") or where is not None


@functools.lru_cache(maxsize=1)
def has_cupy() -> bool:
    """Return True if CuPy is available; without it mpi4py gets device memory unchanged."""
    try:
        importlib.import_module("cupy")
    except ImportError:
        return False
    return True


def is_in_use() -> bool:
    """Return True if this process has loaded CuPy, or has started CUDA in PyTorch."""
    cuda = sys.modules.get("torch.cuda")
    return "cupy" in sys.modules or cuda is not None and cuda.is_initialized()


def as_cupy(obj: Any) -> Any:
    """Return a device object as a CuPy array; CuPy raises if it lacks the element type."""
    cupy = sys.modules.get("cupy") or importlib.import_module("cupy")
    if isinstance(obj, cupy.ndarray):
        return obj
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is None:
        return cupy.from_dlpack(obj)
    if str(getattr(obj, "dtype", "")) == "torch.bfloat16":  # exported as two bytes, "<V2"
        words = _Interface(obj, {**interface, "typestr": "<i2"})
        return cupy.asarray(words).view(importlib.import_module("ml_dtypes").bfloat16)
    return cupy.asarray(obj)


class _Interface:
    """Memory of another object, kept alive, with an element type that CuPy has."""

    def __init__(self, owner: Any, interface: dict[str, Any]):
        self.owner, self.__cuda_array_interface__ = owner, interface


def borrow(obj: Any, array: Any, argument: str) -> tuple[Any, Any, StagedBuffer | None]:
    """Return a flat array over a device object's memory, its namespace, and its staging.

    ``array`` is the result of :func:`as_cupy`. Kernels use this memory if the MPI library moves it.
    Otherwise NumPy works on host copies, which the third value makes.

    Raises:
        BufferArgumentError: the array is not contiguous, or its stream is captured into a graph.
    """
    cupy = sys.modules["cupy"]
    flat = flatten(array, argument)
    stream, shared = find_stream(obj, flat, argument)
    if mpi_moves_device_memory():
        with flat.device:  # the null stream belongs to the current device
            stream.synchronize()  # the producer may still write the data
        return flat, cupy, None
    return flat, numpy, StagedBuffer(cupy, flat.device, stream, shared)


def flatten_device(obj: Any, argument: str) -> Any:
    """Return all elements of a device object as a flat CuPy array.

    Raises:
        BufferArgumentError: it is not contiguous.
    """
    return flatten(as_cupy(obj), argument)


def find_stream(obj: Any, array: Any, argument: str) -> tuple[Any, bool]:
    """Return the caller's stream of an object, and whether the caller reads results on it.

    Raises:
        BufferArgumentError: the stream is captured into a graph.
    """
    stream, shared = _stream_of(obj, array, sys.modules["cupy"])
    if stream.is_capturing():
        # A wait for such a stream is a CUDA error, which also ends the capture.
        raise BufferArgumentError(argument, "is used during CUDA graph capture of its stream, "
                                            "which cannot contain MPI messages",
                                  "end the capture before the call, and start another one after it")
    return stream, shared


def flatten(array: Any, argument: str) -> Any:
    """Return all elements of a device array in memory order.

    Raises:
        BufferArgumentError: it is not contiguous.
    """
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferArgumentError(argument, "is not contiguous", "pass cupy.ascontiguousarray")
    return (array if array.flags.c_contiguous else array.T).reshape(-1)


def _stream_of(obj: Any, array: Any, cupy: Any) -> tuple[Any, bool]:
    """Return the caller's stream of an object, and whether the caller reads results on it.

    PyTorch's streams and the null stream do not wait for each other. A caller without a current
    CuPy stream, or with an array of another library, may read results on any stream.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return cupy.cuda.ExternalStream(torch.cuda.current_stream(obj.device).cuda_stream,
                                        array.device.id), True
    with array.device:
        stream = cupy.cuda.get_current_stream()
    return stream, isinstance(obj, cupy.ndarray) and bool(stream.ptr)


def allocator_like(array: Any, namespace: Any, allocate: Callable[[int], Any]) -> Callable[[int],
                                                                                           Any]:
    """Return an allocator on the device of an array, independent of the current device."""
    if not hasattr(namespace, "cuda"):
        return allocate

    def allocate_on_device(count: int) -> Any:
        with array.device:
            return allocate(count)

    return allocate_on_device


def performer(array: Any, namespace: Any) -> Callable[[Sequence[Any]], None] | None:
    """Return a function that runs local steps, ``(function, operands)``, and waits for them.

    They run on the stream that is current now, from any thread; ``None`` for host memory.
    """
    if not hasattr(namespace, "cuda"):
        return None
    device = array.device
    with device:
        stream = namespace.cuda.get_current_stream()

    def perform(actions: Sequence[Any]) -> None:
        with device, stream:
            for function, operands in actions:
                function(*operands)
            stream.synchronize()

    return perform


@functools.lru_cache(maxsize=1)
def probe_mpi() -> Answer:
    """Test once per node and device if the MPI library is CUDA-aware, on the current device.

    Not collective: other ranks of the node read the result, if they need it.
    """
    try:
        cupy: Any = importlib.import_module("cupy")
        number = cupy.cuda.Device().id
        key = f"mpi {cupy.cuda.runtime.deviceGetPCIBusId(number)}"
    except Exception as error:  # includes errors of the driver
        return Answer(False, f"the test process failed: {error}")
    return NODE_ANSWERS.find(key, functools.partial(_probe_mpi, number))


def _probe_mpi(device: int) -> Answer:
    """Test in a child process if the MPI library is CUDA-aware.

    The child gets none of the job's variables, so that it starts as a job of one rank.
    """
    import subprocess
    job = ("PMI", "PMIX", "OMPI", "PRTE", "SLURM", "MPIR", "HYDRA", "FLUX", "PALS")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(job)}
    try:
        status = subprocess.run([sys.executable, "-c", _PROBE, str(device)], env=environ,
                                timeout=120, capture_output=True, check=False).returncode
    except Exception as error:
        return Answer(False, f"the test process failed: {error}")
    if status:
        return Answer(False, "not CUDA-aware: the test process, which sent itself device "
                             "memory, " + (
            f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"))
    return Answer(True, "the test process sent device memory to itself")


def mpi_moves_device_memory() -> bool:
    """Return True if the MPI library moves device memory; the first call takes seconds."""
    return probe_mpi().can


def use_device(number: int) -> str:
    """Make visible device ``number`` modulo their count current; return an error text or empty."""
    if not has_cupy():
        return "CuPy is not installed"
    cupy = device_namespace()
    try:
        cupy.cuda.Device(number % cupy.cuda.runtime.getDeviceCount()).use()
    except Exception as error:  # includes errors of the driver, and no devices
        return f"no device: {type(error).__name__}: {error}"
    return ""


def missing_device(xp: Any) -> str:
    """Return why a module of device arrays, CuPy or PyTorch, has no GPU here; empty if it has."""
    if not has_cupy():
        return "CuPy is not installed"
    try:
        found = device_namespace().cuda.runtime.getDeviceCount() and (
            xp is device_namespace() or xp.cuda.is_available())
    except Exception as error:  # of the driver, if there is no device
        return f"{type(error).__name__}: {error}"
    return "" if found else f"{module_name(xp)} finds none"


def module_name(xp: Any) -> str:
    """Return the name of a module of arrays."""
    return str(getattr(xp, "__name__", type(xp).__name__))


def element_type(xp: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the type of elements of an array of ``xp``, and a NumPy type of that size.

    Raises:
        ArgumentError: PyTorch has no such type.
    """
    if module_name(xp) != "torch":
        return dtype, dtype
    found = dtype
    if not isinstance(dtype, xp.dtype):
        with suppress(TypeError):
            found = getattr(xp, numpy.dtype(dtype).name, None)
    if not isinstance(found, xp.dtype):
        raise ArgumentError("dtype", f"PyTorch has no type {dtype!r}",
                            "pass a type of PyTorch, torch.float32 for example")
    return found, f"V{found.itemsize}"


def device_namespace() -> Any:
    """Return the module of device arrays."""
    return importlib.import_module("cupy")


def copy_to_device(host: numpy.ndarray, there: Any) -> None:
    """Copy values to the device."""
    there.set(host)


def copy_to_host(there: Any, host: numpy.ndarray) -> None:
    """Copy values from the device."""
    there.get(out=host)


def synchronize() -> None:
    """Wait for the current stream."""
    cupy = device_namespace()
    cupy.cuda.get_current_stream().synchronize()
