"""A schedule replayed on block names: what every message carries, and when it arrives.

A message arrives one round after the later of its two ranks got there, so the last arrival
is the longest chain of dependent messages - the number that :class:`hpccoll.proof.verifier.Proof`
calls ``rounds``. Nothing is judged here: a wrong schedule is replayed as far as it goes,
because that is where the author of an algorithm looks for the mistake.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpccoll.errors import ProofError
from hpccoll.ir.schedule import COPY, RECV, SEND, Schedule, Span, Step
from hpccoll.proof.cases import cases, lower_all
from hpccoll.proof.verifier import Proof, prove


class Value(NamedTuple):
    """Content of a slot: a block, and the set of ranks (as bits) that contributed to it."""

    block: int
    ranks: int


class TimedMessage(NamedTuple):
    """One message, placed in time.

    Attributes:
        round: when it arrives, counted from 1.
        sender, receiver: its ranks.
        values: what it carries, slot by slot; ``None`` for memory that was never written.
        side: how it is reduced on arrival (``left``, ``right``), empty when it is stored.
    """

    round: int
    sender: int
    receiver: int
    values: tuple[Value | None, ...]
    side: str


class Timeline(NamedTuple):
    """All messages by round, and the round in which each round of each program ends."""

    messages: list[TimedMessage]
    finish: list[list[int]]

    @property
    def rounds(self) -> int:
        """The longest chain of dependent messages."""
        return max((m.round for m in self.messages), default=0)


class ScheduleFacts(NamedTuple):
    """What a schedule costs and what was proved, with one element per block.

    Where the schedule is wrong, ``proof`` is ``None`` and ``problem`` says why. ``sent`` and
    ``messages`` count what the busiest rank sends, ``all_sent`` and ``all_messages`` what all
    ranks do; ``scratch`` is the most that one rank needs.
    """

    proof: Proof | None
    problem: str
    rounds: int
    messages: int
    all_messages: int
    sent: int
    all_sent: int
    scratch: int


def timeline(schedule: Schedule) -> Timeline:
    """Replay a schedule; messages that never meet their partner are left out."""
    ranks = [_Rank(schedule, rank) for rank in range(schedule.size)]
    posted: dict[tuple[int, int], deque] = defaultdict(deque)
    messages, ready = [], deque(ranks)
    while ready:
        rank = ready.popleft()
        for step, values in rank.start():
            pair = (rank.number, step.peer) if step.kind == SEND else (step.peer, rank.number)
            queue = posted[pair]
            if not queue or queue[0][1].kind == step.kind:
                queue.append((rank, step, values))
                continue
            other, partner, held = queue.popleft()
            sender, receiver, into = ((rank, other, partner) if step.kind == SEND
                                      else (other, rank, step))
            arrival = 1 + max(rank.time, other.time)
            values = values if step.kind == SEND else held
            messages.append(TimedMessage(arrival, sender.number, receiver.number, values,
                                         into.side))
            receiver.store(into.spans, values, bool(into.side))
            ready += [r for r in (rank, other) if r.complete(arrival)]
    return Timeline(sorted(messages, key=lambda m: m[:3]), [r.finish for r in ranks])


class _Rank:
    """Where one rank stands in its program, and what its slots hold."""

    def __init__(self, schedule: Schedule, rank: int):
        self.number, self.rounds = rank, schedule.program(rank).rounds
        self.time = self.latest = self.open = 0
        self.finish: list[int] = []
        given = schedule.collective.given(rank, schedule.size, schedule.root, schedule.nblocks)
        self.slots: dict[tuple[str, int], Value | None] = {
            (buffer, slot): Value(key, 1 << rank)
            for buffer, keys in given.items() for slot, key in enumerate(keys)}

    def start(self) -> list[tuple[Step, tuple]]:
        """Finish what has no messages left, then post the next round that has some."""
        while len(self.finish) < len(self.rounds):
            steps = self.rounds[len(self.finish)]
            messages = [] if self.latest > self.time else [s for s in steps if _is_message(s)]
            if messages:
                self.open = len(messages)
                return [(s, self.load(s.spans) if s.kind == SEND else ()) for s in messages]
            for step in steps:
                if step.kind not in (SEND, RECV):
                    self.store(step.spans, self.load(step.source), step.kind != COPY)
            self.time = self.latest
            self.finish.append(self.time)
        return []

    def complete(self, arrival: int) -> bool:
        """Count one message as done; tell whether it was the last of its round."""
        self.open -= 1
        self.latest = max(self.latest, arrival)
        return not self.open

    def load(self, spans: Sequence[Span]) -> tuple[Value | None, ...]:
        return tuple(self.slots.get(slot) for slot in _slots(spans))

    def store(self, spans: Sequence[Span], values: Sequence[Value | None], reduce: bool) -> None:
        for slot, value in zip(_slots(spans), values):
            if reduce:
                mine = self.slots.get(slot)
                value = Value(mine.block, mine.ranks | value.ranks) if mine and value else None
            self.slots[slot] = value


def _is_message(step: Step) -> bool:
    """Lowering drops a message whose spans are empty, and keeps one written without spans."""
    return step.kind in (SEND, RECV) and (not step.spans or any(_slots(step.spans)))


def _slots(spans: Sequence[Span]) -> Iterator[tuple[str, int]]:
    return ((span.buffer, slot) for span in spans for slot in range(span.start, span.stop))


def facts(schedule: Schedule, line: Timeline | None = None) -> ScheduleFacts:
    """Prove a schedule for one element per block, and count what it sends."""
    line = line or timeline(schedule)
    one, *_ = cases(schedule, schedule.collective)
    proof, problem, scratch = None, "", 0
    try:
        proof = prove(schedule, schedule.collective, one)
        scratch = max(segment.program.scratch for rank in range(schedule.size)
                      for segment in lower_all(schedule, schedule.collective, rank, one))
    except ProofError as error:
        problem = str(error)
    messages, sent = [0] * schedule.size, [0] * schedule.size
    for message in line.messages:
        messages[message.sender] += 1
        sent[message.sender] += len(message.values)
    return ScheduleFacts(proof, problem, line.rounds, max(messages), sum(messages),
                 max(sent), sum(sent), scratch)


def ranks_of(mask: int) -> list[int]:
    """The ranks of a bit set.

    >>> ranks_of(0b1011)
    [0, 1, 3]
    """
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
