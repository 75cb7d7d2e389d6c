"""Calls that a library has queued on a device, which return before they run.

Each call is recorded in this rank's log when it is made, like a native MPI call. If calls are
compared, the watchdog thread monitors it (:class:`StreamMonitor`). A call cannot complete if a rank
is missing, has exited or failed, or if the library reports a fault. Then all queued calls are
aborted, so that waits for the device end, and the next call raises the error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccoll.errors import (
    BrokenCommunicatorError,
    CollectiveTimeout,
    ForeignMessage,
    HpccollError,
    cause_of,
)
from hpccoll.errors.waits import RankStates, Reports, print_report, report_text, summary
from hpccoll.guard.call_sites import main_site
from hpccoll.guard.guard import GRACE
from hpccoll.guard.library_calls import LibraryCalls
from hpccoll.guard.rank_status import format_call
from hpccoll.guard.watchdog import WATCHDOG
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import NUMBER
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    pass


class QueuedCall(NamedTuple):
    """A queued call.

    Attributes:
        number: of the call; 0 where calls have none.
        description: of it.
        event: recorded behind it on the device; its ``done`` queries the device.
        held: objects that must live until then.
        since: time at which it was queued.
    """

    number: int
    description: Description
    event: Any
    held: Any
    since: float


class StreamMonitor:
    """Queued calls of one communicator.

    Args:
        library: the native calls of the communicator.
        check: raises if the library has found a fault.
        abort: aborts all queued calls.
        device: the device of the queue.
        happened: returns True if an event has completed, or raises a fault of the device.
    """

    def __init__(self, library: LibraryCalls, check: Callable[[], None],
                 abort: Callable[[], None], device: Any, happened: Callable[[Any], bool]):
        guard = library.guard
        self.library, self.guard, self.check, self.abort = library, guard, check, abort
        self.device, self.happened = device, happened
        self.lock, self.pending = threading.RLock(), deque[QueuedCall]()
        self.ended, self.why = False, ""
        #: The call at the last poll, and its reports.
        self.stay = 0, Reports(0.0)
        #: Time at which a call was last found complete.
        self.moved = 0.0
        if guard.compares_calls and guard.ranks.size > 1:
            WATCHDOG.add(self)

    # -- called by collectives ------------------------------------------------------------------
    def add(self, description: Description, event: Any, held: Any) -> None:
        """Add a queued call; remove the completed ones."""
        number = self.guard.logs.mine.words[NUMBER] if self.guard.compares_calls else 0
        with self.lock:
            self.tidy()
            self.pending.append(QueuedCall(number, description, event, held, time.monotonic()))

    def raise_if_broken(self) -> None:
        """Raise the error that aborted earlier calls, if there is one.

        Raises:
            BrokenCommunicatorError: calls were aborted; or ``ContractError`` if ranks disagreed.
        """
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
                self.moved = time.monotonic()

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
        if self._given_up():
            self.end()
        elif not self.drain(seconds):
            first = self.pending[0]
            self._give_up(first, self._late(first, seconds, self.guard.collect_states()), own=False)
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

        Raises:
            BrokenCommunicatorError: the body has failed.
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
            if self.ended:
                return ""
            self.tidy()
            first = self.pending[0] if self.pending else None
        if first is None:
            return ""
        # Entries of ranks on other nodes are not visible: a call behind a backlog is not late.
        elapsed = time.monotonic() - max(first.since, self.moved)
        fault = self._fault(first)
        error = fault or self._hopeless(first, elapsed)
        if error is not None:
            self._give_up(first, error, own=fault is not None)
            return ""
        if first.number != self.stay[0]:
            self.stay = first.number, Reports(self.guard.timeouts.report)
        if elapsed >= self.stay[1].due:
            states = self.guard.collect_states()
            wait = f"{format_call(first.description)} in the queue of rank {self.guard.rank}"
            if not self.stay[1].add(elapsed, states, wait):
                self._give_up(first, self._late(first, elapsed, states), own=False)
        return ""

    def _fault(self, first: QueuedCall) -> BaseException | None:
        """Return a fault that the library or the device has found."""
        with self.lock:
            if self.ended:
                return None
            try:
                self.check()
                self.happened(first.event)
            except Exception as error:
                return BrokenCommunicatorError(f"NCCL: {type(error).__name__}: {error}")
        return None

    def _hopeless(self, first: QueuedCall, elapsed: float) -> BaseException | None:
        """Return the reason why a call cannot complete; ``None`` if it can."""
        guard, timeout = self.guard, self.guard.timeouts.timeout
        if self._given_up():
            return guard.failure or BrokenCommunicatorError()
        if guard.logs.disagree(settled=True):
            return ForeignMessage(-1, guard.rank)
        failed_ranks = guard.rank_status.failed_ranks(first.number, GRACE)
        if failed_ranks:
            return guard.peer_lost_error(failed_ranks, f"{format_call(first.description)} of NCCL")
        if elapsed < timeout or not self._missing_ranks(first):
            return None  # all ranks have entered: the device itself is slow
        return self._late(first, timeout, guard.collect_states(self._missing_ranks(first)))

    def _given_up(self) -> bool:
        """Return True if any rank, this one included, has failed in a call."""
        guard = self.guard
        return guard.failure is not None or (
            bool(guard.logs.alarm_raised(True)) if self.library.speaks else guard.alarm_raised)

    def _missing_ranks(self, first: QueuedCall) -> tuple[int, ...]:
        """Return the ranks that are not known to have entered a call."""
        return tuple(one.rank for one in self.guard.activities() if one.begun < first.number)

    def _late(self, first: QueuedCall, seconds: float, states: RankStates) -> CollectiveTimeout:
        """Return the error of a call that timed out."""
        return CollectiveTimeout(f"{format_call(first.description)} of NCCL", self.guard.rank, 0,
                                 self._missing_ranks(first), round(seconds, 1), states)

    def _give_up(self, first: QueuedCall, error: BaseException, own: bool) -> None:
        """Publish that a call cannot complete; the next call on this rank raises the error."""
        self.why = summary(error)
        if self.library.speaks:
            error = self.guard.fail(error, format_call(first.description), first.description, 0,
                                    main_site(), number=first.number, in_thread=True, own=own)
        self.end()
        print_report(f"{report_text(error)}\n  rank {self.guard.rank} aborts its queued calls, "
                     f"from call {first.number} on")

    def is_busy(self) -> bool:
        """Return True if a call is queued."""
        return bool(self.pending)

    def has_returned(self) -> bool:
        """Return True if no call is pending; the process is never ended for it."""
        return True

    def leave(self, how: int) -> None:
        """Do nothing: the guard publishes that this rank exits."""
