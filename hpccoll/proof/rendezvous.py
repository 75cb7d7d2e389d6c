"""Ranks that meet: rounds go on, and messages move, where a send waits for its receive.

What a message carries, and what local steps do, is for those who derive from :class:`Rendezvous`:
:mod:`hpccoll.proof.slots` moves whole blocks of any size, :mod:`hpccoll.proof.elements` the
elements of lowered programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hpccoll.errors import ProofError
from hpccoll.ir.schedule import SEND, Schedule

#: Where a thread runs: rank and number of the segment.
ThreadKey = tuple[int, int]


class MessageLike(Protocol):
    """One end of a message."""

    @property
    def kind(self) -> str: ...

    @property
    def peer(self) -> int: ...


class RoundLike(Protocol):
    """What has messages that are posted together."""

    @property
    def messages(self) -> Sequence[Any]: ...


class Thread:
    """Where one rank stands in its rounds (those of one segment)."""

    def __init__(self, rounds: Sequence[Any]):
        self.rounds, self.number, self.started = rounds, 0, False
        self.open: list[Any] = []
        self.knew = self.time = self.finish = 0

    @property
    def round(self) -> Any:
        """The round it is in."""
        return self.rounds[self.number]

    @property
    def done(self) -> bool:
        """Whether it has no round left."""
        return self.number >= len(self.rounds)


class Rendezvous:
    """All ranks' threads and message queues."""

    def __init__(self, schedule: Schedule, threads: Mapping[ThreadKey, Sequence[RoundLike]]):
        self.schedule, self.size = schedule, schedule.size
        self.threads = {key: Thread(rounds) for key, rounds in threads.items()}
        #: By rank, the ranks (as bits) whose arrival it knows of.
        self.known = [1 << rank for rank in range(self.size)]
        self.queues: dict[tuple[int, int, int], deque[tuple[int, Any]]] = {}

    # -- what differs ----------------------------------------------------------------------
    def begin(self, rank: int, segment: int) -> None:
        """A round starts: what comes before its messages."""

    def end(self, rank: int, segment: int) -> None:
        """All messages of a round are complete: what comes after them."""

    def move(self, segment: int, source: int, out: Any, sink: int, into: Any) -> None:
        """Carry the content of a send of rank ``source`` to a receive of rank ``sink``."""
        raise NotImplementedError

    def number_of(self, rank: int, segment: int) -> int:
        """The number of the round a thread is in, as the schedule counts them."""
        return self.threads[rank, segment].number

    def fault(self, problem: str, rank: int | None = None, round: int | None = None,
              step: object = None) -> ProofError:
        """The error that names a place."""
        return ProofError(problem, schedule=self.schedule.title, rank=rank, round=round,
                          step=None if step is None else str(step))

    # -- running ---------------------------------------------------------------------------
    def go(self) -> None:
        """Advance every thread until all are done or none can move.

        Raises:
            ProofError: some wait for ever, or a message is for nobody.
        """
        ready = deque(self.threads)
        while ready:
            ready.extend(self.advance(*ready.popleft()))
        stuck = [key for key, thread in self.threads.items() if not thread.done]
        if stuck:
            rank, segment = stuck[0]
            thread = self.threads[rank, segment]
            waits = next(m for m in thread.round.messages if m in thread.open)
            raise self.fault(
                f"deadlock with synchronous sends: ranks {sorted({r for r, _ in stuck})} wait "
                "for messages that never come", rank, self.number_of(rank, segment), waits)

    def advance(self, rank: int, segment: int) -> list[ThreadKey]:
        """Start the next round of a thread, match its messages; return threads that can go on."""
        thread = self.threads[rank, segment]
        woken: list[ThreadKey] = []
        if thread.started:
            self.end(rank, segment)
            thread.number += 1
            thread.started = False
            thread.time = thread.finish
        if thread.done:
            return woken
        thread.started = True
        self.begin(rank, segment)
        messages = thread.round.messages
        thread.open = list(messages)
        thread.knew = self.known[rank]
        for message in messages:
            if not 0 <= message.peer < self.size or message.peer == rank:
                raise self.fault(f"{message.peer} is not another rank", rank,
                                 self.number_of(rank, segment), message)
            woken += self.match(rank, segment, message)
        return woken if messages else [(rank, segment)]

    def match(self, rank: int, segment: int, message: MessageLike) -> list[ThreadKey]:
        """Post one message; when its partner is waiting, move the data and complete both."""
        sending = message.kind == SEND
        pair = (rank, message.peer, segment) if sending else (message.peer, rank, segment)
        queue = self.queues.setdefault(pair, deque())
        if not queue or queue[0][1].kind == message.kind:
            queue.append((rank, message))
            return []
        other, partner = queue.popleft()
        (source, out), (sink, into) = (((rank, message), (other, partner)) if sending
                                       else ((other, partner), (rank, message)))
        sender, receiver = self.threads[source, segment], self.threads[sink, segment]
        self.move(segment, source, out, sink, into)
        self.known[sink] |= sender.knew
        arrival = 1 + max(sender.time, receiver.time)
        woken = []
        for end, thread, completed in ((source, sender, out), (sink, receiver, into)):
            thread.open.remove(completed)
            thread.finish = max(thread.finish, arrival)
            if not thread.open:
                woken.append((end, segment))
        return woken

    # -- the verdict -----------------------------------------------------------------------
    @property
    def rounds(self) -> int:
        """Longest chain of dependent messages."""
        return max(thread.finish for thread in self.threads.values())

    def check_knowledge(self) -> None:
        """Every rank knows that all others have entered the barrier."""
        for rank, known in enumerate(self.known):
            missing = [r for r in range(self.size) if not known >> r & 1]
            if missing:
                raise self.fault(f"may leave the barrier before ranks {missing} enter it", rank)
