"""Arrays of any kind: seen as NumPy or CuPy arrays that share their memory.

NumPy arrays are themselves; what CuPy can see is CuPy's; everything else comes through DLPack or
the buffer that ``numpy.asarray`` finds (CPU tensors of PyTorch, JAX arrays). Immutable inputs are
seen too: their results are new arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from hpccoll.errors import ArgumentTypeError
from hpccoll.training.buckets import ArraySpec

#: A type that NumPy lacks; the package ml_dtypes has it.
BFLOAT16 = "bfloat16"
#: Device types of DLPack that are host memory: of the CPU, and pinned for CUDA and ROCm.
HOST = (1, 3, 11)


def seen(array: Any, name: str = "array") -> Any:
    """The array as one of NumPy or CuPy, on the same memory.

    Raises:
        ArgumentTypeError: memory that neither can see, or elements that are not numbers.
    """
    if isinstance(array, numpy.ndarray):
        view = array
    elif hasattr(array, "__cuda_array_interface__"):
        import cupy
        view = cupy.asarray(array)
    else:
        view = _on_host(array, name)
    usable = view.dtype.kind in "biufc" and view.dtype.isnative
    if not usable and view.dtype.name != BFLOAT16:
        raise ArgumentTypeError(name, f"elements of type {view.dtype} are not supported",
                                "pass numbers in native byte order")
    return view


def _on_host(array: Any, name: str) -> numpy.ndarray:
    device = getattr(array, "__dlpack_device__", None)
    if device is not None and device()[0] not in HOST:
        import cupy
        return cupy.from_dlpack(array)
    try:
        # Not ``from_dlpack`` first: it refuses bfloat16, which JAX hands to ``asarray``.
        view = numpy.asarray(array)
        if view.dtype.hasobject or isinstance(array, (list, tuple, int, float, complex)):
            raise TypeError("it has no buffer that NumPy supports")
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArgumentTypeError(name, f"cannot access the memory of {type(array).__name__}: "
                                      f"{error}",
                                "pass an array of NumPy or CuPy, or a DLPack exporter") from error
    if not _is_shared(array, view):
        view = view.view()
        view.flags.writeable = False  # what is written into a copy would be lost
    return view


def _is_shared(array: Any, view: numpy.ndarray) -> bool:
    """Tell whether ``numpy.asarray`` gave the array's own memory: some libraries copy."""
    try:
        other = (numpy.from_dlpack(array) if hasattr(array, "__dlpack__") else
                 numpy.asarray(memoryview(array)))
    except (TypeError, ValueError, RuntimeError, BufferError):
        return False
    return bool(other.__array_interface__["data"][0] == view.__array_interface__["data"][0])


def writable(view: Any) -> bool:
    """Tell whether results may be written into an array; CuPy's always may."""
    return bool(getattr(getattr(view, "flags", None), "writeable", True))


def on_device(view: Any) -> bool:
    """Tell whether an array that :func:`seen` gave is CuPy's."""
    return not isinstance(view, numpy.ndarray)


def on_host(view: Any) -> numpy.ndarray:
    """The array itself, or a copy in host memory."""
    return view.get() if on_device(view) else view


def fill(view: Any, values: numpy.ndarray) -> None:
    """Write values from host memory into an array."""
    if on_device(view):
        view.set(numpy.ascontiguousarray(values))
    else:
        numpy.copyto(view, values)


def spec_of(name: str, array: Any) -> ArraySpec:
    """What an exchange knows of an array; a specification is returned as it is."""
    if isinstance(array, ArraySpec):
        return array
    view = seen(array, name)
    return ArraySpec(name, tuple(view.shape), view.dtype.name, view.dtype.itemsize)


def specs_of(arrays: Iterable[Any], names: Sequence[str] | None = None) -> tuple[ArraySpec, ...]:
    """Specifications of arrays, named ``0, 1, ...`` unless names are given.

    Raises:
        ArgumentTypeError: as :func:`seen`.
    """
    listed = list(arrays)
    named = list(names) if names is not None else [str(index) for index in range(len(listed))]
    return tuple(spec_of(name, array) for name, array in zip(named, listed, strict=True))


def dtype_of(name: str) -> numpy.dtype:
    """The type of this name, ``bfloat16`` included."""
    if name == BFLOAT16:
        import ml_dtypes
        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(name)
