"""Queue of generators that yield the requests they wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

#: Generator that yields requests, as the reductions of :mod:`hpccoll.training.compress.scheme` do.
Steps = Generator[Any, None, Any]


@dataclass(slots=True)
class _Entry:
    steps: Steps
    on_done: Callable[[], object]
    #: The request that it waits for; None before its start.
    request: Any = None


def nothing() -> None:
    """Do nothing at the end of a generator."""


class TaskQueue:
    """Generators that are resumed in the order of submission.

    A generator is resumed only after all earlier ones are done. Ranks that submit the same
    generators therefore make the calls of a communicator in one order, whatever the timing.

    Args:
        overlap: run a generator to its first request at once, and not after the earlier ones.
    """

    threaded = True

    def __init__(self, overlap: bool = False) -> None:
        self._overlap = overlap
        self._entries: deque[_Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def submit(self, steps: Steps, on_done: Callable[[], object] = nothing) -> None:
        """Append a generator; ``on_done`` is called at its end."""
        entry = _Entry(steps, on_done, next(steps, None) if self._overlap else None)
        self._entries.append(entry)
        if self._overlap and entry.request is None:
            self.progress()

    def progress(self) -> bool:
        """Run generators until one must wait; return True if any made progress."""
        moved = False
        while self._entries:
            request = self._entries[0].request
            if request is not None and not request.Test():
                break
            self._resume()
            moved = True
        if self._overlap:
            for later in list(self._entries)[1:]:
                if later.request is not None:
                    later.request.Test()  # the MPI library may progress only tested requests
        return moved

    def wait(self, most: int = 0) -> None:
        """Wait until at most ``most`` generators are pending."""
        while len(self._entries) > most:
            request = self._entries[0].request
            if request is not None:
                request.Wait()
            self._resume()

    def abandon(self) -> list[_Entry]:
        """Remove all generators; return those whose buffers other ranks may still write to."""
        pending = [entry for entry in self._entries if entry.request is not None]
        self._entries.clear()
        return pending

    def _resume(self) -> None:
        first = self._entries[0]
        try:
            first.request = next(first.steps, None)
        except BaseException:
            self._entries.popleft()
            raise
        if first.request is None:
            self._entries.popleft()
            first.on_done()
