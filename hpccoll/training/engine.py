"""Progress engine of an exchange: a daemon thread, or the caller that waits.

    Engine --owns--> queues of generators, which yield MPI requests

Each exchange has its own thread: a task may make a blocking call, which waits for ranks that are in
a task of another exchange. The thread sleeps between two polls, so that the computation keeps the
processor. A waiting caller polls itself, which avoids a thread switch. Unless MPI was initialised
with ``MPI.THREAD_MULTIPLE`` there is no thread, and only the calls of the exchange make progress.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.runtime.progress.engine import SHORTEST_PAUSE, Progress
from hpccoll.runtime.progress.task_queue import Steps, TaskQueue, nothing

#: Seconds between two polls of the thread: without progress, and without tasks.
LONGEST_PAUSE, IDLE_PAUSE = 500e-6, 20e-3
#: Polls without progress before a waiting caller yields the processor, and before it sleeps.
SPINS, NAPS = 200, 20_000
#: Seconds that a caller waits for the thread while the thread holds the lock.
HANDOVER = 1e-3

#: Generators that never end because a rank has failed, with their requests and buffers.
ABANDONED: list[Any] = []


class Engine(Progress):
    """Progresses queues of tasks, in one thread at a time.

    Args:
        poll: called in each poll for other work; returns True if it made progress.
        fail: called with an exception that a task raised.
    """

    def __init__(self, queue_count: int, poll: Callable[[], bool],
                 fail: Callable[[BaseException], None]):
        super().__init__("hpccoll exchange")
        self.operations = [TaskQueue() for _ in range(queue_count)]
        self._poll, self._fail, self._lock = poll, fail, threading.Lock()
        self._threaded = False

    def start_thread(self, threaded: bool) -> None:
        """Start the progress thread, if it is requested and MPI supports it."""
        self._threaded = threaded and MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self.wake()

    @property
    def is_busy(self) -> bool:
        """Return True if a task is pending."""
        return any(map(len, self.operations))

    def submit(self, index: int, task: Steps) -> None:
        """Append a task to queue ``index``; all ranks submit the same tasks in the same order."""
        self.operations[index].submit(task)
        self.wake()

    def wake(self) -> None:
        """Wake the thread, unless a caller waits: that caller progresses all queues."""
        if self._threaded and not self.waiters:
            super().wake()

    def step(self, tasks: Sequence[Any] | None = None) -> bool:
        """Progress all queues until they must wait, unless another thread is doing so."""
        return self._lock.acquire(blocking=False) and self._step_and_release()

    def _step_and_release(self) -> bool:
        """Progress all queues and release the lock that the caller holds."""
        try:
            moved = self._poll()
            return super().step() or moved
        except Exception as error:
            self._abandon()
            self._fail(error)
            return True
        finally:
            self._lock.release()

    def wait(self, over: Callable[[], bool], idle: Callable[[], None],
             task: Steps | None = None, on_done: Callable[[], object] = nothing) -> None:
        """Progress all queues until ``over()``; call ``idle`` occasionally without progress.

        A task for the first queue, whose end calls ``on_done``, does not wake the thread.
        """
        idles, waiter = 0, object()
        try:
            self.waiters.add(waiter)
            if task is not None:
                self.operations[0].submit(task, on_done)
            while not over():
                # The thread holds the lock during a blocking call: sleep, do not spin.
                if self._lock.acquire(timeout=HANDOVER) and self._step_and_release():
                    idles = 0
                    continue
                idles += 1
                if idles > NAPS:
                    time.sleep(SHORTEST_PAUSE)
                elif idles > SPINS:
                    os.sched_yield()
                if idles % SPINS == 0:
                    idle()
        finally:
            self.waiters.discard(waiter)
            if self.is_busy:
                self.wake()

    def stop(self) -> None:
        """Stop the thread and abandon pending tasks."""
        super().stop()
        self._abandon()

    def _abandon(self) -> None:
        for queue in self.operations:
            ABANDONED.extend(queue.abandon())

    def _work(self) -> float:
        if self.waiters or self._is_stopped():
            return IDLE_PAUSE
        self._pause = SHORTEST_PAUSE if self.step() else min(2 * self._pause, LONGEST_PAUSE)
        return self._pause if self.is_busy else IDLE_PAUSE
