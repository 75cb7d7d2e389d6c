"""State of a simulation, and its result: messages, threads, the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from hpccoll.ir.cost.network import Resource
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.order import by_lane
from hpccoll.simulator.machine_model import Level
from hpccoll.simulator.shapes import Shape


class MessageResources(NamedTuple):
    """Resources of a message on its route, each with its use per byte.

    Attributes:
        uses: resources that can limit the message.
        meets: all resources.
    """

    uses: list[tuple[int, float]]
    meets: list[tuple[int, float]]


class ClassLink:
    """Channel from one class of ranks to another: costs of its messages, and waiting ends.

    With ``network`` set, the channel is an in-network operation of several ranks.
    """

    __slots__ = ("alpha", "beta", "depth", "ends", "header", "line", "network", "overhead",
                 "waiting", "ways")

    def __init__(self, depth: int, level: Level, alpha: float, beta: float,
                 ways: list[MessageResources],
                 network: InNetwork | None = None):
        self.network = network
        #: By slot, the waiting ends of an operation of the network, by direction and rank.
        self.ends: dict[int, dict[tuple[int, int], deque[tuple[PipelineSlot, int, float]]]] = {}
        self.depth, self.alpha, self.overhead = depth, alpha, level.overhead
        #: Seconds per byte of a message on unshared resources.
        self.header, self.beta = level.header, beta
        #: Resources of a message, on each possible route.
        self.ways = ways
        #: By slot, the posted ends without a match: direction, thread and its round, and bytes.
        self.waiting: dict[int, deque[tuple[int, PipelineSlot, int, float]]] = {}
        #: Messages whose bytes flow, or wait to flow.
        self.line: deque[Flow] = deque()


class Flow:
    """A message in flight; its ends are the sender's and receiver's threads and rounds.

    In the network it has several of both, the senders' first.
    """

    __slots__ = ("alpha", "channel", "ends", "held_by", "last", "left", "matched", "met", "nbytes",
                 "rate", "since", "version")

    def __init__(self, channel: ClassLink,
                 ends: Sequence[tuple[PipelineSlot, int]],
                 nbytes: float, matched: float, last: int):
        self.channel, self.ends, self.nbytes, self.matched = channel, ends, nbytes, matched
        #: Index of the end that was posted last.
        self.last = last
        self.left, self.alpha = nbytes + channel.header, channel.alpha
        #: Its route: the first, or another one once its bytes flow.
        self.met = channel.ways[0]
        self.rate, self.since, self.version = 0.0, matched, 0
        #: The resource that limits its rate.
        self.held_by = -1

    @property
    def uses(self) -> list[tuple[int, float]]:
        """Return the resources that can limit the message, each with its use per byte."""
        return self.met.uses


class PostedRound(NamedTuple):
    """A round: its messages (direction, channel, bytes), and seconds of local work.

    In a program with lanes, ``waits`` has the rounds that must be over before, and ``needs`` the
    same by lane: a number of rounds of each.
    """

    messages: Sequence[tuple[int, ClassLink, float]]
    seconds: float
    waits: tuple[int, ...] | None = None
    needs: tuple[tuple[int, int], ...] = ()


class LoggedThread(Protocol):
    """A slot of a class of ranks, and its completed rounds."""

    @property
    def rank(self) -> int: ...

    @property
    def log(self) -> Sequence[CompletedRound]: ...


class PipelineSlot:
    """One lane of a slot of a class of ranks: segments index, index + depth, ... one by one.

    Attributes:
        index: index among all threads.
        beside: all lanes of the slot, including this lane, and those that wait.
        held: True if the current round waits for other lanes.
    """

    __slots__ = ("began", "beside", "current", "held", "index", "log", "pending", "rank", "rounds",
                 "slot")

    def __init__(self, rank: int, slot: int, rounds: Iterator[PostedRound], index: int,
                 beside: tuple[list[PipelineSlot], list[PipelineSlot]] | None = None):
        self.rank, self.slot, self.rounds, self.index = rank, slot, rounds, index
        self.beside, self.held = beside, False
        #: Current round; ``None`` at the end.
        self.current: PostedRound | None = PostedRound((), 0.0)
        self.pending, self.began = 0, 0.0
        self.log: list[CompletedRound] = []

    def free(self) -> bool:
        """Return True if the current round may begin; otherwise mark the lane as waiting."""
        if self.beside is None or self.current is None:
            return True
        lanes, waiting = self.beside
        self.held = any(len(lanes[lane].log) < count for lane, count in self.current.needs)
        if self.held:
            waiting.append(self)
        return not self.held

    def last_awaited(self) -> tuple[int, int] | None:
        """Return thread and number of the round that its round waited for last, in lanes."""
        if self.beside is None or self.current is None:
            return None
        lanes, _ = self.beside
        found = [(lanes[lane].log[count - 1].ended, lanes[lane].index, count - 1)
                 for lane, count in self.current.needs]
        found += [(self.log[-1].ended, self.index, len(self.log) - 1)] if self.log else []
        return max(found)[1:] if found else (self.index, -1)


def in_lanes(segments: Sequence[Sequence[PostedRound]]) -> list[Iterator[PostedRound]]:
    """Return the rounds of consecutive segments, lane by lane."""
    order = tuple(each.waits or () for each in segments[0])
    lanes = list(by_lane(order))
    place = {number: (lane, position) for lane, numbers in enumerate(lanes)
             for position, number in enumerate(numbers, 1)}

    def rounds(numbers: Sequence[int]) -> Iterator[PostedRound]:
        for turn, held in enumerate(segments):
            # A segment begins when all lanes have completed the one before it.
            first = tuple((lane, turn * len(lanes[lane])) for lane in range(len(lanes)) if turn)
            for number in numbers:
                before = (place[other] for other in order[number])
                needs = tuple((lane, turn * len(lanes[lane]) + position)
                              for lane, position in before)
                yield held[number]._replace(needs=needs or first)

    return [rounds(numbers) for numbers in lanes]


class CompletedRound(NamedTuple):
    """A completed round: its begin and end, and the cause of its end.

    Attributes:
        arrived: time at which its messages were complete; its local work follows.
        waited: the last message: posted last by the thread ``by`` in its round ``at``, at
            ``matched``; ``None`` for rounds without messages.
        before: in a program with lanes, thread and number of the awaited round that ended last;
            ``None`` if that is the previous round.
    """

    began: float
    arrived: float
    ended: float
    waited: AwaitedMessage | None
    before: tuple[int, int] | None = None


class AwaitedMessage(NamedTuple):
    """The message that a round waited for."""

    by: int
    at: int
    peer: int
    matched: float
    alpha: float
    alone: float
    nbytes: float
    depth: int


class Usage(NamedTuple):
    """Usage of a resource: bytes, or for a port seconds, of each of its images."""

    resource: Resource
    carried: float


class SimulationRun(NamedTuple):
    """Result of a simulation, class by class.

    Attributes:
        seconds: until the last rank is done.
        threads: the threads, ``depth`` for each class, with their logs.
        busy: seconds in which a class moved messages or computed.
        level_bytes: bytes per depth of the layout, of all ranks together.
        messages: number of messages, of all ranks together.
        reduced: bytes that were reduced, by all ranks together.
        shape: shape of the machine, if its links are used.
        last: seconds until the last rank entered the call.
    """

    seconds: float
    ranks: Sequence[int]
    threads: Sequence[LoggedThread]
    busy: Sequence[float]
    level_bytes: dict[int, float]
    usage: list[Usage]
    messages: int
    reduced: float
    shape: Shape | None
    last: float
