"""Control messages between ranks: errors, and queries for missing arrays.

    Control          notices between ranks, on a duplicate of the communicator for notices only
    StallInspector   queries all ranks through rank 0 for the arrays that they have not submitted

The thread that drives the engine polls notices, so a rank answers while its program computes.
Rank 0 collects the answers for all ranks with the same query, so a stall of P ranks takes O(P)
messages instead of O(P^2).
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

FAILED, ASK, QUESTION, ANSWER, DIAGNOSIS = "failed", "ask", "question", "answer", "diagnosis"


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
        self.diagnosis: Diagnosis | None = None
        # On rank 0: answers and askers, by query.
        self._queries: dict[str, dict[int, Any]] = {}
        self._askers: dict[str, set[int]] = {}

    def query(self, step: int, names: Iterable[str]) -> None:
        """Query all ranks; :attr:`diagnosis` is set a few polls later."""
        question = [step, list(names)[:MOST_NAMES]]
        if self.control.rank == 0:
            self._start_query(0, question)
        else:
            self.control.send(ASK, question, (0,))

    def process(self, notice: Notice) -> None:
        """Process a notice with a query, an answer or a diagnosis."""
        if notice.kind == ASK:
            self._start_query(notice.sender, notice.data)
        elif notice.kind == QUESTION:
            self.control.send(ANSWER, [notice.data, self._answer(*notice.data)], (notice.sender,))
        elif notice.kind == ANSWER:
            question, answer = notice.data
            self._collect(notice.sender, question, answer)
        elif notice.kind == DIAGNOSIS:
            missing, silent, places = notice.data
            self.diagnosis = Diagnosis(missing, silent,
                                       {int(rank): place for rank, place in places.items()})

    def clear(self) -> None:
        """End all queries: their step has failed, and dead ranks never answer."""
        self._queries.clear()
        self._askers.clear()

    def _start_query(self, asker: int, question: Any) -> None:
        key = json.dumps(question)
        if key not in self._queries:
            # Dead ranks never answer: what is left of earlier steps is asked again, if it matters.
            for known in [known for known in self._queries if json.loads(known)[0] < question[0]]:
                del self._queries[known], self._askers[known]
            self._queries[key], self._askers[key] = {}, set()
            self.control.send_to_others(QUESTION, question)
        else:
            self._send_diagnosis(asker, key)  # a partial result: some ranks may never answer
        # Answers become outdated: a rank that has submitted an array since answers the next query.
        self._askers[key].add(asker)
        self._collect(0, question, self._answer(*question))

    def _collect(self, rank: int, question: Any, answer: Any) -> None:
        key = json.dumps(question)
        answers = self._queries.get(key)
        if answers is None:  # of an earlier step
            return
        answers[rank] = answer
        if len(answers) == self.control.size:
            for asker in self._askers.pop(key):
                self._send_diagnosis(asker, key)
            del self._queries[key]

    def _send_diagnosis(self, asker: int, key: str) -> None:
        answers, names = self._queries[key], json.loads(key)[1]
        missing = {name: [rank for rank, (absent, _) in answers.items() if name in absent]
                   for name in names}
        diagnosis = ({name: ranks for name, ranks in missing.items() if ranks},
                     [rank for rank in range(self.control.size) if rank not in answers],
                     {rank: place for rank, (_, place) in answers.items()})
        if asker == self.control.rank:
            self.diagnosis = Diagnosis(*diagnosis)
        else:
            self.control.send(DIAGNOSIS, diagnosis, (asker,))
