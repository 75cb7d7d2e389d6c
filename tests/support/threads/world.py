"""What the threads of one run share: one lock, the first failure, and how ranks wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from hpccoll.errors import HpccollError

#: Seconds after which a waiting rank looks again, whatever happened.
PAUSE = 0.05

T = TypeVar("T")


class Interrupted(HpccollError, RuntimeError):
    """A wait of one rank cannot end: another rank failed, or the time is up."""


class ThreadTask(Protocol):
    """What a rank may wait for."""

    title: str
    over: bool

    def advance(self) -> bool:
        """Do what can be done now; tell whether anything moved."""


class ThreadWorld:
    """All ranks of one run."""

    def __init__(self, size: int):
        self.size = size
        self.changed = threading.Condition()
        self.moves = 0
        self.failure: BaseException | None = None
        self._shared: dict[Hashable, Any] = {}

    def share(self, key: Hashable, make: Callable[[], T]) -> T:
        """The one object of this key, made by the rank that asks first."""
        with self.changed:
            if key not in self._shared:
                self._shared[key] = make()
            found: T = self._shared[key]
            return found

    def moved(self) -> None:
        """Something was posted: let waiting ranks look."""
        with self.changed:
            self.moves += 1
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Keep the first failure, and end all waits."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def check(self, title: str) -> None:
        """Raise ``Interrupted`` if what is waited for will never come."""
        if self.failure is not None:
            raise Interrupted(f"{title} was given up: {type(self.failure).__name__}: "
                              f"{self.failure}")

    def pause(self, seen: int) -> None:
        """Sleep until there are more messages than were seen."""
        with self.changed:
            if self.moves == seen and self.failure is None:
                self.changed.wait(PAUSE)


class ThreadRank:
    """One rank, in all its communicators."""

    def __init__(self, world: ThreadWorld, number: int):
        self.world, self.number = world, number
        self.sent_bytes = 0
        self.pending: list[ThreadTask] = []
        self.waits: dict[int, str] = {}

    def progress(self) -> bool:
        """Move everything on as far as it goes; tell whether anything moved."""
        return any([pending.advance() for pending in tuple(self.pending)])

    def wait(self, awaited: ThreadTask) -> None:
        """Move everything on until something is over."""
        thread = threading.get_ident()
        self.waits[thread] = awaited.title
        try:
            while not awaited.over:
                seen = self.world.moves
                if not self.progress() and not awaited.over:
                    self.world.check(awaited.title)
                    self.world.pause(seen)
        finally:
            del self.waits[thread]

    def look(self, awaited: ThreadTask) -> bool:
        """Move everything on once; tell whether something is over."""
        if not awaited.over:
            self.progress()
            if not awaited.over:
                self.world.check(awaited.title)
        return awaited.over
