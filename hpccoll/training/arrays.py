"""Arrays of any framework, viewed as NumPy or CuPy arrays that share their memory.

NumPy arrays are used as they are. Objects that CuPy supports become CuPy arrays. CPU tensors of
PyTorch are viewed by their address, with any type of ``ml_dtypes``. All others are converted with
DLPack or ``numpy.asarray`` (JAX arrays). Immutable inputs are viewed too; their results are new
arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from hpccoll.errors import ArgumentTypeError
from hpccoll.training.buckets import ArraySpec

#: NumPy has no bfloat16; the package ml_dtypes provides it. Floats of 8 bits are only moved.
BFLOAT16, FLOAT8 = "bfloat16", "float8"
#: Device types of DLPack for host memory: CPU, and pinned memory of CUDA and ROCm.
HOST = (1, 3, 11)


def as_array(array: Any, name: str = "array") -> Any:
    """Return a NumPy or CuPy array that shares the memory of ``array``."""
    if isinstance(array, numpy.ndarray):
        view = array
    elif hasattr(array, "__cuda_array_interface__"):
        import cupy
        lacked = str(getattr(array, "dtype", "")) == f"torch.{BFLOAT16}"
        view = (cupy.asarray(_TensorMemory(array, 2)).view(dtype_of(BFLOAT16)) if lacked else
                cupy.asarray(array))
    else:
        view = _as_host_array(array, name)
    usable = view.dtype.kind in "biufc" and view.dtype.isnative
    if not usable and not view.dtype.name.startswith((BFLOAT16, FLOAT8)):
        raise ArgumentTypeError(name, f"elements of type {view.dtype} are not supported",
                                "pass numbers in native byte order")
    return view


def _as_host_array(array: Any, name: str) -> numpy.ndarray:
    is_tensor = isinstance(array, getattr(sys.modules.get("torch"), "Tensor", ()))
    device = None if is_tensor else getattr(array, "__dlpack_device__", None)
    if device is not None and device()[0] not in HOST:
        import cupy
        return cupy.from_dlpack(array)
    try:
        if is_tensor:
            return _tensor_view(array)
        # Not ``from_dlpack`` first: it rejects bfloat16, which JAX supports through ``asarray``.
        view = numpy.asarray(array)
        if view.dtype.hasobject or isinstance(array, (list, tuple, int, float, complex)):
            raise TypeError("it has no buffer that NumPy supports")
    except (TypeError, ValueError, RuntimeError, BufferError, ImportError) as error:
        raise ArgumentTypeError(name, f"cannot access the memory of {type(array).__name__}: "
                                      f"{error}",
                                "pass an array of NumPy or CuPy, or a DLPack exporter") from error
    if not _is_shared(array, view):
        view = view.view()
        view.flags.writeable = False  # writes to a copy would be lost
    return view


class _TensorMemory:
    """Array interface of a tensor of PyTorch as integers; arrays keep it and its memory alive."""

    def __init__(self, tensor: Any, itemsize: int):
        self.tensor = tensor
        interface = {
            "version": 3, "data": (tensor.data_ptr(), False), "shape": tuple(tensor.shape),
            "strides": tuple(itemsize * step for step in tensor.stride()),
            "typestr": f"|V{itemsize}" if tensor.is_cpu else f"<i{itemsize}"}
        setattr(self, "__array_interface__" if tensor.is_cpu else "__cuda_array_interface__",
                interface)


def _tensor_view(tensor: Any) -> numpy.ndarray:
    """Return a view of a CPU tensor of PyTorch.

    Not ``tensor.numpy()``: it lacks bfloat16, and torch could no longer resize the storage.
    """
    if tensor.requires_grad:
        raise TypeError("it requires a gradient, pass tensor.detach()")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError("it is lazily conjugated, pass tensor.resolve_conj().resolve_neg()")
    if not tensor.data_ptr() and tensor.numel():
        raise TypeError("it has no memory of its own")
    dtype = dtype_of(str(tensor.dtype).removeprefix("torch."))
    return numpy.asarray(_TensorMemory(tensor, dtype.itemsize)).view(dtype)


def _is_shared(array: Any, view: numpy.ndarray) -> bool:
    """Return True if ``numpy.asarray`` shared the array's memory; some libraries copy."""
    try:
        other = (numpy.from_dlpack(array) if hasattr(array, "__dlpack__") else
                 numpy.asarray(memoryview(array)))
    except (TypeError, ValueError, RuntimeError, BufferError):
        return False
    return bool(other.__array_interface__["data"][0] == view.__array_interface__["data"][0])


def is_writable(view: Any) -> bool:
    """Return True if an array is writable; CuPy arrays always are."""
    return bool(getattr(getattr(view, "flags", None), "writeable", True))


def is_on_device(view: Any) -> bool:
    """Return True if a result of :func:`as_array` is a CuPy array."""
    return not isinstance(view, numpy.ndarray)


def to_host(view: Any) -> numpy.ndarray:
    """Return the array itself, or its copy in host memory."""
    return view.get() if is_on_device(view) else view


def fill(view: Any, values: numpy.ndarray) -> None:
    """Copy values from host memory into an array."""
    if is_on_device(view):
        view.set(numpy.ascontiguousarray(values))
    else:
        numpy.copyto(view, values)


def spec_of(name: str, array: Any) -> ArraySpec:
    """Return the specification of an array; a specification is returned unchanged."""
    if isinstance(array, ArraySpec):
        return array
    view = as_array(array, name)
    return ArraySpec(name, tuple(view.shape), view.dtype.name, view.dtype.itemsize)


def specs_of(arrays: Iterable[Any], names: Sequence[str] | None = None) -> tuple[ArraySpec, ...]:
    """Return the specifications of arrays, named ``0, 1, ...`` by default."""
    listed = list(arrays)
    named = list(names) if names is not None else [str(index) for index in range(len(listed))]
    return tuple(spec_of(name, array) for name, array in zip(named, listed, strict=True))


def dtype_of(name: str) -> numpy.dtype:
    """Return the dtype of this name; supports ``bfloat16`` and floats of 8 bits."""
    if name.startswith((BFLOAT16, FLOAT8)):
        import ml_dtypes
        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)
