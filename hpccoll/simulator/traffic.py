"""What is under way in a simulation, and what is left of it: messages, threads, the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from hpccoll.ir.cost.network import Resource
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.order import by_lane
from hpccoll.simulator.machine_model import Level
from hpccoll.simulator.shapes import Shape


class Met(NamedTuple):
    """What a message meets on its way, each resource with its use per byte.

    Attributes:
        uses: what can hold the message up.
        meets: all of it.
    """

    uses: list[tuple[int, float]]
    meets: list[tuple[int, float]]


class ClassLink:
    """From one class of ranks to another: what its messages cost, and which sides wait.

    Or between several, through the network: ``network`` says what it does.
    """

    __slots__ = ("alpha", "beta", "depth", "ends", "header", "line", "network", "overhead",
                 "waiting", "ways")

    def __init__(self, depth: int, level: Level, alpha: float, beta: float, ways: list[Met],
                 network: InNetwork | None = None):
        self.network = network
        #: By slot, the ends that wait for the network's other ones, by whether they send and rank.
        self.ends: dict[int, dict[tuple[int, int], deque[tuple[PipelineSlot, int, float]]]] = {}
        self.depth, self.alpha, self.overhead = depth, alpha, level.overhead
        #: Seconds per byte of a message that is alone on its way.
        self.header, self.beta = level.header, beta
        #: What a message meets, on each of the ways of which it takes one.
        self.ways = ways
        #: By slot, the sides posted whose other side is not: whether they send, their thread and
        #: its round, and the bytes.
        self.waiting: dict[int, deque[tuple[int, PipelineSlot, int, float]]] = {}
        #: Messages whose bytes flow, or wait to.
        self.line: deque[Flow] = deque()


class Flow:
    """One message on its way; its ends are the sender's and receiver's threads and rounds.

    Through the network it has several of both, the senders' first.
    """

    __slots__ = ("alpha", "channel", "ends", "held_by", "last", "left", "matched", "met", "nbytes",
                 "rate", "since", "version")

    def __init__(self, channel: ClassLink,
                 ends: Sequence[tuple[PipelineSlot, int]],
                 nbytes: float, matched: float, last: int):
        self.channel, self.ends, self.nbytes, self.matched = channel, ends, nbytes, matched
        #: Which of its ends was posted last.
        self.last = last
        self.left, self.alpha = nbytes + channel.header, channel.alpha
        #: On the way that it takes: the first, or another one once its bytes flow.
        self.met = channel.ways[0]
        self.rate, self.since, self.version = 0.0, matched, 0
        #: The resource that lets it have no more.
        self.held_by = -1

    @property
    def uses(self) -> list[tuple[int, float]]:
        """What can hold it up, each resource with its use per byte."""
        return self.met.uses


class PostedRound(NamedTuple):
    """A round: its messages (whether they send, the channel, bytes), and seconds of local work.

    In a program with lanes, ``waits`` has the rounds that must be over before, and ``needs`` says
    the same of its lanes: how many rounds of which ones.
    """

    messages: Sequence[tuple[int, ClassLink, float]]
    seconds: float
    waits: tuple[int, ...] | None = None
    needs: tuple[tuple[int, int], ...] = ()


class LoggedThread(Protocol):
    """A slot of a class of ranks, and the rounds that it is through with."""

    @property
    def rank(self) -> int: ...

    @property
    def log(self) -> Sequence[Done]: ...


class PipelineSlot:
    """One lane of a slot of a class of ranks: segments index, index + depth, ... one by one.

    Attributes:
        index: its place among all threads.
        beside: the lanes of the slot, itself included, and those of them that wait for others.
        held: its round waits for other lanes.
    """

    __slots__ = ("began", "beside", "current", "held", "index", "log", "pending", "rank", "rounds",
                 "slot")

    def __init__(self, rank: int, slot: int, rounds: Iterator[PostedRound], index: int,
                 beside: tuple[list[PipelineSlot], list[PipelineSlot]] | None = None):
        self.rank, self.slot, self.rounds, self.index = rank, slot, rounds, index
        self.beside, self.held = beside, False
        #: The round that runs; ``None`` at the end.
        self.current: PostedRound | None = PostedRound((), 0.0)
        self.pending, self.began = 0, 0.0
        self.log: list[Done] = []

    def free(self) -> bool:
        """Whether its round may begin; if not, it waits."""
        if self.beside is None or self.current is None:
            return True
        lanes, waiting = self.beside
        self.held = any(len(lanes[lane].log) < count for lane, count in self.current.needs)
        if self.held:
            waiting.append(self)
        return not self.held

    def before(self) -> tuple[int, int] | None:
        """Thread and number of the round that its round has waited for last, in lanes."""
        if self.beside is None or self.current is None:
            return None
        lanes, _ = self.beside
        found = [(lanes[lane].log[count - 1].ended, lanes[lane].index, count - 1)
                 for lane, count in self.current.needs]
        found += [(self.log[-1].ended, self.index, len(self.log) - 1)] if self.log else []
        return max(found)[1:] if found else (self.index, -1)


def in_lanes(segments: Sequence[Sequence[PostedRound]]) -> list[Iterator[PostedRound]]:
    """The rounds of segments that follow each other, lane by lane."""
    order = tuple(each.waits or () for each in segments[0])
    lanes = list(by_lane(order))
    place = {number: (lane, position) for lane, numbers in enumerate(lanes)
             for position, number in enumerate(numbers, 1)}

    def rounds(numbers: Sequence[int]) -> Iterator[PostedRound]:
        for turn, held in enumerate(segments):
            # A segment begins when all lanes are through with the one before it.
            first = tuple((lane, turn * len(lanes[lane])) for lane in range(len(lanes)) if turn)
            for number in numbers:
                before = (place[other] for other in order[number])
                needs = tuple((lane, turn * len(lanes[lane]) + position)
                              for lane, position in before)
                yield held[number]._replace(needs=needs or first)

    return [rounds(numbers) for numbers in lanes]


class Done(NamedTuple):
    """A round that is over: when it began and ended, and what its end waited for.

    Attributes:
        arrived: when its messages were complete; its local work follows.
        waited: the last message: posted last by the thread ``by`` in its round ``at``, at
            ``matched``; ``None`` for rounds without messages.
        before: in a program with lanes, the thread and number of the round that ended last of
            those that it waited for; ``None`` for the one before it.
    """

    began: float
    arrived: float
    ended: float
    waited: Waited | None
    before: tuple[int, int] | None = None


class Waited(NamedTuple):
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
    """What went over a resource: bytes, or for a port seconds, of each of its images."""

    resource: Resource
    carried: float


class SimulationRun(NamedTuple):
    """The outcome of a simulation, class by class.

    Attributes:
        seconds: until the last rank is done.
        ranks: a representative of every class.
        threads: the threads, ``depth`` for each class, with their logs.
        busy: seconds in which a class moved messages or computed.
        level_bytes: bytes per depth of the layout, of all ranks together.
        usage: of all ports, links and buses that were used.
        messages: number of messages, of all ranks together.
        reduced: bytes that were reduced, by all ranks together.
        shape: of the machine, whose links are among those used.
        last: seconds until the last rank came.
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
