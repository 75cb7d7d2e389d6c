"""Schedules: what each rank sends, receives, copies and reduces, round by round, as data.

A :class:`Schedule` has the collective, the number of ranks and a builder; it makes one
rank's :class:`Program` on demand, at the cost of that rank's own steps. A program is a
tuple of rounds, a round a tuple of steps.

Steps name memory as spans of slots in three buffers: ``in`` (the caller's input, never
written), ``out`` (the result) and ``tmp`` (scratch, whose slots are sized like the blocks
in :attr:`Program.scratch`). Lowering determines the number of elements of a slot.

Semantics of a round:

1. Its sends and receives are posted together, in any position. A send carries the contents of its
   slots at the start of the round.
2. It continues when all of them are complete. A send may wait for its receive. Messages between two
   ranks are received in the order in which they were sent.
3. Then the receives that reduce are executed, in the order written, and after them the local
   steps, in the order written, each on all its slots at once.

A message is the row of its slots, and is received into slots of the same sizes: of the same blocks,
unless the schedule is for blocks of one size. Both sides of a local step are slots of the same
blocks, one by one.

A slot may occur twice in a message that is sent, and in many messages of a round that send it or
reduce into it. The slots that a plain receive writes belong to it until the round is over: no other
message of the round may use them, except a receive-and-reduce that is written after it, which
reduces into the received data. A receive names each slot once. In place, slots of ``in`` and
``out`` are the same memory, and these rules apply to the shared memory. Proofs check them by slot
(:func:`hpccoll.proof.memory_rules.check_slots`), so that they hold for every adjacency of blocks.

The peer of a message may be an operation of the network instead of a rank
(:mod:`hpccoll.ir.in_network`): a multicast, or a reduction. The rules of messages apply to its
ends; all of them carry the same blocks. A rank that contributes to an operation and receives its
result may name the same slots in both, because the contribution is sent before the result arrives.

Rounds run one after another, unless :attr:`Program.after` names the rounds that each of them waits
for. Rounds that do not wait for each other run concurrently, in any order, and must not use memory
that another of them writes. Only rounds that send to one rank, or receive from one rank, keep the
order in which they are written, so that messages match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES, Collective
from hpccoll.ir.in_network import Peer
from hpccoll.ir.topology import Topology

SEND, RECV, COPY, REDUCE = "send", "recv", "copy", "reduce"
#: Side of the arriving operand in a reduction: LEFT is ``arriving op mine``.
LEFT, RIGHT = "left", "right"
#: Maximum lines of a schedule in ``str``, and number of first lines of a longer one.
SHOWN, FIRST = 40, 8


class Span(NamedTuple):
    """Slots ``start`` to ``stop - 1`` of one buffer."""

    buffer: str
    start: int
    stop: int

    @property
    def empty(self) -> bool:
        """Return True if it has no slot."""
        return self.start == self.stop

    def join(self, other: Span) -> Span | None:
        """Return both as one, if the other starts at the end of this one."""
        if self.buffer != other.buffer or self.stop != other.start:
            return None
        return Span(self.buffer, self.start, other.stop)

    def __str__(self) -> str:
        inner = str(self.start) if self.stop == self.start + 1 else f"{self.start}:{self.stop}"
        return f"{self.buffer}[{inner}]"


class Step(NamedTuple):
    """One action of one rank.

    Attributes:
        kind: ``send``, ``recv``, ``copy`` or ``reduce``.
        peer: the other rank of a message, or an operation of the network; -1 for local steps.
        spans: memory sent from, or written to. Empty for a message without payload.
        source: memory read by a local step.
        side: for reductions, the side of the operator with the arriving operand.
    """

    kind: str
    peer: Peer
    spans: tuple[Span, ...]
    source: tuple[Span, ...] = ()
    side: str = ""

    def __str__(self) -> str:
        here = " ".join(map(str, self.spans))
        verb = {"": "", LEFT: " (arriving op mine)", RIGHT: " (mine op arriving)"}.get(
            self.side, f" (side {self.side!r})")
        if self.kind == SEND:
            return f"send {self.peer} {here}".rstrip()
        if self.kind == RECV:
            return f"recv {self.peer} {here}".rstrip() + verb
        return f"{self.kind} {here} <- {' '.join(map(str, self.source))}{verb}"


#: Steps whose messages are posted together.
Round: TypeAlias = tuple[Step, ...]


class Program(NamedTuple):
    """One rank's rounds, and the block keys that determine the sizes of its scratch slots.

    Attributes:
        rounds: its rounds.
        scratch: for every slot of scratch, the key of a block of its size.
        after: for every round, the numbers of earlier ones that must be over before it begins;
            ``()`` for all: each waits for the one before it. See :func:`hpccoll.ir.order.lanes`.
    """

    rounds: tuple[Round, ...]
    scratch: Sequence[int] = ()
    after: tuple[tuple[int, ...], ...] = ()


def at(buffer: str, start: int, stop: int | None = None) -> Span:
    """Return one slot, or the slots ``start`` to ``stop - 1``, of a buffer as a span."""
    return Span(buffer, start, start + 1 if stop is None else stop)


def send(to: Peer, *spans: Span) -> Step:
    """Send the spans to a rank as one message; without spans, an empty message.

    Args:
        to: the rank, or an operation of the network of which this rank is a source.
    """
    return Step(SEND, to, spans)


def recv(frm: Peer, *spans: Span, reduce: str = "") -> Step:
    """Receive one message into the spans, or reduce it into them.

    Args:
        frm: the rank, or an operation of the network of which this rank is a sink.
        reduce: ``LEFT`` sets each slot to ``arriving op mine``, ``RIGHT`` to ``mine op arriving``;
            after all messages of the round, in the order of its steps.
    """
    return Step(RECV, frm, spans, (), reduce)


def copy(into: Span, source: Span) -> Step:
    """Copy slots within this rank; both spans have the same number of slots."""
    return Step(COPY, -1, (into,), (source,))


def reduce(into: Span, source: Span, side: str = LEFT) -> Step:
    """Set ``into`` to ``source op into`` (``LEFT``) or ``into op source`` (``RIGHT``)."""
    return Step(REDUCE, -1, (into,), (source,), side)


@dataclass(frozen=True, repr=False)
class Schedule:
    """All ranks' programs for one collective, generated rank by rank.

    Attributes:
        collective: of the schedule.
        algorithm: name, for texts.
        size: number of ranks.
        build: ``build(rank) -> Program``; pure, so that every rank can build any other's.
        root: root rank of rooted collectives.
        nblocks: blocks that a vector is cut into (``vector`` payloads; others have ``size``).
        params: the algorithm's parameters, for printing and comparison.
        topology: the layout it was composed for, if any.
        uniform: True if all blocks must have the same size (alltoall through intermediate ranks).
        rounds, sent: closed forms the proof must confirm: longest chain of dependent messages,
            and blocks sent by the busiest rank when every block has one element.
    """

    collective: Collective
    algorithm: str
    size: int
    build: Callable[[int], Program] = field(compare=False, repr=False)
    root: int = 0
    nblocks: int = 1
    params: tuple[tuple[str, int], ...] = ()
    topology: Topology | None = None
    uniform: bool = False
    rounds: int | None = None
    sent: int | None = None

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES.values():
            raise ArgumentError.unknown_word("collective", self.collective, COLLECTIVES)
        if self.size < 1:
            raise ArgumentError("size", f"a schedule needs at least one rank, got {self.size}")
        if not 0 <= self.root < self.size:
            raise ArgumentError("root", f"{self.root} is not a rank of 0..{self.size - 1}")
        if self.nblocks < 1:
            raise ArgumentError("nblocks", f"must be at least 1, got {self.nblocks}")

    def program(self, rank: int) -> Program:
        """Generate one rank's program, at the cost of its own steps."""
        if not 0 <= rank < self.size:
            raise ArgumentError("rank", f"{rank} is not a rank of 0..{self.size - 1}")
        return self.build(rank)

    def programs(self) -> Iterator[Program]:
        """Generate every rank's program."""
        return map(self.build, range(self.size))

    @property
    def title(self) -> str:
        """Return one line that identifies the schedule: ``allreduce ring size=4 nblocks=4``."""
        words = [self.collective.name, self.algorithm, f"size={self.size}"]
        words += [f"root={self.root}"] if self.collective.rooted else []
        words += [f"nblocks={self.nblocks}"] if self.collective.payload == "vector" else []
        words += [f"{name}={value}" for name, value in self.params]
        words += [f"topology={self.topology}"] if self.topology else []
        return " ".join(words)

    def __str__(self) -> str:
        """Return the text form of a small schedule, or the beginning of a larger one."""
        shown = list(islice(self.lines(), SHOWN + 1))
        if len(shown) > SHOWN:
            shown[FIRST:] = [f"... {self.size} ranks in total; .lines() has all lines, hpccoll "
                             "explain prints text and pictures"]
        return "\n".join(shown) + "\n"

    def __repr__(self) -> str:
        costs = [f"{self.rounds} rounds"] * (self.rounds is not None)
        costs += [f"{self.sent} blocks sent at most"] * (self.sent is not None)
        return f"<Schedule {self.title}" + (f": {', '.join(costs)}>" if costs else ">")

    def lines(self) -> Iterator[str]:
        """Yield the text form: title, then each rank's rounds, one round per line."""
        yield self.title
        for rank, program in enumerate(self.programs()):
            scratch = list(program.scratch)
            yield f"rank {rank}" + (f" scratch={scratch}" if scratch else "")
            for number, steps in enumerate(program.rounds):
                waits = f" after {list(program.after[number])}" if program.after else ""
                yield f"  {number}{waits}: " + "; ".join(map(str, steps))

    @property
    def digest(self) -> str:
        """Return sixteen hexadecimal digits that change with any step of any rank."""
        import hashlib
        sha = hashlib.sha256()
        for line in self.lines():
            sha.update(line.encode() + b"\n")
        return sha.hexdigest()[:16]
