"""Device memory that the MPI library cannot move: its data travels through pinned host memory.

A :class:`Staged` says on which stream the caller works on some memory, and orders what is copied
there. What is copied when, and through which part of pinned memory, is
:mod:`hpccoll.cuda.windows`'s business. A ``mirror`` is a copy in one piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy


class Flying:
    """Pinned memory that the device still reads; it must not be used for anything else.

    CuPy's pool gives memory out again as soon as nobody holds it, whatever is queued.
    """

    #: Bytes that may be held; for more, the oldest copy is waited for.
    LIMIT = 64 << 20

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.copies: list[tuple[Any, numpy.ndarray]] = []

    def keep(self, event: Any, memory: numpy.ndarray) -> None:
        """Hold memory until an event has happened; let go of what is no longer read."""
        with self.lock:
            self.copies = [copy for copy in self.copies if not copy[0].done] + [(event, memory)]
            held = sum(memory.nbytes for _, memory in self.copies)
            while held > self.LIMIT:
                event, memory = self.copies.pop(0)
                event.synchronize()
                held -= memory.nbytes


_FLYING = Flying()


def keep(event: Any, memory: numpy.ndarray) -> None:
    """Hold pinned memory until an event has happened."""
    _FLYING.keep(event, memory)


def pinned(cupy: Any, nbytes: int) -> numpy.ndarray:
    """Bytes of pinned memory, of CuPy's pool."""
    return numpy.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), "u1", nbytes)


#: What ``cudaEventQuery`` returns of an event that has not happened.
NOT_READY = 600


def happened(cupy: Any, event: Any) -> bool:
    """Tell whether an event has happened.

    CuPy's ``Event.done`` is false for ever where work of the process, any of it, has failed.

    Raises:
        CUDARuntimeError: it has.
    """
    status = cupy.cuda.runtime.eventQuery(event.ptr)
    if status not in (0, NOT_READY):
        raise cupy.cuda.runtime.CUDARuntimeError(status)
    return not status


class Staged:
    """Device memory of a caller whose data has to travel through host memory.

    Args:
        cupy, device: where it is.
        stream: what the caller has queued on it comes before every copy.
        shared: the caller uses the results on that stream, and need not wait for them.
    """

    def __init__(self, cupy: Any, device: Any, stream: Any, shared: bool):
        self.cupy, self.device, self.stream, self.shared = cupy, device, stream, shared
        #: By window, the event of the last copy of results out of it, and its memory.
        self.underway: dict[int, tuple[Any, numpy.ndarray]] = {}

    def mark(self, stream: Any) -> Any:
        """An event behind what is queued on a stream; the device must be the current one."""
        return stream.record(self.cupy.cuda.Event(disable_timing=True))

    def finish(self) -> None:
        """Order what the caller does from here on behind the copies of results."""
        underway, self.underway = list(self.underway.values()), {}
        with self.device:  # the null stream is that of the current device
            for event, memory in underway:
                keep(event, memory)
            for event, _ in underway:
                if self.shared:
                    self.stream.wait_event(event)
                else:
                    event.synchronize()

    def mirror(self, array: Any) -> tuple[numpy.ndarray, Callable[[], None], Callable[[], None]]:
        """Host memory like all of an array, how to load it, and how to store it back."""
        host = pinned(self.cupy, array.nbytes).view(array.dtype)

        def load() -> None:
            with self.device:
                try:
                    array.get(stream=self.stream, out=host)
                except BaseException:
                    keep(self.mark(self.stream), host)  # the copy may still be queued
                    raise

        def store() -> None:
            with self.device:
                array.set(host, stream=self.stream)
                self.underway[0] = self.mark(self.stream), host
            self.finish()

        return host, load, store
