"""Conversion between MPI datatypes and NumPy dtypes, and datatypes that need packing."""

from __future__ import annotations

import functools
from typing import Any

import numpy
from mpi4py import MPI
from mpi4py.util import dtlib

from hpccoll.arrays.half import is_bfloat16

#: MPI's (value, index) types, for MAXLOC and MINLOC.
PAIRS = (MPI.DOUBLE_INT, MPI.FLOAT_INT, MPI.TWOINT, MPI.LONG_INT, MPI.SHORT_INT,
         MPI.LONG_DOUBLE_INT)

_element_types: dict[int, numpy.dtype | None] = {}


@functools.cache
def datatype_of(dtype: numpy.dtype) -> MPI.Datatype:
    """Return the MPI type of a NumPy dtype; (value, index) structures map to MPI's pair types.

    MPI has no bfloat16: a private type has its size only.

    Raises:
        KeyError, ValueError: MPI has no such type.
    """
    if is_bfloat16(dtype):
        datatype = MPI.UINT16_T.Dup()
        datatype.Set_name(dtype.name)
        _element_types[datatype.handle] = dtype
        return datatype
    if dtype.names is None:
        return MPI.Datatype.fromcode(dtype.char if dtype.kind != "b" else "?")
    for pair in PAIRS:
        like = element_type(pair)
        if like is not None and dtype.itemsize == like.itemsize and _fields(dtype) == _fields(like):
            return pair
    raise KeyError(f"no MPI datatype for {dtype}")


def _fields(dtype: numpy.dtype) -> list[tuple[Any, ...]]:
    """Return types and offsets of a structure's fields, without their names."""
    return [dtype.fields[name][:2] for name in dtype.names or () if dtype.fields]


def element_type(datatype: MPI.Datatype) -> numpy.dtype | None:
    """Return the NumPy dtype of a predefined MPI type; ``None`` for derived types."""
    handle = datatype.handle
    if handle not in _element_types:
        if not datatype.is_predefined or datatype == MPI.DATATYPE_NULL:
            # Not cached: the handle of a freed derived type may be reused for another one.
            return None
        try:
            dtype = numpy.dtype(dtlib.to_numpy_dtype(datatype))
        except (ValueError, TypeError):
            return None
        same = dtype.itemsize == datatype.Get_extent()[1] and dtype.kind in "biufcV"
        _element_types[handle] = dtype if same else None
    return _element_types[handle]


def is_packed(datatype: MPI.Datatype) -> bool:
    """Return True if elements of an MPI type must be packed.

    That holds for derived types, except the private one for bfloat16, and for predefined types with
    gaps, such as some (value, index) pairs.
    """
    dtype = element_type(datatype)
    if dtype is not None:
        return dtype.names is not None and datatype.Get_size() != dtype.itemsize
    return datatype != MPI.DATATYPE_NULL and (
        not datatype.is_predefined or datatype.Get_size() != datatype.Get_extent()[1])


def with_own_datatypes(spec: Any, copies: list[MPI.Datatype]) -> Any:
    """Copy the derived datatypes of a specification, so that the caller may free them.

    Appends the copies to ``copies``, to be freed later.
    """
    if isinstance(spec, (list, tuple)):
        return type(spec)(with_own_datatypes(part, copies) for part in spec)
    if isinstance(spec, MPI.Datatype) and spec != MPI.DATATYPE_NULL and not spec.is_predefined:
        copies.append(spec.Dup())
        return copies[-1]
    return spec
