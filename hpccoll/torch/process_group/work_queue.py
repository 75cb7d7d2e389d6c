"""Queue of asynchronous calls of one group, run in order and concurrently with autograd.

Each group has a separate queue, because a call on one group may wait for a rank that is in a call
on another group. A waiting thread runs the earlier calls and its own call itself, unless the
queue's thread already runs them: this avoids thread wake-ups.

A rank inside a collective occupies a processor, which autograd needs until the other ranks arrive.
So the queue's thread sleeps until all ranks of its node have reached a call, or for some seconds,
and then enters the call. Ranks of other nodes are assumed to have arrived.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

from mpi4py import MPI

from hpccoll.torch.process_group.work import LONGEST, GroupWork, nothing, poll
from hpccoll.transport.shm.mapping import share
from hpccoll.worker import Worker

#: Longest pause in seconds between two looks at the other ranks.
LONGEST_PAUSE = 250e-6
#: Seconds after which the call is entered anyway: the call detects and reports exited ranks.
LONGEST_WAIT = 2.0


class Arrivals:
    """Numbers of the latest calls of a group's ranks on this node; creation is collective."""

    def __init__(self, comm: MPI.Intracomm):
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.mine = memoryview(bytearray(8)).cast("q")
        self.others: list[memoryview] = []
        shared = share(node, 8) if node.size > 1 else None
        if shared is not None:
            self.others = [part.data.cast("q") for part in shared.parts]
            self.mine = self.others.pop(node.rank)
        node.Free()

    def wait(self, number: int, needless: Callable[[], bool]) -> None:
        """Sleep until all ranks reach a call, ``needless()`` is true, or LONGEST_WAIT is over."""
        poll(lambda: needless() or all(word[0] >= number for word in self.others), LONGEST_WAIT,
             LONGEST_PAUSE)


class WorkQueue:
    """Queue of the calls of one group, in the order of issue; the first starts its thread."""

    def __init__(self, name: str, arrivals: Arrivals):
        self.name, self.arrivals = name, arrivals
        #: Pending calls; the first may be running.
        self.queue: deque[GroupWork] = deque()
        self.turn, self.lock = threading.Lock(), threading.Lock()
        #: Threads, and the number of them that run callbacks.
        self.workers: list[Worker] = []
        self.telling = 0

    @property
    def is_busy(self) -> bool:
        """True if a call is pending."""
        return bool(self.queue)

    def put(self, work: GroupWork) -> None:
        """Append a call."""
        work.assist = self.assist
        with self.lock:
            self.queue.append(work)
            self._wake()

    def assist(self, work: GroupWork) -> bool:
        """Run calls up to ``work`` in the calling thread; return True if ``work`` has completed."""
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
        """Wait until all calls have completed."""
        while self.queue:
            with self.turn:
                tell = self._run_first()
            tell()

    def clear(self, error: BaseException) -> None:
        """Complete all calls with an error; waits end, but a running call continues."""
        for work in tuple(self.queue):
            work.end(error)

    def close(self) -> None:
        """Stop the threads after their calls.

        A thread that returns from PyTorch during interpreter exit would end the process, so the
        threads are joined, unless a call is running: it may never return.
        """
        self._close(0 if self.turn.locked() else LONGEST)

    def _at_exit(self) -> None:
        """Finish calls without a wait: no thread may be inside MPI during MPI_Finalize.

        The other ranks have issued the same calls, but a rank whose program fails may have issued
        more.
        """
        failed = hasattr(sys, "last_value")  # an uncaught error
        self._close(LONGEST if failed else threading.TIMEOUT_MAX)

    def _close(self, seconds: float) -> None:
        for worker in self.workers:
            worker.stop(seconds)

    def _run_first(self, patient: bool = False) -> Callable[[], None]:
        """Run the first call and return its callbacks, to be run when the next call may start."""
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

    def _wake(self) -> None:
        """Wake the threads; start one if all run callbacks, which may wait for calls."""
        if len(self.workers) == self.telling:
            self.workers.append(Worker(self.name, self._work, self._at_exit))
        for worker in self.workers:
            worker.wake()

    def _work(self) -> None:
        while self.queue:
            with self.turn:
                tell = self._run_first(patient=True)
            if tell is nothing:
                continue
            with self.lock:
                self.telling += 1
                if self.queue:
                    self._wake()
            try:
                tell()
            finally:
                with self.lock:
                    self.telling -= 1
