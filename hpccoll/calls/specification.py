"""One view of everything mpi4py accepts as a buffer.

A specification - an array, ``[buf, count]``, ``[buf, (counts, displs), type]`` and so on -
becomes a :class:`Buffer`: a flat array of elements in one array namespace, with counts and
displacements in elements. NumPy arrays and whatever exports the buffer protocol are used as
they are. Device arrays (CuPy, ``__cuda_array_interface__``, DLPack) are used as they are
where the MPI library moves device memory, and staged through host memory elsewhere.

A collective without an operator only moves elements. Ranks may describe these by different types,
so its buffers are resolved ``raw``: as bytes, packed ones where the type is derived.

What hpccoll does not serve (derived datatypes with an operator, objects) raises
:class:`NativeOnly`, and the call falls through to mpi4py, with mpi4py's own behaviour and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import index
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays import device
from hpccoll.arrays.half import is_bfloat16
from hpccoll.calls.datatypes import datatype_of, element_type, is_packed
from hpccoll.calls.packed import Block, Packed
from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError


class NativeOnly(Exception):
    """The call is for the native implementation; never seen by users."""


class Buffer(NamedTuple):
    """A resolved buffer specification.

    Attributes:
        array: flat array over all of the memory, one entry per element of ``datatype``.
        datatype: the MPI type of an element; bytes where the buffer is raw.
        counts: elements of each block, or the one count in a list.
        displs: displacement of each block in elements.
        dtype: of the caller's elements, raw or not; ``None`` where their type is derived.
        namespace: module whose functions work on ``array`` (``numpy``, ``cupy``).
        load: call it before the array is read.
        store: call it when the result is complete, to bring it to where the caller wants it.
    """

    array: Any
    datatype: MPI.Datatype
    counts: Sequence[int]
    displs: Sequence[int]
    dtype: numpy.dtype | None
    namespace: Any = numpy
    load: Callable[..., None] | None = None
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


def buffer_of(spec: Any, argument: str, *, blocks: int | None = None, vector: bool = False,
            writable: bool = False, raw: bool = False) -> Buffer:
    """Resolve a buffer specification.

    Args:
        spec: what the caller passed.
        argument: its name, for messages.
        blocks: number of blocks the buffer is divided into.
        vector: whether counts and displacements are given per block (v-forms).
        writable: whether the collective writes it.
        raw: whether it only moves elements.

    Raises:
        BufferArgumentError: read-only, not contiguous, or too small.
        ArgumentError: counts or displacements that make no sense.
        NativeOnly: a form only the native implementation serves.
    """
    obj, counts, displs, datatype = split(spec, vector)
    typed = raw and isinstance(datatype, MPI.Datatype)
    if raw and obj is None and spec is not None:
        obj = bytearray()  # who has nothing needs no memory
    if typed and is_packed(datatype):
        return _derived(obj, counts, displs, datatype, argument, blocks, vector, writable)
    if obj is None or type(obj) is type(MPI.BOTTOM):
        raise NativeOnly("MPI.BOTTOM")
    memory, namespace, store = _memory(obj, argument, writable, typed)
    datatype = _datatype(datatype, memory)
    if raw and is_packed(datatype):
        return _derived(obj, counts, displs, datatype, argument, blocks, vector, writable)
    known = dtype = element_type(datatype)
    if typed and known is None and datatype != MPI.DATATYPE_NULL:
        dtype = numpy.dtype((numpy.void, datatype.Get_size()))  # characters, for example
    if dtype is None:
        raise NativeOnly("derived datatype")
    array = _elements(memory, dtype, argument, counts is None)
    counts, displs = _places(array.size, counts, displs, blocks, argument, vector)
    for count, displ in zip(counts, displs):
        if count and not 0 <= displ <= displ + count <= array.size:
            raise BufferArgumentError(argument, f"is too small: {count} elements at displacement "
                                                f"{displ} do not fit in {array.size}")
    if not raw:
        return Buffer(array, datatype, counts, displs, dtype, namespace, None, store)
    size = dtype.itemsize
    return Buffer(array.view("u1"), MPI.BYTE, [size * count for count in counts],
                  [size * displ for displ in displs], known, namespace, None, store)


def packed(obj: Any, blocks: Sequence[Block], argument: str, writable: bool) -> Buffer:
    """A raw buffer of blocks of any datatypes.

    Raises:
        BufferArgumentError: it is read-only or not contiguous.
        NativeOnly: it is device memory that the MPI library moves, or what mpi4py does not
            understand either.
    """
    memory, bring = None, None
    if type(obj) is not type(MPI.BOTTOM):
        memory, namespace, bring = _memory(obj, argument, writable, True)
        if namespace is not numpy:
            raise NativeOnly("derived datatypes in device memory")
    made = Packed(memory, blocks, writable)

    def store() -> None:
        made.store()
        if bring is not None:
            bring()

    counts = [block.nbytes for block in blocks]
    return Buffer(made.array, MPI.BYTE, counts, [0, *accumulate(counts[:-1])], None, numpy,
                  made.load, store if writable else None)


def _derived(obj: Any, counts: Any, displs: Any, datatype: MPI.Datatype, argument: str,
             blocks: int | None, vector: bool, writable: bool) -> Buffer:
    """Resolve a specification with a derived datatype, whose elements lie an extent apart."""
    _, extent = datatype.Get_extent()
    available = 0
    if counts is None:
        available, extra = divmod(_memory(obj, argument, writable, True)[0].nbytes, extent or 1)
        if extra or extent <= 0:
            raise NativeOnly("no whole number of elements; mpi4py says what is wrong with it")
    counts, displs = _places(available, counts, displs, blocks, argument, vector)
    return packed(obj, [Block(datatype, count, displ * extent)
                        for count, displ in zip(counts, displs)], argument, writable)


def _places(available: int, counts: Any, displs: Any, blocks: int | None, argument: str,
            vector: bool) -> tuple[Sequence[int], Sequence[int]]:
    """Counts and displacements of a specification, in elements, of which so many there are."""
    if vector:
        return _vector(available, counts, displs, blocks, argument)
    displ = _integer(displs or 0, argument)
    if counts is None:
        counts = available - displ
        if blocks and counts % blocks:
            raise ArgumentError(argument, f"{counts} elements cannot be divided into "
                                          f"{blocks} equal blocks")
    else:
        # A count that is given counts the elements of one block.
        counts = _integer(counts, argument) * (blocks or 1)
    return [counts], [displ]


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


def _memory(obj: Any, argument: str, writable: bool, typed: bool = False):
    """Flat array over an object's memory, its namespace, and how to store results back.

    Where the elements are ``typed`` otherwise, the type of the array's own does not matter.
    """
    if isinstance(obj, numpy.ndarray):
        # As mpi4py sees it: subclasses compute, and cut themselves, in ways of their own.
        array = numpy.asarray(obj)
    elif device.is_device(obj):
        if not device.is_served():
            raise NativeOnly("device memory without CuPy")
        return device.borrow(obj, argument, writable)
    else:
        try:
            array = numpy.asarray(memoryview(obj))
        except (TypeError, ValueError, BufferError) as error:
            raise NativeOnly(str(error)) from error
    dtype = array.dtype
    if dtype.hasobject or not dtype.itemsize or not typed and (
            not dtype.isnative or dtype.kind not in "biufcV"):
        raise NativeOnly("objects, byte order, texts, times")
    if writable and not array.flags.writeable:
        raise BufferArgumentError(argument, "is read-only, but the collective writes it")
    if array.flags.c_contiguous:
        return array.reshape(-1), numpy, None
    if array.flags.f_contiguous:
        return array.T.reshape(-1), numpy, None
    raise BufferArgumentError(argument, "is not contiguous", "pass a contiguous copy "
                                                             "(numpy.ascontiguousarray)")


def _datatype(datatype: Any, memory: Any) -> MPI.Datatype:
    if isinstance(datatype, MPI.Datatype):
        return datatype
    if not isinstance(datatype, (str, type(None))):
        raise NativeOnly("unknown form; mpi4py says what is wrong with it")
    try:
        return (MPI.Datatype.fromcode(datatype) if isinstance(datatype, str)
                else datatype_of(memory.dtype))
    except (KeyError, ValueError, TypeError) as error:
        raise NativeOnly(str(error)) from error


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
    if len(one.counts) == len(other.counts) == 1:
        return numpy.may_share_memory(*map(_used, (one, other)))
    reached = [0, 0]
    # Blocks of one buffer may lie between those of the other.
    for start, stop, side in sorted(_spans(one, 0) + _spans(other, 1)):
        if start < reached[1 - side]:
            return True
        reached[side] = max(reached[side], stop)
    return False


def _used(buffer: Buffer) -> Any:
    """The elements of a buffer of one block."""
    return buffer.array[buffer.displs[0]:][:buffer.counts[0]]


def _spans(buffer: Buffer, side: int) -> list[tuple[int, int, int]]:
    """First and last address of every block, and whose it is."""
    address, size = buffer.array.__array_interface__["data"][0], buffer.array.itemsize
    return [(address + size * displ, address + size * (displ + count), side)
            for displ, count in zip(buffer.displs, buffer.counts) if count]
