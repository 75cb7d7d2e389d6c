"""Whether a communicator still lives, known to all the objects that wrap it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, cast

from mpi4py import MPI

from hpccoll.tune.loading import Tuned

if TYPE_CHECKING:
    from hpccoll.comm.base import Base


class Lifetime:
    """Whether a communicator was freed: an attribute of it, shared by all its wrappers.

    After it, the handles in other wrappers are stale, and may even name a new communicator.

    Attributes:
        freed: the communicator is gone.
        refuse: raises an error for every call, where one has failed.
        tuned: measured times, once the ranks have looked for them.
        wrappers: of the communicator, by ``id``.
    """

    _keyvals: list[int] = []

    def __init__(self) -> None:
        self.freed = False
        self.refuse: Callable[[], NoReturn] | None = None
        self.tuned: Tuned | None = None
        self.wrappers: dict[int, weakref.ref[Base]] = {}

    @classmethod
    def of(cls, comm: Base) -> Lifetime:
        """The lifetime of a communicator; the wrapper learns when it ends."""
        if not cls._keyvals:
            cls._keyvals.append(MPI.Comm.Create_keyval(
                delete_fn=lambda comm, key, lifetime: lifetime.end()))
        lifetime = cast("Lifetime | None", comm.Get_attr(cls._keyvals[0]))
        if lifetime is None:
            lifetime = cls()
            comm.Set_attr(cls._keyvals[0], lifetime)
        wrappers, number = lifetime.wrappers, id(comm)
        wrappers[number] = weakref.ref(comm, lambda _: wrappers.pop(number, None))
        return lifetime

    def end(self, refuse: Callable[[], NoReturn] | None = None) -> None:
        """Make every wrapper forget its calls, so that it looks before its next one.

        ``refuse`` raises what it then gets, where the communicator is not gone but of no use.
        """
        self.freed, self.refuse = refuse is None, refuse
        for reference in list(self.wrappers.values()):
            comm = reference()
            if comm is not None:
                comm.forget_calls()
