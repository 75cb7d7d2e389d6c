"""Error propagation and stall detection of an exchange."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hpccoll.errors import (
    BrokenCommunicatorError,
    ExchangeError,
    ExchangeMismatch,
    ExchangeStall,
    NonFiniteArray,
    RankFailed,
)
from hpccoll.errors.waits import RankStates, print_report
from hpccoll.training.stall_inspector import FAILED, MOST_NAMES, Control, StallInspector

#: Errors that are raised unchanged on every rank, by name; all others become RankFailed.
SHARED: dict[str, type[ExchangeError]] = {
    kind.__name__: kind for kind in (
        ExchangeError, ExchangeMismatch, ExchangeStall, NonFiniteArray, RankFailed)}
#: Shortest time between two queries of a rank about one stall, in seconds.
AGAIN = 1.0
#: Seconds to wait for answers after the time-out, on a busy machine: the error names the ranks.
GRACE = 5.0
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
        self.report, self.timeout, self._check_ranks = report, timeout, check
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
        began = time.monotonic()
        known, asked, looked, due = tuple(awaited()), -AGAIN, 0.0, self.report
        stopped: frozenset[int] = frozenset()

        def poll() -> None:
            nonlocal began, known, asked, looked, due, stopped
            waited = time.monotonic() - began
            if waited < min(due, self.timeout, looked + AGAIN):
                return
            names = tuple(awaited())
            if names != known:
                began, known, looked, due = time.monotonic(), names, 0.0, self.report
                return
            looked = waited
            try:
                states = self._check_ranks()
            except BrokenCommunicatorError as error:
                self.fail(error)
                return
            if waited < min(due, self.timeout):
                return
            answered = self.stall_inspector.diagnosis is not None
            if waited >= self.timeout and (answered or waited >= self.timeout + GRACE):
                self.fail(self._stall_error(waited, step, names, states))
                return
            if waited - asked > AGAIN:
                asked = waited
                self.stall_inspector.query(step, names)
            if waited >= due and (answered or waited >= due + GRACE):
                before, stopped = stopped, frozenset(states.stopped if states else ())
                if before & stopped:
                    self.fail(self._stall_error(waited, step, names, states))
                    return
                due = waited + self.report
                print_report(f"hpccoll: {self._stall_text(waited, step, names, states)}")

        return poll

    def _stall_error(self, waited: float, step: int, names: Sequence[str], states: RankStates | None
                     ) -> ExchangeStall:
        found = self.stall_inspector.diagnosis
        arrays = tuple(found.missing_ranks) if found and found.missing_ranks else tuple(names)
        text = self._stall_text(waited, step, names, states)
        return ExchangeStall(f"{text}; call ready() for every array on all ranks, or fail(error)",
                             arrays, found.ranks if found else ())

    def _stall_text(self, waited: float, step: int, names: Sequence[str], states: RankStates | None
                    ) -> str:
        found = self.stall_inspector.diagnosis or "no rank has answered"
        missing = states.missing if states is not None and states.stopped else found
        some = ", ".join(names[:MOST_NAMES]) + ", ..." * (len(names) > MOST_NAMES)
        return (f"{missing}: rank {self.control.rank} has waited {waited:.0f} s in step {step} of "
                f"the exchange for {some or 'the other ranks'}")
