"""Watchdog thread for native calls, which have no time-out: :class:`Watchdog`.

A rank that blocks in a native MPI call runs no hpccoll code. One daemon thread per process polls
all communicators instead. It answers status requests of other ranks. After ``HPCCOLL_REPORT``
seconds it reports the ranks that are missing in a native call. If the call can no longer complete,
it sends the failure to all ranks and exits the process.

No MPI function can interrupt the blocked thread. Decision 0045 explains why hpccoll does not poll
nonblocking forms instead.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from typing import Protocol

from hpccoll.errors.waits import print_report
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import ENDED
from hpccoll.worker import Worker

#: Poll intervals in seconds, in a native call and otherwise. The short one reports a dead rank
#: within a second.
QUICK, PERIOD = 0.1, 0.2
#: Seconds before the exit, in which other ranks print why they exit.
FAREWELL = 1.0
#: Exit status of a process that the watchdog ends: EX_PROTOCOL of ``sysexits.h``.
STATUS = 76


class Monitor(Protocol):
    """State of the pending calls of one communicator."""

    def poll(self) -> str:
        """Check the pending call; return an error message if it cannot complete, else ``""``."""

    def is_busy(self) -> bool:
        """Return True if the last poll found a pending call."""

    def has_returned(self) -> bool:
        """Return True if the call that could not complete has returned."""

    def leave(self, how: int) -> None:
        """Publish to the other ranks that this rank exits; ``how`` is ``FREED`` or ``ENDED``."""


class Watchdog:
    """Polls the communicators of this process from one daemon thread."""

    def __init__(self) -> None:
        self.watched: weakref.WeakSet[Monitor] = weakref.WeakSet()
        self.pid, self.lock, self.begins = 0, threading.Lock(), False
        self.worker = Worker("hpccoll watchdog", self._work)

    def add(self, one: Monitor) -> None:
        """Start to poll a communicator; the first one starts the thread."""
        begins = self.pid != os.getpid()  # a forked child inherits no threads
        if begins:
            self.begins = True
            self.pid, self.lock = os.getpid(), threading.Lock()
            self.worker = Worker(self.worker.name, self._work)
        with self.lock:
            self.watched.add(one)
        if begins:
            self.worker.wake()

    def stop(self) -> None:
        """Stop the thread and record that this process exits."""
        if self.pid == os.getpid():
            self.worker.stop()  # it reads shared memory that is unmapped later during exit
            for one in self._all():
                one.leave(ENDED)

    def _all(self) -> list[Monitor]:
        """Copy the set under the lock: other threads may add to it during a poll."""
        with self.lock:
            return list(self.watched)

    def _work(self) -> float:
        if self.begins:  # the first communicator may not be complete yet
            self.begins = False
            return PERIOD
        busy = False
        for one in self._all() if not self.worker.stopping else ():
            try:
                text = one.poll()
            except Exception as error:  # one broken monitor must not stop the thread
                with self.lock:
                    self.watched.discard(one)
                print_report("hpccoll: watchdog stopped for one communicator: "
                             f"{type(error).__name__}: {error}; set a time limit for the job")
                continue
            if text:
                end(one, text)
            busy |= one.is_busy()
        return QUICK if busy else PERIOD


def end(one: Monitor, text: str) -> None:
    """Print a message; exit the process unless the call returns within ``FAREWELL`` seconds."""
    print_report(text)
    if wait_until(one.has_returned, budget=FAREWELL):
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # it may be closed, or None
            stream.flush()
    os._exit(STATUS)


WATCHDOG = Watchdog()
at_exit = WATCHDOG.stop
