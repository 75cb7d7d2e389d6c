"""Requests of nonblocking and persistent collectives that hpccoll runs.

Such a request holds a real MPI handle, a generalized request that completes with the execution. So
``MPI.Request.Waitall([ours, native])`` waits for both; ``REQUEST_NULL`` would count as complete
there. Its operation is progressed by :mod:`hpccoll.runtime.progress.engine`.

``HPCCOLL_TIMEOUT`` limits ``Wait`` of such a request, and ``Waitall`` and similar methods of lists
with such a request (:mod:`hpccoll.comm.waitall`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from mpi4py import MPI

from hpccoll.comm.recognition import shortcut
from hpccoll.comm.waitall import Several, extend_mpi4py
from hpccoll.errors.mpi import DeadCommunicatorError, RequestError
from hpccoll.runtime.context import Context
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.progress.engine import PROGRESS, PendingOperation
from hpccoll.runtime.progress.operations import NULL, Operation, cell

if BUILT:
    from hpccoll.runtime.execution import _executor
    from hpccoll.runtime.execution.compiled_operations import CompiledOperation

if TYPE_CHECKING:
    _Methods = MPI.Request
else:
    _Methods = object  # the classes that mix it in have them


#: Seconds between two polls of the other ranks by failing tests.
POLL_INTERVAL = 0.1


class DrivenRequest(Several, _Methods):
    """Completion methods of a request with an operation."""

    _operation: PendingOperation | None = None
    #: When a failing test polls the other ranks next; the operation that it polls for, and how.
    _poll_at = 0.0
    _poll: tuple[PendingOperation, Callable[[], None]] | None = None

    @shortcut
    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for completion.

        Raises:
            CollectiveTimeout: no progress for ``HPCCOLL_TIMEOUT`` seconds.
        """
        PROGRESS.check_process()
        if self._operation is not None:
            self._operation.wait()
        self._settle(super().Wait, status)
        return True

    @shortcut
    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress; return True if the collective has completed.

        Raises:
            CollectiveTimeout, BrokenCommunicatorError: like ``Wait``, for tests in a loop.
        """
        return self._test(super().Test, status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Make progress; return True if the collective has completed, and keep the request."""
        return self._test(super().Get_status, status)

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait for completion; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Make progress; return True if the collective has completed, and no object."""
        return self.Test(status), None

    def poll_callback(self) -> Callable[[], bool]:
        """Return a callback that monitors the collective between tests of several requests.

        The callback returns True to be called again, and False once the collective has completed
        without an error. The next test raises its error, if any.
        """
        operation = self._operation
        if operation is None or operation.over:
            return lambda: operation is not None and operation.error is not None
        look, failed = operation.poll_callback(rare=True), operation.fail

        def poll() -> bool:
            try:
                look()
            except BaseException as error:
                failed(error)
            return not operation.over or operation.error is not None
        return poll

    def Cancel(self) -> None:
        """Raise an error: MPI does not allow it for collectives."""
        raise RequestError("a collective cannot be cancelled; wait for it")

    cancel = Cancel

    def _test(self, method: Callable[..., bool], status: MPI.Status | None) -> bool:
        """Make progress, and complete the MPI request if the collective has completed."""
        PROGRESS.check_process()
        PROGRESS.step()
        done = self._settle(method, status)
        if not done and self.poll_rarely():
            done = self._settle(method, status)
        if done:
            self._poll = None
        return done

    def poll_rarely(self) -> bool:
        """Check the other ranks from time to time, for tests in a loop; return True if it did."""
        operation, now = self._operation, time.monotonic()
        if operation is None or operation.over:
            self._poll = None  # it references the caller's arrays
            return False
        if now < self._poll_at:
            return False
        self._poll_at = now + POLL_INTERVAL
        if self._poll is None or self._poll[0] is not operation:  # a start makes a new one
            self._poll = operation, operation.poll_callback(rare=True)
            return False
        try:
            self._poll[1]()
        except BaseException as error:
            operation.fail(error)
        return True

    def _settle(self, method: Callable[..., bool], status: MPI.Status | None) -> bool:
        """Complete the MPI request, and raise the error of the collective."""
        operation = self._operation
        if operation is None:
            return method(status)
        operation.quiet = True
        try:
            flag = method(status)
        finally:
            operation.quiet = False
        if flag and operation.error is not None:
            raise operation.error
        return flag


class Request(DrivenRequest, MPI.Request):
    """Nonblocking collective that hpccoll runs."""

    def Free(self) -> None:
        """Raise an error while the collective is pending: MPI does not allow it."""
        if self._operation is not None and not self._operation.over:
            raise RequestError("a pending collective cannot be freed; wait for it")
        super().Free()


def request_of(operation: Operation) -> Request:
    """Return the request of a started operation."""
    extend_mpi4py()
    request = Request.__new__(Request, operation.token)
    request._operation = operation
    return request


def request_factory(context: Context, compiled_plan: Any, threaded: bool) -> Any:
    """Return a factory of requests for calls of one compiled plan in the context's lane."""
    extend_mpi4py()
    return _executor.Begin(compiled_plan,
                           lambda one: CompiledOperation(context, one, None, context.request_queue,
                                                         threaded),
                           Request)


class Prequest(DrivenRequest, MPI.Prequest):
    """Persistent collective that hpccoll runs: prepared once, started many times.

    Between two runs its handle is ``REQUEST_NULL``, so that ``MPI.Prequest.Startall``, which cannot
    start it, raises an error: call ``Start`` on each.

    Args:
        context: the context of its communicator.
        make: returns the arguments of an :class:`Operation` after the context: execution, buffers,
            store.
        free: releases resources when the request is freed.
        prepared: the operation for all starts, if there is one.
    """

    _context: Context
    _make: Callable[[], tuple[Any, ...]] | None
    _free: Callable[[], None]
    _prepared: CompiledOperation | None
    _cell: Any

    def __new__(cls, context: Context, make: Callable[[], tuple[Any, ...]],
                free: Callable[[], None],
                prepared: CompiledOperation | None = None) -> Prequest:
        extend_mpi4py()
        self = MPI.Prequest.__new__(cls)
        self._context, self._make, self._free = context, make, free
        self._operation = self._prepared = prepared
        self._cell = cell(self)
        return self

    @shortcut
    def Start(self) -> None:
        """Start the collective."""
        prepared = self._prepared
        if prepared is None or not prepared.idle or self._context.freed or PROGRESS.parent:
            self._check_startable()
            if prepared is None:
                make = self._make or tuple
                operation = self._operation = Operation(self._context, *make())
                self._cell.value = cell(operation.token).value
                return
        prepared.start(self)

    @shortcut
    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for completion; see :meth:`Driven.Wait`."""
        prepared = self._prepared
        if prepared is not None and prepared.finish():
            self._cell.value = NULL
            prepared.idle = True
            if status is None:
                return True
        return super().Wait(status)

    def _check_startable(self) -> None:
        PROGRESS.check_process()
        if self._make is None:
            raise RequestError("the request was freed")
        if self._cell.value != NULL:
            raise RequestError("the request is active; wait for it before starting it again")
        if self._operation is not None and self._operation.error is not None:
            raise RequestError("the last run of the request failed; free it and create a new one")
        if self._context.freed:
            raise DeadCommunicatorError("the communicator of this request was freed")

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        """Start several requests of any kind."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Free the request's resources.

        Raises:
            RequestError: the request is active, or was freed before.
        """
        if self._make is None:
            raise RequestError("the request is freed")
        if self._active():
            raise RequestError("the request is active; wait for it before freeing it")
        self._free()
        # A program may keep the request, but must not keep its arrays alive by it.
        self._make = self._operation = self._prepared = self._poll = None
        del self._free

    def free(self) -> None:
        """Call ``Free``, unless the request was freed before."""
        if self:
            self.Free()

    def __bool__(self) -> bool:
        return self._make is not None

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, MPI.Request):
            return NotImplemented
        return self is other or not self and not other

    def __ne__(self, other: Any) -> bool:
        if not isinstance(other, MPI.Request):
            return NotImplemented
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # like mpi4py: handles change

    def _active(self) -> bool:
        return MPI.Request.__bool__(self)
