"""Calls that a library has queued on a device, which return before they run.

Each call is recorded in this rank's log when it is made, like a native MPI call. If calls are
compared, the watchdog thread monitors it (:class:`StreamMonitor`). A call cannot complete if a rank
is missing, has exited or failed, or if the library reports a fault. Then all queued calls are
aborted, so that waits for the device end, and the next call raises the error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout, HpccollError, cause_of
from hpccoll.errors.waits import print_report, report_text, summary
from hpccoll.guard.call_sites import main_site
from hpccoll.guard.guard import Guard, PendingCall
from hpccoll.guard.rank_status import format_call
from hpccoll.guard.watchdog import WATCHDOG, LibraryTimer, Monitor
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import NUMBER
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.waiting import Meeting


class QueuedCall(NamedTuple):
    """A queued call.

    Attributes:
        number: of the call; 0 where calls have none.
        description: of it.
        event: recorded behind it on the device; its ``done`` queries the device.
        held: objects that must live until then.
    """

    number: int
    description: Description
    event: Any
    held: Any


class StreamMonitor(Monitor):
    """Queued calls of one communicator.

    Args:
        guard: the guard of the communicator.
        check: raises if the library has found a fault.
        abort: aborts all queued calls.
        device: the device of the queue.
        happened: returns True if an event has completed, or raises a fault of the device.
    """

    def __init__(self, guard: Guard, check: Callable[[], None],
                 abort: Callable[[], None], device: Any, happened: Callable[[Any], bool]):
        self.guard, self.check, self.abort = guard, check, abort
        self.device, self.happened = device, happened
        self.lock, self.pending = threading.RLock(), deque[QueuedCall]()
        self.ended, self.why = False, ""
        if guard.compares_calls and guard.ranks.size > 1:
            WATCHDOG.add(self)

    # -- called by collectives ------------------------------------------------------------------
    def add(self, description: Description, event: Any, held: Any) -> None:
        """Add a queued call; remove the completed ones."""
        number = self.guard.logs.mine.words[NUMBER] if self.guard.compares_calls else 0
        with self.lock:
            self.tidy()
            self.pending.append(QueuedCall(number, description, event, held))

    def raise_if_broken(self) -> None:
        """Raise the error that aborted earlier calls, if there is one."""
        if self.ended and self.guard.failure is not None:
            self.guard.raise_failure()
        if self.ended:
            raise BrokenCommunicatorError("communicator is broken: device operations were "
                                          f"aborted: {self.why}; call Dup on a working "
                                          "communicator, or end the job")

    def tidy(self) -> None:
        """Remove the completed calls."""
        with self.lock:
            while self.pending and self.pending[0].event.done:
                self.pending.popleft()

    def end(self) -> None:
        """Abort all queued calls, once."""
        with self.lock:
            if not self.ended:
                self.ended = True
                self.abort()
                self.pending.clear()

    def close(self, seconds: float, free: Callable[[], None]) -> None:
        """Free the library's resources when all calls have completed; otherwise abort.

        Freeing waits for the other ranks, forever if one of them has aborted its calls.
        """
        if self.ended:
            return
        if self.guard.has_failed:
            self.end()
        elif not self.drain(seconds):
            call = self._pending_call(self.pending[0])
            missing = call.pending_peers()[1]
            self.abort_queue(CollectiveTimeout(call.title, call.rank, 0, missing, round(seconds, 1),
                                               self.guard.collect_states(missing)))
        with self.lock:  # the thread may be checking for faults
            if not self.ended:
                self.ended = True
                free()

    def drain(self, seconds: float) -> bool:
        """Wait until all calls have completed; return True unless the wait timed out."""
        def is_empty() -> bool:
            self.tidy()
            return not self.pending
        return wait_until(is_empty, budget=seconds)

    @contextmanager
    def abort_on_error(self, description: Description) -> Iterator[None]:
        """Abort all queued calls and break the communicator if the body raises.

        The other ranks get the first call that cannot complete. A call that sent nothing is not
        counted any more, and a rank in the call before can still complete that.
        """
        title, words = format_call(description), self.guard.logs.mine.words
        begun = words[NUMBER] + self.guard.compares_calls  # otherwise calls have no numbers
        try:
            yield
        except BaseException as error:
            with self.lock:
                with suppress(Exception):  # the device may have failed as well
                    self.tidy()
                number, which = max(begun, words[NUMBER]), (title, description)
                if self.pending:
                    number, known = self.pending[0].number, self.pending[0].description
                    which = format_call(known), known
                self.end()
            if isinstance(error, HpccollError) and self.guard.failure is not None:
                raise  # it is the error of an earlier failure
            reported: BaseException = error if not isinstance(error, Exception) or isinstance(
                error, HpccollError) else BrokenCommunicatorError(
                    f"{title}: {type(error).__name__}: {error}; the NCCL communicator is broken; "
                    "call Dup on a working communicator, or end the job")
            diagnosis = self.guard.fail(reported, *which, 0, number=number,
                                        own=reported is not error)
            if diagnosis is error:
                raise
            raise diagnosis from cause_of(error)

    # -- called by the watchdog ------------------------------------------------------------------
    def poll(self) -> str:
        """Check the queued calls; return an empty message: the process is never ended."""
        self.device.use()  # otherwise the first query of a thread makes a context on device 0
        with self.lock:
            if not self.ended:
                self.tidy()
            fault = self._fault()
        if fault is not None:
            self.abort_queue(fault, own=True)
        return super().poll()

    def _fault(self) -> BaseException | None:
        """Return a fault that the library or the device has found in the first call."""
        with self.lock:
            if not self.ended and self.pending:
                try:
                    self.check()
                    self.happened(self.pending[0].event)
                except Exception as error:
                    return BrokenCommunicatorError(f"NCCL: {type(error).__name__}: {error}")
        return None

    def pending_timer(self) -> LibraryTimer | None:
        """See :class:`Monitor`.

        Entries of ranks on other nodes are not visible: a call behind a backlog is not late.
        """
        with self.lock:
            first = self.pending[0] if self.pending else None
        if first is None or self.timer is not None and self.timer.awaited.number == first.number:
            return self.timer if first is not None else None
        return self.guard.library_timer(self._pending_call(first))

    def _pending_call(self, call: QueuedCall) -> PendingCall:
        return PendingCall(self.guard, f"{format_call(call.description)} of NCCL", call.number)

    def give_up(self, call: Meeting, error: HpccollError) -> str:
        """See :class:`Monitor`."""
        self.abort_queue(error)
        return ""

    def abort_queue(self, error: BaseException, own: bool = False) -> None:
        """Publish that the first call cannot complete; the next call on this rank raises it."""
        with self.lock:
            if self.ended or not self.pending:  # meanwhile, by another thread
                return
            first, self.why = self.pending[0], summary(error)
        if self.guard.speaks:
            error = self.guard.fail(error, format_call(first.description), first.description, 0,
                                    main_site(), number=first.number, in_thread=True, own=own)
        self.end()
        print_report(f"{report_text(error)}\n  rank {self.guard.rank} aborts its queued calls, "
                     f"from call {first.number} on")
