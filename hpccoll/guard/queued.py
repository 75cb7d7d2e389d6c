"""Calls that a library has queued on a device, which return before they have happened.

Each is noted in this rank's log when it is made, as a call of the MPI library's is; what becomes of
it is looked at by the watcher's thread (:class:`Queued`), where calls are compared. Where one
cannot end any more - a rank does not come, is gone, or has given up, or the library has found a
fault - what is queued is ended, so that whoever waits for the device goes on, and the next call
raises the error.
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
from hpccoll.errors.waits import RankStates, Reports, print_report, stated, summary
from hpccoll.guard.board import called
from hpccoll.guard.natives import GRACE
from hpccoll.guard.sites import main_site
from hpccoll.guard.watcher import WATCHER
from hpccoll.runtime.events.log import NUMBER
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from hpccoll.guard.guard import Guard


class Pending(NamedTuple):
    """A call that was queued.

    Attributes:
        number: of the call; 0 where calls have none.
        description: of it.
        event: happens when it has; its ``done`` asks the device.
        held: what must not go before that.
        since: when it was queued.
    """

    number: int
    description: Description
    event: Any
    held: Any
    since: float


class Queued:
    """What is queued by the calls of one communicator.

    Args:
        guard: of the communicator.
        check: raises a fault that the library has found.
        abort: ends all that is queued.
        device: where it is queued.
        happened: tells whether an event has happened, or raises a fault of the device.
    """

    def __init__(self, guard: Guard, check: Callable[[], None], abort: Callable[[], None],
                 device: Any, happened: Callable[[Any], bool]):
        self.guard, self.check, self.abort = guard, check, abort
        self.device, self.happened = device, happened
        self.lock, self.pending = threading.RLock(), deque[Pending]()
        self.ended, self.why = False, ""
        #: The call at the last look, and its reports.
        self.stay = 0, Reports(0.0)
        #: When a call was last found to have happened.
        self.moved = 0.0
        if guard.stamps and guard.context.size > 1:
            WATCHER.add(self)

    # -- what calls say ------------------------------------------------------------------------
    def add(self, description: Description, event: Any, held: Any) -> None:
        """A call was queued; forget those that have happened."""
        number = self.guard.logs.mine.words[NUMBER] if self.guard.stamps else 0
        with self.lock:
            self.tidy()
            self.pending.append(Pending(number, description, event, held, time.monotonic()))

    def refuse(self) -> None:
        """Raise what has ended the calls before, if anything has.

        Raises:
            BrokenCommunicatorError: it has; or a ``ContractError``, where ranks have disagreed.
        """
        if self.ended and self.guard.failure is not None:
            self.guard.refuse()
        if self.ended:
            raise BrokenCommunicatorError("communicator is broken: device operations were "
                                          f"aborted: {self.why}; call Dup on a working "
                                          "communicator, or end the job")

    def tidy(self) -> None:
        """Forget the calls that have happened."""
        with self.lock:
            while self.pending and self.pending[0].event.done:
                self.pending.popleft()
                self.moved = time.monotonic()

    def end(self) -> None:
        """End all that is queued, once."""
        with self.lock:
            if not self.ended:
                self.ended = True
                self.abort()
                self.pending.clear()

    def close(self, seconds: float, free: Callable[[], None]) -> None:
        """Give the library's resources back, when all has happened; else end it.

        Giving back waits for the other ranks, for ever where one has ended what it had queued.
        """
        if self.ended:
            return
        if self._given_up():
            self.end()
        elif not self.drain(seconds):
            first = self.pending[0]
            self._give_up(first, self._late(first, seconds, self.guard.tell()), own=False)
        with self.lock:  # the thread may be asking for faults
            if not self.ended:
                self.ended = True
                free()

    def drain(self, seconds: float) -> bool:
        """Wait until all has happened; tell whether it has in time."""
        until = time.monotonic() + seconds
        self.tidy()
        while self.pending and time.monotonic() < until:
            time.sleep(0)
            self.tidy()
        return not self.pending

    @contextmanager
    def failing(self, description: Description) -> Iterator[None]:
        """What fails in here ends all that is queued, and the communicator.

        The others are told of the first call that cannot end. One in which nothing was sent is no
        longer counted here, and who is still in the call before can end that.

        Raises:
            BrokenCommunicatorError: it has failed.
        """
        title, words = called(description), self.guard.logs.mine.words
        begun = words[NUMBER] + self.guard.stamps  # else calls have no numbers
        try:
            yield
        except BaseException as error:
            with self.lock:
                with suppress(Exception):  # the device may have failed, too
                    self.tidy()
                number, which = max(begun, words[NUMBER]), (title, description)
                if self.pending:
                    number, known = self.pending[0].number, self.pending[0].description
                    which = called(known), known
                self.end()
            if isinstance(error, HpccollError) and self.guard.failure is not None:
                raise  # it is what a failure before this call has made of it
            told: BaseException = error if not isinstance(error, Exception) or isinstance(
                error, HpccollError) else BrokenCommunicatorError(
                    f"{title}: {type(error).__name__}: {error}; the NCCL communicator is broken; "
                    "call Dup on a working communicator, or end the job")
            verdict = self.guard.fail(told, *which, 0, number=number, own=told is not error)
            if verdict is error:
                raise
            raise verdict from cause_of(error)

    # -- what the watcher asks -----------------------------------------------------------------
    def watched(self) -> str:
        """Look after what is queued; returns what to say where the process has to end: nothing."""
        self.device.use()  # else a thread's first question makes a context on device 0
        with self.lock:
            if self.ended:
                return ""
            self.tidy()
            first = self.pending[0] if self.pending else None
        if first is None:
            return ""
        # Ranks of other nodes are never seen to come: a call behind a backlog must not look late.
        elapsed = time.monotonic() - max(first.since, self.moved)
        fault = self._fault(first)
        error = fault or self._hopeless(first, elapsed)
        if error is not None:
            self._give_up(first, error, own=fault is not None)
            return ""
        if first.number != self.stay[0]:
            self.stay = first.number, Reports(self.guard.context.bounds.report)
        if elapsed >= self.stay[1].due:
            states = self.guard.tell()
            wait = f"{called(first.description)} in the queue of rank {self.guard.rank}"
            if not self.stay[1].add(elapsed, states, wait):
                self._give_up(first, self._late(first, elapsed, states), own=False)
        return ""

    def _fault(self, first: Pending) -> BaseException | None:
        """What the library has found out, or the device."""
        with self.lock:
            if self.ended:
                return None
            try:
                self.check()
                self.happened(first.event)
            except Exception as error:
                return BrokenCommunicatorError(f"NCCL: {type(error).__name__}: {error}")
        return None

    def _hopeless(self, first: Pending, elapsed: float) -> BaseException | None:
        """Why a call cannot happen any more; ``None`` where it may."""
        guard, timeout = self.guard, self.guard.context.bounds.timeout
        if self._given_up():
            return guard.failure or BrokenCommunicatorError()
        if guard.logs.disagree(settled=True):
            return ForeignMessage(-1, guard.rank)
        lost = guard.board.lost(first.number, GRACE)
        if lost:
            return guard.loss(lost, f"{called(first.description)} of NCCL")
        if elapsed < timeout or not self._missing(first):
            return None  # where all have come, it is the device that takes so long
        return self._late(first, timeout, guard.tell(self._missing(first)))

    def _given_up(self) -> bool:
        """Tell whether a rank, this one or another, has given up a call."""
        guard = self.guard
        return guard.failure is not None or (
            bool(guard.logs.rung(True)) if guard.natives.speaks else guard.alarmed)

    def _missing(self, first: Pending) -> tuple[int, ...]:
        """The ranks that are not known to have come to a call."""
        return tuple(one.rank for one in self.guard.doing() if one.begun < first.number)

    def _late(self, first: Pending, seconds: float, states: RankStates) -> CollectiveTimeout:
        """The error of a call that takes too long."""
        return CollectiveTimeout(f"{called(first.description)} of NCCL", self.guard.rank, 0,
                                 self._missing(first), round(seconds, 1), states)

    def _give_up(self, first: Pending, error: BaseException, own: bool) -> None:
        """Tell the others that a call cannot happen; the next call raises it here."""
        self.why = summary(error)
        if self.guard.natives.speaks:
            error = self.guard.fail(error, called(first.description), first.description, 0,
                                    main_site(), number=first.number, in_thread=True, own=own)
        self.end()
        print_report(f"{stated(error)}\n  rank {self.guard.rank} aborts its queued calls, from "
                     f"call {first.number} on")

    def busy(self) -> bool:
        """Tell whether something is queued."""
        return bool(self.pending)

    def escaped(self) -> bool:
        """Tell whether all has ended; the process is never ended for it."""
        return True

    def leave(self, how: int) -> None:
        """This rank ends its program: the guard tells the others."""
