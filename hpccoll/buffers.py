"""One view of everything mpi4py accepts as a buffer.

A specification - an array, ``[buf, count]``, ``[buf, (counts, displs), type]`` and so on -
becomes a :class:`Buffer`: a flat array of elements in one array namespace, with counts and
displacements in elements. NumPy arrays and whatever exports the buffer protocol are used as
they are. Device arrays (CuPy, ``__cuda_array_interface__``, DLPack) are used as they are
where the MPI library moves device memory, and staged through host memory elsewhere.

What hpccoll does not serve (derived datatypes, ``MPI.BOTTOM``) raises :class:`NativeOnly`,
and the call falls through to mpi4py, with mpi4py's own behaviour and errors.
"""

from __future__ import annotations

import functools
from operator import index
from typing import Any, Callable, NamedTuple, Sequence

import numpy
from mpi4py import MPI
from mpi4py.util import dtlib

from hpccoll import device
from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError
from hpccoll.half import is_bfloat16


class NativeOnly(Exception):
    """The call is for the native implementation; never seen by users."""


class Buffer(NamedTuple):
    """A resolved buffer specification.

    Attributes:
        array: flat array over all of the memory, one entry per element of ``datatype``.
        datatype: the MPI type of an element.
        counts: elements of each block, or the one count in a list.
        displs: displacement of each block in elements.
        namespace: module whose functions work on ``array`` (``numpy``, ``cupy``).
        store: call it when the result is complete, to bring it back to device memory.
    """

    array: Any
    datatype: MPI.Datatype
    counts: Sequence[int]
    displs: Sequence[int]
    namespace: Any = numpy
    store: Callable[[], None] | None = None

    @property
    def count(self) -> int:
        """Elements in all."""
        return sum(self.counts)


def is_in_place(spec: Any) -> bool:
    """Tell whether a specification means ``MPI.IN_PLACE``."""
    return spec is None or spec is MPI.IN_PLACE or type(spec) is type(MPI.IN_PLACE)


def is_staged(spec: Any) -> bool:
    """Tell whether a specification names device memory that the MPI library cannot move."""
    obj = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return (type(obj) is not numpy.ndarray and device.is_device(obj) and device.is_served()
            and not device.mpi_moves_device_memory())


def staged(spec: Any, argument: str, writable: bool) -> tuple[Any, Callable[[], None] | None]:
    """The same specification on a copy in host memory, and how to bring the result back."""
    obj, rest = (spec[0], spec[1:]) if isinstance(spec, (list, tuple)) else (spec, None)
    host, _, store = device.borrow(obj, argument, writable)
    return host if rest is None else [host, *rest], store


def resolve(spec: Any, argument: str, *, blocks: int | None = None, vector: bool = False,
            writable: bool = False) -> Buffer:
    """Resolve a buffer specification.

    Args:
        spec: what the caller passed.
        argument: its name, for messages.
        blocks: number of blocks the buffer is divided into.
        vector: whether counts and displacements are given per block (v-forms).
        writable: whether the collective writes it.

    Raises:
        BufferArgumentError: read-only, not contiguous, or too small.
        ArgumentError: counts or displacements that make no sense.
        NativeOnly: a form only the native implementation serves.
    """
    obj, counts, displs, datatype = split(spec, vector)
    if obj is None or type(obj) is type(MPI.BOTTOM):
        raise NativeOnly("MPI.BOTTOM")
    memory, namespace, store = _memory(obj, argument, writable)
    datatype = _datatype(datatype, memory, argument)
    dtype = element_type(datatype)
    if dtype is None:
        raise NativeOnly("derived datatype")
    array = _elements(memory, dtype, argument, counts is None)
    if vector:
        counts, displs = _vector(array.size, counts, displs, blocks, argument)
    else:
        displ = _integer(displs or 0, argument)
        if counts is None:
            counts = array.size - displ
            if blocks and counts % blocks:
                raise ArgumentError(argument, f"{counts} elements cannot be divided into "
                                              f"{blocks} equal blocks")
        else:
            # A count that is given counts the elements of one block.
            counts = _integer(counts, argument) * (blocks or 1)
        counts, displs = [counts], [displ]
    for count, displ in zip(counts, displs):
        if count and not 0 <= displ <= displ + count <= array.size:
            raise BufferArgumentError(argument, f"is too small: {count} elements at displacement "
                                                f"{displ} do not fit in {array.size}")
    return Buffer(array, datatype, counts, displs, namespace, store)


def split(spec: Any, vector: bool) -> tuple[Any, Any, Any, Any]:
    """Take a specification apart: (buffer, counts, displacements, datatype)."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    counts = displs = datatype = None
    if len(spec) == 2:
        obj, counts = spec
        if isinstance(counts, (MPI.Datatype, str)):
            counts, datatype = None, counts
    elif len(spec) == 3:
        obj, counts, datatype = spec
    elif len(spec) == 4:
        obj, counts, displs, datatype = spec
    else:
        raise NativeOnly("unknown form; mpi4py says what is wrong with it")
    # Of the v-forms, a list in this place holds the counts of all ranks.
    if len(spec) < 4 and isinstance(counts, tuple if vector else (tuple, list)):
        if len(counts) != 2:
            raise NativeOnly("unknown form; mpi4py says what is wrong with it")
        counts, displs = counts
    return obj, counts, displs, datatype


def native_form(spec: Any) -> Any:
    """The specification as mpi4py understands it, which moves bfloat16 as 16-bit words."""
    obj, *rest = spec if isinstance(spec, (list, tuple)) and spec else (spec,)
    typed = any(isinstance(part, (MPI.Datatype, str)) or isinstance(part, (list, tuple))
                and any(isinstance(one, MPI.Datatype) for one in part) for part in rest)
    if typed or not isinstance(obj, numpy.ndarray) or not is_bfloat16(obj.dtype):
        return spec
    return [obj, *rest, MPI.UINT16_T]


def _memory(obj: Any, argument: str, writable: bool):
    """Flat array over an object's memory, its namespace, and how to store results back."""
    if isinstance(obj, numpy.ndarray):
        array = obj
    elif device.is_device(obj):
        if not device.is_served():
            raise NativeOnly("device memory without CuPy")
        return device.borrow(obj, argument, writable)
    else:
        try:
            array = numpy.asarray(memoryview(obj))
        except (TypeError, ValueError, BufferError) as error:
            raise NativeOnly(str(error)) from error
    if (not array.dtype.isnative or array.dtype.hasobject or array.dtype.kind not in "biufcV"
            or isinstance(array, numpy.ma.MaskedArray)):
        raise NativeOnly("byte order, objects, texts, times, masks")
    if writable and not array.flags.writeable:
        raise BufferArgumentError(argument, "is read-only, but the collective writes it")
    if array.flags.c_contiguous:
        return array.reshape(-1), numpy, None
    if array.flags.f_contiguous:
        return array.T.reshape(-1), numpy, None
    raise BufferArgumentError(argument, "is not contiguous", "pass a contiguous copy "
                                                             "(numpy.ascontiguousarray)")


def _datatype(datatype: Any, memory: Any, argument: str) -> MPI.Datatype:
    if isinstance(datatype, MPI.Datatype):
        return datatype
    if not isinstance(datatype, (str, type(None))):
        raise NativeOnly("unknown form; mpi4py says what is wrong with it")
    try:
        return (MPI.Datatype.fromcode(datatype) if isinstance(datatype, str)
                else datatype_of(memory.dtype))
    except (KeyError, ValueError, TypeError) as error:
        raise NativeOnly(str(error)) from error


@functools.lru_cache(maxsize=None)
def datatype_of(dtype: numpy.dtype) -> MPI.Datatype:
    """The MPI type of a NumPy dtype; (value, index) structures map to MPI's pair types.

    MPI has no bfloat16: a type of our own is as large, and nothing else.
    """
    if is_bfloat16(dtype):
        made = MPI.UINT16_T.Dup()
        made.Set_name(dtype.name)
        _element_types[made.handle] = dtype
        return made
    if dtype.names is None:
        return MPI.Datatype.fromcode(dtype.char if dtype.kind != "b" else "?")
    for pair in PAIRS:
        like = element_type(pair)
        if (len(dtype.names) == 2 and dtype.itemsize == like.itemsize
                and [dtype.fields[n][:2] for n in dtype.names]
                == [like.fields[n][:2] for n in like.names]):
            return pair
    raise KeyError(f"no MPI datatype for {dtype}")


#: MPI's (value, index) types, for MAXLOC and MINLOC.
PAIRS = (MPI.DOUBLE_INT, MPI.FLOAT_INT, MPI.TWOINT, MPI.LONG_INT, MPI.SHORT_INT,
         MPI.LONG_DOUBLE_INT)

_element_types: dict[int, numpy.dtype | None] = {}


def element_type(datatype: MPI.Datatype) -> numpy.dtype | None:
    """The NumPy dtype of a predefined MPI type; ``None`` for derived types."""
    handle = datatype.handle
    if handle not in _element_types:
        if not datatype.is_predefined or datatype == MPI.DATATYPE_NULL:
            # Not remembered: a freed derived type's handle is used again for another one.
            return None
        try:
            dtype = numpy.dtype(dtlib.to_numpy_dtype(datatype))
        except (ValueError, TypeError):
            return None
        same = dtype.itemsize == datatype.Get_extent()[1] and dtype.kind in "biufcV"
        _element_types[handle] = dtype if same else None
    return _element_types[handle]


def _elements(memory: Any, dtype: numpy.dtype, argument: str, whole: bool) -> Any:
    """The memory as an array of elements of a dtype."""
    if memory.dtype == dtype:
        return memory
    raw = memory.view(numpy.uint8) if memory.dtype.itemsize > 1 else memory.view("u1")
    extra = raw.size % dtype.itemsize
    if extra and whole:
        raise ArgumentError(argument, f"{raw.size} bytes are no whole number of elements of "
                                      f"{dtype.itemsize} bytes")
    return raw[:raw.size - extra].view(dtype)


def _integer(value: Any, argument: str) -> int:
    try:
        number = index(value)
    except TypeError:
        raise ArgumentTypeError(argument, f"counts and displacements are integers, got {value!r}"
                                ) from None
    if number < 0:
        raise ArgumentError(argument, f"counts and displacements are not negative, got {number}")
    return number


def _vector(available: int, counts: Any, displs: Any, blocks: int,
            argument: str) -> tuple[list[int], list[int]]:
    """Counts and displacements of ``blocks`` blocks, with mpi4py's defaults."""
    if counts is None:
        each, extra = divmod(available, blocks)
        counts = [each + 1] * extra + [each] * (blocks - extra)
    else:
        counts = _sequence(counts, blocks, argument, lambda each: [each] * blocks)
    if displs is None:
        displs, total = [], 0
        for count in counts:
            displs.append(total)
            total += count
    else:
        displs = _sequence(displs, blocks, argument,
                           lambda stride: [i * stride for i in range(blocks)])
    return counts, displs


def _sequence(values: Any, blocks: int, argument: str, spread: Callable) -> list[int]:
    try:
        return spread(_integer(values, argument))
    except ArgumentTypeError:
        pass
    try:
        found = values.tolist() if isinstance(values, numpy.ndarray) else list(values)
    except TypeError:
        raise ArgumentTypeError(argument, f"expected counts or displacements, got {values!r}"
                                ) from None
    if len(found) != blocks:
        raise ArgumentError(argument, f"{len(found)} counts or displacements for {blocks} ranks")
    return [_integer(value, argument) for value in found]


def overlap(one: Buffer, other: Buffer) -> bool:
    """Tell whether the elements used by two buffers share memory (host arrays only)."""
    if one.namespace is not numpy or other.namespace is not numpy:
        return False
    return numpy.may_share_memory(_used(one), _used(other))


def _used(buffer: Buffer) -> Any:
    spans = [(d, d + c) for d, c in zip(buffer.displs, buffer.counts) if c]
    if not spans:
        return buffer.array[:0]
    return buffer.array[min(spans)[0]:max(stop for _, stop in spans)]
