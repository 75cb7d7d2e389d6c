"""Validation of user arguments: communicators, lists, names and numbers.

Each error message names the argument, its value and a valid alternative. No check communicates: an
invalid argument on one rank raises on that rank only, as in MPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpccoll.errors import ArgumentError, ArgumentTypeError, CommunicatorError

#: Message text: valid values of a communicator argument.
COMM = "pass hpccoll.Comm(MPI.COMM_WORLD), or a communicator of MPI"


def communicator(argument: str, value: Any) -> Any:
    """Return a communicator of MPI or hpccoll, or an object with the same methods."""
    if isinstance(value, type) or not hasattr(value, "Get_rank"):
        what = value.__name__ if isinstance(value, type) else repr(value)
        raise ArgumentTypeError(argument, f"expected a communicator, got {what}", COMM)
    if not value:  # as MPI.COMM_NULL
        raise CommunicatorError(f"{argument}: the communicator is null or freed; call it only on "
                                "member ranks, before they free it")
    if getattr(value, "is_inter", False):
        raise CommunicatorError(f"{argument}: intercommunicators are not supported; pass an "
                                "intracommunicator, such as comm.Merge()")
    return value


def private_copy(comm: Any) -> Any:
    """Return a communicator of the same ranks; collective."""
    # Unlike Dup, Split copies no attributes, which would call functions of the user.
    return comm.Split(0, comm.Get_rank())


def as_list(argument: str, values: Any, of: str = "arrays") -> list[Any]:
    """Return the items of an ordered collection as a list.

    Raises:
        ArgumentTypeError: a single item, a string, or a dictionary.
    """
    if isinstance(values, Mapping):
        raise ArgumentTypeError(argument, f"expected ordered {of}, got "
                                          f"{type(values).__name__}", "pass list(it.values())")
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ArgumentTypeError(argument, f"expected a list of {of}, got {values!r}",
                                "pass a list, also for one item")
    return list(values)


def array_names(names: Any, count: int) -> list[str]:
    """Return the names of ``count`` arrays; their indices if ``names`` is None."""
    if names is None:
        return [str(index) for index in range(count)]
    texts = as_list("names", names, "texts")
    for name in texts:
        if not isinstance(name, str):
            raise ArgumentTypeError("names", f"expected strings, got {name!r}")
    if len(texts) != count:
        raise ArgumentError("names", f"{len(texts)} names for {count} arrays")
    return texts


def as_number(argument: str, value: Any, wanted: str = "a number") -> float:
    """Return an argument as a number."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(argument, f"expected {wanted}, got {value!r}") from None
