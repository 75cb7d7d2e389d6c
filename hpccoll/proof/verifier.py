"""Proof that a schedule does what its collective promises, on the lowered per-rank programs.

The programs of all ranks are run on symbols. A symbol is a contribution (block, element,
rank), or the combination of two symbols, so a result carries its complete history: which
contributions it holds, how often, in which order and association. Messages are matched
with zero buffering: a send completes only when its receive is posted. Proved are

* every wanted element holds each required contribution exactly once - in rank order, for
  operators that do not commute - and elements nobody asked for are left alone;
* each send meets one receive of equal size, in order, and nothing is left over;
* no deadlock, even when every send is synchronous;
* no step touches memory that a message of the same round, or another segment, may be
  using; scratch stays in bounds;
* the numbers of rounds and of elements sent equal the closed form, where one is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from hpccoll.errors import ProofError, ScheduleError
from hpccoll.ir.collectives import IN, OUT, TMP, Collective, block_counts, slot_keys
from hpccoll.ir.lowering import (
    Extent,
    Local,
    Lowered,
    Message,
    Segment,
    SlotLayout,
    alias,
    packed,
    segments,
    shifted,
)
from hpccoll.ir.schedule import RECV, SEND, Schedule

#: The symbol of memory nobody wrote.
GARBAGE = None
#: From this many ranks on, one sample of block sizes is proved instead of a dozen.
LARGE = 128


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


class BlockSizes(NamedTuple):
    """One choice of block sizes to prove: size of a block key, in place or not, segments."""

    size_of: Callable[[int], int]
    keys: int
    in_place: bool = False
    segment: int = 0


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
    facts = [prove(schedule, collective, case) for case in cases(schedule, collective)]
    proof = facts[0]._replace(
        rank_order=all(f.rank_order for f in facts),
        replicas_identical=all(f.replicas_identical for f in facts))
    for what, claimed, found in (("rounds", schedule.rounds, proof.rounds),
                                 ("blocks sent by the busiest rank", schedule.sent, proof.sent)):
        if claimed is not None and claimed != found:
            raise ProofError(f"takes {found} {what}, the closed form says {claimed}",
                             schedule=schedule.title)
    if not commutative and not proof.rank_order:
        raise ProofError("contributions are not combined in rank order, so operators that do "
                         "not commute give wrong results", schedule=schedule.title)
    return proof


def cases(schedule: Schedule, collective: Collective) -> Iterable[BlockSizes]:
    """Sample block sizes: one element each first, then none, fewer than blocks, uneven."""
    n = schedule.nblocks if collective.payload == "vector" else schedule.size
    keys = n * n if collective.payload == "pairs" else n
    one = BlockSizes(lambda key: 1, keys)
    if collective.payload == "none" or schedule.size >= LARGE:
        return [one]
    if collective.payload == "vector":
        sizes = [block_counts(c, n).__getitem__ for c in {0, 1, n - 1, n + 1, 2 * n + 1} - {n}]
    elif schedule.uniform:
        sizes = [lambda key: 0, lambda key: 3]
    else:
        sizes = [lambda key: (5 * key + 3) % 4, lambda key: 2 * (key == keys - 1)]
    found = [one, *(BlockSizes(size_of, keys) for size_of in sizes)]
    found.append(BlockSizes(lambda key: 3, keys, segment=2))
    if collective.in_place:
        found += [one._replace(in_place=True), found[-1]._replace(in_place=True),
                  BlockSizes(sizes[0], keys, True)]
    return found


def prove(schedule: Schedule, collective: Collective, case: BlockSizes) -> Proof:
    """Prove one case; see :func:`verify`."""
    return prove_segments(schedule, collective, case, [
        lower_all(schedule, collective, rank, case) for rank in range(schedule.size)])


def prove_segments(schedule: Schedule, collective: Collective, case: BlockSizes,
                programs: list[list[Segment]]) -> Proof:
    """Prove lowered programs, a list of lanes for each rank, instead of the schedule's own."""
    machine = _Machine(schedule, collective, case, programs)
    machine.check_memory()
    machine.run()
    return machine.conclude()


def lower_all(schedule: Schedule, collective: Collective, rank: int, case: BlockSizes) -> list[Segment]:
    """Lower one rank's program for every segment of a case, as a plan would."""
    keys = slot_keys(collective, rank, schedule.size, schedule.root, schedule.nblocks)
    places = {b: packed(b, [case.size_of(k) for k in ks]) for b, ks in keys.items()}
    if case.in_place:
        alias(collective.in_place, places, rank, schedule.root)
    longest = max(map(case.size_of, range(case.keys)), default=0)
    try:
        return segments(schedule.program(rank), SlotLayout(places, case.size_of), longest, case.segment)
    except ScheduleError as error:
        raise ProofError(str(error), schedule=schedule.title, rank=rank) from error


class _Machine:
    """All ranks' symbolic memories and message queues while a case is proved."""

    def __init__(self, schedule: Schedule, collective: Collective, case: BlockSizes,
                 programs: list[list[Segment]]):
        self.schedule, self.collective, self.case = schedule, collective, case
        self.programs, self.size = programs, schedule.size
        self.base = list(accumulate(map(case.size_of, range(case.keys)), initial=0))
        self.nodes: dict[tuple[int, int], int] = {}
        self.operands: list[tuple[int, int]] = []
        self.memory = [self.start(rank) for rank in range(self.size)]
        self.known = [1 << rank for rank in range(self.size)]

    # -- symbols ---------------------------------------------------------------------------
    def leaf(self, key: int, element: int, rank: int) -> int:
        """A contribution: negative, so that it is never mistaken for a combination."""
        return -1 - ((self.base[key] + element) * self.size + rank)

    def node(self, left, right):
        if left is GARBAGE or right is GARBAGE:
            return GARBAGE
        made = self.nodes.setdefault((left, right), len(self.operands))
        if made == len(self.operands):
            self.operands.append((left, right))
        return made

    def leaves(self, symbol: int, most: int) -> list[int]:
        """Contributions of a symbol from left to right; stops after ``most``."""
        found, stack = [], [symbol]
        while stack and len(found) < most:
            top = stack.pop()
            if top < 0:
                found.append(top)
            else:
                left, right = self.operands[top]
                stack += (right, left)
        return found

    def unordered(self, symbol: int, done: dict[int, int]) -> int:
        """The same association with operands in canonical order: ``a+b`` equals ``b+a``."""
        stack = [symbol]
        while stack:
            top = stack[-1]
            if top < 0 or top in done:
                stack.pop()
                continue
            missing = [o for o in self.operands[top] if o >= 0 and o not in done]
            if missing:
                stack += missing
                continue
            left, right = sorted(o if o < 0 else done[o] for o in self.operands[top])
            done[top] = self.node(left, right)
            done[done[top]] = done[top]
            stack.pop()
        return symbol if symbol < 0 else done[symbol]

    # -- memory ----------------------------------------------------------------------------
    def keys(self, rank: int) -> dict[str, Sequence[int]]:
        return slot_keys(self.collective, rank, self.size, self.schedule.root,
                         self.schedule.nblocks)

    def start(self, rank: int) -> dict:
        """Memory before the call: the given contributions, garbage elsewhere."""
        size_of, given = self.case.size_of, self.collective.given(
            rank, self.size, self.schedule.root, self.schedule.nblocks)
        memory = {b: [GARBAGE] * sum(map(size_of, ks)) for b, ks in self.keys(rank).items()}
        for buffer, keys in given.items():
            memory[buffer] = [self.leaf(k, e, rank) for k in keys for e in range(size_of(k))]
        for segment, lane in enumerate(self.programs[rank]):
            memory[TMP, segment] = [GARBAGE] * lane.program.scratch
        if self.case.in_place:
            self.share(memory, rank)
        return memory

    def share(self, memory: dict, rank: int) -> None:
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

    def find(self, rank: int, segment: int, extent: Extent) -> tuple[list, Extent]:
        """The list an extent lies in, and the extent moved to its segment's place."""
        extent = shifted(extent, self.programs[rank][segment].shift)
        buffer = (TMP, segment) if extent.buffer == TMP else extent.buffer
        memory = self.memory[rank].get(buffer)
        if memory is None or extent.offset < 0 or extent.offset + extent.count > len(memory):
            raise self.fault(f"{extent} is out of bounds", rank)
        return memory, extent

    def read(self, rank: int, segment: int, extent: Extent) -> list:
        memory, extent = self.find(rank, segment, extent)
        return memory[extent.offset:extent.offset + extent.count]

    def write(self, rank: int, segment: int, extent: Extent, symbols: list) -> None:
        memory, extent = self.find(rank, segment, extent)
        memory[extent.offset:extent.offset + extent.count] = symbols

    def fault(self, problem: str, rank: int | None = None, round: int | None = None,
              step=None) -> ProofError:
        return ProofError(problem, schedule=self.schedule.title, rank=rank, round=round,
                          step=None if step is None else str(step))

    # -- memory in flight ------------------------------------------------------------------
    def check_memory(self) -> None:
        """No two messages of a round, and no two segments, meet in memory unless both read."""
        for rank, programs in enumerate(self.programs):
            touched: list[tuple[set, set]] = []
            for lane in programs:
                for number, phase in enumerate(lane.program.phases):
                    self.check_phase(rank, number, phase.messages)
                    for step in (*phase.before, *phase.after):
                        self.check_local(rank, number, step)
                if len(programs) > 1:
                    touched.append(self.touched(lane))
            for i, (reads, writes) in enumerate(touched):
                for others in touched[:i]:
                    if writes & (others[0] | others[1]) or others[1] & reads:
                        raise self.fault("two segments use the same memory", rank)

    def check_phase(self, rank: int, number: int, messages: Sequence[Message]) -> None:
        spans = sorted((e.buffer, e.offset, e.offset + e.count, kind, step)
                       for step in messages for kind, _, e in [step] if e.count)
        furthest: dict[str, tuple] = {}
        for buffer, start, stop, kind, step in spans:
            for seen in (RECV, SEND):
                end, other = furthest.get((buffer, seen), (0, None))
                if start < end and RECV in (kind, seen):
                    raise self.fault(f"uses memory that '{other}' of the same round is using",
                                     rank, number, step)
            furthest[buffer, kind] = max(furthest.get((buffer, kind), (0, step)), (stop, step))

    def check_local(self, rank: int, number: int, step: Local) -> None:
        """A local step works on memory of one size, and in place or apart, not in between."""
        into = step.into
        for operand in step[1:] if step.right else (step.left,):
            if operand.count != into.count:
                raise self.fault("has operands of different sizes", rank, number, step)
            apart = abs(operand.offset - into.offset)
            if 0 < apart < into.count and operand.buffer == into.buffer:
                raise self.fault("overwrites a part of what it reads", rank, number, step)

    def touched(self, lane: Segment) -> tuple[set, set]:
        reads, writes = set(), set()
        for phase in lane.program.phases:
            for kind, _, extent in phase.messages:
                self.mark(writes if kind == RECV else reads, shifted(extent, lane.shift))
            for into, *operands in (*phase.before, *phase.after):
                self.mark(writes, shifted(into, lane.shift))
                for operand in filter(None, operands):
                    self.mark(reads, shifted(operand, lane.shift))
        return reads, writes

    def mark(self, cells: set, extent: Extent) -> None:
        buffer, start, count = extent
        if buffer != TMP:
            cells.update((buffer, i) for i in range(start, start + count))

    # -- running ---------------------------------------------------------------------------
    def run(self) -> None:
        """Advance every (rank, segment) until all are done or none can move."""
        threads = {(r, s): _Thread(lane.program) for r, programs in enumerate(self.programs)
                   for s, lane in enumerate(programs)}
        self.threads = threads
        self.queues: dict[tuple, deque] = {}
        ready = deque(threads)
        while ready:
            rank, segment = ready.popleft()
            ready.extend(self.advance(rank, segment, threads))
        stuck = [key for key, thread in threads.items() if not thread.done]
        if stuck:
            (rank, segment), thread = stuck[0], threads[stuck[0]]
            waits = next(m for m in thread.phase.messages if m in thread.open)
            raise self.fault(
                f"deadlock with synchronous sends: ranks {sorted({r for r, _ in stuck})} wait "
                "for messages that never come", rank, thread.number, waits)

    def advance(self, rank: int, segment: int, threads: dict) -> list:
        """Start the next phase of a thread, match its messages; return who can go on."""
        thread, woken = threads[rank, segment], []
        if thread.started:
            self.local(rank, segment, thread.phase.after)
            thread.number += 1
            thread.started = False
            thread.time = thread.finish
        if thread.done:
            return woken
        thread.started = True
        self.forget(rank, segment)
        self.local(rank, segment, thread.phase.before)
        thread.open = list(thread.phase.messages)
        thread.knew = self.known[rank]
        for step in thread.phase.messages:
            if not 0 <= step.peer < self.size or step.peer == rank:
                raise self.fault(f"{step.peer} is not another rank", rank, thread.number, step)
            woken += self.match(rank, segment, step, threads)
        return woken + ([(rank, segment)] if not thread.phase.messages else [])

    def match(self, rank: int, segment: int, step: Message, threads: dict) -> list:
        """Post one message; when its partner is waiting, move the data and complete both."""
        sending = step.kind == SEND
        pair = (rank, step.peer, segment) if sending else (step.peer, rank, segment)
        queue = self.queues.setdefault(pair, deque())
        if not queue or queue[0][1].kind == step.kind:
            queue.append((rank, step))
            return []
        other, partner = queue.popleft()
        (source, out), (sink, into) = (((rank, step), (other, partner)) if sending
                                       else ((other, partner), (rank, step)))
        if out.extent.count != into.extent.count:
            raise self.fault(f"meets '{out}' of rank {source}, of another size", sink,
                             threads[sink, segment].number, into)
        self.write(sink, segment, into.extent, self.read(source, segment, out.extent))
        self.known[sink] |= threads[source, segment].knew
        woken = []
        arrival = 1 + max(threads[source, segment].time, threads[sink, segment].time)
        for who, what in ((source, out), (sink, into)):
            thread = threads[who, segment]
            thread.open.remove(what)
            thread.finish = max(thread.finish, arrival)
            if not thread.open:
                woken.append((who, segment))
        return woken

    def forget(self, rank: int, segment: int) -> None:
        """Empty the landing space: a message used in place was never there."""
        scratch = self.memory[rank][TMP, segment]
        start = self.programs[rank][segment].program.landing
        scratch[start:] = [GARBAGE] * (len(scratch) - start)

    def local(self, rank: int, segment: int, steps: Sequence[Local]) -> None:
        for into, left, right in steps:
            symbols = self.read(rank, segment, left)
            if right is not None:
                symbols = list(map(self.node, symbols, self.read(rank, segment, right)))
            self.write(rank, segment, into, symbols)

    # -- the verdict -----------------------------------------------------------------------
    def conclude(self) -> Proof:
        ordered = identical = True
        seen: dict[tuple, int] = {}
        checked: dict[tuple, bool] = {}
        canonical: dict[int, int] = {}
        for rank in range(self.size):
            for cell, symbol, key, element, ranks in self.results(rank):
                if (symbol, key, element, ranks) not in checked:
                    checked[symbol, key, element, ranks] = self.judge(
                        rank, cell, symbol, key, element, ranks)
                ordered &= checked[symbol, key, element, ranks]
                first = seen.setdefault((key, element, ranks), symbol)
                identical &= first == symbol or (
                    self.unordered(first, canonical) == self.unordered(symbol, canonical))
            self.check_untouched(rank)
        if self.collective.payload == "none":
            self.check_knowledge()
        sends = [[m for lane in programs for phase in lane.program.phases
                  for m in phase.messages if m.kind == SEND] for programs in self.programs]
        return Proof(ordered, identical, max(t.finish for t in self.threads.values()),
                     max(sum(m.extent.count for m in mine) for mine in sends),
                     max(map(len, sends)))

    def results(self, rank: int):
        """Every wanted element: its place, symbol, block, index in the block, contributors."""
        wanted = self.collective.wanted(rank, self.size, self.schedule.root,
                                        self.schedule.nblocks)
        cell, memory = 0, self.memory[rank].get(OUT)
        if wanted and memory is None:  # a root that scatters in place
            cell, memory = sum(map(self.case.size_of, range(rank))), self.memory[rank][IN]
        for key, ranks in wanted:
            ranks = ranks if isinstance(ranks, range) else tuple(ranks)
            for element in range(self.case.size_of(key)):
                yield cell, memory[cell], key, element, ranks
                cell += 1

    def judge(self, rank: int, cell: int, symbol, key: int, element: int, ranks) -> bool:
        """Tell whether a result is in rank order; raise when it is wrong."""
        where = f"out[{cell}] (block {key}, element {element})"
        if symbol is GARBAGE:
            raise self.fault(f"{where} was never written", rank)
        wanted = [self.leaf(key, element, r) for r in ranks]
        found = self.leaves(symbol, len(wanted) + 1)
        if found == wanted:
            return True
        if sorted(found) != sorted(wanted):
            raise self.fault(f"{where} holds {self.describe(found)} instead of the "
                             f"contributions of ranks {list(ranks)}, once each", rank)
        return False

    def describe(self, leaves: list[int]) -> str:
        cells, parts = [divmod(-1 - leaf, self.size) for leaf in leaves[:8]], []
        for cell, rank in cells:
            key = next(k for k in range(self.case.keys) if self.base[k + 1] > cell)
            parts.append(f"rank {rank}'s block {key}")
        return ", ".join(parts) + (" ..." if len(leaves) > 8 else "")

    def check_untouched(self, rank: int) -> None:
        """Input stays as it was; an output nobody asked for is not written."""
        memory, fresh = self.memory[rank], self.start(rank)
        if memory.get(IN) != fresh.get(IN):
            raise self.fault("the input was overwritten", rank)
        wanted = self.collective.wanted(rank, self.size, self.schedule.root,
                                        self.schedule.nblocks)
        if not wanted and memory.get(OUT) != fresh.get(OUT):
            raise self.fault("output was written that nobody asked for", rank)

    def check_knowledge(self) -> None:
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
    def phase(self):
        return self.phases[self.number]

    @property
    def done(self) -> bool:
        return self.number >= len(self.phases)
