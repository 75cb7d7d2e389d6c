"""Proof for all block sizes: programs run on slots, one symbol for a whole block.

Nothing is lowered here, and no block has a size. The proof is valid for every size because:

* A message is received into blocks of the keys it was sent from, and local steps work on blocks of
  one key. So element ``e`` of a block is combined only with elements ``e`` of the same block, and
  has the history of the block. A step of other keys is rejected: there are sizes for which its two
  sides differ.
* If a block is empty, both ends drop the same message. Removing both ends of a message keeps the
  order of the others, and no rank waits longer.
* Which blocks are adjacent, and are therefore sent without packing, depends on the empty blocks. It
  makes no difference, because the memory of a receive is used by nothing else in its round: that is
  checked by slot. See :func:`hpccoll.proof.memory_rules.check_slots`.
* Segments of a block are blocks of other sizes, and share no element.

A message may also be received into slots of the same keys in another order: blocks then cross the
borders of slots (:class:`~hpccoll.proof.symbols.BlockPart`), and such a slot cannot be used
alone. In place, the slots of ``in`` are those of ``out`` (:class:`SlotMemory`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpccoll.ir.collectives import IN, OUT, TMP, Collective, slot_keys
from hpccoll.ir.in_network import Peer
from hpccoll.ir.order import waits
from hpccoll.ir.schedule import COPY, LEFT, RECV, SEND, Program, Round, Schedule, Span, Step
from hpccoll.ir.wellformed import keys_of
from hpccoll.proof.matching import End, Rendezvous, Thread
from hpccoll.proof.memory_rules import SlotMap, check_lanes, check_slots
from hpccoll.proof.result import Judge, Proof, WantedElement
from hpccoll.proof.symbols import GARBAGE, BlockPart, Symbol, SymbolTable, pieces_of, write_pieces


class SlotMessage(NamedTuple):
    """One end of a message, and its position in its round."""

    kind: str
    peer: Peer
    step: Step
    place: int

    def __str__(self) -> str:
        return str(self.step)


class SlotRound(NamedTuple):
    """One round: its messages, its receives that reduce, and its local steps."""

    messages: tuple[SlotMessage, ...]
    reducing: tuple[SlotMessage, ...]
    local: tuple[Step, ...]


def prove_slots(schedule: Schedule, collective: Collective, programs: Sequence[Program],
                in_place: bool = False) -> Proof:
    """Prove the programs of all ranks for all block sizes.

    Args:
        in_place: True for ``MPI.IN_PLACE``.
    """
    run = _SlotRun(schedule, collective, programs, in_place)
    run.go()
    return run.conclude()


class SlotMemory:
    """Slots of one rank: their symbols, sizes and aliases.

    Attributes:
        cells: by buffer, the symbols of its slots; ``in`` and ``out`` may be one list.
        sizes: by buffer, the keys by which its slots are sized.
        where: by buffer, the list with its symbols, and its first slot in that list.
        spoiled: slots of ``in`` that a write to ``out`` may overwrite, for some block sizes.
    """

    def __init__(self, collective: Collective, schedule: Schedule, rank: int, program: Program,
                 symbols: SymbolTable, in_place: bool,
                 listed: Callable[[Sequence[int]], list[int]]):
        size, root, nblocks = schedule.size, schedule.root, schedule.nblocks
        keys = slot_keys(collective, rank, size, root, nblocks)
        self.cells: dict[str, list[Symbol]] = {buffer: [GARBAGE] * len(held)
                                               for buffer, held in keys.items()}
        for buffer, held in collective.given(rank, size, root, nblocks).items():
            self.cells[buffer] = [symbols.contribution(key, 0, rank) for key in held]
        self.cells[TMP] = [GARBAGE] * len(program.scratch)
        keys[TMP] = program.scratch
        self.sizes: dict[str, list[int]] = {buffer: listed(held) for buffer, held in keys.items()}
        self.where = {buffer: (buffer, 0) for buffer in keys}
        self.spoiled = range(0)
        self.input = None if IN not in keys else list(self.cells[IN])
        if in_place:
            self.share(collective.in_place, rank, root, schedule.uniform)

    def share(self, kind: str, rank: int, root: int, uniform: bool) -> None:
        """Share memory the way ``MPI.IN_PLACE`` does."""
        if kind == "root":
            if rank == root:
                self.where[OUT] = IN, root
                self.cells[OUT] = self.cells[IN]
        elif OUT in self.cells:
            self.input = None
            if kind == "front" and rank and not uniform:
                # The result is at the start of the input. The blocks there depend on their sizes:
                # the first one at least, the rank's own at most.
                self.spoiled = range(rank + 1)
                return
            held = self.cells[IN]
            first = rank if kind == "own" else 0
            if len(self.cells[OUT]) < len(held):
                self.cells[OUT] = self.cells[IN]
            else:
                self.cells[OUT][first:first + len(held)] = held
                self.cells[IN] = self.cells[OUT]
            self.where[IN] = OUT, first

    def read(self, spans: Sequence[Span]) -> list[Symbol]:
        symbols: list[Symbol] = []
        for buffer, start, stop in spans:
            _, first = self.where[buffer]
            symbols += self.cells[buffer][first + start:first + stop]
        return symbols

    def write(self, spans: Sequence[Span], symbols: Sequence[Symbol]) -> None:
        at = 0
        for buffer, start, stop in spans:
            _, first = self.where[buffer]
            count = stop - start
            self.cells[buffer][first + start:first + stop] = symbols[at:at + count]
            at += count
            if self.spoiled and buffer == OUT and count:
                for slot in self.spoiled:
                    self.cells[IN][slot] = GARBAGE

    def keys(self, spans: Sequence[Span]) -> list[int]:
        """Return the block keys that determine the sizes of the slots of some spans."""
        if len(spans) == 1:
            (buffer, start, stop), = spans
            return self.sizes[buffer][start:stop]
        keys: list[int] = []
        for buffer, start, stop in spans:
            keys += self.sizes[buffer][start:stop]
        return keys


class _SlotRun(Rendezvous):
    """All ranks' slots during a proof."""

    def __init__(self, schedule: Schedule, collective: Collective, programs: Sequence[Program],
                 in_place: bool):
        orders = [waits(program) for program in programs]
        super().__init__(schedule,
                         {(rank, 0): ([_split_round(steps) for steps in program.rounds], order)
                                    for rank, (program, order) in enumerate(zip(programs, orders))})
        self.programs = programs
        self.collective = collective
        blocks = keys_of(schedule, collective)
        self.symbols = SymbolTable(self.size, lambda key: 1, blocks)
        known: dict[object, list[int]] = {}

        def as_list(keys: Sequence[int]) -> list[int]:
            """Return the keys as a list; if all blocks have one size, all keys are equal."""
            name = keys if isinstance(keys, (range, tuple)) else tuple(keys)
            if name not in known:
                known[name] = [0] * len(keys) if schedule.uniform else list(keys)
            return known[name]

        self.memory = [SlotMemory(collective, schedule, rank, program, self.symbols, in_place,
                                  as_list) for rank, program in enumerate(programs)]
        for rank, (program, memory) in enumerate(zip(programs, self.memory)):
            places = SlotMap(memory.where, memory.spoiled)
            for number, steps in enumerate(program.rounds):
                check_slots(rank, number, steps, places, self.fault)
            if orders[rank]:
                check_lanes(rank, program.rounds, orders[rank], places, self.fault)
        #: Symbols received for reductions, by rank, round and place, until the round ends.
        self.landed: dict[tuple[int, int, int], list[Symbol]] = {}
        #: True if some blocks cross the borders of slots.
        self.torn = False

    # -- messages --------------------------------------------------------------------------
    def move(self, source: Thread, out: SlotMessage, sink: Thread, into: SlotMessage) -> None:
        self.give(source, out, self.memory[source.rank].read(out.step.spans), sink, into)

    def combine_and_move(self, sources: Sequence[End], sinks: Sequence[End]) -> None:
        (first, out), *more = sources
        memory, spans = self.memory[first.rank], out.step.spans
        symbols, given = memory.read(spans), memory.keys(spans)
        for thread, message in more:
            other = self.memory[thread.rank]
            taken = other.keys(message.step.spans)
            if taken != given:
                raise self.fault(f"meets '{out}' of rank {first.rank}, of another size: "
                                 f"{_blocks(taken)} and {_blocks(given)}", thread.rank,
                                 thread.number, message)
            symbols = self.combine_slots(memory, spans, symbols, other.read(message.step.spans),
                                         self.symbols.aggregate)
        for thread, message in sinks:
            self.give(first, out, symbols, thread, message)

    def give(self, source: Thread, out: SlotMessage, symbols: list[Symbol], sink: Thread,
             into: SlotMessage) -> None:
        """Store symbols that arrive at a receive; ``out`` is the matching send."""
        receiver = self.memory[sink.rank]
        given = self.memory[source.rank].keys(out.step.spans)
        taken = receiver.keys(into.step.spans)
        if given != taken:
            if sorted(given) != sorted(taken):
                raise self.fault(f"meets '{out}' of rank {source.rank}, of another size: "
                                 f"{_blocks(given)} into {_blocks(taken)}", sink.rank,
                                 sink.number, into)
            symbols = write_pieces(taken, pieces_of(given, symbols))
            self.torn = True
        if into.step.side:
            self.landed[sink.rank, sink.number, into.place] = symbols
        else:
            receiver.write(into.step.spans, symbols)

    # -- local steps -----------------------------------------------------------------------
    def end(self, thread: Thread) -> None:
        rank, memory = thread.rank, self.memory[thread.rank]
        _, reducing, local = thread.round
        for message in reducing:
            arrived = self.landed.pop((rank, thread.number, message.place), [])
            self.combine(memory, message.step, arrived)
        for step in local:
            keys, given = memory.keys(step.spans), memory.keys(step.source)
            if keys != given:
                raise self.fault(f"has operands of different sizes: {_blocks(given)} into "
                                 f"{_blocks(keys)}", rank, thread.number, step)
            symbols = memory.read(step.source)
            if step.kind == COPY:
                memory.write(step.spans, symbols)
            else:
                self.combine(memory, step, symbols)

    def combine(self, memory: SlotMemory, step: Step, arrived: list[Symbol]) -> None:
        mine = memory.read(step.spans)
        left, right = (arrived, mine) if step.side == LEFT else (mine, arrived)
        memory.write(step.spans, self.combine_slots(memory, step.spans, left, right,
                                                    self.symbols.combine))

    def combine_slots(self, memory: SlotMemory, spans: Sequence[Span], left: list[Symbol],
                      right: list[Symbol], how: Callable[[Symbol, Symbol], Symbol]) -> list[Symbol]:
        """Return the combined symbols of slots, slot by slot, or block by block across borders."""
        if self.torn and any(isinstance(s, BlockPart) for s in (*left, *right)):
            held = memory.keys(spans)
            one, other = pieces_of(held, left), pieces_of(held, right)
            keys = [key for key, _ in one]
            if keys == [key for key, _ in other]:
                return write_pieces(held, [(key, how(a, b))
                                           for key, (_, a), (_, b) in zip(keys, one, other)])
        return list(map(how, left, right))

    # -- the result -----------------------------------------------------------------------
    def conclude(self) -> Proof:
        """Compare the final slots with the specification."""
        outcome = Judge(self.symbols, self.fault)
        schedule = self.schedule
        for rank, memory in enumerate(self.memory):
            wanted = self.collective.wanted(rank, self.size, schedule.root, schedule.nblocks)
            _, first = memory.where.get(OUT, (OUT, 0))
            for slot, (key, ranks) in enumerate(wanted):
                outcome.judge(rank, f"out[{slot}]", memory.cells[OUT][first + slot], WantedElement(
                    key, 0, ranks if isinstance(ranks, range) else tuple(ranks)))
            if memory.input is not None and memory.cells[IN] != memory.input:
                raise self.fault("the input was overwritten", rank)
            if not wanted and OUT in memory.cells and self.collective.reduces:
                fresh = memory.input is None and IN in memory.cells
                expected = [self.symbols.contribution(key, 0, rank) if fresh else GARBAGE
                            for key in range(len(memory.cells[OUT]))]
                if memory.cells[OUT] != expected:
                    raise self.fault("unexpected output was written", rank)
        if self.collective.payload == "none":
            self.check_knowledge()
        sends = [[message for steps in program.rounds for message in _split_round(steps).messages
                  if message.kind == SEND] for program in self.programs]
        return Proof(outcome.ordered, outcome.identical, self.rounds,
                     max(sum(stop - start for message in mine
                             for _, start, stop in message.step.spans) for mine in sends),
                     max(map(len, sends)), self.needs)


def _split_round(steps: Round) -> SlotRound:
    """Separate messages from local steps. A message of no slots is not sent, unless written so."""
    messages = tuple(SlotMessage(step.kind, step.peer, step, place)
                     for place, step in enumerate(steps) if step.kind in (SEND, RECV)
                     and (not step.spans or any(span.start < span.stop for span in step.spans)))
    return SlotRound(messages, tuple(m for m in messages if m.step.side),
                     tuple(step for step in steps if step.kind not in (SEND, RECV)))


def _blocks(keys: Sequence[int]) -> str:
    """Return the names of blocks by their keys, for messages."""
    if len(keys) == 1:
        return f"block {keys[0]}"
    return f"blocks [{', '.join(map(str, keys[:8]))}{', ...' if len(keys) > 8 else ''}]"
