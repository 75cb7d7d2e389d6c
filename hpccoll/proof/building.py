"""All ranks' programs from a builder that may be wrong: checked, and in bounded time.

A builder that does not return is interrupted after :data:`MOST_SECONDS`, between two steps of its
Python code. That cannot be done to a loop inside a function written in C, such as
``tuple(itertools.count())``: such a builder hangs, as it would anywhere.
"""

from __future__ import annotations

import ctypes
import threading
import time
from types import TracebackType

from hpccoll.errors import ProofError, ScheduleError
from hpccoll.ir.schedule import Program, Schedule
from hpccoll.ir.wellformed import program_of

#: Seconds for a builder to make one rank's program.
MOST_SECONDS = 10.0


def programs_of(schedule: Schedule) -> list[Program]:
    """Make and check the programs of all ranks.

    Raises:
        ProofError: a builder raised, did not return, or returned what is no program. Names the
            rank, the round and the step; the builder's own error is its cause.
    """
    programs: list[Program] = []
    try:
        with _Watch() as watch:
            for rank in range(schedule.size):
                watch.patient(MOST_SECONDS)
                programs.append(program_of(schedule, rank))
    except ScheduleError as error:
        if isinstance(error, ProofError):
            raise
        raise ProofError(error.problem, schedule=schedule.title, rank=len(programs),
                         round=error.round, step=error.step) from error.__cause__ or error
    except _TooLate:
        raise ProofError(f"the builder did not return within {MOST_SECONDS:g} s",
                         schedule=schedule.title, rank=len(programs)) from None
    return programs


class _TooLate(BaseException):
    """Ends a builder. No ``Exception``: a builder that catches these must end as well."""


class _Watch:
    """Raises :class:`_TooLate` in the thread that made it, when its patience is over."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.end, self.raised = float("inf"), False
        self.lock, self.over = threading.Lock(), threading.Event()
        self.watcher = threading.Thread(target=self._wait, daemon=True)

    def patient(self, seconds: float) -> None:
        """Wait so long from now on."""
        self.end = time.monotonic() + seconds

    def _wait(self) -> None:
        while not self.over.wait(max(min(self.end - time.monotonic(), MOST_SECONDS), 0.01)):
            with self.lock:
                if not self.over.is_set() and time.monotonic() >= self.end:
                    self.end += 1.0  # once more, if that does not end it
                    self.raised = True
                    _raise_in(self.thread)

    def __enter__(self) -> _Watch:
        self.watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with self.lock:
            self.over.set()
        self.watcher.join()
        if self.raised:
            self._receive()

    def _receive(self) -> None:
        """Take what may have been raised too late for the builder.

        One more is raised and caught: it takes the other's place. To take an exception back with a
        null pointer is what CPython offers for that, but 3.11 then believes for ever that one is
        on its way: every call and loop of the process becomes slower, and a profiler hangs.
        """
        try:
            _raise_in(self.thread)
            while True:  # it comes between two steps
                pass
        except _TooLate:
            pass


def _raise_in(thread: int) -> None:
    """Raise :class:`_TooLate` in a thread at its next step of Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLate))
