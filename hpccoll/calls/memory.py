"""The memory of an object: as a flat array, on the host or on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays.user_operators import Op
from hpccoll.calls.native import NativeOnly
from hpccoll.cuda import (
    Resident,
    Staged,
    as_cupy,
    borrow,
    is_device,
    is_served,
    mpi_moves_device_memory,
)
from hpccoll.errors import ArgumentTypeError, BufferArgumentError

#: A flat array, the namespace that works on its data, and what brings that to the host and back
#: where the array is not there.
Memory = tuple[Any, Any, Staged | None]

#: Types of arguments that are no device memory, whatever their values.
PLAIN = frozenset({numpy.ndarray, int, type(None), MPI.Op, Op, type(MPI.IN_PLACE)})


def memory_of(obj: Any, argument: str, writable: bool, typed: bool = False
              ) -> Memory:
    """Flat array over an object's memory, and the namespace that works on its data.

    Device memory that the MPI library cannot move comes with what brings its data to the host.

    Where the elements are ``typed`` otherwise, the type of the array's own does not matter.
    """
    if isinstance(obj, numpy.ndarray):
        # As mpi4py sees it: subclasses compute, and cut themselves, in ways of their own.
        array = numpy.asarray(obj)
    elif isinstance(obj, Resident):
        return obj.memory(argument)
    elif _is_device(obj, argument):
        return _device_memory(obj, argument)
    else:
        try:
            array = _host_array(obj)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise NativeOnly(str(error)) from error
    dtype = array.dtype
    if dtype.hasobject or not dtype.itemsize or not typed and (
            not dtype.isnative or dtype.kind not in "biufcV"):
        raise NativeOnly("objects, byte order, texts, times")
    if writable and not array.flags.writeable:
        raise BufferArgumentError(argument, "is read-only, but the collective writes to it")
    if array.flags.c_contiguous:
        return array.reshape(-1), numpy, None
    if array.flags.f_contiguous:
        return array.T.reshape(-1), numpy, None
    raise BufferArgumentError(argument, "is not contiguous", "pass a contiguous copy "
                                                             "(numpy.ascontiguousarray)")


def _host_array(obj: Any) -> numpy.ndarray[Any, Any]:
    """Return an array over the host memory of an object that is no array of NumPy's.

    Raises:
        TypeError, ValueError, BufferError, RuntimeError: it offers none.
    """
    try:
        return numpy.asarray(memoryview(obj))
    except TypeError:
        # Tensors of PyTorch have DLPack alone. mpi4py takes both, in this order.
        if not hasattr(obj, "__dlpack__"):
            raise
        return numpy.from_dlpack(obj)


def _is_device(obj: Any, argument: str) -> bool:
    """Tell whether an object holds device memory; some raise when asked.

    Raises:
        ArgumentTypeError: it raised an error, such as PyTorch's for tensors that need gradients.
    """
    try:
        return is_device(obj)
    except Exception as error:
        raise ArgumentTypeError(argument, f"cannot be used: {error}") from error


def _device_memory(obj: Any, argument: str) -> Memory:
    """What :func:`memory_of` returns, for device memory."""
    if not is_served():
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
    """Tell whether one of a call's arguments is such as :func:`is_staged` tells."""
    return not PLAIN.issuperset(map(type, args)) and any(map(is_staged, args))


def is_staged(spec: Any) -> bool:
    """Tell whether a specification names device memory that the MPI library cannot move."""
    if type(spec) in PLAIN:
        return False
    obj = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return (type(obj) not in PLAIN and is_device(obj) and is_served()
            and not mpi_moves_device_memory())


def staged(spec: Any, argument: str) -> tuple[Any, Callable[[], None]]:
    """The same specification on a copy in host memory, and how to bring the result back."""
    obj, rest = (spec[0], spec[1:]) if isinstance(spec, (list, tuple)) else (spec, None)
    flat, _, through = borrow(obj, as_cupy(obj), argument)
    if through is None:
        raise TypeError("the MPI library moves device memory: there is nothing to copy")
    host, load, store = through.mirror(flat)
    load()
    return host if rest is None else [host, *rest], store
