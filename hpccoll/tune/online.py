"""Trying candidates in the job itself: ``HPCCOLL_TUNING=online``.

The first calls of a signature are served by one candidate after the other, every rank the same one,
in rounds: the first ``WARM`` rounds let every candidate prepare, the next ``TIMED`` are timed,
from a barrier on. Then all ranks take the maximum of their times, in one allreduce on the private
communicator, so that they reach the same verdict: the smallest median. It is never changed.

Every call gets its right result; only how it is made differs. All ranks know what is in a
signature.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import perf_counter

import numpy
from mpi4py import MPI

from hpccoll.calls.facts import CallFacts
from hpccoll.config import NATIVE
from hpccoll.runtime.execution.executor import Bounds
from hpccoll.runtime.progress.waiting import Meeting
from hpccoll.tune.ranking import TIE
from hpccoll.tune.table import Candidate

#: Rounds that are not timed - hpccoll has everything prepared after three calls - and that are.
WARM, TIMED = 3, 5
#: Candidates tried beside native; signatures tried on one communicator.
MOST, MOST_TRIALS = 5, 256


class Trial:
    """The candidates for one signature, and how long they took.

    Attributes:
        candidates: in the order of their turns.
        turn: calls served so far.
        seconds: medians, once there is a verdict.
        verdict: the winner; ``None`` while turns are left.
    """

    def __init__(self, candidates: Sequence[Candidate]):
        self.candidates = tuple(candidates)
        self.times = numpy.zeros((WARM + TIMED, len(candidates)))
        self.turn = 0
        self.seconds: dict[Candidate, float] = {}
        self.verdict: Candidate | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The round, and the candidate whose turn it is."""
        return divmod(self.turn, len(self.candidates))

    @property
    def candidate(self) -> Candidate:
        """The candidate whose turn it is."""
        return self.candidates[self.place[1]]

    def run(self, comm: MPI.Intracomm, bounds: Bounds, serve: Callable[[], None]) -> None:
        """Serve a call by the candidate whose turn it is; after the last turn, decide.

        Args:
            comm: the private communicator.
            bounds: seconds to wait for the other ranks.
            serve: makes the call.
        """
        meeting = Meeting(comm, "online tuning")
        meeting.wait(comm.Ibarrier(), *bounds)
        start = perf_counter()
        serve()
        self.times[self.place] = perf_counter() - start
        self.turn += 1
        if self.turn == self.times.size:
            meeting.wait(comm.Iallreduce(MPI.IN_PLACE, self.times, MPI.MAX), *bounds)
            self._decide()

    def _decide(self) -> None:
        medians = numpy.median(self.times[WARM:], axis=0)
        self.seconds = dict(zip(self.candidates, map(float, medians)))
        self.verdict = min(self.candidates, key=lambda c: self.seconds[c] * (
            TIE if c.name == NATIVE else 1.0))


def signature_of(facts: CallFacts) -> tuple[Hashable, ...]:
    """What calls must share to be tried together."""
    common = facts.collective, facts.nbytes, facts.uniform
    if not facts.reduces:
        return common
    return (*common, facts.kind, facts.itemsize, facts.operator, facts.commutes)
