"""Ring of this process's events: calls, activities inside of them, and spans of training.

    type    start, stop  comm          number       what      detail    nbytes   sent
    CALL    yes          communicator  its turn     kind
    PHASE   start only                              segment   activity
    SPAN    yes          recorder                   name      phase     yes      bytes sent

An event has 64 bytes. Machine code writes the same events (``_events.h``). The ring holds the last
:data:`KEPT` events; sums by kind count all calls. It is allocated with its first event.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable
from functools import cache, partial
from time import perf_counter_ns
from typing import Any

import numpy

try:
    from hpccoll.runtime.execution import _executor
except ImportError:  # it was not built
    _executor = None  # type: ignore[assignment]

#: Events in the ring, a power of two; kinds with room for their sums at first; largest number of
#: communicators.
KEPT, FIRST_KINDS, MOST_COMMS = 1 << 18, 1 << 10, 256
#: Layout of an event, as in ``_events.h``.
EVENT = numpy.dtype([("start", "i8"), ("stop", "i8"), ("type", "i4"), ("comm", "i4"),
                     ("number", "i8"), ("what", "i8"), ("detail", "i8"), ("nbytes", "i8"),
                     ("sent", "f8")])
PACK = struct.Struct("qqiiqqqqd").pack_into
CALL, PHASE, SPAN = 1, 2, 3


class EventRing:
    """Ring of events.

    Attributes:
        memory: a first row with the number of events so far, then the ring.
        ordered: by communicator, its calls in one order on all ranks.
        sums: by kind, the calls and their nanoseconds; kind 0 is none.
        kinds: what the kinds are, by number; names and phases of spans among them.
    """

    def __init__(self, kept: int = KEPT):
        self.memory = numpy.zeros(kept + 1, EVENT)
        self.ordered = numpy.zeros(MOST_COMMS, numpy.int64)
        self.sums = numpy.zeros((FIRST_KINDS, 2), numpy.int64)
        self.kinds: list[Any] = [None]
        self.numbers: dict[Hashable, int] = {}
        self.lock = threading.Lock()
        self.built = hasattr(_executor, "set_ring")
        self.bytes = self.memory.view("u1").data
        self.words = self.bytes.cast("q")
        #: Record a call of a communicator, with a number if all ranks make it in one order; record
        #: an event: the type, then the other fields; times are those of ``perf_counter_ns``.
        self.add_call: Callable[[int, int, int, int, bool], None] = self._add_call
        self.add: Callable[[int, int, int, int, int, int, int, int, float], None] = self._add
        if self.built:
            self.add_call, self.add = _executor.record_call, _executor.record_event
            _executor.set_ring(self.memory, self.ordered, self.sums)

    def kind(self, what: Hashable) -> int:
        """Return the number of a kind, which it gets when it is first asked for."""
        number = self.numbers.get(what)
        if number is None:
            number = self.numbers[what] = len(self.kinds)
            self.kinds.append(what)
            if number == len(self.sums):
                self.sums = numpy.concatenate([self.sums, numpy.zeros_like(self.sums)])
                if self.built:
                    _executor.set_ring(self.memory, self.ordered, self.sums)
        return number

    def _add(self, type: int, start: int, stop: int, comm: int, number: int, what: int,
             detail: int, nbytes: int, sent: float) -> None:
        with self.lock:
            count = self.words[0]
            self.words[0] = count + 1
        PACK(self.bytes, (count % (len(self.memory) - 1) + 1) * EVENT.itemsize, start, stop, type,
             comm, number, what, detail, nbytes, sent)

    def _add_call(self, comm: int, kind: int, start: int, stop: int, ordered: bool) -> None:
        self.sums[kind] += 1, stop - start
        number = int(self.ordered[comm]) if ordered else -1
        self.ordered[comm] += ordered
        self.add(CALL, start, stop, comm, number, kind, 0, 0, 0.0)

    def phase(self, where: int, activity: int) -> Callable[[], None]:
        """Return a callback that records the start of an activity."""
        if self.built:
            return _executor.phase(where, activity)
        return partial(self.add_phase, where, activity)

    def add_phase(self, where: int, activity: int) -> None:
        """Record the start of an activity."""
        self.add(PHASE, perf_counter_ns(), 0, 0, 0, where, activity, 0, 0.0)

    def around(self, function: Callable[..., Any], where: int, activity: int, after: int
               ) -> Callable[..., Any]:
        """Return a wrapper that records an activity before a function, and another one after it."""
        if self.built:
            return _executor.amid(where, activity, after, function)

        def call(*operands: Any) -> None:
            self.add_phase(where, activity)
            function(*operands)
            self.add_phase(where, after)
        return call

    def events(self, type: int) -> numpy.ndarray:
        """Return the events of one type in the ring, in chronological order."""
        ring, count = self.memory[1:], self.words[0]
        first = count % len(ring) if count > len(ring) else 0
        found: numpy.ndarray = numpy.roll(ring, -first)[:count]
        found = found[found["type"] == type]
        return found

    def add_span(self, recorder: int, name: str, phase: str, start: float, stop: float,
                 nbytes: int, sent: float) -> None:
        """Record a span of a recorder of training; times in seconds."""
        self.add(SPAN, round(start * 1e9), round(stop * 1e9), recorder, 0, self.kind(name),
                 self.kind(phase), nbytes, sent)

    def spans(self) -> list[tuple[int, str, str, float, float, int, float]]:
        """Return the spans in the ring, as the arguments of :meth:`add_span`."""
        return [(recorder, self.kinds[name], self.kinds[phase], start / 1e9, stop / 1e9, nbytes,
                 sent)
                for start, stop, _, recorder, _, name, phase, nbytes, sent
                in self.events(SPAN).tolist()]

    @property
    def is_full(self) -> bool:
        """Return True if events may have been overwritten."""
        return bool(self.words[0] > len(self.memory) - 1)


@cache
def event_ring() -> EventRing:
    """Return the ring of this process; the first call allocates it."""
    return EventRing()
