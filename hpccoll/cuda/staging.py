"""Staging: copies device memory that the MPI library cannot move through pinned host memory.

A :class:`StagedBuffer` holds the caller's stream of some memory and orders copies there.
:mod:`hpccoll.cuda.windows` schedules the copies and their pinned memory. A ``mirror`` is a copy in
one piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy


class InUseMemory:
    """Pinned memory that the device still reads; it must not be reused.

    CuPy's pool reuses memory as soon as it has no reference, even if queued work reads it.
    """

    #: Largest number of bytes held; above it the oldest copy is waited for.
    LIMIT = 64 << 20

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.copies: list[tuple[Any, numpy.ndarray]] = []

    def keep(self, event: Any, memory: numpy.ndarray) -> None:
        """Hold memory until an event has completed; release memory that is no longer read."""
        with self.lock:
            self.copies = [copy for copy in self.copies if not copy[0].done] + [(event, memory)]
            held = sum(memory.nbytes for _, memory in self.copies)
            while held > self.LIMIT:
                event, memory = self.copies.pop(0)
                event.synchronize()
                held -= memory.nbytes


_FLYING = InUseMemory()


def keep(event: Any, memory: numpy.ndarray) -> None:
    """Hold pinned memory until an event has completed."""
    _FLYING.keep(event, memory)


def allocate_pinned(cupy: Any, nbytes: int) -> numpy.ndarray:
    """Return pinned memory of CuPy's pool, as bytes."""
    return numpy.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), "u1", nbytes)


#: Result of ``cudaEventQuery`` for an event that has not completed.
NOT_READY = 600


def has_completed(cupy: Any, event: Any) -> bool:
    """Return True if an event has completed.

    CuPy's ``Event.done`` stays false forever after any failed work of the process.

    Raises:
        CUDARuntimeError: work of the process has failed.
    """
    status = cupy.cuda.runtime.eventQuery(event.ptr)
    if status not in (0, NOT_READY):
        raise cupy.cuda.runtime.CUDARuntimeError(status)
    return not status


class StagedBuffer:
    """Device memory of a caller whose data is copied through host memory.

    Args:
        cupy, device: its module and device.
        stream: the caller's stream; every copy is ordered after its queued work.
        shared: the caller uses the results on that stream, and need not wait for them.
    """

    def __init__(self, cupy: Any, device: Any, stream: Any, shared: bool):
        self.cupy, self.device, self.stream, self.shared = cupy, device, stream, shared
        #: By window, the event of the last copy of results from it, and its memory.
        self.underway: dict[int, tuple[Any, numpy.ndarray]] = {}

    def mark(self, stream: Any) -> Any:
        """Return an event after the queued work of a stream; its device must be current."""
        return stream.record(self.cupy.cuda.Event(disable_timing=True))

    def finish(self) -> None:
        """Order later work of the caller after the copies of results."""
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
        """Return host memory for a whole array, and functions to load it and to store it back."""
        host = allocate_pinned(self.cupy, array.nbytes).view(array.dtype)

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
