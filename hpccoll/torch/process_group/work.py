"""Work: what a call hands out, done or still to be done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from hpccoll.errors import GroupTimeout
from hpccoll.torch.process_group.eager import run_eagerly
from hpccoll.torch.streams import behind, caller_stream

#: What ``wait()`` without an argument passes on, here or from C++.
NO_TIMEOUT = timedelta(0)


@run_eagerly
class FinishedWork(Work):
    """A call that is over when it returns; one object stands for all of them."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return at once."""
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """It is."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """Errors were raised by the call."""

    def result(self) -> list[torch.Tensor]:
        """Nothing: the results are in the tensors of the call."""
        return []

    def get_future(self) -> torch.futures.Future:
        """A future that is done."""
        future = torch.futures.Future()
        future.set_result([])
        return future


@run_eagerly
class GroupWork(Work):
    """A call under way.

    Args:
        title: what runs, for messages to people.
        run: does it; what it returns is the rank of a message's source.
        tensors: the result.
        seconds: how long ``wait()`` waits.
    """

    def __init__(self, title: str, run: Callable[[], int | None] | None,
                 tensors: Sequence[torch.Tensor], seconds: float):
        super().__init__()
        self.title, self.run, self.tensors, self.seconds = title, run, tensors, seconds
        self.error: BaseException | None = None
        self.source: int | None = -1
        #: Number of the call in its group.
        self.number = 0
        self.over = False
        #: Modes of the caller, which hold wherever it is run.
        self.inference, self.grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self.stream = caller_stream(tensors)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        #: What :meth:`get_future` has handed out, and what completes it.
        self._future: torch.futures.Future | None = None
        self._complete: Callable[[], None] = nothing
        #: Does in the thread that waits what would be done elsewhere; tells whether it is over.
        self.assist: Callable[[GroupWork], bool] = lambda work: False
        #: Called with this work when time is up.
        self.give_up: Callable[[GroupWork], None] = lambda work: None

    def do(self) -> Callable[[], None]:
        """Run it here, to its end.

        Returns:
            What tells the future's callbacks. They may do anything, call the same group and wait
            for it: whoever calls must not stand in their way.
        """
        if self.over:
            return nothing
        source, error = None, None
        try:
            source = self._run(self.run) if self.run is not None else None
        except BaseException as raised:
            error = raised
        return self._note(error, source)

    def _run(self, run: Callable[[], int | None]) -> int | None:
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        if modes == (self.inference, self.grad) and self.stream is None:
            return run()
        with (torch.inference_mode(self.inference), torch.set_grad_enabled(self.grad),
              behind(self.stream)):
            return run()

    def end(self, error: BaseException | None = None, source: int | None = None) -> None:
        """Note the end, and let everybody know who waits for it; the first end counts."""
        self._note(error, source)()

    def _note(self, error: BaseException | None, source: int | None) -> Callable[[], None]:
        with self._lock:
            if self.over:
                return nothing
            self.error, self.source, self.run = error, source, None
            self.over = True
            complete = self._complete
        self._ended.set()
        return complete

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end.

        Args:
            timeout: how long; as long as the group waits if omitted.

        Raises:
            GroupTimeout: it took longer. The group cannot be used any more.
        """
        limited = timeout > NO_TIMEOUT
        # What runs in this thread cannot be left when a time of the caller's is up.
        if not self.over and (limited or not self.assist(self)):
            seconds = timeout.total_seconds() if limited else self.seconds
            if not self._await(seconds):
                self.end(GroupTimeout(self.title, seconds))
                self.give_up(self)
        if self.error is not None:
            raise self.error
        return True

    synchronize = wait

    def _await(self, seconds: float) -> bool:
        """Wait for another thread to end it; tell whether that happened in time."""
        return self._ended.wait(seconds)

    def is_completed(self) -> bool:
        """Return True if it is over, well or with an error."""
        return self.over

    def is_success(self) -> bool:
        """Return True if it ended well."""
        return self.over and self.error is None

    def exception(self) -> BaseException | None:
        """What went wrong."""
        return self.error

    def result(self) -> list[torch.Tensor]:
        """The tensors with the result."""
        return list(self.tensors)

    def _source_rank(self) -> int:
        return -1 if self.source is None else self.source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors with the result; completed by the thread that ends the call."""
        with self._lock:
            if self._future is None:
                self._future, self._complete = promise(self._outcome)
                if self.over:
                    self._complete()
            return self._future

    def _outcome(self) -> list[torch.Tensor]:
        if self.error is None:
            return list(self.tensors)
        if isinstance(self.error, Exception):
            raise self.error
        raise RuntimeError(f"{self.title}: {self.error!r}")


@run_eagerly
class CoalescedWork(GroupWork):
    """Several calls that were issued as one."""

    def __init__(self, works: Sequence[Any]):
        super().__init__("coalesced calls", None, [
            tensor for work in works for tensor in work.result()], 0.0)
        self.works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for all of them."""
        for work in self.works:
            work.wait(timeout)
        self.end()
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Return True if all are over."""
        return all(work.is_completed() for work in self.works)

    def get_future(self) -> torch.futures.Future:
        """A future of all results."""
        futures = torch.futures.collect_all([work.get_future() for work in self.works])
        return futures.then(lambda done: [tensor for one in done.value() for tensor in one.value()])


def promise(outcome: Callable[[], Any]) -> tuple[torch.futures.Future, Callable[[], None]]:
    """A future, and what completes it: its value is what ``outcome`` returns, or raises.

    ``Future.set_exception`` would store an error as the value, which the C++ code of DDP takes for
    a tensor: a segmentation fault. What a callback raises is an error to C++ as well.
    """
    start = torch.futures.Future()
    return start.then(lambda _: outcome()), lambda: start.set_result(None)


def nothing() -> None:
    """There is nobody to tell."""


FINISHED = FinishedWork()

