"""Queue of asynchronous operations of one process set, which run in call order.

An operation is a generator that yields MPI requests, like the reductions of
:mod:`hpccoll.training.compress`. An operation starts when the previous one has ended, so all
ranks make the same calls in the same order, whatever the timing. Operations progress while the
program computes (:mod:`hpccoll.training.engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpccoll.errors.waits import raisable
from hpccoll.runtime.progress.task_queue import Steps
from hpccoll.training.engine import Engine

#: Operation: yields requests and returns its result.
Operation = Steps


class AsyncResult:
    """Handle of a pending operation, for ``poll`` and ``synchronize``.

    ``look`` returns True if it has completed, and waits first with a true argument.
    """

    def __init__(self, look: Callable[[bool], bool], take: Callable[[], Any]):
        self.look, self._take = look, take

    def done(self) -> bool:
        """Return True if the operation has completed; never blocks."""
        return self.look(False)

    def wait(self) -> Any:
        """Wait for the result and return it or raise its error; may be called repeatedly."""
        self.look(True)
        return self._take()

    # Horovod's sparse_allreduce_async returns a function.
    __call__ = wait


def join_results(pending: list[AsyncResult]) -> AsyncResult:
    """Return one handle for several operations; its result is the list of results."""
    return AsyncResult(lambda wait: all([each.look(wait) for each in pending]),
                   lambda: [each.wait() for each in pending])


def then(pending: AsyncResult, finish: Callable[[Any], Any]) -> AsyncResult:
    """Return a handle that applies a function to the result, once."""
    results: list[Any] = []

    def take() -> Any:
        if not results:
            results.append(finish(pending.wait()))
        return results[0]

    return AsyncResult(pending.look, take)


class _PendingOperation:
    """An operation in the queue."""

    def __init__(self, on_done: Callable[[BaseException | None], None]) -> None:
        self.over, self.on_done = False, on_done
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, steps: Operation) -> Steps:
        try:
            self.result = yield from steps
        except Exception as error:
            # The error ends this operation only, on all ranks.
            self.end(error)
        else:
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        if not self.over:
            self.error, self.over = error, True
            self.on_done(error)

    def take(self) -> Any:
        if self.error is not None:
            raise raisable(self.error)
        return self.result


class OperationLine(Engine):
    """Queue of pending operations of a process set, on a communicator of its own."""

    def __init__(self, comm: Any):
        super().__init__(1, lambda: False, self._end_all)
        self.comm = comm
        self.start_thread(True)
        self._failure: BaseException | None = None
        self._pending: set[_PendingOperation] = set()
        self._names: dict[str, int] = {}

    def name(self, kind: str, given: str | None) -> str:
        """Return ``given``, or a name from a counter if it is None."""
        if given is not None:
            return f"{kind}.{given}"
        number = self._names[kind] = self._names.get(kind, 0) + 1
        return f"{kind}.noname.{number}"

    def start(self, steps: Operation,
              on_done: Callable[[BaseException | None], object] = lambda error: None
              ) -> AsyncResult:
        """Append an operation to the queue; ``on_done`` is called at its end with its error."""
        def end(error: BaseException | None) -> None:
            self._pending.discard(operation)
            on_done(error)

        operation = _PendingOperation(end)
        self._pending.add(operation)
        if self._failure is None:
            self.submit(0, operation.run(steps))
        else:
            operation.end(self._failure)

        def look(wait: bool) -> bool:
            if wait:
                self.wait(lambda: operation.over, lambda: None)
            elif not operation.over:
                self.step()
            return operation.over

        return AsyncResult(look, operation.take)

    def run(self, steps: Operation) -> Any:
        """Append an operation to the queue and wait for its result."""
        return self.start(steps).wait()

    def close(self) -> None:
        """Wait until no operation is pending, and stop."""
        self.wait(lambda: not self._pending, lambda: None)
        self.stop()

    def _end_all(self, error: BaseException) -> None:
        # An MPI error or a time-out: the state of the other ranks is unknown.
        self._failure = self._failure or error
        for operation in tuple(self._pending):
            operation.end(error)
