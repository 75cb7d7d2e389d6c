"""World of p loopback ranks in one process, with a seeded scheduler and checks.

    problem (sizes, data) + schedule --> p plans --> p executions --interleaved--> faults

The plans, executions and memory layouts are those of real runs; the transport is
:mod:`hpccoll.transport.loopback`. Ranks advance in a random order, a function of the seed, so a
failure is reproducible. Checks include memory that a rank must not change: its input, gaps between
blocks, and guard zones around every buffer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from hpccoll.arrays.exact import (
    MEANING,
    GuardedArray,
    exact_reduction,
    inputs,
    poison,
    sent_elements,
    wrong,
)
from hpccoll.calls import layouts
from hpccoll.errors import HpccollError, MessageSizeError
from hpccoll.ir.collectives import IN, OUT, Collective
from hpccoll.ir.extents import SlotLayout
from hpccoll.ir.schedule import Schedule
from hpccoll.runtime.execution.executor import Execution
from hpccoll.runtime.planning import plan as plans
from hpccoll.runtime.planning.binding import Memory
from hpccoll.testing.loopback_direct import PATIENCE, Direct
from hpccoll.transport import Endpoint
from hpccoll.transport.loopback import Loopback

__all__ = ["Problem", "StallError", "interleave", "run"]


class StallError(HpccollError, RuntimeError):
    """No rank of a world can continue.

    Attributes:
        waiting: round of every unfinished rank, and the ranks that it waits for.
    """

    def __init__(self, waiting: dict[int, tuple[int, tuple[int, ...]]]):
        self.waiting = waiting
        super().__init__("stalled: " + "; ".join(
            f"rank {rank} in round {number} waits for {', '.join(map(str, peers)) or 'nobody'}"
            for rank, (number, peers) in sorted(waiting.items())))


class Problem(NamedTuple):
    """Collective call of all ranks: sizes, data and expected results.

    Attributes:
        collective: the collective.
        size: number of ranks.
        sizes: elements: one number for vectors, one per rank for blocks, one per (source,
            destination) for pairs, source by source.
        root, op, dtype: arguments of the call, if it has them.
        seed: seed of the data.
    """

    collective: Collective
    size: int
    sizes: Sequence[int] = ()
    root: int = 0
    op: str = "sum"
    dtype: Any = "i8"
    seed: int = 0

    def input_blocks(self, rank: int) -> list[numpy.ndarray]:
        """Return the blocks of a rank's input; for a broadcast, of the root's only buffer."""
        name, size, root, sizes = self.collective.name, self.size, self.root, self.sizes
        if self.collective.reduces:
            whole = inputs(self.op, self.dtype, rank, size, sum(sizes), self.seed)
            return self._cut(whole)
        if name in ("allgather", "gather"):
            return [self._sent_elements(rank, sizes[rank])]
        if name == "alltoall":
            return [self._sent_elements(rank, sizes[rank * size + to], to) for to in range(size)]
        if rank == root and name in ("bcast", "scatter"):
            return [self._sent_elements(root, count, to) for to, count in enumerate(sizes)]
        return []

    def expected_blocks(self, rank: int) -> list[numpy.ndarray]:
        """Return the expected blocks of a rank's result."""
        name, size, root, sizes = self.collective.name, self.size, self.root, self.sizes
        if self.collective.reduces:
            ranks = {"scan": range(rank + 1), "exscan": range(rank)}.get(name, range(size))
            if not ranks or name == "reduce" and rank != root:
                return []
            blocks = self._cut(exact_reduction(self.op, self.dtype, ranks, size, sum(sizes),
                                               self.seed))
            return [blocks[rank]] if name == "reduce_scatter" else blocks
        if name == "allgather" or name == "gather" and rank == root:
            return [self._sent_elements(source, sizes[source]) for source in range(size)]
        if name == "alltoall":
            return [self._sent_elements(frm, sizes[frm * size + rank], rank) for frm in range(size)]
        if name == "bcast":
            return self.input_blocks(root)
        return [self.input_blocks(root)[rank]] if name == "scatter" else []

    def _sent_elements(self, source: int, count: int, to: int = 0) -> numpy.ndarray:
        return sent_elements(self.dtype, source, count, self.seed, to)

    def _cut(self, whole: numpy.ndarray) -> list[numpy.ndarray]:
        stops = numpy.cumsum([0, *self.sizes])
        return [whole[a:b] for a, b in zip(stops, stops[1:])]


class Seat:
    """Memory and plan of one rank for a problem.

    Args:
        in_place: ``MPI.IN_PLACE`` on every rank that may pass it.
        gap: unused elements around the blocks, which are in reverse order if the call has
            displacements.
        segment: elements of a block per segment; 0 for whole blocks.
    """

    def __init__(self, schedule: Schedule, problem: Problem, rank: int, in_place: bool = False,
                 gap: int = 0, segment: int = 0):
        self.problem, self.rank = problem, rank
        self.given, self.wanted = problem.input_blocks(rank), problem.expected_blocks(rank)
        collective = problem.collective
        self.shared = bool(in_place and collective.in_place
                           and (not collective.rooted or rank == problem.root))
        reverse = gap > 0 and collective.payload in ("blocks", "pairs") and not collective.reduces
        results = self.wanted or (self.given if collective.name == "exscan" else [])
        self.inputs, source = spread(map(len, self.given), gap, reverse)
        self.outputs, sink = spread(map(len, results), gap, reverse)
        if self.shared and collective.in_place == "own":
            self.inputs = [self.outputs[rank]]
        elif self.shared and collective.in_place == "root":
            self.outputs = [self.inputs[rank]]
        if collective.name == "bcast" or self.shared:
            memory = GuardedArray(max(source, sink), problem.dtype)
            self.memory = {IN: memory, OUT: memory}
        else:
            self.memory = {IN: GuardedArray(source, problem.dtype),
                           OUT: GuardedArray(sink, problem.dtype)}
        layout, longest = self.layout(schedule, gap, reverse)
        self.plan = plans.make(schedule, rank, layout, longest, segment)
        self.scratch = GuardedArray(self.plan.depth * self.plan.scratch, problem.dtype)

    def layout(self, schedule: Schedule, gap: int, reverse: bool) -> tuple[SlotLayout, int]:
        """Return the layout of a call with these arguments, and its longest block."""
        problem, rank, size = self.problem, self.rank, self.problem.size
        if problem.collective.payload in ("none", "vector"):
            return layouts.vector_layout(schedule, rank, sum(problem.sizes), self.shared,
                                         (gap, gap))
        if problem.collective.payload == "pairs":
            sent = problem.sizes[rank * size:(rank + 1) * size]
            return layouts.pair_layout(schedule, rank, sent, problem.sizes[rank::size],
                                       self.inputs, self.outputs)
        displs = spread(problem.sizes, gap, reverse)[0] if reverse else None
        return layouts.block_layout(schedule, rank, problem.sizes, self.shared, displs,
                                    0 if reverse else gap, gap)

    def execution(self, endpoint: Endpoint, repeated: bool = False,
                  kernel: Callable[..., Any] | None = None) -> Execution:
        """Return this rank's execution, ready to start."""
        arrays = {name: memory.array for name, memory in self.memory.items()}
        return Execution(self.plan, endpoint, Memory(
            arrays, self.scratch.array, kernel or kernel_of(self.problem.op), numpy), 0, repeated)

    def fill(self) -> None:
        """Poison all memory, write the input, and copy memory that must not change."""
        for memory in (*self.memory.values(), self.scratch):
            poison(memory.array)
        source = self.memory[IN].array
        for start, block in zip(self.inputs, self.given):
            source[start:start + len(block)] = block
        self.before = {name: memory.array.copy() for name, memory in self.memory.items()}

    def faults(self) -> Iterator[str]:
        """Yield the faults after the run."""
        bitwise, sink = not self.problem.collective.reduces, self.memory[OUT].array
        expected = self.before[OUT]
        for number, (start, block) in enumerate(zip(self.outputs, self.wanted)):
            count = wrong(sink[start:start + len(block)], block, bitwise)
            if count:
                yield (f"rank {self.rank}: {count} of {len(block)} elements of block {number} "
                       "are wrong")
            expected[start:start + len(block)] = sink[start:start + len(block)]
        # MPI does not specify the memory after the result of a reduce-scatter in place.
        front = self.shared and self.problem.collective.in_place == "front"
        if not front and wrong(sink, expected, bitwise=True):
            yield f"rank {self.rank}: unexpected output was written"
        if self.memory[IN] is not self.memory[OUT] and wrong(
                self.memory[IN].array, self.before[IN], bitwise=True):
            yield f"rank {self.rank}: the input was overwritten"
        for name, memory in (*self.memory.items(), ("scratch", self.scratch)):
            overwritten = memory.describe_overwrites()
            if overwritten:
                yield f"rank {self.rank}: memory {overwritten} {name} was overwritten"


def run(schedule: Schedule, problem: Problem, *, in_place: bool = False, gap: int = 0,
        segment: int = 0, seed: int = 0, eager: bool = False, direct: bool = False,
        repeats: int = 1) -> list[str]:
    """Run a schedule on a problem; return the faults.

    Args:
        in_place, gap, segment: see :class:`Seat`.
        seed: seed of the order in which ranks advance.
        eager: sends are read when they are posted, instead of when they are matched.
        direct: received data is used in place, see :mod:`hpccoll.testing.loopback_direct`.
        repeats: prepare once and run this many times, on fresh memory contents.
    """
    world = (Direct if direct else Loopback)(problem.size, eager)
    seats = [Seat(schedule, problem, rank, in_place, gap, segment)
             for rank in range(problem.size)]
    executions = [seat.execution(world.endpoint(seat.rank), repeats > 1) for seat in seats]
    for turn in range(repeats):
        for seat in seats:
            seat.fill()
        try:
            interleave(executions, seed + turn)
        except (StallError, MessageSizeError) as error:
            return [str(error)]
        faults = [fault for seat in seats for fault in seat.faults()]
        if faults:
            return faults
    left = {pair for pair, queue in world.queues.items() if queue}
    left |= {operation for operation, ends in world.operations.items() if ends}
    return [f"messages left over: {sorted(left, key=str)}"] if left else []


def interleave(executions: Iterable[Execution], seed: int = 0) -> None:
    """Start executions at random moments and advance them in random order to the end.

    Raises:
        StallError: none of them can continue.
    """
    turns, waiting = random.Random(seed), list(executions)
    running: list[Execution] = []
    idle = 0
    while waiting or running:
        moved = False
        if waiting and (not running or turns.random() < 0.5):
            running.append(waiting.pop(turns.randrange(len(waiting))))
            running[-1].start()
            moved = True
        turns.shuffle(running)
        for execution in running:
            moved |= execution.progress()
        running = [execution for execution in running if not execution.done]
        idle = 0 if moved or waiting else idle + 1
        # A rank that uses a message or puts it aside reports no progress, but its sender will.
        if running and idle > PATIENCE + 1:
            raise StallError({e.endpoint.rank: e.pending_peers() for e in running})


def spread(counts: Iterable[int], gap: int, reverse: bool) -> tuple[list[int], int]:
    """Return displacements of blocks with gaps, in order or reversed, and the total elements.

    >>> spread([2, 3], 1, True)
    ([5, 1], 8)
    """
    counts = list(counts)
    displs, offset = [0] * len(counts), gap
    for index in (reversed if reverse else iter)(range(len(counts))):
        displs[index] = offset
        offset += counts[index] + (gap if reverse else 0)
    return displs, offset + (0 if reverse else gap)


def kernel_of(op: str) -> Callable[..., Any]:
    """Return the kernel ``(left, right, into)`` of an operator of :mod:`hpccoll.arrays.exact`."""
    meaning = MEANING[op]
    if isinstance(meaning, numpy.ufunc):
        return lambda left, right, into: meaning(left, right, out=into)

    def apply(left: Any, right: Any, into: Any) -> None:
        into[...] = meaning(left, right)
    return apply
