"""Proof that a schedule does what its collective promises, on the lowered per-rank programs.

The programs of all ranks are run on symbols. A symbol is a contribution (block, element,
rank), or the combination of two symbols, so a result carries its complete history: which
contributions it holds, how often, in which order and association. Messages are matched
with zero buffering: a send completes only when its receive is posted. Proved are

* every wanted element holds each required contribution exactly once - in rank order, for
  operators that do not commute - and elements that are not wanted are left alone;
* each send meets one receive of equal size, in order, and nothing is left over;
* no deadlock, even when every send is synchronous;
* no step touches memory that a message of the same round, or another segment, may be
  using; scratch stays in bounds;
* the numbers of rounds and of elements sent equal the closed form, where one is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpccoll.errors import ProofError
from hpccoll.ir.collectives import IN, OUT, TMP, Collective, slot_keys
from hpccoll.ir.extents import Extent, Local, Lowered, Message, Phase, Segment, shifted
from hpccoll.ir.schedule import SEND, Schedule
from hpccoll.proof.cases import BlockSizes, cases, lower_all
from hpccoll.proof.memory_rules import check_memory
from hpccoll.proof.symbols import GARBAGE, Symbol, SymbolTable

#: A rank's memory: ``in``, ``out``, and the scratch of each segment.
Memory = dict[object, list[Symbol]]
#: Where a thread runs: rank and number of the segment.
ThreadKey = tuple[int, int]


class Proof(NamedTuple):
    """What was proved about a schedule.

    Attributes:
        rank_order: contributions are combined in rank order: operators need not commute.
        replicas_identical: all ranks compute a shared result by the same association, so
            that floating-point results have the same bits everywhere.
        rounds: longest chain of dependent messages (the messages of a round are independent).
        sent: most elements sent by one rank, with one element per block.
        messages: most messages sent by one rank.
    """

    rank_order: bool
    replicas_identical: bool
    rounds: int
    sent: int
    messages: int


def verify(schedule: Schedule, collective: Collective | None = None, *,
           commutative: bool = True) -> Proof:
    """Prove a schedule for a sample of block sizes, in place and not, segmented and not.

    Args:
        schedule: what to prove.
        collective: what it must do; the schedule's own collective if omitted.
        commutative: ``False`` demands rank order of every reduction.

    Raises:
        ProofError: names the rank, round and step at fault.
    """
    collective = collective or schedule.collective
    proofs = [prove(schedule, collective, case) for case in cases(schedule, collective)]
    proof = proofs[0]._replace(
        rank_order=all(p.rank_order for p in proofs),
        replicas_identical=all(p.replicas_identical for p in proofs))
    for what, claimed, proved in (("rounds", schedule.rounds, proof.rounds),
                                  ("blocks sent by the busiest rank", schedule.sent, proof.sent)):
        if claimed is not None and claimed != proved:
            raise ProofError(f"takes {proved} {what}, the closed form says {claimed}",
                             schedule=schedule.title)
    if not commutative and not proof.rank_order:
        raise ProofError("contributions are not combined in rank order, so operators that do "
                         "not commute give wrong results", schedule=schedule.title)
    return proof


def prove(schedule: Schedule, collective: Collective, case: BlockSizes) -> Proof:
    """Prove one case; see :func:`verify`."""
    return prove_segments(schedule, collective, case, [
        lower_all(schedule, collective, rank, case) for rank in range(schedule.size)])


def prove_segments(schedule: Schedule, collective: Collective, case: BlockSizes,
                   programs: list[list[Segment]]) -> Proof:
    """Prove lowered programs, a list of segments for each rank, instead of the schedule's own."""
    run = _Run(schedule, collective, case, programs)
    check_memory(programs, run.fault)
    run.go()
    return run.conclude()


class WantedElement(NamedTuple):
    """An element of the output: its block, its place in it, and the ranks that must contribute."""

    key: int
    element: int
    ranks: Sequence[int]


class _Run:
    """All ranks' symbolic memories and message queues while a case is proved."""

    def __init__(self, schedule: Schedule, collective: Collective, case: BlockSizes,
                 programs: list[list[Segment]]):
        self.schedule, self.collective, self.case = schedule, collective, case
        self.programs, self.size = programs, schedule.size
        self.symbols = SymbolTable(self.size, case.size_of, case.keys)
        self.memory = [self.start(rank) for rank in range(self.size)]
        #: By rank, the ranks (as bits) whose arrival it knows of.
        self.known = [1 << rank for rank in range(self.size)]
        self.threads = {(rank, number): _Thread(segment.program)
                        for rank, held in enumerate(programs)
                        for number, segment in enumerate(held)}
        self.queues: dict[tuple[int, int, int], deque[tuple[int, Message]]] = {}

    def fault(self, problem: str, rank: int | None = None, round: int | None = None,
              step: object = None) -> ProofError:
        return ProofError(problem, schedule=self.schedule.title, rank=rank, round=round,
                          step=None if step is None else str(step))

    # -- memory ----------------------------------------------------------------------------
    def start(self, rank: int) -> Memory:
        """Memory before the call: the given contributions, garbage elsewhere."""
        size_of, root, nblocks = self.case.size_of, self.schedule.root, self.schedule.nblocks
        slots = slot_keys(self.collective, rank, self.size, root, nblocks)
        memory: Memory = {buffer: [GARBAGE] * sum(map(size_of, keys))
                          for buffer, keys in slots.items()}
        for buffer, keys in self.collective.given(rank, self.size, root, nblocks).items():
            memory[buffer] = [self.symbols.contribution(key, element, rank)
                              for key in keys for element in range(size_of(key))]
        for number, segment in enumerate(self.programs[rank]):
            memory[TMP, number] = [GARBAGE] * segment.program.scratch
        if self.case.in_place:
            self.share(memory, rank)
        return memory

    def share(self, memory: Memory, rank: int) -> None:
        """Leave the one memory that ``MPI.IN_PLACE`` leaves, under the name lowering uses."""
        kind = self.collective.in_place
        if kind == "root":
            if rank == self.schedule.root:
                del memory[OUT]
        elif OUT in memory:
            held = memory.pop(IN)
            start = sum(map(self.case.size_of, range(rank))) if kind == "own" else 0
            missing = start + len(held) - len(memory[OUT])
            memory[OUT] += [GARBAGE] * missing
            memory[OUT][start:start + len(held)] = held

    def find(self, rank: int, segment: int, extent: Extent) -> tuple[list[Symbol], Extent]:
        """The list an extent lies in, and the extent moved to its segment's place."""
        extent = shifted(extent, self.programs[rank][segment].shift)
        buffer = (TMP, segment) if extent.buffer == TMP else extent.buffer
        memory = self.memory[rank].get(buffer)
        if memory is None or extent.offset < 0 or extent.offset + extent.count > len(memory):
            raise self.fault(f"{extent} is out of bounds", rank)
        return memory, extent

    def read(self, rank: int, segment: int, extent: Extent) -> list[Symbol]:
        memory, extent = self.find(rank, segment, extent)
        return memory[extent.offset:extent.offset + extent.count]

    def write(self, rank: int, segment: int, extent: Extent, symbols: list[Symbol]) -> None:
        memory, extent = self.find(rank, segment, extent)
        memory[extent.offset:extent.offset + extent.count] = symbols

    # -- running ---------------------------------------------------------------------------
    def go(self) -> None:
        """Advance every (rank, segment) until all are done or none can move."""
        ready = deque(self.threads)
        while ready:
            ready.extend(self.advance(*ready.popleft()))
        stuck = [key for key, thread in self.threads.items() if not thread.done]
        if stuck:
            (rank, _), thread = stuck[0], self.threads[stuck[0]]
            waits = next(m for m in thread.phase.messages if m in thread.open)
            raise self.fault(
                f"deadlock with synchronous sends: ranks {sorted({r for r, _ in stuck})} wait "
                "for messages that never come", rank, thread.number, waits)

    def advance(self, rank: int, segment: int) -> list[ThreadKey]:
        """Start the next phase of a thread, match its messages; return threads that can go on."""
        thread = self.threads[rank, segment]
        woken: list[ThreadKey] = []
        if thread.started:
            self.compute(rank, segment, thread.phase.after)
            thread.number += 1
            thread.started = False
            thread.time = thread.finish
        if thread.done:
            return woken
        thread.started = True
        self.forget(rank, segment)
        self.compute(rank, segment, thread.phase.before)
        thread.open = list(thread.phase.messages)
        thread.knew = self.known[rank]
        for message in thread.phase.messages:
            if not 0 <= message.peer < self.size or message.peer == rank:
                raise self.fault(f"{message.peer} is not another rank", rank, thread.number,
                                 message)
            woken += self.match(rank, segment, message)
        return woken + ([(rank, segment)] if not thread.phase.messages else [])

    def match(self, rank: int, segment: int, message: Message) -> list[ThreadKey]:
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
        if out.extent.count != into.extent.count:
            raise self.fault(f"meets '{out}' of rank {source}, of another size", sink,
                             receiver.number, into)
        self.write(sink, segment, into.extent, self.read(source, segment, out.extent))
        self.known[sink] |= sender.knew
        arrival = 1 + max(sender.time, receiver.time)
        woken = []
        for end, thread, completed in ((source, sender, out), (sink, receiver, into)):
            thread.open.remove(completed)
            thread.finish = max(thread.finish, arrival)
            if not thread.open:
                woken.append((end, segment))
        return woken

    def forget(self, rank: int, segment: int) -> None:
        """Empty the landing space: a message used in place was never there."""
        scratch = self.memory[rank][TMP, segment]
        start = self.programs[rank][segment].program.landing
        scratch[start:] = [GARBAGE] * (len(scratch) - start)

    def compute(self, rank: int, segment: int, steps: Sequence[Local]) -> None:
        for into, left, right in steps:
            symbols = self.read(rank, segment, left)
            if right is not None:
                symbols = list(map(self.symbols.combine, symbols,
                                   self.read(rank, segment, right)))
            self.write(rank, segment, into, symbols)

    # -- the verdict -----------------------------------------------------------------------
    def conclude(self) -> Proof:
        """Compare what memory holds in the end with what was wanted."""
        ordered = identical = True
        first: dict[WantedElement, Symbol] = {}
        judged: dict[tuple[Symbol, WantedElement], bool] = {}
        for rank in range(self.size):
            for cell, symbol, wanted in self.results(rank):
                if (symbol, wanted) not in judged:
                    judged[symbol, wanted] = self.judge(rank, cell, symbol, wanted)
                ordered &= judged[symbol, wanted]
                identical &= self.symbols.associate_alike(first.setdefault(wanted, symbol), symbol)
            self.check_untouched(rank)
        if self.collective.payload == "none":
            self.check_knowledge()
        sends = [[message for segment in held for phase in segment.program.phases
                  for message in phase.messages if message.kind == SEND]
                 for held in self.programs]
        return Proof(ordered, identical, max(t.finish for t in self.threads.values()),
                     max(sum(message.extent.count for message in mine) for mine in sends),
                     max(map(len, sends)))

    def results(self, rank: int) -> Iterator[tuple[int, Symbol, WantedElement]]:
        """The place and symbol of every element that is wanted from a rank."""
        wanted = self.collective.wanted(rank, self.size, self.schedule.root,
                                        self.schedule.nblocks)
        if not wanted:
            return
        cell, memory = 0, self.memory[rank].get(OUT)
        if memory is None:  # a root that scatters in place
            cell, memory = sum(map(self.case.size_of, range(rank))), self.memory[rank][IN]
        for key, ranks in wanted:
            ranks = ranks if isinstance(ranks, range) else tuple(ranks)
            for element in range(self.case.size_of(key)):
                yield cell, memory[cell], WantedElement(key, element, ranks)
                cell += 1

    def judge(self, rank: int, cell: int, symbol: Symbol, wanted: WantedElement) -> bool:
        """Tell whether a result is in rank order; raise when it is wrong."""
        key, element, ranks = wanted
        where = f"out[{cell}] (block {key}, element {element})"
        if symbol is GARBAGE:
            raise self.fault(f"{where} was never written", rank)
        expected = [self.symbols.contribution(key, element, r) for r in ranks]
        leaves = self.symbols.leaves(symbol, len(expected) + 1)
        if leaves == expected:
            return True
        if sorted(leaves) != sorted(expected):
            raise self.fault(f"{where} holds {self.symbols.describe(leaves)} instead of the "
                             f"contributions of ranks {list(ranks)}, once each", rank)
        return False

    def check_untouched(self, rank: int) -> None:
        """Input stays as it was; an output that is not wanted is not written."""
        memory, fresh = self.memory[rank], self.start(rank)
        if memory.get(IN) != fresh.get(IN):
            raise self.fault("the input was overwritten", rank)
        wanted = self.collective.wanted(rank, self.size, self.schedule.root,
                                        self.schedule.nblocks)
        if not wanted and memory.get(OUT) != fresh.get(OUT):
            raise self.fault("output was written that nobody asked for", rank)

    def check_knowledge(self) -> None:
        """Every rank knows that all others have entered the barrier."""
        for rank, known in enumerate(self.known):
            missing = [r for r in range(self.size) if not known >> r & 1]
            if missing:
                raise self.fault(f"may leave the barrier before ranks {missing} enter it", rank)


class _Thread:
    """Where one rank stands in one segment's program."""

    def __init__(self, program: Lowered):
        self.phases, self.number, self.started = program.phases, 0, False
        self.open: list[Message] = []
        self.knew = self.time = self.finish = 0

    @property
    def phase(self) -> Phase:
        return self.phases[self.number]

    @property
    def done(self) -> bool:
        return self.number >= len(self.phases)
