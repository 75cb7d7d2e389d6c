"""Progress: collectives under way, and what drives them.

    Request, Prequest --handle--> generalized request <--completes-- Operation --drives--> Execution

Whoever waits for or tests any operation drives all of them. Otherwise, unless progress is left to
calls alone, one thread per process does, which sleeps while there are none. It needs
``MPI.THREAD_MULTIPLE``. Results for staged device memory are stored when completion is observed,
in the thread that observes it.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from hpccoll.config import THREAD
from hpccoll.errors.mpi import RequestError
from hpccoll.runtime.compiled import TapedRun
from hpccoll.runtime.context import Context
from hpccoll.runtime.executor import Execution, PreparedRun
from hpccoll.runtime.waiting import Awaited, Watch

#: Seconds between two looks of the thread at all operations: first, and when nothing moves.
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 1e-3
#: Seconds without operations after which the thread goes to sleep.
LINGER = 0.1
#: Polls of its own operation before ``Wait`` starts to drive all of them.
POLLS = 200
#: An MPI handle in memory, by its size: our requests lend themselves the handle of a token.
_HANDLES = {4: ctypes.c_uint32, 8: ctypes.c_uint64}


def cell(request: MPI.Request) -> Any:
    """The handle in a request, as a value that can be read and written."""
    return _HANDLES[MPI._sizeof(MPI.Request)].from_address(MPI._addressof(request))


NULL = cell(MPI.REQUEST_NULL).value


def can_progress(how: str) -> bool:
    """Tell whether collectives can progress in the way that was chosen."""
    return how != THREAD or MPI.Query_thread() >= MPI.THREAD_MULTIPLE


class Underway(ABC):
    """A collective that a request stands for.

    Attributes:
        context: of the communicator it runs on.
        threaded: the thread may drive it.
        over: it has ended, well or with an ``error``.
        quiet: whoever observes completion raises the error itself.
    """

    def __init__(self, context: Context, buffers: Any, threaded: bool):
        self.context, self.buffers, self.threaded = context, buffers, threaded
        self.lock = threading.Lock()
        self.over, self.quiet = False, False
        self.error: BaseException | None = None

    @property
    @abstractmethod
    def awaited(self) -> Awaited:
        """What names round and peers when time is up."""

    @property
    @abstractmethod
    def moves(self) -> int:
        """A number that changes with every step of progress."""

    @abstractmethod
    def progress(self) -> bool:
        """Do what can be done now, unless another thread is at it; tell whether it moved."""

    @abstractmethod
    def _complete(self, error: BaseException | None = None) -> None:
        """Take it out of service and let MPI know."""

    def wait(self) -> None:
        """Drive everything until this operation is over, well or with an ``error``.

        It is over, with a ``CollectiveTimeout``, when nothing moves for too long.
        """
        if self.over:
            return
        watch, seen = Watch(self.awaited, *self.context.bounds), self.moves
        with PROGRESS.attended():
            try:
                while not self.over:
                    PROGRESS.once()
                    if self.moves != seen:
                        seen = self.moves
                        watch.moved()
                    else:
                        watch.idle()
            except BaseException as error:
                with self.lock:
                    if self.over:
                        raise
                    self._complete(error)


class Operation(Underway):
    """One nonblocking collective under way.

    Args:
        context: of the communicator it runs on.
        execution: what runs; started here.
        buffers: whatever must stay alive until the end.
        store: brings the result back to device memory, if it has to be.
        threaded: the thread may drive it.
    """

    def __init__(self, context: Context, execution: Execution, buffers: Any,
                 store: Callable[[], None] | None, threaded: bool = True):
        super().__init__(context, buffers, threaded)
        self.execution: Execution | None = execution
        self.store, self.steps = store, 0
        self.token = MPI.Grequest.Start(self._observed)
        try:
            execution.start()
        except BaseException as error:
            self._complete(error)
            self.quiet = True
            self.token.Wait()
            if self.error is not None and self.error is not error:
                raise self.error from error
            raise
        if execution.done:
            self._complete()
        else:
            PROGRESS.add(self)

    @property
    def awaited(self) -> Awaited:
        """The execution."""
        if self.execution is None:
            raise RequestError("the collective is over")
        return self.execution

    @property
    def moves(self) -> int:
        """Steps of progress so far."""
        return self.steps

    def progress(self) -> bool:
        """Do what can be done now, unless another thread is at it; tell whether it moved."""
        if self.over or not self.lock.acquire(blocking=False):
            return False
        try:
            execution = self.execution
            if self.over or execution is None:
                return False
            moved = execution.progress()
            self.steps += moved
            if execution.done:
                self._complete()
            return moved
        except BaseException as error:
            self._complete(error)
            if not isinstance(error, Exception):
                raise
            return True
        finally:
            self.lock.release()

    def _complete(self, error: BaseException | None = None) -> None:
        if error is not None and self.execution is not None:
            # Its messages may still be in flight.
            self.context.abandoned.append(self.execution)
            error = self.context.fail(error, self.execution.title, self.execution.plan,
                                      self.execution.tag)
        self.error, self.over = error, True
        PROGRESS.remove(self)
        self.token.Complete()

    def _observed(self, status: MPI.Status) -> None:
        """Called by MPI, possibly more than once, where completion is observed."""
        if self.error is not None:
            if not self.quiet:
                raise self.error
            return
        store, self.store = self.store, None
        if store is not None:
            store()
        self.buffers = self.execution = None


class PersistentOperation(Underway):
    """A prepared collective of one segment, started again and again.

    Its token is completed only where somebody else than our ``Wait`` needs to see it: a ``Wait``
    that ends the collective itself keeps the token for the next start.
    """

    def __init__(self, context: Context, run: PreparedRun | TapedRun, buffers: Any,
                 threaded: bool = True):
        super().__init__(context, buffers, threaded)
        self.run = run
        self.token: MPI.Grequest | None = None
        self.over, self.handle = True, 0
        #: It is surely not under way, and nothing is wrong with it.
        self.idle = False
        self.tries = POLLS if context.limits.spins else 1

    @property
    def awaited(self) -> Awaited:
        """The run of the program."""
        return self.run

    @property
    def moves(self) -> int:
        """Which test is missing messages."""
        return self.run.at

    def start(self) -> None:
        """Post the first messages."""
        if self.token is None:
            self.token = MPI.Grequest.Start(self._observed)
            self.handle = cell(self.token).value
        self.quiet = self.idle = False
        try:
            self.run.start()
        except BaseException as error:
            token, self.quiet = self.token, True
            self._complete(error)
            token.Wait()
            if self.error is not None and self.error is not error:
                raise self.error from error
            raise
        PROGRESS.operations.append(self)
        if PROGRESS.lazy and self.threaded:
            PROGRESS.wake()
        # Only now, when all is posted, may the thread join in: one that still holds this operation
        # from its last run could end it before it is on the list, and it would stay there.
        self.over = False

    def progress(self) -> bool:
        """Do what can be done now, unless another thread is at it; tell whether that ended it."""
        return self._advance(1, self._complete)

    def finish(self) -> bool:
        """Wait for the end here, for a moment; tell whether that ended it, unseen by MPI."""
        return self._advance(self.tries, self._leave)

    def _advance(self, tries: int, end: Callable[[], None]) -> bool:
        if self.over or not self.lock.acquire(False):
            return False
        try:
            if self.over or not self.run.advance(tries):
                return False
            end()
            return True
        except BaseException as error:
            self._complete(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.lock.release()
        return False

    def _leave(self) -> None:
        self.over = True
        PROGRESS.remove(self)

    def free(self) -> None:
        """Give the messages back, and a token that nobody has waited for."""
        if self.token is not None:
            self.token.Complete()
            self.token.Wait()
        self.run.free()

    def _complete(self, error: BaseException | None = None) -> None:
        token, self.token = self.token, None
        if error is not None:
            self.context.abandoned.append(self.run)
            error = self.context.fail(error, self.run.title, self.run.plan, self.run.tag)
        self.error = error
        self._leave()
        if token is not None:
            token.Complete()

    def _observed(self, status: MPI.Status) -> None:
        if self.error is not None and not self.quiet:
            raise self.error


class Progress:
    """Moves the operations of this process on, by a thread while nobody else does."""

    def __init__(self) -> None:
        self.operations: list[Underway] = []
        self.changed = threading.Condition()
        self.attendants = 0
        self.thread: threading.Thread | None = None
        #: The thread is asleep, or was never started.
        self.lazy, self.stopping = True, False

    def add(self, operation: Underway) -> None:
        """Take a operation on, and see to it that the thread is awake."""
        # Either this sees the thread asleep, or the thread, about to sleep, sees the operation.
        self.operations.append(operation)
        if self.lazy and operation.threaded:
            self.wake()

    def wake(self) -> None:
        """Wake the thread up, or start it."""
        with self.changed:
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="hpccoll progress",
                                               daemon=True)
                self.lazy = False
                self.thread.start()
                # MPI is finalized after the interpreter; the thread must be gone by then.
                atexit.register(self.stop)
            self.changed.notify()

    def remove(self, operation: Underway) -> None:
        """Forget a operation."""
        try:
            self.operations.remove(operation)
        except ValueError:
            pass  # two threads may find it over

    def once(self, operations: Sequence[Underway] | None = None) -> bool:
        """Move operations, or all there are, on as far as they go now; tell whether any moved."""
        moved = False
        for operation in tuple(self.operations) if operations is None else operations:
            moved |= operation.progress()
        return moved

    def threaded(self) -> list[Underway]:
        """The operations that are the thread's to move on."""
        return [operation for operation in self.operations if operation.threaded]

    def finish(self, context: Context) -> None:
        """Wait for all operations of a communicator; errors stay with their requests."""
        for operation in [f for f in self.operations if f.context is context]:
            operation.wait()

    @contextmanager
    def attended(self) -> Iterator[None]:
        """While somebody waits and moves all operations on, the thread only looks on."""
        with self.changed:
            self.attendants += 1
        try:
            yield
        finally:
            with self.changed:
                self.attendants -= 1

    def stop(self) -> None:
        """End the thread."""
        with self.changed:
            self.stopping = True
            self.changed.notify()
        if self.thread is not None:
            self.thread.join()

    def _work(self) -> None:
        # Waking up costs the thread that wakes it more than a small collective takes, so the
        # thread stays awake for a while, and looks only at what is not over by itself.
        pause, idle_since = LONGEST_PAUSE, time.monotonic()
        while not self.stopping and not MPI.Is_finalized():
            time.sleep(pause)
            mine = self.threaded()
            moved = not self.attendants and self.once(mine)
            pause = SHORTEST_PAUSE if moved else min(2 * pause, LONGEST_PAUSE)
            if mine:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER:
                with self.changed:
                    self.lazy = True
                    self.changed.wait_for(lambda: self.threaded() or self.stopping)
                    self.lazy = False
                pause, idle_since = LONGEST_PAUSE, time.monotonic()


PROGRESS = Progress()
