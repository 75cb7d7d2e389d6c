"""Wire format: Python objects as self-describing messages.

A message is a frame of fixed size, followed by the data that does not fit into it:

    [FLOAT or INT | 8 bytes]                       Python numbers that fit
    [n | n bytes of pickle, n <= INLINE]           small objects
    [LONG | kind | sizes | description | data]     arrays, NumPy scalars, large pickles, errors

After its contents, a frame has one byte for its sender, and the identity of its call: number,
collective, operator and root. Arrays are sent as bytes, other objects as pickled by mpi4py
(``MPI.pickle``), which a program may replace. An error is sent like an object, so that an exception
on one rank reaches the ranks that wait for its result. Errors and :class:`Parts` are pickled by
Python.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.errors import HpccollError

#: Bytes of a frame; some MPI libraries take much longer for more.
FRAME = 128
#: Offset of the call hash; bytes for contents, and offset of the sender's byte.
HASH = FRAME - 8
ROOM = HASH - 1
INLINE, LONG, FLOAT, INT = ROOM - 1, 255, 254, 253
#: Type mark and Python number.
FLOATING, INTEGER = struct.Struct("=Bd"), struct.Struct("=Bq")
PICKLED, ARRAY, SCALAR, ERROR, PARTS = range(5)
#: Mark ``LONG``, kind, bytes of the description, bytes of the data.
HEAD = struct.Struct("<BBBxq")
#: Dtypes whose arrays are sent as bytes: exactly NumPy's native ones, by character.
PLAIN = {char: numpy.dtype(char) for char in "?bBhHiIlLqQefdgFDG"}
SCALARS = {dtype.type: char for char, dtype in PLAIN.items()}
#: Types whose copies are identical to the object.
IMMUTABLE = {int, float, complex, bool, str, bytes, type(None), *SCALARS}
#: Types whose operators give equal results on every rank, for any contents.
CONTAINERS = {list, tuple, dict, set, frozenset, bytearray}

_INT64_END = 1 << 63
_dumps, _loads = MPI.pickle.dumps, MPI.pickle.loads


class RemoteError(NamedTuple):
    """Exception that a rank sends instead of a result, with the rank that raised it."""

    error: BaseException
    rank: int

    def throw(self, here: int) -> None:
        """Raise the exception, on the rank ``here``."""
        if self.rank == here:
            raise self.error
        raise self.error from HpccollError(f"raised on rank {self.rank}")


class Parts(list[Any]):
    """Pickled objects, or their numbers of bytes, on their way from or to the root."""


#: Types that are not sent as a plain pickle.
SPECIAL = {numpy.ndarray, RemoteError, Parts, *SCALARS}


def encode(frame: bytearray, obj: Any, rank: int) -> tuple[Any, RemoteError | None]:
    """Write an object into a frame.

    Returns:
        The data that has to follow the frame, if any; and the error that replaced the object, if
        any.
    """
    cls = type(obj)
    if cls is float:
        FLOATING.pack_into(frame, 0, FLOAT, obj)
        return None, None
    if cls is int and -_INT64_END <= obj < _INT64_END:
        INTEGER.pack_into(frame, 0, INT, obj)
        return None, None
    data: Any
    kind, description, error = PICKLED, b"", None
    if cls not in SPECIAL:
        try:
            data = _dumps(obj)
        except Exception as raised:
            error = RemoteError(raised, rank)
            kind, data = ERROR, _dumps_error(error)
        else:
            nbytes = len(data)
            if nbytes <= INLINE:
                frame[0] = nbytes
                frame[1:1 + nbytes] = data
                return None, None
    elif cls is RemoteError:
        kind, error, data = ERROR, obj, _dumps_error(obj)
    elif cls is Parts:
        kind, data = PARTS, pickle.dumps(obj)
    elif cls is numpy.ndarray:
        kind, description, data = _encode_array(obj)
    else:
        kind, description, data = SCALAR, SCALARS[cls].encode(), obj.tobytes()
    nbytes = data.nbytes if kind == ARRAY else len(data)
    HEAD.pack_into(frame, 0, LONG, kind, len(description), nbytes)
    start = HEAD.size + len(description)
    frame[HEAD.size:start] = description
    if start + nbytes > ROOM:
        return data, error
    frame[start:start + nbytes] = data.tobytes() if kind == ARRAY else data
    return None, error


def memory_for(frame: bytearray) -> Any:
    """Allocate memory for the data after a ``LONG`` frame; ``None`` if nothing follows."""
    _, kind, described, nbytes = HEAD.unpack_from(frame)
    if HEAD.size + described + nbytes <= ROOM:
        return None
    return _empty_array(frame, described) if kind == ARRAY else bytearray(nbytes)


def decode(frame: bytearray, data: Any, rank: int) -> Any:
    """Return the object of a message; a ``RemoteError`` if it is one or unpickling fails."""
    try:
        mark = frame[0]
        if mark == FLOAT:
            return FLOATING.unpack_from(frame)[1]
        if mark == INT:
            return INTEGER.unpack_from(frame)[1]
        if mark != LONG:
            return _loads(frame[1:1 + mark])
        _, kind, described, nbytes = HEAD.unpack_from(frame)
        start = HEAD.size + described
        inline = frame[start:start + nbytes] if data is None else data
        if kind == ARRAY:
            if data is None:
                data = _empty_array(frame, described)
                data.reshape(-1).view("u1")[...] = inline
            return data
        if kind == SCALAR:
            return numpy.frombuffer(inline, chr(frame[HEAD.size]), 1)[0]
        if kind == PICKLED:
            return _loads(inline)
    except Exception as error:
        return RemoteError(error, rank)
    obj = pickle.loads(inline)
    return _loads_error(*obj) if kind == ERROR else obj


def type_and_shape(frame: bytearray) -> bytes:
    """Return the hashable type and shape in the frame of an array whose data follows."""
    return bytes(frame[:HEAD.size + frame[2]])


def same_type_and_shape(frame: bytearray, other: bytearray) -> bool:
    """Return True if two frames have arrays of equal type and shape; the first is LONG."""
    end = HEAD.size + frame[2]
    return frame[1] == ARRAY and frame[:end] == other[:end]


def is_plain(array: numpy.ndarray) -> bool:
    """Return True if an array can be sent as bytes without a change."""
    return (array.flags.carray and 0 < array.ndim < 8
            and PLAIN.get(array.dtype.char) is array.dtype)


def copy_of(obj: Any, rank: int) -> Any:
    """Return a copy by pickling, as in mpi4py; a ``RemoteError`` if that fails."""
    if type(obj) in IMMUTABLE or type(obj) is RemoteError:
        return obj
    if type(obj) is numpy.ndarray and is_plain(obj):
        return obj.copy()
    try:
        return _loads(_dumps(obj))
    except Exception as error:
        return RemoteError(error, rank)


def _encode_array(array: numpy.ndarray) -> tuple[int, bytes, Any]:
    if not is_plain(array):
        return PICKLED, b"", _dumps(array)
    return ARRAY, array.dtype.char.encode() + struct.pack(f"<{array.ndim}q", *array.shape), array


def _empty_array(frame: bytearray, described: int) -> numpy.ndarray:
    shape = struct.unpack_from(f"<{described // 8}q", frame, HEAD.size + 1)
    return numpy.empty(shape, PLAIN[chr(frame[HEAD.size])])


def _dumps_error(error: RemoteError) -> bytes:
    try:
        pickled = pickle.dumps(error.error)
    except Exception:
        pickled = None
    return pickle.dumps((pickled, f"{type(error.error).__name__}: {error.error}", error.rank))


def _loads_error(pickled: bytes | None, text: str, rank: int) -> RemoteError:
    error: Any = None
    if pickled is not None:
        try:
            error = pickle.loads(pickled)
        except Exception:
            pass
    # Some exceptions cannot be pickled, or change in a round trip.
    return RemoteError(error if isinstance(error, Exception) else HpccollError(text), rank)
