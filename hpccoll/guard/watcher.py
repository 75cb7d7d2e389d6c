"""The thread that looks after ranks in the MPI library's hands: :class:`Watcher`.

A rank that waits in a blocking call of the MPI library's runs no code of ours. One thread of the
process, for all its communicators, looks into the logs now and then. It answers when somebody asks
what this rank is doing; it reports, after ``HPCCOLL_REPORT`` seconds, who is missing from a call of
the library's; and where such a call cannot end any more it tells all ranks, and ends the process.

Nothing else can be done from outside of such a call: the library has no way to leave it, and the
thread that is in it runs no Python. Why a thread and not a nonblocking form is decision 0045.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import Protocol

from hpccoll.errors.waits import print_report
from hpccoll.runtime.events.log import ENDED

#: Seconds between two looks: while this rank has been in the MPI library's hands at the last one,
#: so that a rank that has died is named within a second; and else.
QUICK, PERIOD = 0.1, 0.2
#: Seconds for other ranks to tell why they end, before this one ends.
FAREWELL = 1.0
#: The status of a process that a watcher ended: EX_PROTOCOL of ``sysexits.h``.
STATUS = 76


class LookedAfter(Protocol):
    """What the thread looks after."""

    def watched(self) -> str:
        """Look; what to say where a call cannot end any more, else nothing."""

    def busy(self) -> bool:
        """Tell whether the last look found this rank in a call."""

    def escaped(self) -> bool:
        """Tell whether the call has ended all the same."""

    def leave(self, how: int) -> None:
        """Tell the others that this rank ends its program."""


class Watcher:
    """Looks after the communicators of this process."""

    def __init__(self) -> None:
        self.watched: weakref.WeakSet[LookedAfter] = weakref.WeakSet()
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None
        self.pid, self.lock = 0, threading.Lock()

    def add(self, one: LookedAfter) -> None:
        """Look after a communicator from now on."""
        begins = self.pid != os.getpid()  # threads do not come along with a fork
        if begins:
            self.pid, self.lock, self.stopping = os.getpid(), threading.Lock(), threading.Event()
        with self.lock:
            self.watched.add(one)
        if begins:
            self.thread = threading.Thread(target=self._work, args=(self.stopping,),
                                           name="hpccoll watcher", daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """End the thread, and tell the others that this process ends."""
        if self.pid == os.getpid():
            self.stopping.set()
            if self.thread is not None:
                self.thread.join()  # it must not look at memory that goes
            for one in self._all():
                one.leave(ENDED)

    def _all(self) -> list[LookedAfter]:
        """All of them, as a set that the thread may go through while another one adds to it."""
        with self.lock:
            return list(self.watched)

    def _work(self, stopping: threading.Event) -> None:
        busy = False
        while not stopping.wait(QUICK if busy else PERIOD):
            busy = False
            for one in self._all():
                try:
                    text = one.watched()
                except Exception as error:  # one that cannot be looked at must not end the thread
                    with self.lock:
                        self.watched.discard(one)
                    print_report("hpccoll: watchdog stopped for one communicator: "
                                 f"{type(error).__name__}: {error}; set a time limit for the job")
                    continue
                if text:
                    end(one, text)
                busy |= one.busy()


def end(one: LookedAfter, text: str) -> None:
    """Say why, and end this process, unless the call ends in the meantime."""
    print_report(text)
    until = time.monotonic() + FAREWELL
    while time.monotonic() < until:
        time.sleep(QUICK / 2)
        if one.escaped():
            return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(STATUS)


WATCHER = Watcher()
at_exit = WATCHER.stop
