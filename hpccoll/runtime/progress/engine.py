"""Progress engine of pending collectives.

A wait or test of any operation progresses all operations. Between such calls one thread per process
progresses them, unless the configuration disables it. It sleeps while no operation is pending, and
needs ``MPI.THREAD_MULTIPLE``. See :mod:`hpccoll.runtime.progress.operations`.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mpi4py import MPI

from hpccoll.config import THREAD
from hpccoll.errors import MOST_NAMED, BrokenCommunicatorError, ForkedError
from hpccoll.errors.waits import print_report
from hpccoll.runtime.progress.waiting import PendingRun, WaitTimer
from hpccoll.worker import Worker

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

#: Poll intervals of the thread in seconds: the first one, the one without progress, and the one
#: while a wait progresses all tasks.
SHORTEST_PAUSE, LONGEST_PAUSE, PAUSE_BESIDE_WAITS = 20e-6, 1e-3, 5e-3
#: Seconds without operations until the thread sleeps.
LINGER = 0.1


def can_progress(how: str) -> bool:
    """Return True if the MPI library supports the configured way of progress."""
    return how != THREAD or MPI.Query_thread() >= MPI.THREAD_MULTIPLE


class PendingOperation(ABC):
    """Pending collective of a request.

    Attributes:
        context: the context of its communicator.
        threaded: True if the thread may progress it.
        over: True once it has completed or failed with an ``error``.
        quiet: True if the caller that observes completion raises the error itself.
        queue: the queue of operations that share its channels, if any.
    """

    queue: Any = None

    def __init__(self, context: Context, buffers: Any, threaded: bool):
        self.context, self.buffers, self.threaded = context, buffers, threaded
        self.lock = threading.Lock()
        self.over, self.quiet = False, False
        self.error: BaseException | None = None

    @property
    @abstractmethod
    def pending_run(self) -> PendingRun:
        """The execution, which reports its round and peers on a timeout."""

    @property
    @abstractmethod
    def moves(self) -> int:
        """Counter that changes with every step of progress."""

    def _signs(self) -> tuple[Any, ...]:
        """Return a value that changes with progress of this operation or of the first in its queue.

        The first operation may progress in this wait or in another thread.
        """
        first = self.queue.first if self.queue is not None else None
        return self.moves, id(first), first.moves if first is not None else 0

    def progress(self) -> bool:
        """Make progress, unless another thread does; return True if the operation progressed."""
        return self._step_if_free(self._step)

    def _step_if_free(self, step: Callable[[], bool]) -> bool:
        """Run one progress step, unless another thread runs one.

        An exception completes the operation with that error. Returns True on progress or failure.
        """
        if self.over or self.lock.locked():
            return False
        # Why ``with`` and not acquire(blocking=False) before ``try``: CPython runs signal handlers
        # when a call returns. An exception between the two would leave the lock held forever. No
        # handler runs between the entry of ``with`` and its first statement. Another thread may
        # take the lock after the test. This thread then waits for its step, which blocks only when
        # it fails and reports the error.
        with self.lock:
            try:
                return not self.over and step()
            except BaseException as error:
                self._complete(error)
                if not isinstance(error, Exception):
                    raise
                return True

    @abstractmethod
    def _step(self) -> bool:
        """Make progress without blocking; return True if the operation progressed."""

    @abstractmethod
    def _complete(self, error: BaseException | None = None) -> None:
        """Remove the operation from the engine and complete its MPI request."""

    def check_queue(self, queue: Any) -> None:
        """Raise BrokenCommunicatorError if an operation of the queue has failed.

        Does nothing before the guard has recorded that failure: only its record has the cause.
        """
        if queue is not None and queue.stopped:
            if self.context.guard.failure is not None:
                raise BrokenCommunicatorError("a request before this one has failed")

    def linger(self, watch: WaitTimer) -> None:
        """Yield the processor after a poll without progress; raise CollectiveTimeout in time."""
        watch.pause()

    def wait(self) -> None:
        """Progress all operations until this one has completed or failed with an ``error``.

        Without progress it fails with a ``CollectiveTimeout``.
        """
        if self.over:
            return
        look, waiter = self.poll_callback(), object()
        try:
            PROGRESS.waiters.add(waiter)
            while not self.over:
                PROGRESS.step()
                look()
        except BaseException as error:
            self.fail(error)
        finally:
            PROGRESS.waiters.discard(waiter)

    def poll_callback(self, rare: bool = False) -> Callable[[], None]:
        """Return a callback for a waiting rank to call after each round of progress.

        ``rare``: every call checks the clock and the other ranks, because calls are infrequent.
        """
        watch, seen = OperationTimer(self), self._signs()

        def look() -> None:
            nonlocal seen
            if self.over:
                return
            now = self._signs()
            if now != seen:
                seen = now
                watch.reset()
            elif rare:
                watch.look()
            else:
                self.linger(watch)
        return look

    def fail(self, error: BaseException) -> None:
        """Complete it with the error of a wait, unless it has completed."""
        with self.lock:
            if self.over:
                raise error
            self._complete(error)


class OperationTimer(WaitTimer):
    """Timer of a wait for an operation."""

    def __init__(self, operation: PendingOperation):
        self.operation = operation
        super().__init__(operation.pending_run, *operation.context.timeouts)

    def look(self) -> None:
        """See :meth:`WaitTimer.look`."""
        # It looks at the operation's messages, which another thread may complete in a step.
        with self.operation.lock:
            super().look()


class Task(Protocol):
    """Work in flight: a run, compiled or not, a request of the MPI library, or generators of these.

    Attributes:
        threaded: True if a thread may progress it.
    """

    threaded: bool

    def progress(self) -> bool:
        """Make progress without blocking; return True if there was any."""


class Progress:
    """Queue of tasks, progressed by a thread while no call waits.

    The process has one, :data:`PROGRESS`. An owner of tasks that may block or call user code has
    its own, because a task of one must not wait for a task of another behind it.

    Args:
        name: name of the thread.
        delay: seconds from a wake-up to the first poll.
        patience: seconds to wait for the end of the thread, if a task may call user code.

    Attributes:
        waiters: tokens of the waits that progress all tasks; meanwhile the thread only polls. A
            wait adds its token inside a ``try`` and removes it in ``finally``. A set and not a
            counter: a signal handler may raise after any call, also after the release of a lock or
            inside a context manager, and a counter would then stay wrong.
        lazy: True while the thread sleeps or has never started.
        parent: process id of the rank that this process was forked from, else 0.
    """

    def __init__(self, name: str, delay: float = SHORTEST_PAUSE, patience: float | None = None):
        self.operations: list[Any] = []
        self.waiters: set[object] = set()
        self.lazy, self.delay, self.patience, self.parent = True, delay, patience, 0
        # MPI is finalized after the interpreter; the thread must have ended by then.
        self.worker = Worker(name, self._work, self.stop)
        self._pause, self._idle_since = delay, 0.0

    def add(self, task: Task) -> None:
        """Add a task and wake the thread."""
        # Either this call finds the thread asleep, or the thread finds the task before it sleeps.
        self.operations.append(task)
        if self.lazy and task.threaded:
            self.wake()

    def remove(self, task: Task) -> None:
        """Remove a task."""
        try:
            self.operations.remove(task)
        except ValueError:
            pass  # two threads may both see it complete

    def wake(self) -> None:
        """Wake or start the thread."""
        self.worker.wake()

    def stop(self) -> None:
        """Stop the thread."""
        self.worker.stop(self.patience)

    def step(self, tasks: Sequence[Task] | None = None) -> bool:
        """Progress the given tasks, or all; return True if any progressed."""
        moved = False
        for task in tuple(self.operations) if tasks is None else tasks:
            moved |= task.progress()
        return moved

    def _threaded_tasks(self) -> list[Task]:
        return [task for task in self.operations if task.threaded]

    def _is_stopped(self) -> bool:
        return self.worker.stopping or MPI.Is_finalized()

    def _work(self) -> float | None:
        # Waking the thread costs the caller more than a small collective takes. So the thread stays
        # awake for a while, and polls only tasks that did not complete by themselves.
        if self._is_stopped():
            return None
        if self.lazy:
            self.lazy, self._pause, self._idle_since = False, self.delay, time.monotonic()
            return self.delay
        tasks = self._threaded_tasks()
        moved = not self.waiters and self.step(tasks)
        longest = PAUSE_BESIDE_WAITS if self.waiters else LONGEST_PAUSE
        self._pause = SHORTEST_PAUSE if moved else min(2 * self._pause, longest)
        if tasks:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > LINGER:
            self.lazy = True
            if not self._threaded_tasks():
                return None
        return self._pause

    # -- pending collectives of this process -------------------------------------------------
    def drop_after_fork(self) -> None:
        """Drop all operations in a forked process: they belong to the rank."""
        self.parent = os.getppid()
        for operation in self.operations:
            operation.over = True
        self.operations.clear()
        self.worker, self.lazy = Worker(self.worker.name, self._work, self.stop), True

    def check_process(self) -> None:
        """Raise ForkedError in a process that was forked from a rank."""
        if self.parent:
            raise ForkedError(self.parent)

    def finish(self, context: Context) -> None:
        """Wait for all operations of a communicator; their requests keep the errors."""
        for operation in [f for f in self.operations if f.context is context]:
            operation.wait()

    def report(self) -> None:
        """Print the operations that this exiting process has not waited for."""
        if self.operations and not self.parent and not MPI.Is_finalized():
            self.step()
            left = [operation.pending_run for operation in self.operations if not operation.over]
            if left:
                text = ", ".join(awaited.title for awaited in left[:MOST_NAMED])
                print_report(
                    f"hpccoll: rank {MPI.COMM_WORLD.Get_rank()} exits with {len(left)} pending "
                    f"request{'s' * (len(left) > 1)}: {text}"
                    f"{' ...' * (len(left) > MOST_NAMED)}; call Wait on every request")


PROGRESS = Progress("hpccoll progress", LONGEST_PAUSE)
