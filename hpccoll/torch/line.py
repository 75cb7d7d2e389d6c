"""Operations of one process set, begun at once and done in the order in which they were called.

An operation is written as a generator that yields MPI requests, as reductions of
:mod:`hpccoll.training.compress` are. On every rank the next one begins when the one before it has
ended, so that all ranks make the same calls in the same order, whatever the timing. They move
while the program computes (:mod:`hpccoll.training.engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from hpccoll.training.engine import Engine, Task

#: An operation: yields requests, returns its result.
Operation = Generator[Any, None, Any]


class AsyncResult:
    """The handle of an operation under way: ``poll`` and ``synchronize`` take it.

    Args:
        look: tells whether the operation is over; waits for that if its argument is true.
        take: its result, or raises what went wrong.
    """

    def __init__(self, look: Callable[[bool], bool], take: Callable[[], Any]):
        self.look, self._take = look, take

    def done(self) -> bool:
        """Tell whether it is over; never waits."""
        return self.look(False)

    def wait(self) -> Any:
        """Wait for the result; a second call returns it again.

        Raises:
            Exception: what went wrong, on every rank.
        """
        self.look(True)
        return self._take()

    # Horovod's sparse_allreduce_async returns a function.
    __call__ = wait


def together(pending: list[AsyncResult]) -> AsyncResult:
    """Several operations as one, whose result is the list of theirs."""
    return AsyncResult(lambda wait: all([each.look(wait) for each in pending]),
                   lambda: [each.wait() for each in pending])


def then(pending: AsyncResult, finish: Callable[[Any], Any]) -> AsyncResult:
    """An operation whose result goes through a function, once."""
    results: list[Any] = []

    def take() -> Any:
        if not results:
            results.append(finish(pending.wait()))
        return results[0]

    return AsyncResult(pending.look, take)


class _Entry:
    """An operation in the line."""

    def __init__(self) -> None:
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, steps: Operation) -> Task:
        try:
            self.result = yield from steps
        except Exception as error:
            # It ends this operation, on all ranks alike, and no other.
            self.error = error
        self.over = True


class OperationLine:
    """The operations of a process set that are under way.

    Args:
        comm: its ranks; nothing else communicates on it.
    """

    def __init__(self, comm: Any):
        self.comm = comm
        self._engine = Engine(1, lambda: False, self._fail)
        self._engine.start(True)
        self._failure: BaseException | None = None
        self._names: dict[str, int] = {}
        #: Called with what has ended all operations.
        self.listeners: set[Callable[[BaseException], None]] = set()

    def name(self, kind: str, given: str | None) -> str:
        """The name of an operation; made from a count where none is given."""
        if given is not None:
            return f"{kind}.{given}"
        number = self._names[kind] = self._names.get(kind, 0) + 1
        return f"{kind}.noname.{number}"

    def start(self, steps: Operation) -> AsyncResult:
        """Put an operation at the end of the line."""
        entry = _Entry()
        self._engine.submit(0, entry.run(steps))

        def look(wait: bool) -> bool:
            if wait:
                self._engine.wait(lambda: entry.over or self._failure is not None, lambda: None)
            else:
                self._engine.drive()
            return entry.over or self._failure is not None

        def take() -> Any:
            error = entry.error if entry.over else self._failure
            if error is not None:
                raise error
            return entry.result

        return AsyncResult(look, take)

    def run(self, steps: Operation) -> Any:
        """Put an operation at the end of the line, and wait for its result."""
        return self.start(steps).wait()

    def close(self) -> None:
        """Wait until nothing is under way, and end."""
        self._engine.wait(lambda: not self._engine.busy or self._failure is not None, lambda: None)
        self._engine.stop()

    def _fail(self, error: BaseException) -> None:
        # The MPI library, or a time-out: what other ranks do now is unknown.
        self._failure = self._failure or error
        for listener in tuple(self.listeners):
            listener(error)
