"""Proof of lowered programs, element by element, for given block sizes.

All ranks' lowered programs run on symbols, with ranges of elements, packing, landing space and
segments. :mod:`hpccoll.proof.slots` proves the properties for all sizes; this module proves on
samples that lowering preserves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.ir.collectives import IN, OUT, TMP, Collective, slot_keys
from hpccoll.ir.extents import Extent, Local, Message, Segment, shift_scratch
from hpccoll.ir.schedule import RECV, SEND, Schedule
from hpccoll.proof.cases import BlockSizes
from hpccoll.proof.matching import End, Rendezvous, Thread
from hpccoll.proof.memory_rules import check_memory
from hpccoll.proof.result import Judge, Proof, WantedElement
from hpccoll.proof.symbols import GARBAGE, Symbol, SymbolTable

#: A rank's memory: ``in``, ``out``, and the scratch of each segment.
Memory = dict[object, list[Symbol]]


def prove_segments(schedule: Schedule, collective: Collective, case: BlockSizes,
                   programs: list[list[Segment]]) -> Proof:
    """Prove lowered programs, a list of segments for each rank."""
    run = _ElementRun(schedule, collective, case, programs)
    check_memory(programs, run.fault)
    run.go()
    return run.conclude()


class _ElementRun(Rendezvous):
    """All ranks' symbolic memories during the proof of a case."""

    def __init__(self, schedule: Schedule, collective: Collective, case: BlockSizes,
                 programs: list[list[Segment]]):
        super().__init__(schedule, {(rank, number): (segment.program.phases, segment.program.waits)
                                    for rank, held in enumerate(programs)
                                    for number, segment in enumerate(held)})
        self.collective, self.case, self.programs = collective, case, programs
        self.symbols = SymbolTable(self.size, case.size_of, case.keys)
        self.memory = [self.start(rank) for rank in range(self.size)]

    def number_of(self, thread: Thread) -> int:
        return self.programs[thread.rank][thread.segment].program.round_of(thread.number)

    # -- memory ----------------------------------------------------------------------------
    def start(self, rank: int) -> Memory:
        """Return memory before the call: the given contributions, garbage elsewhere."""
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
        """Keep the one memory of ``MPI.IN_PLACE``, under the name that lowering uses."""
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
        """Return the list that contains an extent, and the extent shifted to its segment."""
        extent = shift_scratch(extent, self.programs[rank][segment].shift)
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
    def begin(self, thread: Thread) -> None:
        self.forget(thread)
        self.compute(thread.rank, thread.segment, thread.round.before)

    def end(self, thread: Thread) -> None:
        self.compute(thread.rank, thread.segment, thread.round.after)

    def move(self, source: Thread, out: Message, sink: Thread, into: Message) -> None:
        if out.extent.count != into.extent.count:
            raise self.fault(f"meets '{out}' of rank {source.rank}, of another size", sink.rank,
                             self.number_of(sink), into)
        self.write(sink.rank, sink.segment, into.extent,
                   self.read(source.rank, source.segment, out.extent))

    def combine_and_move(self, sources: Sequence[End], sinks: Sequence[End]) -> None:
        (first, out), *more = sources
        for thread, message in (*more, *sinks):
            if message.extent.count != out.extent.count:
                raise self.fault(f"meets '{out}' of rank {first.rank}, of another size",
                                 thread.rank, self.number_of(thread), message)
        symbols = self.read(first.rank, first.segment, out.extent)
        for thread, message in more:
            symbols = list(map(self.symbols.aggregate, symbols,
                               self.read(thread.rank, thread.segment, message.extent)))
        for thread, message in sinks:
            self.write(thread.rank, thread.segment, message.extent, symbols)

    def forget(self, thread: Thread) -> None:
        """Clear the landing space: a message used in place was never stored there."""
        program = self.programs[thread.rank][thread.segment].program
        scratch = self.memory[thread.rank][TMP, thread.segment]
        if not program.waits:
            scratch[program.landing:] = [GARBAGE] * (len(scratch) - program.landing)
            return
        # Other lanes may still use theirs.
        for message in thread.round.messages:
            buffer, start, count = message.extent
            if message.kind == RECV and buffer == TMP and start >= program.landing:
                scratch[start:start + count] = [GARBAGE] * count

    def compute(self, rank: int, segment: int, steps: Sequence[Local]) -> None:
        for into, left, right in steps:
            symbols = self.read(rank, segment, left)
            if right is not None:
                symbols = list(map(self.symbols.combine, symbols,
                                   self.read(rank, segment, right)))
            self.write(rank, segment, into, symbols)

    # -- the result -----------------------------------------------------------------------
    def conclude(self) -> Proof:
        """Compare the final memory with the specification."""
        outcome = Judge(self.symbols, self.fault)
        for rank in range(self.size):
            for cell, symbol, wanted in self.results(rank):
                outcome.judge(rank, f"out[{cell}]", symbol, wanted)
            self.check_untouched(rank)
        if self.collective.payload == "none":
            self.check_knowledge()
        sends = [[message for segment in held for phase in segment.program.phases
                  for message in phase.messages if message.kind == SEND]
                 for held in self.programs]
        return Proof(outcome.ordered, outcome.identical, self.rounds,
                     max(sum(message.extent.count for message in mine) for mine in sends),
                     max(map(len, sends)), self.needs)

    def results(self, rank: int) -> Iterator[tuple[int, Symbol, WantedElement]]:
        """Yield position, symbol and specification of every required element of a rank."""
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

    def check_untouched(self, rank: int) -> None:
        """Check that the input is unchanged, and that only required outputs are written."""
        memory, fresh = self.memory[rank], self.start(rank)
        if memory.get(IN) != fresh.get(IN):
            raise self.fault("the input was overwritten", rank)
        wanted = self.collective.wanted(rank, self.size, self.schedule.root,
                                        self.schedule.nblocks)
        if not wanted and memory.get(OUT) != fresh.get(OUT):
            raise self.fault("unexpected output was written", rank)
