"""Whether a communicator still lives, known to all the objects that wrap it."""

from __future__ import annotations

import weakref
from typing import Any

from mpi4py import MPI


class Lifetime:
    """Whether a communicator was freed: an attribute of it, shared by all its wrappers.

    After it, the handles in other wrappers are stale, and may even name a new communicator.
    """

    _keyvals: list[int] = []

    def __init__(self):
        self.freed = False
        self.tuned: Any = None  # measured times, once the ranks have looked for them
        self.wrappers: dict[int, weakref.ref] = {}

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> Lifetime:
        """The life of a communicator; the wrapper is told when it ends."""
        if not cls._keyvals:
            cls._keyvals.append(MPI.Comm.Create_keyval(
                delete_fn=lambda comm, key, life: life.end()))
        life = comm.Get_attr(cls._keyvals[0])
        if life is None:
            life = cls()
            comm.Set_attr(cls._keyvals[0], life)
        number = id(comm)
        life.wrappers[number] = weakref.ref(comm, lambda _: life.wrappers.pop(number, None))
        return life

    def end(self) -> None:
        """Make every wrapper forget what it has learnt, so that it looks before its next call."""
        self.freed = True
        for reference in list(self.wrappers.values()):
            comm = reference()
            if comm is not None:
                comm._shapes.clear()
                comm._seen_under.clear()
