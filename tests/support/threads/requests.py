"""What nonblocking calls return."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.runtime.execution.executor import Execution
from support.threads.world import ThreadRank


class ThreadRequest(ABC):
    """Something under way; its methods are those of ``MPI.Request`` that programs use most."""

    def __init__(self, rank: ThreadRank, title: str):
        self.rank, self.title = rank, title
        self.over = False
        self.error: BaseException | None = None
        self.value: Any = None

    @abstractmethod
    def advance(self) -> bool:
        """Do what can be done now; tell whether anything moved."""

    def describe(self, status: MPI.Status) -> None:
        """Fill a status in; collectives only say that all is well."""
        status.error = MPI.SUCCESS

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Tell whether it is over; never waits."""
        return self.rank.look(self) and self._end(status)

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until it is over."""
        self.rank.wait(self)
        return self._end(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Tell whether it is over, and the object."""
        done = self.Test(status)
        return done, self.value if done else None

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait until it is over; return the object."""
        self.Wait(status)
        return self.value

    def _end(self, status: MPI.Status | None) -> bool:
        if self.error is not None:
            raise self.error
        if status is not None:
            self.describe(status)
        return True


class CollectiveRequest(ThreadRequest):
    """A collective under way."""

    def __init__(self, rank: ThreadRank, title: str, execution: Execution,
                 store: Callable[[], None] | None):
        super().__init__(rank, title)
        self.execution, self.store = execution, store
        # Any thread of the rank that waits moves all requests on.
        self.lock = threading.Lock()
        rank.pending.append(self)
        self._step(execution.start)

    def advance(self) -> bool:
        """Run the execution on; see :class:`ThreadRequest`."""
        return bool(self._step(self.execution.progress))

    def _step(self, step: Callable[[], bool | None]) -> bool | None:
        """Run the execution on, unless another thread is at it; errors wait for whoever waits."""
        if self.over or not self.lock.acquire(blocking=False):
            return False
        try:
            moved = None if self.over else step()
            if self.execution.done and not self.over:
                self._finish()
            return moved
        except Exception as error:
            self.error = error
            self._finish()
            return True
        finally:
            self.lock.release()

    def _finish(self) -> None:
        self.rank.pending.remove(self)
        if self.error is None and self.store is not None:
            self.store()
        self.over = True
