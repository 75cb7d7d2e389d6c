"""Waits for other ranks: the library progresses, reports, and a time-out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from mpi4py import MPI

from hpccoll.errors import CollectiveTimeout
from hpccoll.errors.waits import RankStates, Reports, rank_list
from hpccoll.machine.backoff import BETWEEN, Backoff, wait_until
from hpccoll.machine.limits import SPINS

#: Steps per call: a step may send only one piece of a long message.
ROUNDS = 10
#: Largest number of seconds counted between two polls. After a longer gap the rank was stopped, by
#: a signal or with its machine, and was not waiting.
STANDSTILL = 1.0


@cache
def incomplete_request() -> MPI.Grequest:
    """Return a request of no operation, which never completes."""
    return MPI.Grequest.Start()


def progress_once() -> None:
    """Let the MPI library progress its own messages by one step."""
    # Half the price of a probe, which searches queues, and no message can match it.
    incomplete_request().Test()


def progress() -> None:
    """Let the MPI library progress its own messages.

    A rank in a collective is inside MPI, which guarantees progress of all pending operations. A
    peer may need a message from this rank before it can enter the collective.
    """
    for _ in range(ROUNDS):
        progress_once()


class PendingRun(Protocol):
    """Pending operation that reports the ranks it waits for."""

    @property
    def title(self) -> str:
        """Name of the operation, for messages."""

    @property
    def rank(self) -> int:
        """The waiting rank."""

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return the current round and the ranks that it may wait for."""


class WaitTimer(Backoff):
    """Timer of a wait without progress.

    Args:
        awaited: the operation, which reports round and peers.
        timeout: seconds without progress until the error.
        report: seconds without progress between two reports.
        listen: called regularly; raises an error if the wait cannot complete.
        states_of: returns the states of the ranks; its argument is the awaited ranks.
        spins: failed tests before the wait yields the processor.

    Attributes:
        in_library: True for a call of the MPI library, which is slow but not late once all ranks
            have entered it.
    """

    in_library = False

    def __init__(self, awaited: PendingRun, timeout: float, report: float,
                 listen: Callable[[PendingRun], None] | None = None,
                 states_of: Callable[[Sequence[int]],
                                     RankStates] | None = None, spins: int = SPINS):
        self.awaited, self.timeout, self.report = awaited, timeout, report
        self.listen, self.states_of = listen, states_of
        self.listened = self.last = 0.0
        super().__init__(spins)

    def reset(self) -> None:
        """Reset the timer after progress."""
        super().reset()
        self.since: float | None = None
        self.reports: Reports | None = None

    def progress(self) -> None:
        """Let the MPI library progress its own messages."""
        progress()

    def look(self) -> None:
        """Let the MPI library progress, and check the clock and the other ranks."""
        progress()
        self.check()

    def check(self) -> None:
        """Check the clock and the other ranks; ``listen`` alone may call MPI.

        Reports every ``report`` seconds, and raises after ``timeout``.

        Raises:
            CollectiveTimeout: no progress for ``timeout`` seconds, or a rank stays stopped.
            BrokenCommunicatorError: another rank has failed.
        """
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.last > STANDSTILL:
            self.since += now - self.last - STANDSTILL
        self.last = now
        if self.listen is not None and now - self.listened >= BETWEEN:
            self.listened = now
            self.listen(self.awaited)
        elapsed = now - self.since
        due = self.report if self.reports is None else self.reports.due
        if elapsed < min(due, self.timeout):
            return
        number, peers = self.awaited.pending_peers()
        late = elapsed >= self.timeout and (bool(peers) or not self.in_library)
        if not late and elapsed < due:
            return
        title, rank = self.awaited.title, self.awaited.rank
        states = self.states_of(peers) if self.states_of is not None else None
        if late:
            raise CollectiveTimeout(title, rank, number, peers, self.timeout, states)
        states = states or RankStates(f"no message from {rank_list(peers)}")
        self.reports = self.reports or Reports(self.report)
        if not self.reports.add(elapsed, states, f"{title} on rank {rank}"):
            raise CollectiveTimeout(title, rank, number, peers, round(elapsed, 1), states)


class Meeting:
    """Wait of all ranks of a communicator for each other.

    Args:
        comm: the communicator; or the group of ranks that have none.
        title: name of the wait, for messages.
    """

    #: Number of the call, the same on all ranks; 0 without one.
    number = 0

    def __init__(self, comm: MPI.Comm | MPI.Group, title: str):
        self.rank, self.size, self.title = comm.Get_rank(), comm.Get_size(), title

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return no round and all other ranks."""
        return 0, tuple(rank for rank in range(self.size) if rank != self.rank)

    def wait(self, request: MPI.Request, timeout: float, report: float,
             listen: Callable[[PendingRun], None] | None = None,
             states_of: Callable[[Sequence[int]], RankStates] | None = None) -> None:
        """Wait for the request of a collective operation.

        Raises:
            CollectiveTimeout: the request was not complete after ``timeout`` seconds.
        """
        wait_until(request.Test, WaitTimer(self, timeout, report, listen, states_of))
