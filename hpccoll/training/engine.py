"""Progress engine of an exchange: a daemon thread, or the caller that waits.

    Engine --owns--> queues: tasks in the order of submission --yield--> MPI requests

A task is a generator that yields the request it waits for, as the reductions of
:mod:`hpccoll.training.compress.scheme` do. A queue runs one task at a time. Ranks that submit the
same tasks to a queue therefore make the same calls on its communicator, whatever the timing.

One daemon thread polls and sleeps between two polls, so that the computation keeps the processor:
20 us at first, longer without progress. A waiting caller polls itself, which avoids a thread
switch. Unless MPI was initialised with ``MPI.THREAD_MULTIPLE`` there is no thread, and only the
calls of the exchange make progress.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from mpi4py import MPI

#: Seconds between two polls of the thread: the first, without progress, and without tasks.
SHORTEST_PAUSE, LONGEST_PAUSE, IDLE_PAUSE = 20e-6, 500e-6, 20e-3
#: Polls without progress before a waiting caller yields the processor, and before it sleeps.
SPINS, NAPS = 200, 20_000
#: Seconds that a caller waits for the thread while the thread holds the lock.
HANDOVER = 1e-3

#: Requests that never complete because a rank has failed, and the tasks that hold their buffers.
ABANDONED: list[tuple[Any, ...]] = []

Task = Generator[Any, None, None]


class TaskQueue:
    """Tasks that run sequentially.

    Attributes:
        request: the request that the first task waits for.
    """

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.request: Any = None

    def advance(self) -> bool:
        """Run tasks until one must wait; return True if any made progress."""
        moved = False
        while self.tasks:
            if self.request is not None:
                if not self.request.Test():
                    break
                self.request = None
            moved = True
            try:
                self.request = next(self.tasks[0])
            except StopIteration:
                self.tasks.popleft()
        return moved


class Engine:
    """Progresses queues of tasks.

    Args:
        queue_count: number of queues.
        poll: called in each poll for other work; returns True if it made progress.
        fail: called with an exception that a task raised.
    """

    def __init__(self, queue_count: int, poll: Callable[[], bool],
                 fail: Callable[[BaseException], None]):
        self.queues = [TaskQueue() for _ in range(queue_count)]
        self._poll, self._fail = poll, fail
        self._lock, self._wakeup = threading.Lock(), threading.Event()
        self._waiters, self._stopping = 0, False
        self._thread: threading.Thread | None = None

    def start(self, threaded: bool) -> None:
        """Start the progress thread, if it is requested and MPI supports it."""
        if threaded and MPI.Query_thread() >= MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._run, name="hpccoll exchange", daemon=True)
            self._thread.start()
            # MPI is finalized after the interpreter; the thread must have ended by then.
            atexit.register(self.stop)

    @property
    def is_busy(self) -> bool:
        """Return True if a task is pending."""
        return any(queue.tasks for queue in self.queues)

    def submit(self, index: int, task: Task) -> None:
        """Append a task to queue ``index``; all ranks submit the same tasks in the same order."""
        self.queues[index].tasks.append(task)
        self.wake()

    def wake(self) -> None:
        """Wake the thread, unless a caller waits: that caller progresses all queues."""
        if not self._waiters:
            self._wakeup.set()

    def drive(self) -> bool:
        """Progress all queues until they must wait, unless another thread is doing so."""
        return self._lock.acquire(blocking=False) and self._drive_and_release()

    def _drive_and_release(self) -> bool:
        """Progress all queues and release the lock that the caller holds."""
        try:
            moved = self._poll()
            for queue in self.queues:
                moved |= queue.advance()
            return moved
        except Exception as error:
            self._abandon()
            self._fail(error)
            return True
        finally:
            self._lock.release()

    def wait(self, over: Callable[[], bool], idle: Callable[[], None],
             task: Task | None = None) -> None:
        """Progress all queues until a condition holds.

        Args:
            over: returns True if the condition holds; may raise.
            idle: called occasionally without progress; may raise.
            task: a task for the first queue; does not wake the thread.
        """
        self._waiters += 1
        idles = 0
        try:
            if task is not None:
                self.submit(0, task)
            while not over():
                # The thread holds the lock during a blocking call: sleep, do not spin.
                if self._lock.acquire(timeout=HANDOVER) and self._drive_and_release():
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
            self._waiters -= 1
            if self.is_busy:
                self._wakeup.set()

    def _abandon(self) -> None:
        """Abandon all tasks, but keep the memory that other ranks may still write to."""
        for queue in self.queues:
            if queue.request is not None:
                ABANDONED.append((queue.request, *queue.tasks))
            queue.tasks.clear()
            queue.request = None

    def stop(self) -> None:
        """Stop the thread and abandon pending tasks."""
        self._stopping = True
        self._wakeup.set()
        atexit.unregister(self.stop)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._abandon()

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._stopping and not MPI.Is_finalized():
            if self._waiters or not self.is_busy:
                self._wakeup.wait(IDLE_PAUSE)
                self._wakeup.clear()
            else:
                time.sleep(pause)
            if not self._waiters:
                pause = SHORTEST_PAUSE if self.drive() else min(2 * pause, LONGEST_PAUSE)
