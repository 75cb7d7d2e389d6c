"""The resolved call, and the user's choices and other conditions of its algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpccoll.calls.call import Call, lacks_mpi_type
from hpccoll.calls.memory import any_staged
from hpccoll.calls.native import NativeOnly, native_form
from hpccoll.comm.methods import Method
from hpccoll.errors import BufferArgumentError
from hpccoll.errors.mpi import error_handler_of
from hpccoll.ir.methods import BLOCKING
from hpccoll.runtime.events.logger import log_choice, served_by
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.progress.engine import can_progress
from hpccoll.tune.choose import Conditions
from hpccoll.tune.determinism import check_served

if TYPE_CHECKING:
    from hpccoll.comm.base import Base


def resolve_call(comm: Base, method: Method, args: tuple[Any, ...]) -> Call | None:
    """Check the arguments of a call; return ``None`` if only mpi4py supports it.

    Raises:
        HpccollError: an argument is wrong, or only the MPI library supports the call and a
            guarantee excludes it.
    """
    comm._check_usable()
    try:
        with error_handler_of(comm):
            return method.resolve(comm.Get_size(), comm.Get_rank(), *args)
    except NativeOnly:
        check_served(None, method.title, args, comm._config.determinism)
        return None


def record_choice(comm: Base, method: Method, call: Call | None, choice: Choice | None) -> None:
    """Log the algorithm of an uncached call; ``None`` is the MPI library."""
    comm._served = served_by(choice), call.nbytes if call is not None else None
    if comm._lifetime is not None:
        log_choice(comm, comm._lifetime.logged, method.title, call, choice)


def conditions_of(comm: Base, method: Method) -> Conditions:
    """Return the inputs of a choice for a method, except the call."""
    tuned, form = comm._lifetime.tuned if comm._lifetime else None, method.form
    return Conditions(comm.Get_size(), *preference_of(comm, method), tuned,
                      comm._config.determinism, form,
                      form == BLOCKING or can_progress(comm._config.progress),
                      device=comm._device_place)


def preference_of(comm: Base, method: Method) -> tuple[Choice | None, bool]:
    """Return the user's choice for a method, and whether it comes from the environment."""
    for name in method.names if comm._preferences else ():
        if name in comm._preferences:
            return _wish_by(name, method, comm._preferences[name]), False
    asked = comm._config.algorithm.get(method.collective)
    return _wish_by(method.collective, method, Choice(
        *asked, reason="HPCCOLL_ALGORITHM")) if asked else None, True


def _wish_by(name: str, method: Method, preference: Choice) -> Choice | None:
    """Return the user's choice under a name, or None.

    ``auto`` counts for the method itself, but not for all forms of a collective.
    """
    return None if preference.is_auto and name != method.title else preference


def native_arguments(call: Call | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments in the form of the MPI library."""
    return args if call is None or not lacks_mpi_type(call) else tuple(map(native_form, args))


def reject_staged(method: Method, args: tuple[Any, ...]) -> None:
    """Raise an error for device memory that the MPI library cannot move.

    Raises:
        BufferArgumentError: device memory; the message advises to let hpccoll run the collective.
    """
    if any_staged(args):
        raise BufferArgumentError("buffer", "is device memory, which this MPI library does not "
                                            "support",
                                  f"choose an algorithm, as in comm.using({method.name}=...)")
