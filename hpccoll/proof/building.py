"""Programs of all ranks from an untrusted builder: checked, and in bounded time.

A builder that does not return is interrupted after :data:`MOST_SECONDS`, between two steps of its
Python code. A loop inside a C function, such as ``tuple(itertools.count())``, cannot be
interrupted: such a builder hangs.
"""

from __future__ import annotations

import ctypes
import threading
import time
from types import TracebackType

from hpccoll.errors import ProofError, ScheduleError
from hpccoll.ir.schedule import Program, Schedule
from hpccoll.ir.wellformed import program_of

#: Time limit in seconds of a builder for one rank's program.
MOST_SECONDS = 10.0


def programs_of(schedule: Schedule) -> list[Program]:
    """Make and check the programs of all ranks."""
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
    """Ends a builder. Not an ``Exception``: a builder that catches these must end as well."""


class _Watch:
    """Raises :class:`_TooLate` in the thread that made it when the time is over."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.end, self.raised = float("inf"), False
        self.lock, self.over = threading.Lock(), threading.Event()
        self.watchdog = threading.Thread(target=self._wait, daemon=True)

    def patient(self, seconds: float) -> None:
        """Restart the time limit."""
        self.end = time.monotonic() + seconds

    def _wait(self) -> None:
        while not self.over.wait(max(min(self.end - time.monotonic(), MOST_SECONDS), 0.01)):
            with self.lock:
                if not self.over.is_set() and time.monotonic() >= self.end:
                    self.end += 1.0  # repeated if that does not end it
                    self.raised = True
                    _raise_in(self.thread)

    def __enter__(self) -> _Watch:
        self.watchdog.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with self.lock:
            self.over.set()
        self.watchdog.join()
        if self.raised:
            self._receive()

    def _receive(self) -> None:
        """Receive an exception that may have been raised too late for the builder.

        A second exception is raised and caught: it replaces the first. CPython cancels an exception
        with a null pointer, but 3.11 then assumes forever that one is pending: every call and loop
        of the process becomes slower, and a profiler hangs.
        """
        try:
            _raise_in(self.thread)
            while True:  # it is raised between two steps
                pass
        except _TooLate:
            pass


def _raise_in(thread: int) -> None:
    """Raise :class:`_TooLate` in a thread at its next step of Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLate))
