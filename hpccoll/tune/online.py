"""Trying candidates in the job itself: ``HPCCOLL_TUNING=online``.

The first calls of a shape are served by one candidate after the other, every rank the same one,
in rounds: the first ``WARM`` rounds let everybody prepare, the next ``TIMED`` are timed, from a
barrier on. Then all ranks take the maximum of their times, in one allreduce on the private
communicator, so that they reach the same verdict: the smallest median. It is never changed.

Every call gets its right result; only how it is made differs. What counts as a shape is known to
all ranks alike: collective, bytes and whether blocks are even, and where there is an operator, that
and the kind of element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays.kernels import operator_of
from hpccoll.calls.resolve import Call
from hpccoll.calls.specification import element_type
from hpccoll.config import NATIVE
from hpccoll.runtime.executor import Watch
from hpccoll.tune.ranking import TIE
from hpccoll.tune.table import Candidate

#: Rounds that are not timed - hpccoll has everything prepared after three calls - and that are.
WARM, TIMED = 3, 5
#: Candidates tried beside native; shapes tried on one communicator.
MOST, MOST_TRIALS = 5, 256


class Trial:
    """The candidates of one call shape, and how long they took.

    Attributes:
        candidates: in the order of their turns.
        running: a call is being served, by the candidate whose turn it is.
        shapes: what the communicator remembers of calls that each candidate has served; the
            communicator puts it here, by the candidate's number.
        verdict: the winner, once there is one, with its seconds.
    """

    def __init__(self, candidates: Sequence[Candidate]):
        self.candidates = tuple(candidates)
        self.shapes: dict[int, Any] = {}
        self.times = numpy.zeros((WARM + TIMED, len(candidates)))
        self.turn, self.running = 0, False
        self.seconds: dict[Candidate, float] = {}
        self.verdict: Candidate | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The round and the candidate whose turn it is."""
        return divmod(self.turn, len(self.candidates))

    def run(self, comm: MPI.Intracomm, timeout: float, report: float,
            serve: Callable[[], None]) -> None:
        """Serve a call by the candidate whose turn it is; after the last turn, decide."""
        meeting = Meeting(comm)
        meeting.wait(comm.Ibarrier(), timeout, report)
        self.running = True
        start = perf_counter()
        try:
            serve()
        finally:
            self.running = False
        self.times[self.place] = perf_counter() - start
        self.turn += 1
        if self.turn == self.times.size:
            meeting.wait(comm.Iallreduce(MPI.IN_PLACE, self.times, MPI.MAX), timeout, report)
            self._decide()

    def _decide(self) -> None:
        medians = numpy.median(self.times[WARM:], axis=0)
        self.seconds = dict(zip(self.candidates, map(float, medians)))
        self.verdict = min(self.candidates, key=lambda c: self.seconds[c] * (
            TIE if c.name == NATIVE else 1.0))
        self.shapes = []


class Meeting:
    """All ranks waiting for each other; what :class:`hpccoll.runtime.executor.Watch` names when they do not."""

    def __init__(self, comm: MPI.Intracomm):
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.title = "online tuning"

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """The round, and whom this rank may be waiting for."""
        return 0, tuple(rank for rank in range(self.size) if rank != self.rank)

    def wait(self, request: MPI.Request, timeout: float, report: float) -> None:
        """Wait for a request of all ranks."""
        watch = Watch(self, timeout, report)
        while not request.Test():
            watch.idle()


def shape_of(call: Call) -> tuple:
    """What calls must share to be tried together; every rank sees the same."""
    if call.op is None:
        return call.collective, call.nbytes, call.uniform
    dtype = element_type(call.datatype)
    # By properties: a handle may be used again, by another operator and on some ranks only.
    operator = operator_of(call.op)
    return (call.collective, call.nbytes, call.uniform, dtype.kind, dtype.itemsize,
            operator.name if operator else bool(call.op.Is_commutative()))
