"""Control messages between ranks: errors, and queries for missing arrays.

    Control          notices between ranks, on a duplicate of the communicator for notices only
    StallInspector   queries all ranks for the arrays that they have not submitted

The thread that drives the engine polls notices, so a rank answers while its program computes. Each
waiting rank queries the others, a few times for a report: any of them may be the one that is late.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.units import ranks_text

TAG = 1
#: Largest number of names in a query; more names would not help the user.
MOST_NAMES = 8

FAILED, QUESTION, ANSWER = "failed", "question", "answer"


class Notice(NamedTuple):
    """One message: its kind, source rank and data."""

    kind: str
    sender: int
    data: Any


class Control:
    """Sends and receives notices without blocking."""

    def __init__(self, comm: Any):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self._sent: list[tuple[Any, numpy.ndarray]] = []

    def send(self, kind: str, data: Any, ranks: Iterable[int]) -> None:
        """Send a notice to some ranks."""
        message = numpy.frombuffer(json.dumps([kind, data]).encode(), numpy.uint8)
        self._sent = [(request, buffer) for request, buffer in self._sent if not request.Test()]
        for rank in ranks:
            self._sent.append((self.comm.Isend(message, rank, TAG), message))

    def send_to_others(self, kind: str, data: Any) -> None:
        """Send a notice to all other ranks."""
        self.send(kind, data, (rank for rank in range(self.size) if rank != self.rank))

    def poll(self) -> Iterator[Notice]:
        """Receive and yield the notices that have arrived."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            buffer = numpy.empty(status.Get_count(MPI.BYTE), numpy.uint8)
            self.comm.Recv(buffer, status.Get_source(), TAG)
            kind, data = json.loads(buffer.tobytes())
            yield Notice(kind, status.Get_source(), data)


class Diagnosis(NamedTuple):
    """Missing arrays and unresponsive ranks of a stall."""

    missing_ranks: dict[str, list[int]]
    unresponsive: list[int]
    activities: dict[int, str]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that cause the stall."""
        return tuple(sorted({*self.unresponsive,
                             *(r for some in self.missing_ranks.values() for r in some)}))

    def __str__(self) -> str:
        parts = []
        for name, ranks in self.missing_ranks.items():
            parts.append(f"array '{name}' is missing on {ranks_text(ranks)}")
        by_place = defaultdict(list)
        for rank in self.ranks or self.activities:
            if rank in self.activities:
                by_place[self.activities[rank]].append(rank)
        parts += [f"{ranks_text(ranks)}: {place}" for place, ranks in by_place.items()]
        if self.unresponsive:
            parts.append(f"{ranks_text(self.unresponsive)} did not answer")
        return "; ".join(parts)


class StallInspector:
    """Queries which ranks have not submitted the arrays that this rank waits for.

    Args:
        answer: returns the answer of this rank: the missing ones among some arrays of a step, and
            its current activity.
    """

    def __init__(self, control: Control,
                 answer: Callable[[int, list[str]], tuple[list[str], str]]):
        self.control, self._answer = control, answer
        self._question: list[Any] | None = None
        self._answers: dict[int, tuple[list[str], str]] = {}

    def query(self, step: int, names: Iterable[str]) -> None:
        """Query all ranks; a query replaces the one before, with the answers to it."""
        self._question = [step, list(names)[:MOST_NAMES]]
        self._answers = {self.control.rank: self._answer(*self._question)}
        self.control.send_to_others(QUESTION, self._question)

    def process(self, notice: Notice) -> None:
        """Process a notice with a query or an answer."""
        if notice.kind == QUESTION:
            self.control.send(ANSWER, [notice.data, self._answer(*notice.data)], (notice.sender,))
        elif notice.kind == ANSWER and notice.data[0] == self._question:
            self._answers[notice.sender] = notice.data[1]

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Return what the last query has found so far; ``None`` without one."""
        if self._question is None:
            return None
        missing = {name: sorted(rank for rank, (absent, _) in self._answers.items()
                                if name in absent) for name in self._question[1]}
        return Diagnosis({name: ranks for name, ranks in missing.items() if ranks},
                         [rank for rank in range(self.control.size) if rank not in self._answers],
                         {rank: place for rank, (_, place) in sorted(self._answers.items())})
