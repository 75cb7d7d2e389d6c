"""Queue of pending request generators, and a pool of reusable vectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from hpccoll.training.compress.scheme import Steps

#: Default capacity of a pool.
MOST_SPARE = 2


class _PendingGenerator(NamedTuple):
    steps: Steps
    request: Any
    on_done: Callable[[], None]


class InFlightWindow:
    """Queue of request generators, resumed in launch order.

    A generator is resumed only after all earlier ones are done. Ranks therefore make the calls of a
    communicator in one order, even if requests complete in different orders.
    """

    def __init__(self) -> None:
        self._underway: deque[_PendingGenerator] = deque()

    def __len__(self) -> int:
        return len(self._underway)

    def launch(self, steps: Steps, landed: Callable[[], None] = lambda: None) -> None:
        """Start a generator; call ``landed`` when it is done."""
        request = next(steps, None)
        self._underway.append(_PendingGenerator(steps, request, landed))
        if request is None:
            self.poll()

    def poll(self) -> None:
        """Progress generators without blocking."""
        while self._underway:
            first = self._underway[0]
            if first.request is not None and not first.request.Test():
                break
            self._resume()
        for later in list(self._underway)[1:]:
            if later.request is not None:
                later.request.Test()

    def wait(self, most: int = 0) -> None:
        """Wait until at most ``most`` generators are pending."""
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
            first.on_done()


class VectorPool:
    """Pool of temporary vectors; reused pages are cheaper than new ones.

    Args:
        most: capacity of the pool; 0 if references to returned vectors may exist, which then keep
            the memory alive.
    """

    def __init__(self, most: int = MOST_SPARE) -> None:
        self._most = most
        self._spare: list[numpy.ndarray] = []

    def get(self, count: int, dtype: Any) -> numpy.ndarray:
        """Return a vector with undefined contents."""
        nbytes = count * numpy.dtype(dtype).itemsize
        fitting = [spare for spare in self._spare if nbytes <= spare.nbytes <= 2 * nbytes]
        if fitting:
            memory = min(fitting, key=lambda spare: spare.nbytes)
            self._spare = [spare for spare in self._spare if spare is not memory]
        else:
            memory = numpy.empty(nbytes, "u1")
        return memory[:nbytes].view(dtype)

    def put(self, vector: numpy.ndarray) -> None:
        """Return an unused vector to the pool."""
        memory = vector if vector.base is None else vector.base
        self._spare = [*self._spare, memory][-self._most:] if self._most else []

    def clear(self) -> None:
        """Free all pooled memory."""
        self._spare.clear()
