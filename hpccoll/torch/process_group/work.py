"""Work handles of calls, completed or pending."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch.distributed import Work

from hpccoll.errors import GroupTimeout
from hpccoll.errors.waits import raisable
from hpccoll.runtime.progress.engine import SHORTEST_PAUSE
from hpccoll.torch.streams import after_caller, caller_stream

#: Seconds to wait for the end of a thread, which may run callbacks.
LONGEST = 5.0
#: Default argument of ``wait()``, from Python or C++.
NO_TIMEOUT = timedelta(0)
Class = TypeVar("Class", bound=type)


def run_eagerly(kind: Class) -> Class:
    """Mark the methods of a class for a graph break in ``torch.compile``.

    A compiled function may call a group or wait for its work. TorchDynamo cannot trace these
    methods: their objects hold MPI handles and locks. The public decorator,
    ``torch.compiler.disable``, would import the compiler with the backend, and wrap every call.
    PyTorch before 2.7 lacks this mark; then the function does nothing.
    """
    if not hasattr(eval_frame, "_FrameExecStrategy"):
        return kind
    skip = eval_frame._FrameAction.SKIP  # for the method and its callees
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            eval_frame.set_code_exec_strategy(
                method.__code__, eval_frame._FrameExecStrategy(skip, skip))
            method._torchdynamo_disable = True  # type: ignore[attr-defined]
    return kind


@run_eagerly
class FinishedWork(Work):
    """Work of synchronous calls, which are complete on return; one shared object."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return True immediately."""
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Return True."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """Return None: the call itself raised errors."""

    def result(self) -> list[torch.Tensor]:
        """Return an empty list: the results are in the tensors of the call."""
        return []

    def get_future(self) -> torch.futures.Future:
        """Return a completed future."""
        future = torch.futures.Future()
        future.set_result([])
        return future


@run_eagerly
class GroupWork(Work):
    """Work of a pending call: ``run`` returns the source rank of a message.

    ``tensors`` are the result, ``seconds`` is the time limit of ``wait()``.
    """

    def __init__(self, title: str, run: Callable[[], int | None] | None,
                 tensors: Sequence[torch.Tensor], seconds: float):
        super().__init__()
        self.title, self.run, self.tensors, self.seconds = title, run, tensors, seconds
        self.error: BaseException | None = None
        self.source: int | None = -1
        #: Sequence number of the call in its group.
        self.number = 0
        self.over = False
        #: Autograd modes of the caller, which apply in any thread.
        self.inference, self.grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self.stream = caller_stream(tensors)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        #: Future of :meth:`get_future`, and the function that completes it.
        self._future: torch.futures.Future | None = None
        self._complete: Callable[[], None] = nothing
        #: Runs pending calls in the waiting thread; returns True if this one has completed.
        self.assist: Callable[[GroupWork], bool] = lambda work: False
        #: Called with this work on time-out.
        self.give_up: Callable[[GroupWork], None] = lambda work: None

    def do(self) -> Callable[[], None]:
        """Run the call to completion in this thread; return a function that runs the callbacks.

        Callbacks may call the same group and wait for it: the caller must not block them.
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
              after_caller(self.stream)):
            return run()

    def end(self, error: BaseException | None = None, source: int | None = None) -> None:
        """Mark the call as complete and notify waiting threads; later calls have no effect."""
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
        """Wait for completion.

        A ``GroupTimeout`` after ``timeout`` ends this wait only: the call goes on. After that of
        the group, the group is unusable.
        """
        limited = timeout > NO_TIMEOUT
        # A call in this thread cannot be interrupted at the caller's time limit.
        if not self.over and (limited or not self.assist(self)):
            seconds = timeout.total_seconds() if limited else self.seconds
            if not self._await(seconds) and not self.over:
                error = GroupTimeout(self.title, seconds)
                if limited:
                    raise error
                self.end(error)
                self.give_up(self)
        if self.error is not None:
            raise raisable(self.error)
        return True

    synchronize = wait

    def _await(self, seconds: float) -> bool:
        """Wait for another thread to complete the call; return False on time-out."""
        return self._ended.wait(seconds)

    def is_completed(self) -> bool:
        """Return True if the call has completed, with or without an error."""
        return self.over

    def is_success(self) -> bool:
        """Return True if the call completed without an error."""
        return self.over and self.error is None

    def exception(self) -> BaseException | None:
        """Return the error, or None."""
        return self.error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors with the result."""
        return list(self.tensors)

    def _source_rank(self) -> int:
        return -1 if self.source is None else self.source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future:
        """Return a future of the result tensors; the thread that runs the call completes it."""
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
            raise raisable(self.error)
        raise RuntimeError(f"{self.title}: {self.error!r}")


@run_eagerly
class CoalescedWork(GroupWork):
    """Work of several calls that were issued as one."""

    def __init__(self, works: Sequence[Any]):
        super().__init__("coalesced calls", None, [
            tensor for work in works for tensor in work.result()], 0.0)
        self.works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for all calls."""
        for work in self.works:
            work.wait(timeout)
        self.end()
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Return True if all calls have completed."""
        return all(work.is_completed() for work in self.works)

    def get_future(self) -> torch.futures.Future:
        """Return a future of all results."""
        futures = torch.futures.collect_all([work.get_future() for work in self.works])
        return futures.then(lambda done: [tensor for one in done.value() for tensor in one.value()])


def poll(test: Callable[[], object], seconds: float, longest: float) -> bool:
    """Test and sleep, at most ``longest`` seconds at a time; return False after ``seconds``."""
    pause, end = SHORTEST_PAUSE, time.monotonic() + seconds
    while not test():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return True


def promise(outcome: Callable[[], Any]) -> tuple[torch.futures.Future, Callable[[], None]]:
    """Return a future and a function that completes it with the result of ``outcome``.

    ``Future.set_exception`` would store an error as the value, which the C++ code of DDP uses as a
    tensor: a segmentation fault. An exception of a callback is an error in C++ as well.
    """
    start = torch.futures.Future()
    return start.then(lambda _: outcome()), lambda: start.set_result(None)


def nothing() -> None:
    """Do nothing: there are no callbacks."""


FINISHED = FinishedWork()

