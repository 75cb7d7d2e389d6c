"""A lane: the asynchronous calls of one group, run one after the other beside autograd.

Every group has a lane of its own, because a call on one group may have to wait for a rank that is
busy with a call on another. The order within a lane is the order of issue. Whoever waits for a
call runs what stands before it, and it, itself, unless the lane's thread is at it already: then
no time is lost with waking threads.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from collections.abc import Callable

from hpccoll.torch.process_group.arrivals import Arrivals
from hpccoll.torch.process_group.work import GroupWork, nothing

#: Seconds to wait for a thread that is to end.
LONGEST = 5.0


class Lane:
    """Calls of one group, in the order in which they were issued.

    Args:
        name: of the thread, which is started by the first call.
        arrivals: how far the other ranks are.
    """

    def __init__(self, name: str, arrivals: Arrivals):
        self.name, self.arrivals = name, arrivals
        #: Calls that are not over; the first may be running.
        self.queue: deque[GroupWork] = deque()
        self.turn = threading.Lock()
        self.changed = threading.Condition()
        self.closed = False
        #: Threads, and how many of them are busy with callbacks.
        self.threads: list[threading.Thread] = []
        self.telling = 0

    @property
    def busy(self) -> bool:
        """Whether there are calls that are not over."""
        return bool(self.queue)

    def put(self, work: GroupWork) -> None:
        """Take a call on."""
        work.assist = self.assist
        with self.changed:
            self.queue.append(work)
            self._see_to_a_thread()
            self.changed.notify()

    def assist(self, work: GroupWork) -> bool:
        """Run calls here up to this one; tell whether it is over."""
        while not work.over:
            if not self.turn.acquire(blocking=False):
                return False
            try:
                tell = self._run_first()
            finally:
                self.turn.release()
            tell()
        return True

    def drain(self) -> None:
        """Wait until all calls are over."""
        while self.queue:
            with self.turn:
                tell = self._run_first()
            tell()

    def clear(self, error: BaseException) -> None:
        """End all calls with an error; one that runs cannot be stopped, but nobody waits for it."""
        for work in tuple(self.queue):
            work.end(error)

    def close(self) -> None:
        """End the threads, when their calls are over.

        A thread that comes back from PyTorch while the interpreter ends would end the process, so
        they are waited for; not where a call is running, which may never end.
        """
        self._close(None if self.turn.locked() else LONGEST)

    def _at_exit(self) -> None:
        """Finish what nobody has waited for: MPI_Finalize must not find a thread inside MPI.

        The other ranks have issued the same calls. One whose program fails may have issued more.
        """
        failed = hasattr(sys, "last_value")  # an error that nobody has caught
        self._close(LONGEST if failed else threading.TIMEOUT_MAX)

    def _close(self, seconds: float | None) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        atexit.unregister(self._at_exit)
        for thread in self.threads if seconds is not None else ():
            if thread is not threading.current_thread():
                thread.join(seconds)

    def _run_first(self, patient: bool = False) -> Callable[[], None]:
        """Run the first call; return what tells its callbacks when the next may run."""
        if self.queue:
            try:
                work = self.queue[0]
                self.arrivals.mine[0] = work.number
                if patient:
                    self.arrivals.wait(work.number, work.is_completed)
                return work.do()
            finally:
                self.queue.popleft()
        return nothing

    def _see_to_a_thread(self) -> None:
        """Start a thread if all there are are busy with callbacks, which may wait for calls."""
        if len(self.threads) == self.telling:
            if not self.threads:
                atexit.register(self._at_exit)
            self.threads.append(threading.Thread(target=self._work, name=self.name, daemon=True))
            self.threads[-1].start()

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.queue or self.closed)
            if not self.queue:
                return
            with self.turn:
                tell = self._run_first(patient=True)
            if tell is nothing:
                continue
            with self.changed:
                self.telling += 1
                if self.queue:
                    self._see_to_a_thread()
            try:
                tell()
            finally:
                with self.changed:
                    self.telling -= 1
