"""Operations: collectives that requests stand for.

    Request, Prequest --handle--> generalized request <--completes-- Operation --drives--> Execution

An :class:`Operation` is one nonblocking collective that the interpreter runs, and a
:class:`PersistentOperation` is prepared for it once, and started again and again. Those of the
compiled executor are in :mod:`hpccoll.runtime.execution.taped`.

Nonblocking calls whose messages are small share the channels of a *lane*: one runs, and those that
were begun later wait for their turn, so that messages come in the order of the calls on every rank.
Whoever moves an operation on moves those before it in its lane first. When one has failed nobody
has a turn any more: others would take the messages of the next one for those of the failed one. The
next ones end with an error when somebody moves them on.

Results for staged device memory are stored when completion is observed, in the thread that
observes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.errors import cause_of
from hpccoll.errors.mpi import RequestError
from hpccoll.runtime.context import Context
from hpccoll.runtime.execution.executor import Execution, PreparedRun
from hpccoll.runtime.progress.engine import PROGRESS, Underway
from hpccoll.runtime.progress.waiting import Awaited

#: Polls of its own operation before ``Wait`` starts to drive all of them.
POLLS = 200
#: An MPI handle in memory, by its size: our requests lend themselves the handle of a token.
_HANDLES = {4: ctypes.c_uint32, 8: ctypes.c_uint64}


def cell(request: MPI.Request) -> Any:
    """The handle in a request, as a value that can be read and written."""
    return _HANDLES[MPI._sizeof(MPI.Request)].from_address(MPI._addressof(request))


NULL = cell(MPI.REQUEST_NULL).value


class Operation(Underway):
    """One nonblocking collective under way.

    Args:
        context: of the communicator it runs on.
        execution: what runs; started here.
        buffers: whatever must stay alive until the end.
        store: brings the result back to device memory, if it has to be.
        threaded: the thread may drive it.
        lane: where it waits for its turn, if it shares channels with others.
    """

    def __init__(self, context: Context, execution: Execution, buffers: Any,
                 store: Callable[[], None] | None, threaded: bool = True, lane: Any = None):
        super().__init__(context, buffers, threaded)
        self.execution: Execution | None = execution
        self.store, self.lane, self.steps = store, lane, 0
        self.started = False
        self.token = MPI.Grequest.Start(self._observed)
        if lane is not None:
            lane.enter(self)
        try:
            with self.lock:  # whoever moves a later one of the lane on would begin this one, too
                self._advance(execution)
                if not self.over:
                    PROGRESS.add(self)  # nobody can end it before, and take it off too early
        except BaseException as error:
            self._complete(error)
            self.quiet = True
            self.token.Wait()
            if self.error is not None and self.error is not error:
                raise self.error from cause_of(error)
            raise

    def _advance(self, execution: Execution) -> bool:
        """Start it when its turn has come, or do what can be done now; tell whether it moved."""
        self.check_lane(self.lane)
        if self.lane is not None:
            first = self.lane.first  # None: one has failed
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
    def awaited(self) -> Awaited:
        """The execution."""
        if self.execution is None:
            raise RequestError("the collective has completed")
        return self.execution

    @property
    def moves(self) -> int:
        """Steps of progress so far."""
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
            # Its messages may still be in flight.
            self.context.abandoned.append(self.execution)
            error = self.context.fail(error, self.execution.title, self.execution.plan,
                                      self.execution.tag)
        self.error, self.over = error, True
        if self.lane is not None:
            if error is not None:
                self.lane.stop()
            self.lane.leave(self)
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

    def __init__(self, context: Context, run: PreparedRun, buffers: Any,
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

    def start(self, request: Any) -> None:
        """Post the first messages, for a request that gets a handle."""
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
                raise self.error from cause_of(error)
            raise
        PROGRESS.operations.append(self)
        if PROGRESS.lazy and self.threaded:
            PROGRESS.wake()
        request._cell.value = self.handle
        # Only now, when all is posted, may the thread join in: one that still holds this operation
        # from its last run could end it before it is on the list, and it would stay there.
        self.over = False

    def _step(self) -> bool:
        return self._ended(1, self._complete)

    def finish(self) -> bool:
        """Wait for the end here, for a moment; tell whether that ended it, unseen by MPI."""
        return self._alone(lambda: self._ended(self.tries, self._leave)) and self.error is None

    def _ended(self, tries: int, end: Callable[[], None]) -> bool:
        if not self.run.advance(tries):
            return False
        end()
        return True

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
