"""Generators of requests on their way, one behind the other, and memory that they take turns on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from hpccoll.training.compress.scheme import Steps

#: Spares kept for the next that needs one.
MOST_SPARE = 2


class _Underway(NamedTuple):
    steps: Steps
    request: Any
    landed: Callable[[], None]


class Flights:
    """Generators of requests, resumed in the order in which they were launched.

    A later one is resumed only when all before it are done: ranks that see requests complete in
    different orders make the calls of a communicator in one order all the same.
    """

    def __init__(self) -> None:
        self._underway: deque[_Underway] = deque()

    def __len__(self) -> int:
        return len(self._underway)

    def launch(self, steps: Steps, landed: Callable[[], None] = lambda: None) -> None:
        """Begin a generator; ``landed`` is called when it is done."""
        request = next(steps, None)
        self._underway.append(_Underway(steps, request, landed))
        if request is None:
            self.poll()

    def poll(self) -> None:
        """Move on what can be moved on without waiting."""
        while self._underway:
            first = self._underway[0]
            if first.request is not None and not first.request.Test():
                break
            self._resume()
        for later in list(self._underway)[1:]:
            if later.request is not None:
                later.request.Test()

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many are underway."""
        while len(self._underway) > most:
            request = self._underway[0].request
            if request is not None:
                request.Wait()
            self._resume()

    def _resume(self) -> None:
        first = self._underway.popleft()
        request = next(first.steps, None) if first.request is not None else None
        if request is not None:
            self._underway.appendleft(first._replace(request=request))
        else:
            first.landed()


class Spares:
    """Memory for what is whole for a short time; a fresh page costs more than one in use.

    Args:
        most: vectors kept for the next that needs one; 0 where others may still look at memory that
            is given back, which then lives as long as they do.
    """

    def __init__(self, most: int = MOST_SPARE) -> None:
        self._most = most
        self._spare: list[numpy.ndarray] = []

    def take(self, count: int, dtype: Any) -> numpy.ndarray:
        """A vector with any contents."""
        nbytes = count * numpy.dtype(dtype).itemsize
        fitting = [spare for spare in self._spare if nbytes <= spare.nbytes <= 2 * nbytes]
        if fitting:
            memory = min(fitting, key=lambda spare: spare.nbytes)
            self._spare = [spare for spare in self._spare if spare is not memory]
        else:
            memory = numpy.empty(nbytes, "u1")
        return memory[:nbytes].view(dtype)

    def give(self, vector: numpy.ndarray) -> None:
        """Take back what nobody uses any more."""
        memory = vector if vector.base is None else vector.base
        self._spare = [*self._spare, memory][-self._most:] if self._most else []

    def clear(self) -> None:
        """Give all memory back."""
        self._spare.clear()
