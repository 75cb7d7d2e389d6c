"""Operations: pending collectives behind requests.

    Request, Prequest --handle--> generalized request <--completes-- Operation --drives--> Execution

An :class:`Operation` is one nonblocking collective in the interpreter.
:mod:`hpccoll.runtime.execution.compiled_operations` has the operations of the compiled executor.

Nonblocking calls with small messages share the channels of a *queue*, which runs one at a time, in
the order of the calls on every rank. Progress of an operation first progresses the earlier
operations of its queue. After a failure no later operation starts: other ranks would mistake its
messages for those of the failed one. Later operations fail at their next progress step.

Staged results are copied to device memory by the thread that observes completion.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.errors import cause_of
from hpccoll.errors.mpi import RequestError
from hpccoll.errors.waits import raisable
from hpccoll.runtime.context import Context
from hpccoll.runtime.execution.executor import Execution
from hpccoll.runtime.progress.engine import PROGRESS, PendingOperation
from hpccoll.runtime.progress.waiting import PendingRun

#: C type of an MPI handle, by its size: hpccoll's requests borrow the handle of a token.
_HANDLES = {4: ctypes.c_uint32, 8: ctypes.c_uint64}


def cell(request: MPI.Request) -> Any:
    """Return the handle in a request as a ctypes value to read and write."""
    return _HANDLES[MPI._sizeof(MPI.Request)].from_address(MPI._addressof(request))


NULL = cell(MPI.REQUEST_NULL).value


class Operation(PendingOperation):
    """Pending nonblocking collective, whose execution starts here.

    ``buffers`` are kept alive until completion; ``store`` copies a staged result back.
    """

    def __init__(self, context: Context, execution: Execution, buffers: Any,
                 store: Callable[[], None] | None, threaded: bool = True, queue: Any = None):
        super().__init__(context, buffers, threaded)
        self.execution: Execution | None = execution
        self.store, self.queue, self.steps = store, queue, 0
        self.started = False
        self.token = MPI.Grequest.Start(self._query)
        if queue is not None:
            queue.enter(self)
        try:
            with self.lock:  # progress of a later operation of the queue also starts this one
                self._advance(execution)
                if not self.over:
                    PROGRESS.add(self)  # under the lock: it cannot complete and be removed before
        except BaseException as error:
            self._complete(error)
            self.quiet = True
            self.token.Wait()
            if self.error is not None and self.error is not error:
                raise self.error from cause_of(error)
            raise

    def _advance(self, execution: Execution) -> bool:
        """Start or progress the first operation of the queue; return True on progress."""
        self.check_queue(self.queue)
        if self.queue is not None:
            first = self.queue.first  # None after a failure
            if first is not self:
                return first is not None and bool(first.progress())
        moved = not self.started or execution.progress()
        if not self.started:
            self.started = True
            execution.start()
        if execution.done:
            self._complete()
        return moved

    @property
    def pending_run(self) -> PendingRun:
        """The execution, until it has completed."""
        if self.execution is None:
            raise RequestError("the collective has completed")
        return self.execution

    @property
    def moves(self) -> int:
        """Number of progress steps so far."""
        return self.steps

    def _step(self) -> bool:
        execution = self.execution
        if execution is None:
            return False
        moved = self._advance(execution)
        self.steps += moved
        return moved

    def _complete(self, error: BaseException | None = None) -> None:
        if error is not None and self.execution is not None:
            # Messages may still be in flight: their buffers must stay alive.
            self.context.abandoned.append(self.execution)
            error = self.context.fail(error, self.execution.title, self.execution.plan,
                                      self.execution.tag)
        self.error, self.over = error, True
        if self.queue is not None:
            if error is not None:
                self.queue.stop()
            self.queue.leave(self)
        PROGRESS.remove(self)
        self.token.Complete()

    def _query(self, status: MPI.Status) -> None:
        """Store the result or raise the error; MPI may call this several times at completion."""
        if self.error is not None:
            if not self.quiet:
                raise raisable(self.error)
            return
        store, self.store = self.store, None
        if store is not None:
            store()
        self.buffers = self.execution = None
