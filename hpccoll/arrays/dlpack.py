"""Host memory of DLPack exporters as NumPy arrays.

The array holds the capsule and does not consume it, as mpi4py does during a call: the memory is
valid as long as the capsule, and some exporters free it with a consumed capsule, which NumPy's
``from_dlpack`` drops at once.

Source: dlpack.h of DLPack 1.1.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy

from hpccoll.errors import BufferArgumentError


class _Tensor(ctypes.Structure):
    """``DLTensor``; the strides are in elements, and NULL for C order."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _VersionedTensor(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


class _Memory:
    """Owner of an array's memory: a capsule and the description for NumPy."""

    def __init__(self, capsule: Any, interface: dict[str, Any]):
        self.capsule, self.__array_interface__ = capsule, interface


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
#: Largest version of the request, and the flag of read-only memory.
_VERSION, _READ_ONLY = (1, 0), 1
#: Kinds of NumPy's dtypes by DLPack's type codes.
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
#: Names of types of the package ml_dtypes, by code and bits.
_NAMES = {(4, 16): "bfloat16", (7, 8): "float8_e3m4", (8, 8): "float8_e4m3",
          (9, 8): "float8_e4m3b11fnuz", (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz",
          (12, 8): "float8_e5m2", (13, 8): "float8_e5m2fnuz", (14, 8): "float8_e8m0fnu"}
_dtypes: dict[tuple[int, int, int], numpy.dtype[Any]] = {}


def from_dlpack(obj: Any, argument: str = "buf") -> numpy.ndarray[Any, Any]:
    """Return a flat array over the host memory of an object that exports DLPack.

    Raises:
        BufferArgumentError: ``argument`` has elements and no memory, as a fake tensor.
        TypeError: elements that NumPy has no type for.
        BufferError: memory that is not contiguous; or the object exports none, as PyTorch tensors
            that need gradients.
        RuntimeError, ValueError: of the object.
    """
    try:
        capsule = obj.__dlpack__(max_version=_VERSION)
        versioned = "versioned" in repr(capsule)
    except TypeError:  # an exporter of DLPack before 1.0 does not know the argument
        capsule, versioned = obj.__dlpack__(), False
    if versioned:
        managed = _VersionedTensor.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        tensor, read_only = managed.tensor, bool(managed.flags & _READ_ONLY)
    else:
        tensor, read_only = _Tensor.from_address(_get_pointer(capsule, b"dltensor")), False
    shape = tensor.shape[:tensor.ndim]
    if tensor.strides and not _is_contiguous(shape, tensor.strides[:tensor.ndim]):
        raise BufferError("its memory is not contiguous")
    kind = tensor.code, tensor.bits, tensor.lanes
    dtype = _dtypes.get(kind) or _dtypes.setdefault(kind, _dtype(*kind))
    count = prod(shape)
    if not count:
        return numpy.empty(0, dtype)
    if not tensor.data:  # NumPy would allocate memory
        raise BufferArgumentError(argument, f"{type(obj).__name__} has no memory of its own",
                                  "pass a plain tensor, such as to_local() of a DTensor")
    memory = numpy.asarray(_Memory(capsule, {
        "version": 3, "typestr": "|u1", "shape": (count * dtype.itemsize,),
        "data": (tensor.data + tensor.byte_offset, read_only)}))
    return memory.view(dtype)


def _is_contiguous(shape: list[int], strides: list[int]) -> bool:
    """Return True if the elements are in C or Fortran order without gaps."""
    for order in sorted(range(len(shape)), reverse=True), range(len(shape)):
        expected = 1
        for axis in order:
            if shape[axis] != 1 and strides[axis] != expected:
                break
            expected *= shape[axis]
        else:
            return True
    return not prod(shape)


def _dtype(code: int, bits: int, lanes: int) -> numpy.dtype[Any]:
    """Return the dtype of a DLPack type; raise ``TypeError`` if there is none."""
    if lanes == 1 and (code, bits) in _NAMES:
        try:
            import ml_dtypes
        except ImportError as error:
            raise TypeError(f"{_NAMES[code, bits]} needs the package ml_dtypes") from error
        return numpy.dtype(getattr(ml_dtypes, _NAMES[code, bits]))
    kind = _KINDS.get(code) if lanes == 1 else "c" if (code, lanes) == (2, 2) else None
    if kind is None or bits % 8:
        raise TypeError(f"NumPy has no type for elements of DLPack's type {code} with {bits} bits")
    return numpy.dtype(f"{kind}{bits // 8 * lanes}")
