"""Methods of communicators, made from the table of collectives: native method, and resolver."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.ir.methods import BLOCKING, TABLE

if TYPE_CHECKING:
    from hpccoll.calls.call import Call

#: Arguments by their roles, and the values of those that mpi4py lets a caller omit.
ARGUMENTS = {"s": "sendbuf", "r": "recvbuf", "b": "buf", "o": "op", "n": "root", "c": "recvcounts"}
DEFAULTS = {"op": MPI.SUM, "root": 0, "recvcounts": None}


class Method:
    """Method of a communicator.

    Args:
        name: the name of its blocking form, in lower case.
        form: blocking, nonblocking or persistent.

    Attributes:
        row: its row in the table of collectives.
        title: the name of this form, for example ``iallreduce``.
        collective: the name under which its algorithms are registered.
        native: the native method.
        names: the names that select it in user choices, the most specific first.
    """

    def __init__(self, name: str, form: str = BLOCKING):
        self.row, self.name, self.form, self.title = TABLE[name], name, form, form.format(name)
        self.collective = self.row.collective
        # ``super()`` would find the same method in a third of a microsecond more.
        self.native: Callable[..., Any] = getattr(MPI.Intracomm, self.title.capitalize())
        self.names = self.title, name, self.collective

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of its arguments."""
        return tuple(ARGUMENTS[role] for role in self.row.roles)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of its arguments that are buffers, which are the first ones."""
        return tuple(ARGUMENTS[role] for role in self.row.roles if role in "srb")

    @cached_property
    def resolve(self) -> Callable[..., Call]:
        """Return ``resolve(size, rank, *arguments)``, which returns a call."""
        from hpccoll.calls import resolve
        resolver: Callable[..., Call] = getattr(resolve, self.name)
        return resolver

    def positional(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments of a call in the order of the parameters."""
        given = {**DEFAULTS, **dict(zip(self.arguments, args)), **options}
        return tuple(given[name] for name in self.arguments)

    def serve_native(self, comm: MPI.Intracomm, *args: Any,
                     native: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Call the native method and convert its errors to hpccoll's.

        ``native`` is a wrapper of that method, if the call has to be recorded.
        """
        from hpccoll.calls.native import call_native
        argument = self.buffers[0] if self.buffers else "info"
        return call_native(native or self.native, argument, comm, *args, **options)


def methods_of(form: str) -> tuple[Method, ...]:
    """Return the methods of a form, in the order of the table."""
    return tuple(Method(name, form) for name in TABLE)
