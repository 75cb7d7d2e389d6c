"""Progress: collectives under way, and who moves them on.

Whoever waits for or tests any operation drives all of them. Otherwise, unless progress is left to
calls alone, one thread per process does, which sleeps while there are none. It needs
``MPI.THREAD_MULTIPLE``. What is under way is in :mod:`hpccoll.runtime.progress.operations`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.config import THREAD
from hpccoll.errors import MOST_NAMED, BrokenCommunicatorError, ForkedError
from hpccoll.runtime.progress.waiting import Awaited, Watch

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

#: Seconds between two looks of the thread at all operations: first, and when nothing moves.
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 1e-3
#: Seconds without operations after which the thread goes to sleep.
LINGER = 0.1


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
        lane: where it waits for its turn, if it shares channels with others.
    """

    lane: Any = None

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

    def _signs(self) -> tuple[Any, ...]:
        """What changes with every step of progress, also of the one whose turn it is in its lane.

        By this it does not matter who moves that one on: who waits for this one, or another thread.
        """
        first = self.lane.first if self.lane is not None else None
        return self.moves, id(first), first.moves if first is not None else 0

    def progress(self) -> bool:
        """Do what can be done now, unless another thread is at it; tell whether it moved."""
        return self._alone(self._step)

    def _alone(self, step: Callable[[], bool]) -> bool:
        """Make a step unless another thread is at one; tell whether it moved. An error ends all."""
        if self.over or self.lock.locked():
            return False
        # Not a try behind an acquire that does not wait: a signal is handled when a call has
        # returned, and its exception would come between the two and leave the lock held for ever.
        # Nothing is handled between a with that enters and its first statement. Another thread may
        # take the lock before it does: then this one waits for one step, which does not wait
        # but where it fails, and tells the others.
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
        """Do what can be done now; tell whether it moved."""

    @abstractmethod
    def _complete(self, error: BaseException | None = None) -> None:
        """Take it out of service and let MPI know."""

    def check_lane(self, lane: Any) -> None:
        """Raise where an operation of the lane has failed: this one can never have its turn.

        Not before the guard knows of that failure: this one does not know the cause.

        Raises:
            BrokenCommunicatorError: one has failed.
        """
        if lane is not None and lane.stopped:
            guard = self.context.guard
            if guard is None or guard.failure is not None:
                raise BrokenCommunicatorError("a request before this one has failed")

    def linger(self, watch: Watch) -> None:
        """Nothing moved: let others run.

        Raises:
            CollectiveTimeout: nothing has moved for too long.
        """
        watch.idle()

    def wait(self) -> None:
        """Drive everything until this operation is over, well or with an ``error``.

        It is over, with a ``CollectiveTimeout``, when nothing moves for too long.
        """
        if self.over:
            return
        look, attendant = self.looking(), object()
        try:
            PROGRESS.attendants.add(attendant)
            while not self.over:
                PROGRESS.once()
                look()
        except BaseException as error:
            self.failed(error)
        finally:
            PROGRESS.attendants.discard(attendant)

    def looking(self, rare: bool = False) -> Callable[[], None]:
        """What is to be called between two times that everything was moved on, by who waits.

        ``rare``: it is called so seldom that every call looks at the clock and at the other ranks.

        Raises:
            CollectiveTimeout: nothing has moved for too long.
        """
        watch, seen = Watch(self.awaited, *self.context.bounds), self._signs()

        def look() -> None:
            nonlocal seen
            if self.over:
                return
            now = self._signs()
            if now != seen:
                seen = now
                watch.moved()
            elif rare:
                watch.look()
            else:
                self.linger(watch)
        return look

    def failed(self, error: BaseException) -> None:
        """End it with the error of who waited for it, unless it is over."""
        with self.lock:
            if self.over:
                raise error
            self._complete(error)


class Progress:
    """Moves the operations of this process on, by a thread while nobody else does.

    Attributes:
        attendants: who waits and moves all operations on; meanwhile the thread only looks on. They
            add themselves inside of a try, and take themselves away at its end. A signal's handler
            may raise behind any call: behind the release of a lock too, or inside of a context
            manager, where a number would stay as it is.
    """

    def __init__(self) -> None:
        self.operations: list[Underway] = []
        self.changed = threading.Condition()
        self.attendants: set[object] = set()
        self.thread: threading.Thread | None = None
        #: The thread is asleep, or was never started.
        self.lazy, self.stopping = True, False
        #: The rank that this process was forked from; 0 for none.
        self.parent = 0

    def forked(self) -> None:
        """Give everything up, in a process that was forked from a rank: it is the rank's."""
        self.parent = os.getppid()
        for operation in self.operations:
            operation.over = True
        self.operations.clear()
        # Somebody may have held it, who is not there any more; nor is the thread.
        self.changed, self.thread, self.lazy = threading.Condition(), None, True

    def check_process(self) -> None:
        """Raise in a process that was forked from a rank.

        Raises:
            ForkedError: it is one.
        """
        if self.parent:
            raise ForkedError(self.parent)

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

    def report(self) -> None:
        """Say what a process that ends has begun and not waited for."""
        if self.operations and not self.parent and not MPI.Is_finalized():
            self.once()
            left = [operation.awaited for operation in self.operations if not operation.over]
            if left:
                told = ", ".join(awaited.title for awaited in left[:MOST_NAMED])
                print(f"hpccoll: rank {MPI.COMM_WORLD.Get_rank()} exits with {len(left)} pending "
                      f"requests: {told}{' ...' * (len(left) > MOST_NAMED)}; call Wait on every "
                      "request", file=sys.stderr, flush=True)

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
