"""The one wait of Python: poll, then yield, then sleep."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from hpccoll.machine.limits import SPINS

#: A wait yields its processor for these seconds and then sleeps, each time this part of the seconds
#: that it has waited, up to the longest: a sleep delays a wait by a few per cent. Messages through
#: the MPI library, which moves long ones in pieces, progress only between the sleeps. Measured with
#: 2 ranks on 2 cores, one of them half a second late: yields take 65-85 % of a core, sleeps 3-5 %.
#: ``_wait.h`` has the policy of machine code, which is woken.
YIELD, PART, LONGEST_SLEEP = 1e-3, 1 / 16, 4e-3
#: Seconds between two looks at the other ranks, which take longer than a test.
BETWEEN = 5e-3


class Backoff:
    """Gives the processor back, more of it the longer a wait takes.

    Args:
        spins: failed tests before the wait yields the processor.

    Attributes:
        sleeps: False while the MPI library works, which it does only in tests: yield.
        looked: time of the last look; a look takes longer than a test.
    """

    sleeps, looked = True, 0.0

    def __init__(self, spins: int = SPINS):
        self.spins = spins
        self.reset()

    def reset(self) -> None:
        """Reset after progress."""
        self.idles, self.began = 0, 0.0

    def pause(self) -> None:
        """Let some time pass after a test that failed."""
        self.idles += 1
        if self.idles <= self.spins:
            return
        now = time.monotonic()
        self.began = self.began or now
        waited = now - self.began
        if waited < YIELD or not self.sleeps:
            os.sched_yield()
        else:
            time.sleep(min(waited * PART, LONGEST_SLEEP))
            self.progress()
        if waited >= YIELD and now - self.looked >= BETWEEN:
            self.looked = now
            self.look()

    def progress(self) -> None:
        """Progress other work after a sleep."""

    def look(self) -> None:
        """Check whether the wait can still succeed."""


def wait_until(test: Callable[[], Any], monitor: Backoff | None = None,
               budget: float | None = None) -> bool:
    """Wait until a test succeeds; return False if it has not within ``budget`` seconds.

    Args:
        test: called until it returns a true value.
        monitor: its ``pause`` follows each test that failed, and may raise an error.
        budget: in seconds; no limit if omitted.
    """
    monitor, end = monitor or Backoff(), None if budget is None else time.monotonic() + budget
    while not test():
        if end is not None and time.monotonic() >= end:
            return False
        monitor.pause()
    return True
