"""Cache of the compiled executor: the cached methods and the arguments in the key.

Machine code looks up a call of a method in :data:`NUMBERS` by its arguments' forms, sizes and
types, its operator, root and counts, and finds a compiled plan or the native method. Other calls go
to the Python method of the class, which resolves the call and stores its target (:func:`note`).

Without the compiled executor the Python methods are called directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpi4py import MPI
from numpy import ndarray

from hpccoll.comm.methods import Method
from hpccoll.ir.methods import BLOCKING, NONBLOCKING, TABLE
from hpccoll.ir.operators import OPERATORS
from hpccoll.runtime.execution.built import BUILT

if TYPE_CHECKING:
    from hpccoll.calls.call import Call

if BUILT:
    from hpccoll.runtime.execution import _executor
    _executor.set_operators(MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN)

#: Methods by lower-case name, in the forms that can be cached.
NUMBERS = {form.format(name): number for number, (form, name) in enumerate(
    (form, name) for form in (BLOCKING, NONBLOCKING) for name, row in TABLE.items() if row.cached)}
#: Predefined operators; the ``id`` of any other may be reused by another operator.
LASTING = frozenset(id(getattr(MPI, name.upper())) for name in OPERATORS)
#: Predefined types, by ``id``.
TYPES = {id(value): name for name, value in vars(MPI).items()
         if isinstance(value, MPI.Datatype) and value != MPI.DATATYPE_NULL}
F = TypeVar("F", bound=Callable[..., Any])


def new_calls() -> Any:
    """Return a new cache of calls; ``None`` without the compiled executor."""
    return _executor.Calls() if BUILT else None


def recognise_calls(slow: F) -> F:
    """Return a compiled method that looks up the cache and falls back to ``slow``."""
    if not BUILT:
        return slow
    name = slow.__name__.lower()
    function = cast(FunctionType, slow)
    code = function.__code__
    fast: Any = _executor.Recognised(slow, NUMBERS[name], TABLE[name.removeprefix("i")].roles,
                                     code.co_varnames[1:code.co_argcount], function.__defaults__ or
                                     ())
    return cast(F, update_wrapper(fast, slow))


def shortcut(slow: F) -> F:
    """Return a compiled method that falls back to ``slow`` if it cannot complete the call.

    Used for ``Start``, ``Wait`` and ``Test`` of requests of compiled plans, and ``allreduce`` of
    numbers.
    """
    return cast(F, update_wrapper(_executor.shortcut(slow.__name__, slow), slow)) if BUILT else slow


def note(calls: Any, method: Method, args: tuple[Any, ...], target: Any,
         call: Call | None = None) -> bool:
    """Store the target of a call in the cache; return True if it can be cached.

    Args:
        calls: the cache.
        method, args: the call, with all arguments in positional order.
        target: a compiled plan, a ``_executor.Begin`` that starts it, or the native method.
        call: the resolved call, if a compiled plan runs it.
    """
    from hpccoll.calls.native import native_form
    if method.title not in NUMBERS or not all(map(_lasts, args)):
        return False
    places: tuple[tuple[int, int], ...] = ()
    if call is not None:
        if method.row.counts == "root":
            return False  # the counts of other ranks may differ at the next call
        sides = _sides(method, args)
        found = [_place(one.array, sides) if one is not None else (-1, 0)
                 for one in (call.source, call.sink)]
        places = tuple(place for place in found if place is not None)
        if len(places) < len(found):
            return False  # it works on a copy
    elif any(native_form(arg) is not arg for arg in args):
        return False  # the method gets converted arguments
    return bool(calls.store(NUMBERS[method.title], method.row.roles, args, target, *places))


def note_any_size(calls: Any, method: Method, args: tuple[Any, ...], target: Any) -> bool:
    """Store the target of calls of this form and any size; return True if there is room."""
    return bool(calls.store_any_size(NUMBERS[method.title], method.row.roles, args, target))


def _lasts(argument: Any) -> bool:
    """Return True if an argument's identity is a permanent key."""
    if isinstance(argument, MPI.Op):
        return id(argument) in LASTING
    if type(argument) in (list, tuple) and len(argument) > 1:
        last = argument[-1]
        return id(last) in TYPES or not isinstance(last, (MPI.Datatype, str))
    return True


def _sides(method: Method, args: tuple[Any, ...]) -> list[Any]:
    """Return the arrays that a call sends from and receives into."""
    sides: list[Any] = [None, None]
    for role, argument in zip(method.row.roles, args):
        if role in "srb":
            array = argument[0] if type(argument) in (list, tuple) else argument
            sides[role != "s"] = array if type(array) is ndarray else None
    return sides


def _place(memory: ndarray, sides: list[Any]) -> tuple[int, int] | None:
    """Return the index of the argument that contains a memory, and the offset in bytes."""
    start = MPI.Get_address(memory)
    for side, array in enumerate(sides):
        if array is not None and array.flags.c_contiguous:
            shift = start - MPI.Get_address(array)
            if 0 <= shift and shift + memory.nbytes <= array.nbytes:
                return side, shift
    return None
