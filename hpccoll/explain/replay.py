"""Replay of a schedule on block names: contents and arrival of every message.

A message arrives one round after the later of its two ranks has reached it, so the last arrival
is the longest chain of dependent messages: ``rounds`` of :class:`hpccoll.proof.verifier.Proof`.
Nothing is verified here: a wrong schedule is replayed as far as possible, because the author of an
algorithm needs that to find the error.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpccoll.errors import ProofError
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.order import by_lane, waits
from hpccoll.ir.schedule import COPY, RECV, SEND, Schedule, Span, Step
from hpccoll.proof.cases import cases, lower_all
from hpccoll.proof.verifier import Proof, prove


class Value(NamedTuple):
    """Content of a slot: a block, and the set of ranks (as bits) that contributed to it."""

    block: int
    ranks: int


class TimedMessage(NamedTuple):
    """One message with its time.

    Attributes:
        round: round of its arrival, counted from 1.
        values: its contents, slot by slot; ``None`` for memory that was never written.
        side: operand of the reduction on arrival (``left``, ``right``); empty if it is stored.
    """

    round: int
    sender: int
    receiver: int
    values: tuple[Value | None, ...]
    side: str


class TimedOperation(NamedTuple):
    """Operation of the network on messages of several ranks, with its time.

    Attributes:
        round: round of its completion, counted from 1.
        values: its result, slot by slot.
        sides: of each sink, the side of the reduction on arrival; empty if it is stored.
    """

    round: int
    network: InNetwork
    values: tuple[Value | None, ...]
    sides: tuple[str, ...]


class Timeline(NamedTuple):
    """All messages by round, and the round in which each round of each program ends.

    For a program without lanes it contains only rounds that end; with lanes it contains all, and
    ``None`` for those that never end.
    """

    messages: list[TimedMessage]
    finish: list[list[int | None]]
    operations: Sequence[TimedOperation] = ()

    @property
    def rounds(self) -> int:
        """Return the longest chain of dependent messages."""
        return max([0, *(m.round for m in self.messages), *(o.round for o in self.operations)])


class ScheduleFacts(NamedTuple):
    """Costs and proved properties of a schedule, with one element per block.

    If the schedule is wrong, ``proof`` is ``None`` and ``problem`` is the reason. ``sent`` and
    ``messages`` are those of the busiest rank, ``all_sent`` and ``all_messages`` the sums over all
    ranks. ``scratch`` is the maximum of one rank.
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
    """Replay a schedule; messages without a partner are omitted."""
    ranks = [_Rank(schedule, rank) for rank in range(schedule.size)]
    posted: dict[tuple[int, int], deque] = defaultdict(deque)
    joined: dict[InNetwork, dict[tuple[str, int], deque]] = defaultdict(dict)
    messages, operations = [], []
    ready = deque(lane for rank in ranks for lane in rank.lanes)
    while ready:
        lane = ready.popleft()
        rank = lane.rank
        for step, values in lane.start():
            if isinstance(step.peer, InNetwork):
                waiting = joined[step.peer]
                waiting.setdefault((step.kind, rank.number), deque()).append((lane, step, values))
                if len(waiting) == step.peer.ends:
                    operations.append(_operation(step.peer, waiting))
                    ready += _carried_out(operations[-1], step.peer, waiting)
                continue
            pair = (rank.number, step.peer) if step.kind == SEND else (step.peer, rank.number)
            queue = posted[pair]
            if not queue or queue[0][1].kind == step.kind:
                queue.append((lane, step, values))
                continue
            other, partner, held = queue.popleft()
            sender, receiver, into = ((lane, other, partner) if step.kind == SEND
                                      else (other, lane, step))
            arrival = 1 + max(lane.time, other.time)
            values = values if step.kind == SEND else held
            messages.append(TimedMessage(arrival, sender.rank.number, receiver.rank.number, values,
                                         into.side))
            receiver.rank.store(into.spans, values, bool(into.side))
            ready += [each for each in (lane, other) if each.complete(arrival)]
        ready += rank.woken()
    return Timeline(sorted(messages, key=lambda m: m[:3]), [r.finish for r in ranks],
                    sorted(operations, key=lambda o: (o.round, str(o.network))))


def _operation(network: InNetwork, waiting: Mapping[tuple[str, int], Sequence[Any]]
               ) -> TimedOperation:
    """Return the operation of the first waiting ends."""
    first = [waiting[end][0] for end in waiting]
    values: tuple[Value | None, ...] = ()
    for rank in network.senders:
        _, _, given = waiting[SEND, rank][0]
        values = tuple(one and other and Value(one.block, one.ranks | other.ranks)
                       for one, other in zip(values, given)) if values else given
    return TimedOperation(1 + max(lane.time for lane, _, _ in first), network, values,
                          tuple(waiting[RECV, rank][0][1].side for rank in network.receivers))


def _carried_out(operation: TimedOperation, network: InNetwork,
                 waiting: dict[tuple[str, int], deque]) -> list[_Lane]:
    """Deliver the result to every sink; return the lanes that can continue."""
    woken = []
    for kind, rank in list(waiting):
        lane, step, _ = waiting[kind, rank].popleft()
        if not waiting[kind, rank]:
            del waiting[kind, rank]
        if kind == RECV:
            lane.rank.store(step.spans, operation.values, bool(step.side))
        if lane.complete(operation.round):
            woken.append(lane)
    return woken


class _Rank:
    """Contents of one rank's slots, and its completed rounds."""

    def __init__(self, schedule: Schedule, rank: int):
        program = schedule.program(rank)
        self.number, self.rounds, self.waits = rank, program.rounds, waits(program)
        self.finish: list[int | None] = [None] * len(self.waits)
        self.lanes = [_Lane(self, numbers) for numbers in
                      (by_lane(self.waits) if self.waits else [range(len(self.rounds))])]
        #: Lanes that wait for others, and True if a round has ended since.
        self.waiting: list[_Lane] = []
        self.ended = False
        given = schedule.collective.given(rank, schedule.size, schedule.root, schedule.nblocks)
        self.slots: dict[tuple[str, int], Value | None] = {
            (buffer, slot): Value(key, 1 << rank)
            for buffer, keys in given.items() for slot, key in enumerate(keys)}

    def begins(self, number: int, lane: _Lane) -> int | None:
        """Return the start time of a round; ``None`` if it waits for other lanes."""
        if not self.waits:
            return lane.latest
        times = [self.finish[other] for other in self.waits[number]]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            self.waiting.append(lane)
            return None
        return max(known, default=0)

    def ends(self, number: int, time: int) -> None:
        """Record the end of a round."""
        if self.waits:
            self.finish[number] = time
            self.ended = True
        else:
            self.finish.append(time)

    def woken(self) -> list[_Lane]:
        """Return the lanes that may continue after the end of a round."""
        if not self.ended:
            return []
        woken, self.waiting, self.ended = self.waiting, [], False
        return woken

    def load(self, spans: Sequence[Span]) -> tuple[Value | None, ...]:
        return tuple(self.slots.get(slot) for slot in _slots(spans))

    def store(self, spans: Sequence[Span], values: Sequence[Value | None], reduce: bool) -> None:
        for slot, value in zip(_slots(spans), values):
            if reduce:
                mine = self.slots.get(slot)
                value = Value(mine.block, mine.ranks | value.ranks) if mine and value else None
            self.slots[slot] = value


class _Lane:
    """Position of one lane of a rank."""

    def __init__(self, rank: _Rank, numbers: Sequence[int]):
        self.rank, self.numbers = rank, numbers
        self.index = self.time = self.latest = self.open = 0
        self.posted = False

    def start(self) -> list[tuple[Step, tuple]]:
        """Complete rounds without pending messages, then post the next round that has some."""
        rank = self.rank
        while self.index < len(self.numbers):
            number = self.numbers[self.index]
            steps = rank.rounds[number]
            if not self.posted:
                begins = rank.begins(number, self)
                if begins is None:
                    return []
                self.time = self.latest = begins
                messages = [step for step in steps if _is_message(step)]
                if messages:
                    self.posted, self.open = True, len(messages)
                    return [(s, rank.load(s.spans) if s.kind == SEND else ()) for s in messages]
            self.posted = False
            for step in steps:
                if step.kind not in (SEND, RECV):
                    rank.store(step.spans, rank.load(step.source), step.kind != COPY)
            rank.ends(number, self.latest)
            self.index += 1
        return []

    def complete(self, arrival: int) -> bool:
        """Count one message as complete; return True if it was the last of its round."""
        self.open -= 1
        self.latest = max(self.latest, arrival)
        return not self.open


def _is_message(step: Step) -> bool:
    """Return False for a message of empty spans, which lowering drops; True without spans."""
    return step.kind in (SEND, RECV) and (not step.spans or any(_slots(step.spans)))


def _slots(spans: Sequence[Span]) -> Iterator[tuple[str, int]]:
    return ((span.buffer, slot) for span in spans for slot in range(span.start, span.stop))


def facts(schedule: Schedule, line: Timeline | None = None) -> ScheduleFacts:
    """Prove a schedule for one element per block, and count its messages."""
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
    for operation in line.operations:
        for sender in operation.network.senders:
            messages[sender] += 1
            sent[sender] += len(operation.values)
    return ScheduleFacts(proof, problem, line.rounds, max(messages), sum(messages),
                 max(sent), sum(sent), scratch)


def ranks_of(mask: int) -> list[int]:
    """Return the ranks of a bit set.

    >>> ranks_of(0b1011)
    [0, 1, 3]
    """
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
