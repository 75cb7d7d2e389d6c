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
import time
import weakref
from contextlib import suppress

from hpccoll.errors import HpccollError
from hpccoll.errors.waits import print_report, report_text
from hpccoll.guard.call_sites import main_site
from hpccoll.guard.rank_status import QUIET
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import ASKED, ENDED, NUMBER, Log
from hpccoll.runtime.progress.waiting import Meeting, WaitTimer
from hpccoll.worker import Worker

#: Poll intervals in seconds, in a native call and otherwise. The short one reports a dead rank
#: within a second.
QUICK, PERIOD = 0.1, 0.2
#: Seconds before the exit, in which other ranks print why they exit.
FAREWELL = 1.0
#: Exit status of a process that the watchdog ends: EX_PROTOCOL of ``sysexits.h``.
STATUS = 76


class LibraryTimer(WaitTimer):
    """Timer of a wait for the MPI library: it sleeps only while ranks are known to be missing."""

    awaited: Meeting
    sleeps, in_library = False, True

    def look(self) -> None:
        """See :meth:`WaitTimer.look`."""
        super().look()
        self.sleeps = bool(self.awaited.number and self.awaited.pending_peers()[1])


class Monitor:
    """Calls of this process that the watchdog polls; a subclass knows which one is pending."""

    #: Timer of the call that the last poll found pending.
    timer: LibraryTimer | None = None

    def pending_timer(self) -> LibraryTimer | None:
        """Return the timer of the pending call: that of the last poll, if it is the same call."""
        raise NotImplementedError

    def give_up(self, call: Meeting, error: HpccollError) -> str:
        """Publish that the call cannot complete; return the message if the process must exit."""
        raise NotImplementedError

    def poll(self) -> str:
        """Check the pending call; return an error message if it cannot complete, else ``""``."""
        timer, before = self.pending_timer(), self.timer
        self.timer = timer
        if timer is None:
            return ""
        if timer is not before:  # it may fail at once, and then counts as not made
            timer.since = timer.last = time.monotonic()
            return ""
        try:
            timer.check()
        except HpccollError as error:
            return self.give_up(timer.awaited, error)
        return ""

    def is_busy(self) -> bool:
        """Return True if the last poll found a pending call."""
        return self.timer is not None

    def has_returned(self) -> bool:
        """Return True if the call that could not complete has returned, or does not block."""
        return True

    def leave(self, how: int) -> None:
        """Publish to the other ranks that this rank exits; ``how`` is ``FREED`` or ``ENDED``."""


def answer(log: Log) -> None:
    """Publish the program's position if another rank has requested it; called by the watchdog."""
    if log.words[ASKED]:
        log.words[ASKED] = 0
        if log.quiet_for() > QUIET:
            log.publish_status({"number": log.words[NUMBER], "site": main_site()[-200:]},
                               looks=False)


def exit_text(error: BaseException, rank: int, call: str, site: str) -> str:
    """Return the last message of a process that exits because a call cannot complete."""
    return f"{report_text(error)}\n  rank {rank} exits with status {STATUS} in {call} at {site}"


class Watchdog:
    """Polls the communicators of this process from one daemon thread."""

    def __init__(self) -> None:
        self.watched: weakref.WeakSet[Monitor] = weakref.WeakSet()
        self.pid, self.lock, self.begins = 0, threading.Lock(), False
        self.starting = threading.Lock()
        self.worker = Worker("hpccoll watchdog", self._work)

    def add(self, one: Monitor) -> None:
        """Start to poll a communicator; the first one starts the thread."""
        with self.starting:  # of several threads, one starts it
            begins = self.pid != os.getpid()  # a forked child inherits no threads
            if begins:
                self.pid, self.lock, self.begins = os.getpid(), threading.Lock(), True
                self.worker = Worker(self.worker.name, self._work)
            with self.lock:
                self.watched.add(one)
            if begins:
                self.worker.wake()

    def discard(self, one: Monitor) -> None:
        """Stop to poll a communicator or call."""
        with self.lock:
            self.watched.discard(one)

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
                self.discard(one)
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
