"""Rendezvous of ranks: execution of rounds in which a send waits for its receive.

Every lane of a rank is a :class:`Thread`, which advances independently, except for rounds of other
lanes that it waits for. The messages from one rank to another keep the order in which they are
written (:func:`hpccoll.ir.order.waits`). So the result does not depend on the order of threads, and
one run represents all, if concurrent rounds share no memory: :mod:`hpccoll.proof.memory_rules`
proves that.

Subclasses of :class:`Rendezvous` define the content of messages and the local steps:
:mod:`hpccoll.proof.slots` moves whole blocks of any size, :mod:`hpccoll.proof.elements` the
elements of lowered programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from hpccoll.errors import ProofError
from hpccoll.ir.in_network import ABILITIES, InNetwork, Peer, fault_of
from hpccoll.ir.order import Waits, by_lane
from hpccoll.ir.schedule import RECV, SEND, Schedule
from hpccoll.units import ranks_text

#: Location of rounds: rank and number of the segment.
Place = tuple[int, int]


class MessageLike(Protocol):
    """One end of a message."""

    @property
    def kind(self) -> str: ...

    @property
    def peer(self) -> Peer: ...


class RoundLike(Protocol):
    """Messages that are posted together."""

    @property
    def messages(self) -> Sequence[Any]: ...


class RoundsOver:
    """Progress of the rounds of one rank in one segment.

    Attributes:
        waits: rounds that each round waits for; ``()`` for one lane.
        over: True for each completed round.
        times: completion time of each round, in dependent messages.
        learned: by round, the ranks (as bits) whose arrival is known after waiting for it.
    """

    def __init__(self, waits: Waits, rounds: int):
        self.waits, self.over = waits, [False] * rounds
        self.times, self.learned = [0] * rounds, [0] * rounds
        self.waiting: list[Thread] = []


class Thread:
    """Position of one lane of a rank in its rounds."""

    def __init__(self, place: Place, rounds: Sequence[Any], numbers: Sequence[int],
                 progress: RoundsOver):
        (self.rank, self.segment), self.rounds, self.numbers = place, rounds, numbers
        self.progress, self.index, self.started = progress, 0, False
        self.open: list[Any] = []
        self.knew = self.knows = self.time = self.finish = 0

    @property
    def number(self) -> int:
        """Return the number of the current round, or of the next one if the lane waits."""
        return self.numbers[self.index]

    @property
    def round(self) -> Any:
        """Return the current round, or the next one if the lane waits."""
        return self.rounds[self.number]

    @property
    def is_done(self) -> bool:
        """Return True if all rounds are complete."""
        return self.index >= len(self.numbers)


#: A thread, and the message of its round that it has posted.
End: TypeAlias = tuple[Thread, Any]


class Rendezvous:
    """All ranks' threads and message queues.

    Args:
        programs: the rounds of every rank and segment, and the rounds that each waits for.
    """

    def __init__(self, schedule: Schedule,
                 programs: Mapping[Place, tuple[Sequence[RoundLike], Waits]]):
        self.schedule, self.size = schedule, schedule.size
        self.threads: list[Thread] = []
        for place, (rounds, waits) in programs.items():
            progress = RoundsOver(waits, len(rounds))
            self.threads += [Thread(place, rounds, numbers, progress) for numbers in
                             (by_lane(waits) if waits else [range(len(rounds))])]
        #: By rank, the ranks (as bits) whose arrival is known to it.
        self.known = [1 << rank for rank in range(self.size)]
        self.queues: dict[tuple[int, int, int], deque[tuple[Thread, Any]]] = {}
        #: By network operation and segment, the waiting ends, by kind and rank.
        self.ends: dict[tuple[InNetwork, int], dict[tuple[str, int], deque[End]]] = {}

    # -- defined by subclasses --------------------------------------------------------------
    def begin(self, thread: Thread) -> None:
        """Handle the start of a round, before its messages."""

    def end(self, thread: Thread) -> None:
        """Handle the completion of a round's messages."""

    def move(self, source: Thread, out: Any, sink: Thread, into: Any) -> None:
        """Copy the content of a send of one thread to a receive of another."""
        raise NotImplementedError

    def combine_and_move(self, sources: Sequence[End], sinks: Sequence[End]) -> None:
        """Execute an operation of the network."""
        raise NotImplementedError

    def number_of(self, thread: Thread) -> int:
        """Return the number of a thread's round, as the schedule counts them."""
        return thread.number

    def fault(self, problem: str, rank: int | None = None, round: int | None = None,
              step: object = None) -> ProofError:
        return ProofError(problem, schedule=self.schedule.title, rank=rank, round=round,
                          step=None if step is None else str(step))

    # -- running ---------------------------------------------------------------------------
    def go(self) -> None:
        """Advance every thread until all are done or none can move."""
        ready = deque(self.threads)
        while ready:
            ready.extend(self.advance(ready.popleft()))
        stuck = [thread for thread in self.threads if not thread.is_done]
        if stuck:
            thread = next(thread for thread in stuck if thread.started)
            waits = next(m for m in thread.round.messages if m in thread.open)
            does = "receives" if waits.kind == SEND else "sends"
            peer = waits.peer
            raise self.fault(
                "deadlock with synchronous sends: " + (
                    f"rank {peer} never {does} this message" if isinstance(peer, int) else
                    "not all ranks reach this operation") +
                f"; {ranks_text({t.rank for t in stuck})} wait", thread.rank,
                self.number_of(thread), waits)

    def advance(self, thread: Thread) -> list[Thread]:
        """Start the next round of a thread, match its messages; return threads that can advance."""
        woken: list[Thread] = []
        progress = thread.progress
        if thread.started:
            self.end(thread)
            if progress.waits:
                number = thread.number
                progress.over[number], progress.times[number] = True, thread.finish
                progress.learned[number] = thread.knows
                woken, progress.waiting = progress.waiting, []
            thread.index += 1
            thread.started = False
            thread.time = thread.finish
        if thread.is_done:
            return woken
        if progress.waits:
            before = progress.waits[thread.number]
            if not all(map(progress.over.__getitem__, before)):
                progress.waiting.append(thread)
                return woken
            thread.time = thread.finish = max(map(progress.times.__getitem__, before), default=0)
            thread.knows = 1 << thread.rank
            for number in before:
                thread.knows |= progress.learned[number]
        thread.started = True
        self.begin(thread)
        messages = thread.round.messages
        thread.open = list(messages)
        thread.knew = thread.knows if progress.waits else self.known[thread.rank]
        for message in messages:
            if isinstance(message.peer, InNetwork):
                problem = fault_of(message.peer, thread.rank, message.kind == SEND, self.size)
                if problem:
                    raise self.fault(problem, thread.rank, self.number_of(thread), message)
                woken += self.join(thread, message, message.peer)
                continue
            if not 0 <= message.peer < self.size or message.peer == thread.rank:
                raise self.fault(f"{message.peer} is not another rank", thread.rank,
                                 self.number_of(thread), message)
            woken += self.match(thread, message, message.peer)
        return woken if messages else [*woken, thread]

    def match(self, thread: Thread, message: MessageLike, peer: int) -> list[Thread]:
        """Post one message; if its partner is waiting, move the data and complete both."""
        rank, sending = thread.rank, message.kind == SEND
        pair = (rank, peer, thread.segment) if sending else (peer, rank, thread.segment)
        queue = self.queues.setdefault(pair, deque())
        if not queue or queue[0][1].kind == message.kind:
            queue.append((thread, message))
            return []
        other, partner = queue.popleft()
        (sender, out), (receiver, into) = (((thread, message), (other, partner)) if sending
                                           else ((other, partner), (thread, message)))
        self.move(sender, out, receiver, into)
        return self.complete([(sender, out)], [(receiver, into)])

    def join(self, thread: Thread, message: MessageLike, network: InNetwork) -> list[Thread]:
        """Post one end of an operation of the network; execute it when all ends are posted."""
        waiting = self.ends.setdefault((network, thread.segment), {})
        waiting.setdefault((message.kind, thread.rank), deque()).append((thread, message))
        if len(waiting) < network.ends:
            return []
        sources, sinks = ([waiting[kind, rank].popleft() for rank in ranks] for kind, ranks in (
            (SEND, network.senders), (RECV, network.receivers)))
        for end in [end for end, held in waiting.items() if not held]:
            del waiting[end]
        self.combine_and_move(sources, sinks)
        return self.complete(sources, sinks)

    def complete(self, sources: Sequence[End], sinks: Sequence[End]) -> list[Thread]:
        """Complete moved messages at all their ends; return threads that can advance."""
        knew = 0
        for sender, _ in sources:
            knew |= sender.knew
        for receiver, _ in sinks:
            self.known[receiver.rank] |= knew
            receiver.knows |= knew
        ends = [*sources, *sinks]
        arrival = 1 + max(thread.time for thread, _ in ends)
        woken = []
        for thread, completed in ends:
            thread.open.remove(completed)
            thread.finish = max(thread.finish, arrival)
            if not thread.open:
                woken.append(thread)
        return woken

    # -- the result -----------------------------------------------------------------------
    @property
    def rounds(self) -> int:
        """Return the longest chain of dependent messages."""
        return max(thread.finish for thread in self.threads)

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the used abilities of the network."""
        found = {need for network, _ in self.ends for need in network.needs}
        return tuple(need for need in ABILITIES if need in found)

    def check_knowledge(self) -> None:
        """Check that every rank knows that all others have entered the barrier."""
        for rank, known in enumerate(self.known):
            missing = [r for r in range(self.size) if not known >> r & 1]
            if missing:
                raise self.fault(f"may leave the barrier before ranks {missing} enter it", rank)
