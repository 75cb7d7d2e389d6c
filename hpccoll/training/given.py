"""What a program gives to training: a communicator, a list, names, numbers; refused by name.

Each check says which argument it is, what came, and what to pass. None communicates: a mistake
that one rank alone made is its own error, as in MPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpccoll.errors import ArgumentError, ArgumentTypeError, CommunicatorError

#: What to pass where a communicator is wanted.
COMM = "pass hpccoll.Comm(MPI.COMM_WORLD), or a communicator of MPI"


def communicator(argument: str, value: Any) -> Any:
    """A communicator of MPI, of ours, or an object with the same methods.

    Raises:
        ArgumentTypeError: no communicator.
        CommunicatorError: the null communicator, one that was freed, or an intercommunicator.
    """
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


def listed(argument: str, values: Any, of: str = "arrays") -> list[Any]:
    """Several things in their order.

    Raises:
        ArgumentTypeError: one thing, a text, or a dictionary.
    """
    if isinstance(values, Mapping):
        raise ArgumentTypeError(argument, f"expected ordered {of}, got "
                                          f"{type(values).__name__}", "pass list(it.values())")
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ArgumentTypeError(argument, f"expected a list of {of}, got {values!r}",
                                "pass a list, also for one item")
    return list(values)


def named(names: Any, count: int) -> list[str]:
    """Names of so many arrays; their numbers if there are none.

    Raises:
        ArgumentTypeError: no list of texts.
        ArgumentError: not one name for each array.
    """
    if names is None:
        return [str(index) for index in range(count)]
    texts = listed("names", names, "texts")
    for name in texts:
        if not isinstance(name, str):
            raise ArgumentTypeError("names", f"expected strings, got {name!r}")
    if len(texts) != count:
        raise ArgumentError("names", f"{len(texts)} names for {count} arrays")
    return texts


def number(argument: str, value: Any, wanted: str = "a number") -> float:
    """A number that an argument has.

    Raises:
        ArgumentTypeError: it has none; the message says what is wanted.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(argument, f"expected {wanted}, got {value!r}") from None
