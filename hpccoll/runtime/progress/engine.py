"""Progress engine of pending collectives.

A wait or test of any operation progresses all operations. Between such calls one thread per process
progresses them, unless the configuration disables it. It sleeps while no operation is pending, and
needs ``MPI.THREAD_MULTIPLE``. See :mod:`hpccoll.runtime.progress.operations`.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.config import THREAD
from hpccoll.errors import MOST_NAMED, BrokenCommunicatorError, ForkedError
from hpccoll.errors.waits import print_report
from hpccoll.runtime.progress.waiting import PendingRun, WaitTimer

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

#: Poll intervals of the thread in seconds: the first one, and the one without progress.
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 1e-3
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
        """Raise an error if an operation of the queue has failed: this one can never start.

        Does nothing before the guard has recorded that failure: only its record has the cause.

        Raises:
            BrokenCommunicatorError: an earlier operation has failed.
        """
        if queue is not None and queue.stopped:
            if self.context.guard.failure is not None:
                raise BrokenCommunicatorError("a request before this one has failed")

    def linger(self, watch: WaitTimer) -> None:
        """Yield the processor after a poll without progress.

        Raises:
            CollectiveTimeout: no progress within the timeout.
        """
        watch.pause()

    def wait(self) -> None:
        """Progress all operations until this one has completed or failed with an ``error``.

        Without progress it fails with a ``CollectiveTimeout``.
        """
        if self.over:
            return
        look, slow_path = self.poll_callback(), object()
        try:
            PROGRESS.waiters.add(slow_path)
            while not self.over:
                PROGRESS.step()
                look()
        except BaseException as error:
            self.fail(error)
        finally:
            PROGRESS.waiters.discard(slow_path)

    def poll_callback(self, rare: bool = False) -> Callable[[], None]:
        """Return a callback for a waiting rank to call after each round of progress.

        ``rare``: every call checks the clock and the other ranks, because calls are infrequent.

        Raises:
            CollectiveTimeout: no progress within the timeout.
        """
        watch, seen = WaitTimer(self.pending_run, *self.context.timeouts), self._signs()

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


class Progress:
    """Progresses the operations of this process, in a thread while no call does.

    Attributes:
        slow path: tokens of the waits that progress all operations; meanwhile the thread only
            polls. A wait adds its token inside a ``try`` and removes it in ``finally``. A set and
            not a counter: a signal handler may raise after any call, also after the release of a
            lock or inside a context manager, and a counter would then stay wrong.
    """

    def __init__(self) -> None:
        self.operations: list[PendingOperation] = []
        self.changed = threading.Condition()
        self.waiters: set[object] = set()
        self.thread: threading.Thread | None = None
        #: Set while the thread sleeps or has never started.
        self.lazy, self.stopping = True, False
        #: Process id of the rank that this process was forked from, else 0.
        self.parent = 0

    def drop_after_fork(self) -> None:
        """Drop all operations in a forked process: they belong to the rank."""
        self.parent = os.getppid()
        for operation in self.operations:
            operation.over = True
        self.operations.clear()
        # A thread that does not exist here may have held the lock.
        self.changed, self.thread, self.lazy = threading.Condition(), None, True

    def check_process(self) -> None:
        """Raise an error in a process that was forked from a rank.

        Raises:
            ForkedError: this process was forked from a rank.
        """
        if self.parent:
            raise ForkedError(self.parent)

    def add(self, operation: PendingOperation) -> None:
        """Add an operation and wake the thread."""
        # Either this call finds the thread asleep, or the thread finds the operation before it
        # sleeps.
        self.operations.append(operation)
        if self.lazy and operation.threaded:
            self.wake()

    def wake(self) -> None:
        """Wake or start the thread."""
        with self.changed:
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="hpccoll progress",
                                               daemon=True)
                self.lazy = False
                self.thread.start()
                # MPI is finalized after the interpreter; the thread must have ended by then.
                atexit.register(self.stop)
            self.changed.notify()

    def remove(self, operation: PendingOperation) -> None:
        """Remove an operation."""
        try:
            self.operations.remove(operation)
        except ValueError:
            pass  # two threads may both see it complete

    def step(self, operations: Sequence[PendingOperation] | None = None) -> bool:
        """Progress the given operations, or all; return True if any progressed."""
        moved = False
        for operation in tuple(self.operations) if operations is None else operations:
            moved |= operation.progress()
        return moved

    def thread_operations(self) -> list[PendingOperation]:
        """Return the operations that the thread may progress."""
        return [operation for operation in self.operations if operation.threaded]

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

    def stop(self) -> None:
        """Stop the thread."""
        with self.changed:
            self.stopping = True
            self.changed.notify()
        if self.thread is not None:
            self.thread.join()

    def _work(self) -> None:
        # Waking the thread costs the caller more than a small collective takes. So the thread stays
        # awake for a while, and polls only operations that did not complete by themselves.
        pause, idle_since = LONGEST_PAUSE, time.monotonic()
        while not self.stopping and not MPI.Is_finalized():
            time.sleep(pause)
            mine = self.thread_operations()
            moved = not self.waiters and self.step(mine)
            pause = SHORTEST_PAUSE if moved else min(2 * pause, LONGEST_PAUSE)
            if mine:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER:
                with self.changed:
                    self.lazy = True
                    self.changed.wait_for(lambda: self.thread_operations() or self.stopping)
                    self.lazy = False
                pause, idle_since = LONGEST_PAUSE, time.monotonic()


PROGRESS = Progress()
