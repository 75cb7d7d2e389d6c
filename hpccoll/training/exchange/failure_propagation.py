"""Error propagation and stall detection of an exchange."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpccoll.errors import (
    BrokenCommunicatorError,
    CollectiveTimeout,
    ExchangeError,
    ExchangeMismatch,
    ExchangeStall,
    NonFiniteArray,
    RankFailed,
)
from hpccoll.errors.waits import RankStates
from hpccoll.runtime.progress.waiting import PendingRun, WaitTimer
from hpccoll.training.stall_inspector import FAILED, MOST_NAMES, Control, StallInspector

#: Errors that are raised unchanged on every rank, by name; all others become RankFailed.
SHARED: dict[str, type[ExchangeError]] = {
    kind.__name__: kind for kind in (
        ExchangeError, ExchangeMismatch, ExchangeStall, NonFiniteArray, RankFailed)}
#: Shortest time between two queries of a rank about one stall, and the first one before a report
#: or error, in seconds: on a busy machine answers take long. Longest time between two polls.
#: Largest number of messages a second that a rank sends in queries: all that wait query all others.
AGAIN, AHEAD, POLL, RATE = 1.0, 3.0, 0.25, 1000
#: Seconds between two polls of notices, which take longer than a test of a request.
PAUSE = 100e-6


class FailurePropagation:
    """Receives errors and queries of other ranks, and sends those of this rank.

    Args:
        report, timeout: seconds of a stall between two reports, and until an error.
        check: raises if a rank has died or exited; returns the states of the ranks.

    Attributes:
        failure: the error that ended the exchange, or ``None``.
    """

    def __init__(self, comm: Any, answer: Callable[[int, list[str]], tuple[list[str], str]],
                 report: float, timeout: float, check: Callable[[], RankStates | None]):
        self.control = Control(comm)
        self.stall_inspector = StallInspector(self.control, answer)
        self.report, self.timeout, self.check_ranks = report, timeout, check
        self.failure: ExchangeError | None = None
        self._next = 0.0

    def poll(self) -> bool:
        """Process the notices that have arrived; return True if there were any."""
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next, heard = now + PAUSE, False
        for notice in self.control.poll():
            heard = True
            if notice.kind != FAILED:
                self.stall_inspector.process(notice)
            elif self.failure is None:
                kind, text, arrays, ranks = notice.data
                self.failure = SHARED[kind](text, tuple(arrays), tuple(ranks))
        return heard

    def fail(self, error: BaseException) -> None:
        """End the exchange on all ranks because of an error on this one."""
        if self.failure is not None:
            return
        rank = self.control.rank
        if type(error).__name__ in SHARED and isinstance(error, ExchangeError):
            self.failure = error
            text, arrays, ranks = str(error), error.arrays, error.ranks or (rank,)
            kind = type(error).__name__
            if not error.ranks:
                text = f"on rank {rank}: {text}"
        else:
            text = f"rank {rank} left the exchange: {type(error).__name__}: {error}"
            kind, arrays, ranks = RankFailed.__name__, (), (rank,)
            if getattr(error, "states", None) is not None:  # its text starts with another rank
                text = f"{error}\n  rank {rank} left the exchange with this {type(error).__name__}"
                ranks = getattr(error, "ranks", ()) or ranks
            self.failure = RankFailed(text, arrays, ranks)
            self.failure.__cause__ = error
        self.control.send_to_others(FAILED, [kind, text, arrays, ranks])

    def check(self) -> None:
        """Raise the error that ended the exchange, if any."""
        if self.failure is not None:
            failure = type(self.failure)(str(self.failure), self.failure.arrays,
                                         self.failure.ranks)
            raise failure from self.failure

    def stall_callback(self, step: int, awaited: Callable[[], Sequence[str]]) -> Callable[[], None]:
        """Return a callback for waits without progress: it queries, warns and times out."""
        return Stall(self, step, awaited).poll


class Stall(WaitTimer):
    """Wait of a step for other ranks, which are queried before a report or the time-out is due.

    Args:
        failures: of the exchange.
        step: number of the step.
        names: returns the arrays that this rank waits for.
    """

    standstill = math.inf  # the thread of the exchange may keep this one from polling

    def __init__(self, failures: FailurePropagation, step: int, names: Callable[[], Sequence[str]]):
        self.failures, self.step, self.names = failures, step, names
        self.known, self.asked, self.checked, self.next = tuple(names()), 0.0, time.monotonic(), 0.0
        self.rank = failures.control.rank
        super().__init__(self, failures.timeout, failures.report, self._ask, self._states)

    @property
    def title(self) -> str:
        """Name of the wait, for messages."""
        some = ", ".join(self.known[:MOST_NAMES]) + ", ..." * (len(self.known) > MOST_NAMES)
        return f"step {self.step} of the exchange for {some or 'the other ranks'}"

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return no round, and the ranks that cause the stall."""
        found = self.failures.stall_inspector.diagnosis
        return 0, found.ranks if found else ()

    def poll(self) -> None:
        """Check the wait from time to time; an error ends the exchange on all ranks."""
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + min(POLL, self.report / 4, self.timeout / 4)
        names = tuple(self.names())
        if names != self.known:
            self.known = names
            self.reset()
        try:
            self.check()
        except BrokenCommunicatorError as error:
            self.failures.fail(error)
        except CollectiveTimeout as error:
            found = self.failures.stall_inspector.diagnosis
            self.failures.fail(ExchangeStall(
                f"{str(error).partition(chr(10))[0].removeprefix('hpccoll: ')}; call ready() for "
                "every array on all ranks, or fail(error)",
                tuple(found and found.missing_ranks or self.known), error.peers))

    def _ask(self, awaited: PendingRun) -> None:
        """Query the other ranks early enough for their answers; raise if one has died."""
        now = time.monotonic()
        due = min(self.timeout, self.report if self.reports is None else self.reports.due)
        again = max(min(AGAIN, self.report, self.timeout / 4), self.failures.control.size / RATE)
        if self.since is not None and now - self.since >= due - AHEAD and now - self.asked >= again:
            self.asked = now
            self.failures.stall_inspector.query(self.step, self.known)
        if now - self.checked >= AGAIN:
            self.checked = now
            self.failures.check_ranks()

    def _states(self, peers: Sequence[int]) -> RankStates:
        states = self.failures.check_ranks()
        if states is not None and states.stopped:
            return states._replace(lines=())
        return RankStates(str(self.failures.stall_inspector.diagnosis or "no rank has answered"))
