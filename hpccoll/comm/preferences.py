"""User choices of algorithms inside a ``with`` block."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hpccoll import config
from hpccoll.algorithms import Algorithm
from hpccoll.algorithms.outside import read_algorithm
from hpccoll.calls.call import Call, collective_of
from hpccoll.calls.facts import facts_of
from hpccoll.comm.uncached.conditions import conditions_of, preference_of
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.ir.schedule import Schedule
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.ready import check_choice
from hpccoll.tune.choose import choose
from hpccoll.units import byte_count

if TYPE_CHECKING:
    from hpccoll.comm.base import Base
    from hpccoll.comm.methods import Method

C = TypeVar("C", bound="Base")


class PreferenceScope(AbstractContextManager[C], ContextDecorator, Generic[C]):
    """Context manager that sets the user's choices of a communicator.

    The choices are checked on creation. An object that is never entered changes nothing, and warns
    of that when it is deleted.

    Args:
        comm: the communicator.
        preferences: the choices, by collective or by method.
    """

    def __init__(self, comm: C, preferences: dict[str, Choice]):
        self.comm, self.preferences, self.entered = comm, preferences, False
        self.before: list[dict[str, Choice]] = []

    def __enter__(self) -> C:
        self.entered = True
        self.before.append(self.comm._preferences)
        self.comm._want({**self.comm._preferences, **self.preferences})
        return self.comm

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.comm._want(self.before.pop())

    def __del__(self) -> None:
        if not getattr(self, "entered", True):
            warnings.warn("hpccoll: comm.using(...) has no effect without 'with'; write 'with "
                          "comm.using(...):', or call comm.choose(...)",
                          RuntimeWarning, stacklevel=2)


def choices_of(algorithms: Mapping[str, Any], segment_bytes: int | str) -> dict[str, Choice]:
    """Return the choices of ``comm.using(segment_bytes=..., **algorithms)``, by method.

    Raises:
        ArgumentError: an unknown method or algorithm, an invalid number of bytes, or a number of
            bytes without an algorithm.
    """
    if segment_bytes and not algorithms:
        byte_count("segment_bytes", segment_bytes)
        raise ArgumentError("segment_bytes", "requires an algorithm",
                            "pass one too, such as allreduce='ring'")
    return {name: choice_of(name, choice, segment_bytes) for name, choice in algorithms.items()}


def choice_of(method: str, choice: Any, segment_bytes: int | str) -> Choice:
    """Return the choice of ``comm.using(method=choice, segment_bytes=...)``.

    Raises:
        ArgumentError: unknown method or algorithm (the message lists the valid ones), or an invalid
            number of bytes.
    """
    name, params = choice if isinstance(choice, tuple) else (choice, {})
    if isinstance(name, str):
        name, written = read_algorithm(name, method)
        params = {**written, **params}
        config.check_choice(collective_of(method), name)
    elif not callable(name) and not isinstance(name, (Algorithm, Schedule)):
        raise ArgumentTypeError(method, f"expected an algorithm, got {choice!r}",
                                "pass a name, an Algorithm, a builder or a Schedule")
    return Choice(name, params, byte_count("segment_bytes", segment_bytes), "comm.using")


def has_new_preference(comm: Base, method: Method) -> bool:
    """Return True if a call has a choice of the user and would set the communicator up."""
    return (comm._context is None and existing_context(comm) is None
            and preference_of(comm, method)[0] is not None)


def check_preference(comm: Base, method: Method, call: Call | None) -> None:
    """Raise the errors of the user's choice for a call, before it sets the communicator up.

    After the error of one rank, its next call must be able to meet the call of the others.
    """
    choice = call and choose(facts_of(call), conditions_of(comm, method))
    if call is not None and choice is not None:
        check_choice(call, choice, comm.Get_rank(), comm.Get_size())
