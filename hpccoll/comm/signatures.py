"""What ``help`` says of defaults: ``op=MPI.SUM``, not the address of an object.

MPI's handles have no readable ``repr``, and a signature shows the ``repr`` of a default. So the
methods of :class:`hpccoll.Comm` get signatures whose defaults are equal to the real ones, and have
a name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mpi4py import MPI


class NamedOp(MPI.Op):
    """``MPI.SUM``, which is the default operator."""

    def __repr__(self) -> str:
        return "MPI.SUM"


class NamedInfo(MPI.Info):
    """``MPI.INFO_NULL``, which is the default of hints."""

    def __repr__(self) -> str:
        return "MPI.INFO_NULL"


#: Defaults that are handles, and what is shown of them.
SHOWN = (MPI.SUM, NamedOp(MPI.SUM)), (MPI.INFO_NULL, NamedInfo(MPI.INFO_NULL))


def shown(default: Any) -> Any:
    """A default as a signature has it."""
    return next((named for handle, named in SHOWN if default is handle), default)


def name_defaults(*classes: type) -> None:
    """Let the signatures of the classes' own methods show handles by their names.

    mpi4py's classes stay as they are: see :func:`name_inherited`.
    """
    for each in classes:
        for attribute in vars(each).values():
            # Class methods have theirs inside; what is recognised is no function, but wraps one.
            function = getattr(attribute, "__func__", attribute)
            defaults = getattr(inspect.unwrap(function), "__defaults__", None) or ()
            if any(shown(default) is not default for default in defaults):
                signature = inspect.signature(function)
                function.__signature__ = signature.replace(parameters=[
                    one.replace(default=shown(one.default))
                    for one in signature.parameters.values()])


def name_inherited(*classes: type) -> None:
    """Give the classes methods of their own where mpi4py's have handles as defaults.

    They are few and seldom called (``Spawn``, ``Psend_init``); each does nothing but call mpi4py's.
    """
    for each in classes:
        for name in dir(each):
            method = getattr(each, name)
            if name[0] == "_" or not getattr(method, "__module__", "").startswith("mpi4py"):
                continue
            defaults = getattr(method, "__defaults__", None) or ()
            if any(shown(default) is not default for default in defaults):
                setattr(each, name, _calls(method))
        name_defaults(each)


def _calls(method: Callable) -> Callable:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return method(self, *args, **options)
    return call
