"""The engine: who drives an exchange, while nobody waits for it and while somebody does.

    Engine --owns--> lanes: tasks in the order in which they were given --yield--> MPI requests

A task is a generator that yields the request it waits for (:mod:`hpccoll.training.compress.scheme`
writes reductions so). One task of a lane runs at a time, so all ranks that give a lane the same
tasks make the same calls on its communicator, whatever the timing.

One daemon thread drives, and sleeps between two looks so that it does not starve what computes:
20 us at first, more while nothing moves. Whoever waits takes the driving over, without a hop
between threads. Where MPI was not initialised with ``MPI.THREAD_MULTIPLE`` there is no thread, and
everything moves inside the calls of the exchange.
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

#: Seconds between two looks of the thread: at first, when nothing moves, and with nothing to do.
SHORTEST_PAUSE, LONGEST_PAUSE, IDLE_PAUSE = 20e-6, 500e-6, 20e-3
#: Fruitless looks of a caller that waits, before it offers the processor to others, and sleeps.
SPINS, NAPS = 200, 20_000
#: Seconds that a caller waits for the thread, while that holds the engine.
HANDOVER = 1e-3

#: Requests that never end because a rank has failed, and the tasks that hold their buffers.
ABANDONED: list[tuple[Any, ...]] = []

Task = Generator[Any, None, None]


class TaskLane:
    """Tasks that run one after the other.

    Attributes:
        request: what the first task waits for.
    """

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.request: Any = None

    def advance(self) -> bool:
        """Run tasks as far as they go now; tell whether anything moved."""
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
    """Drives lanes of tasks.

    Args:
        lanes: how many.
        look: called in every look, by whoever drives: what else there is to do; tells whether it
            did anything.
        fail: called with what a task raised.
    """

    def __init__(self, lanes: int, look: Callable[[], bool],
                 fail: Callable[[BaseException], None]):
        self.lanes = [TaskLane() for _ in range(lanes)]
        self._look, self._fail = look, fail
        self._lock, self._bell = threading.Lock(), threading.Event()
        self._attendants, self._stopping = 0, False
        self._thread: threading.Thread | None = None

    def start(self, threaded: bool) -> None:
        """Begin to drive by a thread, if that is wanted and can be."""
        if threaded and MPI.Query_thread() >= MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._work, name="hpccoll exchange", daemon=True)
            self._thread.start()
            # MPI is finalized after the interpreter; the thread must be gone by then.
            atexit.register(self.stop)

    @property
    def busy(self) -> bool:
        """Tell whether a task is under way."""
        return any(lane.tasks for lane in self.lanes)

    def submit(self, lane: int, task: Task) -> None:
        """Give a lane a task; all ranks give it the same ones in the same order."""
        self.lanes[lane].tasks.append(task)
        self.nudge()

    def nudge(self) -> None:
        """Wake the thread: there may be something to do."""
        if not self._attendants:
            self._bell.set()

    def drive(self) -> bool:
        """Move everything on as far as it goes now, unless another thread is at it."""
        return self._lock.acquire(blocking=False) and self._driven()

    def _driven(self) -> bool:
        """Drive, and let go of the lock that the caller holds."""
        try:
            moved = self._look()
            for lane in self.lanes:
                moved |= lane.advance()
            return moved
        except Exception as error:
            self._abandon()
            self._fail(error)
            return True
        finally:
            self._lock.release()

    def wait(self, over: Callable[[], bool], idle: Callable[[], None],
             task: Task | None = None) -> None:
        """Drive until something is over.

        Args:
            over: tells that; may raise.
            idle: called now and then while nothing moves; may raise.
            task: for the first lane; the thread is not woken for it.
        """
        self._attendants += 1
        idles = 0
        try:
            if task is not None:
                self.submit(0, task)
            while not over():
                # While the thread is in a blocking call it holds the lock: sleep, do not spin.
                if self._lock.acquire(timeout=HANDOVER) and self._driven():
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
            self._attendants -= 1
            if self.busy:
                self._bell.set()

    def _abandon(self) -> None:
        """Give up all tasks, but keep the memory that others may still write to."""
        for lane in self.lanes:
            if lane.request is not None:
                ABANDONED.append((lane.request, *lane.tasks))
            lane.tasks.clear()
            lane.request = None

    def stop(self) -> None:
        """End the thread; tasks under way are given up."""
        self._stopping = True
        self._bell.set()
        atexit.unregister(self.stop)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._abandon()

    def _work(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._stopping and not MPI.Is_finalized():
            if self._attendants or not self.busy:
                self._bell.wait(IDLE_PAUSE)
                self._bell.clear()
            else:
                time.sleep(pause)
            if not self._attendants:
                pause = SHORTEST_PAUSE if self.drive() else min(2 * pause, LONGEST_PAUSE)
