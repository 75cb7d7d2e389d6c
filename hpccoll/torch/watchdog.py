"""Time that is up while a thread is inside the MPI library: nothing can call it back.

A thread per process looks at all groups now and then. Where a call has taken longer than its
group allows, it says which, and ends the job, as the watchdog of torch's NCCL groups does: the
other ranks wait for this one in vain.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from typing import Protocol

from mpi4py import MPI

from hpccoll.errors import GroupTimeout

#: Seconds between two looks; a tenth of the shortest time-out if that is less.
PAUSE = 5.0
#: Seconds for the launcher to take up what was said: an abort ends whoever passes it on, too.
TOLD = 0.5


class Watched(Protocol):
    """What can be late."""

    seconds: float

    def late(self, now: float) -> str:
        """What has been running for too long; nothing if there is no such call."""


class Watchdog:
    """Looks at groups as long as there are any."""

    def __init__(self) -> None:
        self.groups: weakref.WeakSet[Watched] = weakref.WeakSet()
        self.thread: threading.Thread | None = None

    def watch(self, group: Watched) -> None:
        """Look at a group from now on, until it is gone."""
        self.groups.add(group)
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="hpccoll watchdog", daemon=True)
            self.thread.start()

    def forget(self, group: Watched) -> None:
        """Look at a group no more."""
        self.groups.discard(group)

    def _work(self) -> None:
        while not MPI.Is_finalized():
            groups = list(self.groups)
            time.sleep(min([PAUSE, *(group.seconds / 10 for group in groups)]))
            for group in groups:
                title = group.late(time.monotonic())
                if title:
                    error = GroupTimeout(title, group.seconds)
                    print(f"hpccoll: {error}; the job ends now", file=sys.stderr, flush=True)
                    time.sleep(TOLD)
                    MPI.COMM_WORLD.Abort(1)


WATCHDOG = Watchdog()
