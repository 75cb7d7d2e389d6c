"""Cache of calls: a repeated call runs without a new resolution or choice.

The compiled executor has its own cache (:mod:`hpccoll.comm.recognition`). The library's calls that
it does not hold are kept here.

    key of a call ---> native method       method, sizes and types of the arrays, operator, root
    choices ---------> Choice              by facts, for calls that are resolved every time
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.comm.methods import Method
from hpccoll.comm.recognition import LASTING, TYPES, new_calls

if TYPE_CHECKING:
    from hpccoll.runtime.planning.choice import Choice

IN_PLACE, Op = MPI.IN_PLACE, MPI.Op
#: Cached calls before the cache is cleared: every call may have a new size.
MOST_CALLS = 2048


class CallCache(dict[Hashable, Any]):
    """Cached calls of a communicator: maps the keys of calls to the native method.

    Attributes:
        calls: the cache of the compiled executor; ``None`` without it.
        observed: kinds of calls by arguments, and algorithms of calls on other buffers than arrays,
            if the program is observed. It is cleared with the other caches, so that a call of
            another kind is resolved.
        forms: calls without their sizes; False if there is no room for a target.
        choices: choices of calls that are resolved every time, by method and facts, or by facts
            and a reason.
        staged: small calls on device memory, by their form.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Any = new_calls()
        self.choices: dict[tuple[Method, Hashable], Choice] = {}
        self.observed: dict[Hashable, Any] = {}
        self.forms: dict[Hashable, bool] = {}
        self.staged: dict[Hashable, Any] = {}

    def clear(self) -> None:
        """Clear all caches."""
        super().clear()
        if self.calls is not None:
            self.calls.clear()
        self.choices.clear()
        self.observed.clear()
        self.forms.clear()
        self.staged.clear()

    def remember(self, method: Method, facts: Hashable, choice: Choice) -> None:
        """Store a choice; equal facts and equal user choices give the same choice."""
        if len(self.choices) >= MOST_CALLS:
            self.choices.clear()
        self.choices[method, facts] = choice

    def store(self, method: Method, args: tuple[Any, ...], native: Any) -> None:
        """Store the native method of a call, if the method gets these arguments unconverted."""
        from hpccoll.calls.native import native_form
        key = key_of(method, args)
        if key is None or any(native_form(arg) is not arg for arg in args):
            return
        if len(self) >= MOST_CALLS:
            self.clear()  # on one rank or on all: the uncached path leads to the same choice
        self[key] = native


def parts_of(method: Method, args: tuple[Any, ...]) -> tuple[Any, Any, Hashable]:
    """Return the input, the output, and the rest of a call's key.

    Raises:
        TypeError: the rest is not an operator, a number or a list of numbers.
    """
    if method.name == "bcast":
        return None, args[0], _value(args[1])
    if len(args) == 3:  # the common case; on the path of every call outside the compiled cache
        return args[0], args[1], _value(args[2])
    sendbuf, recvbuf, *others = args
    return sendbuf, recvbuf, tuple(map(_value, others)) or None


def _value(argument: Any) -> Hashable:
    if type(argument) is Op:
        return id(argument)
    if type(argument) is int:
        return argument
    if isinstance(argument, Op):  # of a class derived from it
        return id(argument)
    # Every array has the method, and raises a TypeError unless it is one number.
    if hasattr(argument, "__index__") and not getattr(argument, "ndim", 0):
        return operator.index(argument)
    return tuple(map(operator.index, argument))


def plain(sendbuf: Any, recvbuf: Any, extra: Hashable
          ) -> tuple[ndarray | None, ndarray | None, Hashable]:
    """Return the output and input arrays of a call, and the rest of its key.

    Both arrays are ``None`` for unsupported buffers.
    """
    if type(sendbuf) in (list, tuple):
        sendbuf, more = _spec_key(sendbuf)
        extra = extra, more
    if type(recvbuf) in (list, tuple):
        recvbuf, more = _spec_key(recvbuf)
        extra = extra, more, 0
    if type(sendbuf) is ndarray and type(recvbuf) is ndarray:
        return recvbuf, sendbuf, extra
    if sendbuf is None or sendbuf is IN_PLACE:
        return recvbuf if type(recvbuf) is ndarray else None, None, extra
    if type(sendbuf) is ndarray and (recvbuf is None or recvbuf is IN_PLACE):
        return sendbuf, None, (extra, recvbuf is None)
    return None, None, extra


def _spec_key(spec: Sequence[Any]) -> tuple[Any, Hashable]:
    """Return the array of a buffer specification, and the rest in hashable form."""
    if len(spec) == 2 and type(spec[0]) is ndarray and id(spec[1]) in TYPES:
        return spec[0], TYPES[id(spec[1])]  # the common case
    try:
        rest = tuple(map(_freeze, spec[1:]))
    except TypeError:
        return (), None  # an unsupported specification: neither an array nor None
    return spec[0] if spec and type(spec[0]) is ndarray else (), rest


def _freeze(part: Any) -> Hashable:
    if isinstance(part, (list, tuple)):
        # Two numbers are a count and a stride in a tuple, and two counts in a list.
        return type(part), *map(_freeze, part)
    if part is None or type(part) in (int, str):
        return part
    if id(part) in TYPES:
        return TYPES[id(part)]
    raise TypeError


def key_of(method: Method, args: tuple[Any, ...]) -> Hashable:
    """Return the key of a call; ``None`` if it has none."""
    if not method.buffers:
        return method
    if any(isinstance(arg, MPI.Op) and id(arg) not in LASTING for arg in args):
        return None
    recvbuf, sendbuf, extra = plain(*parts_of(method, args))
    arrays = [array for array in (recvbuf, sendbuf) if array is not None]
    if not arrays or not all(array.flags.c_contiguous for array in arrays):
        return None
    return method, extra, *(part for array in arrays for part in (array.nbytes, array.dtype))


def is_usable(sendbuf: ndarray, recvbuf: ndarray) -> bool:
    """Return True if arrays can be used directly: contiguous, writable and without overlap."""
    if not (sendbuf.flags.c_contiguous and recvbuf.flags.carray):
        return False  # the uncached path raises the error
    owner, another = (sendbuf if sendbuf.base is None else sendbuf.base,
                      recvbuf if recvbuf.base is None else recvbuf.base)
    if (owner is not another and type(owner) is ndarray and type(another) is ndarray
            and owner.base is None and another.base is None):
        return True  # views of two arrays that own their memory
    first, second = MPI.Get_address(sendbuf), MPI.Get_address(recvbuf)
    return first >= second + recvbuf.nbytes or second >= first + sendbuf.nbytes
