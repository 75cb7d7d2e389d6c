"""The cache of calls: a call like an earlier one is served without resolving or choosing again.

Two calls have one *signature* if they are of the same method, on arrays of the same sizes and
types, with the same operator and root. All ranks have seen the same signatures, so all take the
same path: where the MPI library served before, it serves again; what hpccoll prepared before is
re-run if the arrays are at the same addresses. If not, this rank takes the slow path, which ends
at the same plan; other ranks are unaffected.

    signatures -----> native | Signature        by sizes and types
    (Signature, addresses) --> execution        kept by the context
    choices --------> Choice                    by facts, for calls that have no signature
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.calls.facts import COUNTS_AT_ROOT, CallFacts
from hpccoll.calls.native import native_form
from hpccoll.comm.methods import BARRIER, Method
from hpccoll.comm.recognition import LASTING, TYPES, new_calls
from hpccoll.runtime.planning.choice import Choice

address, IN_PLACE, Op = MPI.Get_address, MPI.IN_PLACE, MPI.Op
#: Signatures remembered, before all are forgotten: sizes may be new in every call.
MOST_SIGNATURES = 2048
#: Where an execution is kept: signature, addresses of output and input.
Location = tuple["Signature", int | None, int | None]


class Signature:
    """A call signature that hpccoll serves; equal to itself only."""


class CallCache(dict[Hashable, Any]):
    """What a communicator knows of its calls.

    By signature: the MPI library's method, where that serves; or a :class:`Signature`.

    Attributes:
        calls: what the compiled executor recognises; ``None`` without it.
        observed: kinds of calls, where a program is watched, by arguments; with all else that is
            known, so that a call of another kind goes the long way.
        seen: what recognises them.
        choices: of calls that are resolved every time, by method and facts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Any = new_calls()
        self.choices: dict[tuple[Method, CallFacts], Choice] = {}
        self.observed: dict[Hashable, int] = {}
        self.seen: Any = None

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        if self.calls is not None:
            self.calls.clear()
        self.choices.clear()
        self.observed.clear()

    def remember(self, method: Method, facts: CallFacts, choice: Choice) -> None:
        """Note what was chosen; the same facts under the same wishes give the same choice."""
        if len(self.choices) >= MOST_SIGNATURES:
            self.choices.clear()
        self.choices[method, facts] = choice

    def store(self, method: Method, args: tuple[Any, ...], served: Any) -> Location | None:
        """Note who served a call; return where its execution is to be kept, if it can repeat.

        Args:
            method, args: the call.
            served: the MPI library's method, or a new :class:`Signature`.
        """
        key, arrays = key_of(method, args)
        # An alltoall in place works on a copy made for the call, which is gone afterwards. Ranks do
        # not know each other's counts in a gatherv, so a signature does not say which plan it was.
        if key is None or isinstance(served, Signature) and (
                method.name in COUNTS_AT_ROOT
                or method.name.startswith("alltoall") and len(arrays) < 2):
            return None
        if not isinstance(served, Signature) and any(native_form(arg) is not arg for arg in args):
            return None  # the method does not get the arguments as they are
        if len(self) >= MOST_SIGNATURES:
            self.clear()  # on one rank or on all: the slow path ends at the same choice
        known = self.setdefault(key, served)
        first, second = (*map(address, arrays), None, None)[:2]
        return known, first, second


def parts_of(method: Method, args: tuple[Any, ...]) -> tuple[Any, Any, Hashable]:
    """Input, output, and what else a call's signature depends on.

    Raises:
        TypeError: what else it depends on is no operator, number or list of numbers.
    """
    if method.name == "bcast":
        return None, args[0], _value(args[1])
    if len(args) == 3:  # the usual ones; on the way of every call that is not recognised
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
    if hasattr(argument, "__index__"):
        return operator.index(argument)
    return tuple(map(int, argument))


def plain(sendbuf: Any, recvbuf: Any, extra: Hashable
          ) -> tuple[ndarray | None, ndarray | None, Hashable]:
    """The arrays of a call, output and input, and what else its signature depends on.

    Both are ``None`` for buffers that are not understood here.
    """
    if type(sendbuf) in (list, tuple):
        sendbuf, more = _specified(sendbuf)
        extra = extra, more
    if type(recvbuf) in (list, tuple):
        recvbuf, more = _specified(recvbuf)
        extra = extra, more, 0
    if type(sendbuf) is ndarray and type(recvbuf) is ndarray:
        return recvbuf, sendbuf, extra
    if sendbuf is None or sendbuf is IN_PLACE:
        return recvbuf if type(recvbuf) is ndarray else None, None, extra
    if type(sendbuf) is ndarray and (recvbuf is None or recvbuf is IN_PLACE):
        return sendbuf, None, (extra, recvbuf is None)
    return None, None, extra


def _specified(spec: Sequence[Any]) -> tuple[Any, Hashable]:
    """The array of ``[array, counts, displs, type]`` and its like, and the rest, hashable."""
    if len(spec) == 2 and type(spec[0]) is ndarray and id(spec[1]) in TYPES:
        return spec[0], TYPES[id(spec[1])]  # by far the most common
    try:
        rest = tuple(map(_frozen, spec[1:]))
    except TypeError:
        return (), None  # a spec that is not understood; no array, and not None either
    return spec[0] if spec and type(spec[0]) is ndarray else (), rest


def _frozen(part: Any) -> Hashable:
    if isinstance(part, (list, tuple)):
        # Two numbers are a count and a stride in a tuple, and two counts in a list.
        return type(part), *map(_frozen, part)
    if part is None or type(part) in (int, str):
        return part
    if id(part) in TYPES:
        return TYPES[id(part)]
    raise TypeError


def key_of(method: Method, args: tuple[Any, ...]) -> tuple[Hashable, Sequence[ndarray]]:
    """The signature's key of a call, and its arrays: output, input; ``None`` if it has none."""
    if method.name == BARRIER.name:
        return method, ()
    if any(isinstance(arg, MPI.Op) and id(arg) not in LASTING for arg in args):
        return None, ()
    recvbuf, sendbuf, extra = plain(*parts_of(method, args))
    arrays = [array for array in (recvbuf, sendbuf) if array is not None]
    if not arrays or not all(array.flags.c_contiguous for array in arrays):
        return None, ()
    return (method, extra, *(part for array in arrays for part in (array.nbytes, array.dtype))
            ), arrays


def usable(sendbuf: ndarray, recvbuf: ndarray) -> bool:
    """Tell whether views can be used as they are: contiguous, writable, and surely apart."""
    if not (sendbuf.flags.c_contiguous and recvbuf.flags.carray):
        return False  # the slow path raises the error
    owner, another = (sendbuf if sendbuf.base is None else sendbuf.base,
                      recvbuf if recvbuf.base is None else recvbuf.base)
    if (owner is not another and type(owner) is ndarray and type(another) is ndarray
            and owner.base is None and another.base is None):
        return True  # parts of two arrays that own their memory
    first, second = address(sendbuf), address(recvbuf)
    return first >= second + recvbuf.nbytes or second >= first + sendbuf.nbytes
