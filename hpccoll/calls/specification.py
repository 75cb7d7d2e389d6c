"""Buffer specifications of mpi4py, resolved to a common form.

A specification (an array, ``[buf, count]``, ``[buf, (counts, displs), type]`` and so on) becomes a
:class:`Buffer`: a flat array of elements in one array namespace, with counts and displacements in
elements. NumPy arrays and objects with the buffer protocol are used directly. Device arrays (CuPy,
``__cuda_array_interface__``, DLPack) are used directly if the MPI library moves device memory, and
otherwise ``staged`` through host memory.

A collective without an operator only moves elements. Ranks may describe these by different types,
so its buffers are resolved ``raw``: as bytes, which are packed for derived types.

Unsupported specifications (for example derived datatypes with an operator) raise
:class:`~hpccoll.calls.native.NativeOnly`, and the call falls back to mpi4py. Specifications that
mpi4py rejects raise an error that names the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import index
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.calls.datatypes import datatype_of, element_type, is_packed
from hpccoll.calls.memory import memory_of
from hpccoll.calls.native import (
    NativeOnly,
    check_address,
    check_type_known,
    check_understood,
)
from hpccoll.calls.packed import Block, PackedBlocks
from hpccoll.cuda import StagedBuffer
from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError


class Buffer(NamedTuple):
    """Resolved buffer specification.

    Attributes:
        array: flat array over the whole memory, one entry per element of ``datatype``.
        datatype: the MPI type of an element; bytes for a raw buffer.
        counts: elements of each block, or one count in a list.
        displs: displacement of each block in elements.
        dtype: type of the caller's elements, raw or not; ``None`` for derived types.
        namespace: module of the data's functions (``numpy``, ``cupy``).
        load: called before the array is read.
        store: called when the result is complete, to copy it to the caller's memory.
        staged: staging of device memory that is copied to the host for NumPy; see
            :func:`host_buffer`.
    """

    array: Any
    datatype: MPI.Datatype
    counts: Sequence[int]
    displs: Sequence[int]
    dtype: numpy.dtype | None
    namespace: Any = numpy
    load: Callable[..., None] | None = None
    store: Callable[[], None] | None = None
    staged: StagedBuffer | None = None

    @property
    def count(self) -> int:  # type: ignore[override]  # MPI's word; tuple.count is not used
        """Total number of elements."""
        return sum(self.counts)


def host_buffer(buffer: Buffer) -> Buffer:
    """Return the whole buffer in host memory, to be loaded and stored."""
    if buffer.staged is None:
        return buffer
    host, load, store = buffer.staged.mirror(buffer.array)
    return buffer._replace(array=host, load=load, store=buffer.store and store, staged=None)


def is_in_place(spec: Any) -> bool:
    """Return True if a specification means ``MPI.IN_PLACE``."""
    return spec is None or spec is MPI.IN_PLACE or type(spec) is type(MPI.IN_PLACE)


def buffer_of(spec: Any, argument: str, *, blocks: int | None = None, vector: bool = False,
            writable: bool = False, raw: bool = False) -> Buffer:
    """Resolve a buffer specification.

    Args:
        spec: the caller's argument.
        argument: its name, for messages.
        blocks: number of blocks the buffer is divided into.
        vector: True if counts and displacements are given per block (v-forms).
        writable: True if the collective writes it.
        raw: True if it only moves elements.

    Raises:
        BufferArgumentError: read-only, not contiguous, or too small.
        ArgumentTypeError: not a buffer, or elements without an MPI type.
        ArgumentError: invalid counts or displacements.
        NativeOnly: a form that only the native implementation supports.
    """
    try:
        return _resolve(spec, argument, blocks, vector, writable, raw)
    except NativeOnly:
        _check_native(spec, argument, blocks, vector, writable, raw)
        raise


def _check_native(spec: Any, argument: str, blocks: int | None, vector: bool, writable: bool,
                  raw: bool) -> None:
    """Raise an error for a specification that mpi4py also rejects."""
    obj, counts, displs, datatype = split(spec, argument, vector)
    if not vector:
        check_understood(spec, argument, writable)
    else:
        # mpi4py accepts counts of several blocks only for the same number of ranks.
        check_understood([obj, *([0] if counts is not None else []), datatype]
                         if isinstance(spec, (list, tuple)) else spec, argument, writable)
        counts, displs = _vector(0, counts, displs, blocks or 1, argument)
        if any(counts):
            check_address(obj, min(displ for count, displ in zip(counts, displs) if count),
                          datatype, argument)
    if not raw and datatype is None:
        check_type_known(obj, argument)


def _resolve(spec: Any, argument: str, blocks: int | None, vector: bool, writable: bool,
             raw: bool) -> Buffer:
    """Return the result of :func:`buffer_of`; raise ``NativeOnly`` for unsupported forms."""
    obj, counts, displs, datatype = split(spec, argument, vector)
    typed = raw and isinstance(datatype, MPI.Datatype)
    if raw and spec is not None and (obj is None or type(obj) is type(MPI.BOTTOM)
                                     and counts is None and datatype is not None):
        obj = bytearray()  # no elements, so no memory is needed
    if typed and is_packed(datatype):
        return _derived_buffer(obj, counts, displs, datatype, argument, blocks, vector, writable)
    if obj is None or type(obj) is type(MPI.BOTTOM):
        raise NativeOnly("MPI.BOTTOM")
    memory, namespace, through = memory_of(obj, argument, writable, typed)
    datatype = _datatype(datatype, memory)
    if raw and is_packed(datatype):
        return _derived_buffer(obj, counts, displs, datatype, argument, blocks, vector, writable)
    known = dtype = element_type(datatype)
    if typed and known is None and datatype != MPI.DATATYPE_NULL:
        dtype = numpy.dtype((numpy.void, datatype.Get_size()))  # characters, for example
    if dtype is None:
        raise NativeOnly("derived datatype")
    array = _elements(memory, dtype, argument, counts is None)
    counts, displs = _places(array.size, counts, displs, blocks, argument, vector)
    if vector and min(displs) < 0 and namespace is numpy and through is None:
        array, displs = _from_first_block(array, displs)
    for count, displ in zip(counts, displs):
        if count and not 0 <= displ <= displ + count <= array.size:
            raise BufferArgumentError(argument, f"is too small: {count} elements at displacement "
                                                f"{displ} do not fit in {array.size}")
    store = through.finish if through is not None and writable else None
    if not raw:
        return Buffer(array, datatype, counts, displs, dtype, namespace, None, store, through)
    size = dtype.itemsize
    return Buffer(array.view("u1"), MPI.BYTE, [size * count for count in counts],
                  [size * displ for displ in displs], known, namespace, None, store, through)


def packed_buffer(obj: Any, blocks: Sequence[Block], argument: str, writable: bool) -> Buffer:
    """Return a raw buffer of blocks of any datatypes.

    Raises:
        BufferArgumentError: the memory is read-only or not contiguous.
        NativeOnly: device memory that the MPI library moves, or an object that mpi4py rejects.
    """
    memory = bring = None
    if type(obj) is not type(MPI.BOTTOM):
        memory, namespace, through = memory_of(obj, argument, writable, True)
        if namespace is not numpy:
            raise NativeOnly("derived datatypes in device memory")
        if through is not None:
            memory, fetch, bring = through.mirror(memory)
            fetch()
    form = PackedBlocks(memory, blocks, writable)

    def store() -> None:
        form.store()
        if bring is not None:
            bring()

    counts = [block.nbytes for block in blocks]
    return Buffer(form.array, MPI.BYTE, counts, [0, *accumulate(counts[:-1])], None, numpy,
                  form.load, store if writable else None)


def typed_blocks(spec: Any, argument: str, size: int, writable: bool) -> Buffer:
    """Resolve the specification of an alltoallw: blocks with a type and a byte offset each.

    Raises:
        ArgumentError, BufferArgumentError, NativeOnly: like :func:`buffer_of`.
    """
    remedy = "pass [buffer, (counts, displacements in bytes), types], one of each per rank"
    obj, counts, displs, types = _typed_parts(spec, argument, remedy)
    if counts is None and displs is None:
        counts, displs = [1] * size, [0] * size
    lists = []
    for parts, name in (counts, "counts"), (displs, "displacements"), (types, "types"):
        try:
            lists.append(list(parts))
        except TypeError:
            raise ArgumentTypeError(argument, f"has {parts!r}, expected {name}", remedy
                                    ) from None
        if len(lists[-1]) != size:
            raise ArgumentError(argument, f"has {len(lists[-1])} {name} for {size} ranks", remedy)
    counts, displs, types = lists
    for datatype in types:
        if not isinstance(datatype, MPI.Datatype):
            raise ArgumentTypeError(argument, f"has {datatype!r} among its types", remedy)
    counts = [check_count(count, argument) for count in counts]
    displs = _of_used(counts, [_integer(displ, argument) for displ in displs])
    try:
        if MPI.DATATYPE_NULL in types:
            raise NativeOnly("no datatype; mpi4py says what is wrong with it")
        if any(map(is_packed, types)):
            return packed_buffer(obj, list(map(Block, types, counts, displs)), argument, writable)
    except NativeOnly:
        check_understood([obj, 0, MPI.BYTE], argument, writable)
        raise
    nbytes = [count * datatype.Get_size() for count, datatype in zip(counts, types)]
    return buffer_of([obj, (nbytes, displs), MPI.BYTE], argument, vector=True, blocks=size,
                     writable=writable, raw=True)


def _typed_parts(spec: Any, argument: str, remedy: str) -> tuple[Any, Any, Any, Any]:
    """Split an alltoallw specification into (buffer, counts, displacements, types)."""
    try:
        obj, *rest, types = spec
        if len(rest) == 1:
            rest = [*rest[0]]
        counts, displs = rest or (None, None)
    except (TypeError, ValueError):
        problem = (f"is a {type(spec).__name__}" if not isinstance(spec, (list, tuple)) else
                   f"is a {type(spec).__name__} of other parts")
        raise ArgumentTypeError(argument, problem, remedy) from None
    return obj, counts, displs, types


def _derived_buffer(obj: Any, counts: Any, displs: Any, datatype: MPI.Datatype, argument: str,
                    blocks: int | None, vector: bool, writable: bool) -> Buffer:
    """Resolve a specification with a derived datatype, whose elements are an extent apart."""
    _, extent = datatype.Get_extent()
    available = 0
    if counts is None:
        available, extra = divmod(memory_of(obj, argument, writable, True)[0].nbytes, extent or 1)
        if extra or extent <= 0:
            raise NativeOnly("no whole number of elements; mpi4py says what is wrong with it")
    counts, displs = _places(available, counts, displs, blocks, argument, vector)
    return packed_buffer(obj, [Block(datatype, count, displ * extent)
                               for count, displ in zip(counts, displs)], argument, writable)


def _places(available: int, counts: Any, displs: Any, blocks: int | None, argument: str,
            vector: bool) -> tuple[Sequence[int], Sequence[int]]:
    """Return the counts and displacements of a specification of ``available`` elements."""
    if vector:
        return _vector(available, counts, displs, blocks or 1, argument)
    displ = 0 if displs is None else _natural(displs, argument)
    if counts is None:
        counts = available - displ
        if blocks and counts % blocks:
            raise ArgumentError(argument, f"{counts} elements cannot be divided into "
                                          f"{blocks} equal blocks")
    else:
        # An explicit count is the number of elements of one block.
        counts = _natural(counts, argument) * (blocks or 1)
    return [counts], [displ]


def split(spec: Any, argument: str, vector: bool) -> tuple[Any, Any, Any, Any]:
    """Split a specification into (buffer, counts, displacements, datatype).

    Raises:
        ArgumentError: it has too few or too many parts.
    """
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
        raise ArgumentError(argument, f"is a {type(spec).__name__} of {len(spec)}, expected 2 to 4 "
                                      "items",
                            "pass [buffer, count, type], or a NumPy array")
    # In v-forms a list at this position has the counts of all ranks.
    if len(spec) < 4 and isinstance(counts, tuple if vector else (tuple, list)):
        if len(counts) != 2:
            raise ArgumentError(argument, f"has {len(counts)} entries, expected counts and "
                                          "displacements", "pass (counts, displacements)")
        counts, displs = counts
    return obj, counts, displs, datatype


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
    """Return the memory as an array of elements of a dtype."""
    if memory.dtype == dtype:
        return memory
    raw = memory.view(numpy.uint8) if memory.dtype.itemsize > 1 else memory.view("u1")
    extra = raw.size % dtype.itemsize
    if extra and whole:
        raise ArgumentError(argument, f"{raw.size} bytes are not a multiple of the element size, "
                                      f"{dtype.itemsize} bytes")
    return raw[:raw.size - extra].view(dtype)


def check_count(count: Any, argument: str) -> int:
    """Return a count if it is a non-negative integer."""
    try:
        number = None if isinstance(count, bool) else index(count)
    except TypeError:
        number = None
    if number is None:
        raise ArgumentTypeError(argument, f"expected integers, got {count!r}")
    if number < 0:
        raise ArgumentError(argument, f"expected counts of 0 or more, got {number}")
    return number


def _from_first_block(array: numpy.ndarray, displs: Sequence[int]
                      ) -> tuple[numpy.ndarray, Sequence[int]]:
    """Return an array that starts at the block before ``array``, and the displacements from there.

    Ranks may have other displacements, so no rank can leave such a call to the MPI library. If the
    array is part of a larger one, it must hold the block; memory of other objects has no known
    bounds, and the caller is trusted, as by the MPI library.
    """
    below, known = -min(displs), array.__array_interface__
    start, owner = known["data"][0] - below * array.itemsize, array
    while isinstance(owner.base, numpy.ndarray):
        owner = owner.base
    if owner.base is None and start < owner.__array_interface__["data"][0]:
        return array, displs
    whole = numpy.asarray(SimpleNamespace(owner=array, __array_interface__={
        **known, "shape": (array.size + below,), "data": (start, known["data"][1])}))
    return whole, [displ + below for displ in displs]


def _integer(value: Any, argument: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise ArgumentTypeError(argument, f"counts, displacements: expected integers, got {value!r}"
                                ) from None


def _natural(value: Any, argument: str) -> int:
    number = _integer(value, argument)
    if number < 0:
        raise ArgumentError(argument, f"negative counts or displacements: {number}")
    return number


def _vector(available: int, counts: Any, displs: Any, blocks: int,
            argument: str) -> tuple[list[int], list[int]]:
    """Return counts and displacements of ``blocks`` blocks, with mpi4py's defaults."""
    if counts is None:
        each, extra = divmod(available, blocks)
        counts = [each + 1] * extra + [each] * (blocks - extra)
    else:
        counts = [_natural(count, argument) for count in _sequence(
            counts, blocks, argument, lambda each: [each] * blocks)]
    if displs is None:
        displs, total = [], 0
        for count in counts:
            displs.append(total)
            total += count
    else:
        displs = _sequence(displs, blocks, argument,
                           lambda stride: [i * stride for i in range(blocks)])
    return counts, _of_used(counts, displs)


def _of_used(counts: Sequence[int], displs: Sequence[int]) -> list[int]:
    """Return displacements with 0 for the negative ones of empty blocks: MPI ignores these."""
    return [displ if count else max(displ, 0) for count, displ in zip(counts, displs)]


def _sequence(values: Any, blocks: int, argument: str,
              spread: Callable[[int], list[int]]) -> list[int]:
    try:
        return spread(_integer(values, argument))
    except ArgumentTypeError:
        pass
    try:
        numbers = list(values.tolist() if isinstance(values, numpy.ndarray) else values)
    except TypeError:
        raise ArgumentTypeError(argument, f"expected counts or displacements, got {values!r}"
                                ) from None
    if len(numbers) != blocks:
        raise ArgumentError(argument, f"{len(numbers)} counts or displacements for {blocks} ranks")
    return [_integer(value, argument) for value in numbers]


def overlap(one: Buffer, other: Buffer) -> bool:
    """Return True if the used elements of two buffers share memory."""
    host = isinstance(one.array, numpy.ndarray)
    if host is not isinstance(other.array, numpy.ndarray):
        return False
    if host and len(one.counts) == len(other.counts) == 1:
        return bool(numpy.may_share_memory(*map(_first_block, (one, other))))
    reached = [0, 0]
    # Blocks of one buffer may be between those of the other.
    for start, stop, side in sorted(_spans(one, 0) + _spans(other, 1)):
        if start < reached[1 - side]:
            return True
        reached[side] = max(reached[side], stop)
    return False


def _first_block(buffer: Buffer) -> Any:
    """Return the elements of a buffer of one block."""
    return buffer.array[buffer.displs[0]:][:buffer.counts[0]]


def _spans(buffer: Buffer, side: int) -> list[tuple[int, int, int]]:
    """Return the first and last address of every block, and its ``side``."""
    array, size = buffer.array, buffer.array.itemsize
    address = (array.__array_interface__["data"][0] if isinstance(array, numpy.ndarray)
               else array.data.ptr)
    return [(address + size * displ, address + size * (displ + count), side)
            for displ, count in zip(buffer.displs, buffer.counts) if count]
