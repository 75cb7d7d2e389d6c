"""Online tuning: tries candidates in the job itself (``HPCCOLL_TUNING=online``).

The first calls of a signature run one candidate after the other, the same on every rank, in rounds.
In the first ``WARM`` rounds every candidate prepares; the next ``TIMED`` are timed after a barrier.
Then one allreduce on the private communicator computes the maximum of the times over all ranks, and
every rank selects the smallest median. That result never changes.

Every call returns its correct result. A signature contains only data that all ranks have.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import perf_counter

import numpy
from mpi4py import MPI

from hpccoll.calls.facts import CallFacts
from hpccoll.config import NATIVE
from hpccoll.runtime.execution.executor import Timeouts
from hpccoll.runtime.progress.waiting import Meeting
from hpccoll.tune.ranking import TIE
from hpccoll.tune.table import Candidate

#: Rounds without and with timing; hpccoll has prepared everything after three calls.
WARM, TIMED = 3, 5
#: Maximum candidates in addition to native, and maximum signatures per communicator.
MOST, MOST_TRIALS = 5, 256


class Trial:
    """Candidates for one signature, and their times.

    Attributes:
        candidates: the candidates in the order of their turns.
        turn: number of calls so far.
        seconds: median of each candidate in seconds; empty before the last turn.
        verdict: the fastest candidate; ``None`` before the last turn.
    """

    def __init__(self, candidates: Sequence[Candidate]):
        self.candidates = tuple(candidates)
        self.times = numpy.zeros((WARM + TIMED, len(candidates)))
        self.turn = 0
        self.seconds: dict[Candidate, float] = {}
        self.verdict: Candidate | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Round, and index of the current candidate."""
        return divmod(self.turn, len(self.candidates))

    @property
    def candidate(self) -> Candidate:
        """Current candidate."""
        return self.candidates[self.place[1]]

    def run(self, comm: MPI.Intracomm, timeouts: Timeouts, serve: Callable[[], None]) -> None:
        """Run a call with the current candidate; after the last turn, select the winner.

        Args:
            comm: the private communicator.
            timeouts: seconds to wait for the other ranks.
            serve: callback that runs the call.
        """
        meeting = Meeting(comm, "online tuning")
        meeting.wait(comm.Ibarrier(), *timeouts)
        start = perf_counter()
        serve()
        self.times[self.place] = perf_counter() - start
        self.turn += 1
        if self.turn == self.times.size:
            meeting.wait(comm.Iallreduce(MPI.IN_PLACE, self.times, MPI.MAX), *timeouts)
            self._decide()

    def _decide(self) -> None:
        medians = numpy.median(self.times[WARM:], axis=0)
        self.seconds = dict(zip(self.candidates, map(float, medians)))
        self.verdict = min(self.candidates, key=lambda c: self.seconds[c] * (
            TIE if c.name == NATIVE else 1.0))


def signature_of(facts: CallFacts) -> tuple[Hashable, ...]:
    """Return the key of a call: calls with equal keys share a trial."""
    common = facts.collective, facts.nbytes, facts.uniform
    if not facts.reduces:
        return common
    return (*common, facts.kind, facts.itemsize, facts.operator, facts.commutes)
