"""Memory of an object as a flat array, on the host or on a device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays.dlpack import from_dlpack
from hpccoll.arrays.half import is_bfloat16
from hpccoll.arrays.user_operators import Op
from hpccoll.calls.native import NativeOnly, native_form
from hpccoll.cuda import (
    Resident,
    StagedBuffer,
    as_cupy,
    borrow,
    has_cupy,
    is_device,
    mpi_moves_device_memory,
)
from hpccoll.errors import ArgumentTypeError, BufferArgumentError

#: Flat array, the namespace of its functions, and its staging if it is device memory that must be
#: copied.
Memory = tuple[Any, Any, StagedBuffer | None]

#: Types of arguments that are NumPy arrays, or no memory.
PLAIN = frozenset({numpy.ndarray, int, type(None), MPI.Op, Op, type(MPI.IN_PLACE),
                   type(MPI.BOTTOM)})


def memory_of(obj: Any, argument: str, writable: bool, typed: bool = False) -> Memory:
    """Return a flat array over an object's memory, its namespace, and its staging.

    Device memory that the MPI library cannot move has a staging object, else None.

    If the elements are ``typed`` by the specification, the array's own type is ignored.
    """
    if isinstance(obj, numpy.ndarray):
        # As in mpi4py: subclasses may override arithmetic and slicing.
        array = numpy.asarray(obj)
    elif isinstance(obj, Resident):
        return obj.memory(argument)
    elif _is_device(obj, argument):
        return _device_memory(obj, argument)
    else:
        try:
            array = _host_array(obj, argument)
        except BufferArgumentError:
            raise
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise NativeOnly(str(error)) from error
    if array.dtype.hasobject or not array.dtype.itemsize or not typed and (
            not array.dtype.isnative or array.dtype.kind not in "biufcV"):
        raise NativeOnly("objects, byte order, texts, times")
    if writable and not array.flags.writeable:
        raise BufferArgumentError(argument, "is read-only, but the collective writes to it")
    if array.flags.c_contiguous:
        return array.reshape(-1), numpy, None
    if array.flags.f_contiguous:
        return array.T.reshape(-1), numpy, None
    raise BufferArgumentError(argument, "is not contiguous", "pass a contiguous copy "
                                                             "(numpy.ascontiguousarray)")


def as_host_arrays(args: tuple[Any, ...], buffers: int) -> tuple[Any, ...] | None:
    """Return the arguments with NumPy arrays in place of other host memory, such as CPU tensors.

    Args:
        args: of a call.
        buffers: number of the first arguments that are buffers.

    Returns:
        ``None`` if there is nothing to replace, or a buffer that NumPy arrays cannot describe.
    """
    found = list(args)
    for index, arg in enumerate(args[:buffers]):
        in_list = type(arg) in (list, tuple) and len(arg) > 0
        obj = arg[0] if in_list else arg
        if type(obj) in PLAIN:
            continue
        try:
            if isinstance(obj, Resident) or is_device(obj):
                return None
            array = numpy.asarray(obj) if isinstance(obj, numpy.ndarray) else _host_array(obj)
        except Exception:  # the resolver raises the error
            return None
        known = array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1  # not an 8-bit float
        if not array.dtype.isnative or not (known or is_bfloat16(array.dtype)):
            return None
        found[index] = [array, *arg[1:]] if in_list else array
    return None if all(map(operator.is_, found, args)) else tuple(found)


def _host_array(obj: Any, argument: str = "buf") -> numpy.ndarray[Any, Any]:
    """Return an array over the host memory of an object that is not a NumPy array.

    Raises:
        BufferArgumentError: the object has elements and no memory, as a fake tensor.
        TypeError, ValueError, BufferError, RuntimeError: the object exports no memory.
    """
    try:
        return numpy.asarray(memoryview(obj))
    except (TypeError, BufferError):  # BufferError: of JAX, for bfloat16
        # PyTorch tensors only have DLPack. mpi4py supports both, in this order.
        if not hasattr(obj, "__dlpack__"):
            raise
        return from_dlpack(obj, argument)


def _is_device(obj: Any, argument: str) -> bool:
    """Return True if an object holds device memory.

    Raises:
        ArgumentTypeError: the object raised an error, as PyTorch tensors that need gradients do.
    """
    try:
        return is_device(obj)
    except Exception as error:
        raise ArgumentTypeError(argument, f"cannot be used: {error}") from error


def may_be_device(obj: Any) -> bool:
    """Return True if an object holds device memory, or raises an error when asked."""
    try:
        return type(obj) not in PLAIN and is_device(obj)
    except Exception:  # such as PyTorch's for tensors that need gradients: the resolver raises it
        return True


def _device_memory(obj: Any, argument: str) -> Memory:
    """Return the result of :func:`memory_of` for device memory."""
    if not has_cupy():
        raise NativeOnly("device memory without CuPy")
    try:
        array = as_cupy(obj)
    except Exception as error:
        if mpi_moves_device_memory():
            raise NativeOnly("elements that CuPy has no type for") from error
        raise ArgumentTypeError(argument, f"CuPy cannot use it: {error}",
                                "pass it as integers of the same size") from error
    return borrow(obj, array, argument)


def any_staged(args: Sequence[Any]) -> bool:
    """Return True if :func:`is_staged` holds for an argument of a call."""
    return not PLAIN.issuperset(map(type, args)) and any(map(is_staged, args))


def is_staged(spec: Any) -> bool:
    """Return True if a specification has device memory that the MPI library cannot move."""
    obj = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return (type(obj) not in PLAIN and is_device(obj) and has_cupy()
            and not mpi_moves_device_memory())


def stage_spec(spec: Any, argument: str) -> tuple[Any, Callable[[], None]]:
    """Return the specification on a host copy, and a callback that copies the result back."""
    obj, rest = (spec[0], spec[1:]) if isinstance(spec, (list, tuple)) else (spec, None)
    flat, _, through = borrow(obj, as_cupy(obj), argument)
    if through is None:
        raise TypeError("the MPI library moves device memory: there is nothing to copy")
    host, load, store = through.mirror(flat)
    load()
    return native_form(host if rest is None else [host, *rest]), store
