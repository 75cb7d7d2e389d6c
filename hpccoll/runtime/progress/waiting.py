"""Waiting: spin, then yield, then report now and then; fail where that is of no use any more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mpi4py import MPI

from hpccoll.errors import CollectiveTimeout
from hpccoll.errors.waits import RankStates, Reports, rank_list
from hpccoll.machine.limits import SPINS

#: Failed tests between two looks at the clock, and, after the first of these, between two times
#: that the MPI library is let move on.
PATIENCE, BETWEEN = 1000, 32
#: Times that it is asked to move on: each may send no more than one piece of a long message.
ROUNDS = 10
#: Seconds that count between two looks. A rank that looks later than that stood still, by a signal
#: or with its machine, and has not waited for anybody.
STANDSTILL = 1.0
#: A tag that every MPI library has, and nobody uses.
LAST_TAG = 32767


def progress() -> None:
    """Let the MPI library move its own messages on.

    A rank in a collective is inside of MPI, which promises that whatever it has begun goes on
    there: a peer may not come to the collective before it has received a message whose sender waits
    here.
    """
    # A message that is there would end the probe before anything is moved on; none has this tag. A
    # probe of COMM_SELF moves nothing with MPICH.
    try:
        for _ in range(ROUNDS):
            MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, LAST_TAG)
    except MPI.Exception:
        # A rank of the world has died: its library refuses to look for messages of any rank. It
        # is one of those that move on by any probe.
        MPI.COMM_SELF.Iprobe(0, LAST_TAG)


class Awaited(Protocol):
    """What can say for whom a rank waits."""

    @property
    def title(self) -> str:
        """What runs, for messages to people."""

    @property
    def rank(self) -> int:
        """The rank that waits."""

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """The round it is in, and the ranks that it may be waiting for."""


class Watch:
    """The clock of a wait in which nothing moves.

    Args:
        awaited: names round and peers.
        timeout: seconds without progress until the error.
        report: seconds without progress between two reports.
        listen: asked now and then; it raises where waiting has become pointless.
        tell: where the ranks are, given those that this one waits for.
        spins: failed tests before the processor is offered to others.
    """

    def __init__(self, awaited: Awaited, timeout: float, report: float,
                 listen: Callable[[Awaited], None] | None = None,
                 tell: Callable[[Sequence[int]], RankStates] | None = None, spins: int = SPINS):
        self.awaited, self.timeout, self.report, self.spins = awaited, timeout, report, spins
        self.listen, self.tell = listen, tell
        self.looked = 0.0
        self.moved()

    def moved(self) -> None:
        """Something moved: start counting again."""
        self.idles = 0
        self.since: float | None = None
        self.reports: Reports | None = None

    def idle(self) -> None:
        """Nothing moved: let others run, and look at the clock now and then.

        Raises:
            CollectiveTimeout: nothing moved for ``timeout`` seconds.
        """
        self.idles += 1
        if self.idles > self.spins:
            os.sched_yield()
        if self.idles % PATIENCE == 0:
            self.look()
        elif self.idles > PATIENCE and self.idles % BETWEEN == 0:
            progress()

    def look(self) -> None:
        """Let the MPI library move on, and look at the clock.

        Reports every ``report`` seconds, and raises after ``timeout``.

        Raises:
            CollectiveTimeout: nothing moved for ``timeout`` seconds, or a rank stays stopped.
            BrokenCommunicatorError: another rank has given up.
        """
        progress()
        if self.listen is not None:
            self.listen(self.awaited)
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.looked > STANDSTILL:
            self.since += now - self.looked - STANDSTILL
        self.looked = now
        elapsed = now - self.since
        due = self.report if self.reports is None else self.reports.due
        if elapsed < min(due, self.timeout):
            return
        number, peers = self.awaited.pending()
        title, rank = self.awaited.title, self.awaited.rank
        states = self.tell(peers) if self.tell is not None else None
        if elapsed >= self.timeout:
            raise CollectiveTimeout(title, rank, number, peers, self.timeout, states)
        states = states or RankStates(f"no message from {rank_list(peers)}")
        self.reports = self.reports or Reports(self.report)
        wait = f"{title} on rank {rank}"
        if not self.reports.add(elapsed, states, wait):
            raise CollectiveTimeout(title, rank, number, peers, round(elapsed, 1), states)


class Meeting:
    """All ranks of a communicator waiting for each other.

    Args:
        comm: the ranks; or their group, where they have no communicator.
        title: what they meet for, for messages to people.
    """

    def __init__(self, comm: MPI.Comm | MPI.Group, title: str):
        self.rank, self.size, self.title = comm.Get_rank(), comm.Get_size(), title

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """No round, and all other ranks."""
        return 0, tuple(rank for rank in range(self.size) if rank != self.rank)

    def wait(self, request: MPI.Request, timeout: float, report: float,
             listen: Callable[[Awaited], None] | None = None,
             tell: Callable[[Sequence[int]], RankStates] | None = None) -> None:
        """Wait for a request that all ranks take part in.

        Raises:
            CollectiveTimeout: it was not complete after ``timeout`` seconds.
        """
        watch = Watch(self, timeout, report, listen, tell)
        while not request.Test():
            watch.idle()
