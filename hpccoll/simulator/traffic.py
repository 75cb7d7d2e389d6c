"""What is under way in a simulation, and what is left of it: messages, threads, the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from hpccoll.simulator.machine_model import Level
from hpccoll.simulator.network import Resource


class ClassLink:
    """From one class of ranks to another: what its messages cost, and which sides wait."""

    __slots__ = ("alpha", "beta", "depth", "header", "line", "meets", "overhead", "uses",
                 "waiting")

    def __init__(self, depth: int, level: Level, beta: float, uses: list[tuple[int, float]],
                 meets: list[tuple[int, float]]):
        self.depth, self.alpha, self.overhead = depth, level.alpha, level.overhead
        #: Seconds per byte of a message that is alone on its way.
        self.header, self.beta = level.header, beta
        #: Resources that can hold a message up, and all, each with its use per byte.
        self.uses, self.meets = uses, meets
        #: By slot, the sides posted whose other side is not: whether they send, their thread and
        #: its round, and the bytes.
        self.waiting: dict[int, deque[tuple[int, PipelineSlot, int, float]]] = {}
        #: Messages whose bytes flow, or wait to.
        self.line: deque[Flow] = deque()


class Flow:
    """One message on its way; its ends are the sender's and receiver's threads and rounds."""

    __slots__ = ("channel", "ends", "last", "left", "matched", "nbytes", "rate", "since",
                 "version")

    def __init__(self, channel: ClassLink,
                 ends: tuple[tuple[PipelineSlot, int], tuple[PipelineSlot, int]],
                 nbytes: float, matched: float, last: int):
        self.channel, self.ends, self.nbytes, self.matched = channel, ends, nbytes, matched
        #: Which of its ends was posted last, the sender's (0) or the receiver's (1).
        self.last = last
        self.left = nbytes + channel.header
        self.rate, self.since, self.version = 0.0, matched, 0


class PostedRound(NamedTuple):
    """A round: its messages (whether they send, the channel, bytes), and seconds of local work."""

    messages: Sequence[tuple[int, ClassLink, float]]
    seconds: float


class LoggedThread(Protocol):
    """A slot of a class of ranks, and the rounds that it is through with."""

    @property
    def rank(self) -> int: ...

    @property
    def log(self) -> Sequence[Done]: ...


class PipelineSlot:
    """One slot of a class of ranks: segments index, index + depth, ... one after the other."""

    __slots__ = ("began", "current", "log", "pending", "rank", "rounds", "slot")

    def __init__(self, rank: int, slot: int, rounds: Iterator[PostedRound]):
        self.rank, self.slot, self.rounds = rank, slot, rounds
        #: The round that runs; ``None`` at the end.
        self.current: PostedRound | None = PostedRound((), 0.0)
        self.pending, self.began = 0, 0.0
        self.log: list[Done] = []


class Done(NamedTuple):
    """A round that is over: when it began and ended, and what its end waited for.

    Attributes:
        arrived: when its messages were complete; its local work follows.
        waited: the last message: posted last by the thread ``by`` in its round ``at``, at
            ``matched``; ``None`` for rounds without messages.
    """

    began: float
    arrived: float
    ended: float
    waited: Waited | None


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
    """

    seconds: float
    ranks: Sequence[int]
    threads: Sequence[LoggedThread]
    busy: Sequence[float]
    level_bytes: dict[int, float]
    usage: list[Usage]
    messages: int
