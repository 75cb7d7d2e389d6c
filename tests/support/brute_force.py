"""What lowered programs really do, seen by running them; the yardstick for proofs.

Nothing here knows how a proof works. Programs run as real executions on loopback, on numbers,
in several random orders, with data read at the earliest and at the latest moment, received or
used in place, and the results are compared with those that MPI defines. Three choices of
operator and data show

* whether the promise is kept for operators that commute: sums modulo 2**64 of random numbers;
* whether contributions are combined in rank order: affine maps, which do not commute;
* whether all ranks get the same bits: an operator that is not associative.

Some faults need not show in a run. They are looked for in the programs: memory that does not
exist, and memory that one message of a round, one of several rounds under way, or one segment,
writes and another one uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy

from hpccoll.errors import MessageSizeError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Phase, Segment, shift_scratch
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.schedule import RECV, SEND, Schedule
from hpccoll.proof.cases import BlockSizes
from hpccoll.runtime.execution.executor import Execution
from hpccoll.runtime.planning.plan import Plan
from hpccoll.testing.exact import GuardedArray
from hpccoll.testing.loopback_direct import Direct
from hpccoll.testing.world import Problem, Seat, StallError, interleave
from hpccoll.transport import NETWORK, Batch, Endpoint, MessageSpec, NetworkOperation
from hpccoll.transport.loopback import Loopback, LoopbackBatch, LoopbackEndpoint

#: (seed, data read at the post, used in place): the runs that a right program must pass.
RUNS = ((0, False, False), (1, True, False), (2, False, True), (3, True, True))


class Verdict(NamedTuple):
    """What holds of the programs of all ranks."""

    right: bool
    rank_order: bool = True
    identical: bool = True
    why: str = ""


class BruteForce:
    """Runs programs of one collective on given block sizes and judges the results."""

    def __init__(self, schedule: Schedule, case: BlockSizes):
        self.schedule, self.case = schedule, case
        sizes = [case.size_of(key) for key in range(case.keys)]
        collective = schedule.collective
        if collective.payload == "none":
            sizes = []
        self.allowed: dict[int, list[Segment]] = {}
        self.seats = {}
        for op, dtype in (("sum", "u8"), ("affine", "c16")):
            problem = Problem(collective, schedule.size, sizes, schedule.root, op, dtype)
            self.seats[op] = [Seat(schedule, problem, rank, case.in_place, 0, case.segment)
                              for rank in range(schedule.size)]

    def verdict(self, programs: Sequence[list[Segment]]) -> Verdict:
        """Run the programs of all ranks and say what holds."""
        why = self.forbidden(programs)
        for how in RUNS:
            why = why or self.run("sum", programs, *how)
        if not why and self.schedule.collective.payload == "none":
            why = self.leaves_early(programs)
        if why:
            return Verdict(False, False, False, why)
        if not self.schedule.collective.reduces:
            return Verdict(True)
        ordered = not any(self.run("affine", programs, *how) for how in RUNS[1:3])
        identical = True
        if self.schedule.collective.name == "allreduce":
            self.run("sum", programs, *RUNS[0], scrambled)
            results = [seat.memory[OUT].array for seat in self.seats["sum"]]
            identical = all(numpy.array_equal(results[0], other) for other in results)
        return Verdict(True, ordered, identical)

    # -- what may be used --------------------------------------------------------------------
    def forbidden(self, programs: Sequence[list[Segment]]) -> str:
        """The first use of memory or ranks that is wrong whatever happens; else empty."""
        for rank, segments in enumerate(programs):
            # Most mutants share most ranks' programs: those are checked once.
            if self.allowed.get(rank) is segments:
                continue
            uses = [Footprint(self.sizes(rank, segment)) for segment in segments]
            for segment, use in zip(segments, uses):
                for phase in segment.program.phases:
                    problem = use.phase(phase, segment.shift, rank, self.schedule.size)
                    if problem:
                        return f"rank {rank}: {problem}"
                if self.in_turmoil(rank, segment):
                    return f"rank {rank}: two rounds that do not wait use the same memory"
            for one, other in combinations(uses, 2):
                if one.disturbs(other) or other.disturbs(one):
                    return f"rank {rank}: two segments use the same memory"
            self.allowed.setdefault(rank, segments)
        return ""

    def in_turmoil(self, rank: int, segment: Segment) -> bool:
        """Tell whether phases of lanes that may be under way at once disturb each other."""
        before: list[set[int]] = []
        uses: list[Footprint] = []
        for number, waits in enumerate(segment.program.waits):
            before.append(set(waits).union(*(before[other] for other in waits)))
            uses.append(Footprint(self.sizes(rank, segment)))
            uses[-1].phase(segment.program.phases[number], segment.shift, rank, self.schedule.size)
            for other in set(range(number)) - before[number]:
                if uses[-1].disturbs(uses[other], TMP) or uses[other].disturbs(uses[-1], TMP):
                    return True
        return False

    def sizes(self, rank: int, segment: Segment) -> dict[str, int]:
        """Elements of the buffers that a rank has; in place, two buffers have one name."""
        seat, name = self.seats["sum"][rank], self.schedule.collective.name
        hidden = seat.shared and (OUT if name == "scatter" else IN)
        sizes = {TMP: segment.program.scratch}
        if (seat.wanted or name in ("bcast", "exscan")) and hidden != OUT:
            sizes[OUT] = seat.memory[OUT].array.size
        if seat.given and name != "bcast" and hidden != IN:
            sizes[IN] = seat.memory[IN].array.size
        return sizes

    # -- what happens ------------------------------------------------------------------------
    def run(self, op: str, programs: Sequence[list[Segment]], seed: int, eager: bool,
            direct: bool, kernel: Callable[..., Any] | None = None) -> str:
        """Run once; return the first thing that is wrong."""
        world = (Direct if direct else Loopback)(self.schedule.size, eager)
        seats = self.seats[op]
        executions = [self.execution(seat, segments, world.endpoint(seat.rank), kernel)
                      for seat, segments in zip(seats, programs)]
        for seat in seats:
            seat.fill()
        try:
            interleave(executions, seed)
        except (StallError, MessageSizeError) as error:
            return str(error)
        return next((fault for seat in seats for fault in seat.faults()), "")

    def execution(self, seat: Seat, segments: list[Segment], endpoint: Endpoint,
                  kernel: Callable[..., Any] | None = None) -> Execution:
        """An execution in which all segments are in flight at once."""
        segments = [segment._replace(program=forgetful(segment.program)) for segment in segments]
        seat.plan = Plan(self.schedule, tuple(segments), len(segments),
                         max(segment.program.scratch for segment in segments), 0)
        if seat.scratch.array.size < seat.plan.depth * seat.plan.scratch:
            seat.scratch = GuardedArray(seat.plan.depth * seat.plan.scratch, seat.problem.dtype)
        return seat.execution(endpoint, kernel=kernel)

    def leaves_early(self, programs: Sequence[list[Segment]]) -> str:
        """Which rank may leave a barrier that another one has not entered; empty if none may."""
        for late in range(self.schedule.size):
            world = Loopback(self.schedule.size)
            others = [seat for seat in self.seats["sum"] if seat.rank != late]
            executions = [self.execution(seat, programs[seat.rank],
                                         Buffering(world.endpoint(seat.rank)))
                          for seat in others]
            try:
                interleave(executions, late)
                waiting: set[int] = set()
            except StallError as stalled:
                waiting = set(stalled.waiting)
            for seat in others:
                if seat.rank not in waiting:
                    return f"rank {seat.rank} leaves the barrier before rank {late} enters it"
        return ""


def forgetful(program: LoweredProgram) -> LoweredProgram:
    """The same program, with garbage in the landing space at the start of every phase."""
    space = program.scratch - program.landing
    if not space:
        return program
    if program.waits:  # other lanes may be using theirs
        return program._replace(scratch=program.scratch + space, phases=tuple(
            phase._replace(before=(*(
                Local(extent, Extent(TMP, program.scratch, extent.count))
                for kind, _, extent in phase.messages
                if kind == RECV and extent.buffer == TMP and extent.offset >= program.landing
                and extent.offset + extent.count <= program.scratch), *phase.before))
            for phase in program.phases))
    wipe = Local(Extent(TMP, program.landing, space), Extent(TMP, program.scratch, space))
    return LoweredProgram(tuple(phase._replace(before=(wipe, *phase.before))
                                for phase in program.phases),
                          program.scratch + space, program.landing)


class Footprint:
    """What one segment of one rank reads and writes, one bit for each element of a buffer."""

    def __init__(self, sizes: dict[str, int]):
        self.sizes = sizes
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    def phase(self, phase: Phase, shift: int, rank: int, size: int) -> str:
        """Add what a phase uses; return what is wrong with that, if anything."""
        flying: list[tuple[str, str, int]] = []
        for kind, peer, extent in phase.messages:
            buffer, area = self.area(extent, shift)
            if isinstance(peer, InNetwork):
                if (not peer.sources or not peer.sinks or not peer.has(rank, kind == SEND)
                        or max(*peer.senders, *peer.receivers) >= size):
                    return f"{peer} is no operation of this rank"
            elif peer == rank or not 0 <= peer < size:
                return f"{peer} is no other rank"
            if area < 0:
                return f"{extent} does not exist"
            # What the network gives may replace what was given to the same operation.
            replaced = kind == SEND and isinstance(peer, InNetwork) and (
                [other.peer for other in phase.messages].count(peer) == 2
                and Message(RECV, peer, extent) in phase.messages)
            if replaced:
                self.reads[buffer] |= area
                continue
            if any(buffer == other and area & used and RECV in (kind, what)
                   for what, other, used in flying):
                return "two messages of a round use the same memory"
            flying.append((kind, buffer, area))
            (self.writes if kind == RECV else self.reads)[buffer] |= area
        for step in (*phase.before, *phase.after):
            (into, area), *operands = (self.area(e, shift) for e in step if e is not None)
            if area < 0 or any(other < 0 for _, other in operands):
                return f"'{step}' uses memory that does not exist"
            self.writes[into] |= area
            for buffer, other in operands:
                self.reads[buffer] |= other
                if other.bit_count() != area.bit_count():
                    return f"'{step}' has operands of different sizes"
                if buffer == into and other != area and other & area:
                    return f"'{step}' overwrites a part of what it reads"
        return ""

    def area(self, extent: Extent, shift: int) -> tuple[str, int]:
        """The buffer and the bits of an extent; -1 for memory that does not exist."""
        buffer, start, count = shift_scratch(extent, shift)
        if buffer not in self.sizes or not 0 <= start <= start + count <= self.sizes[buffer]:
            return buffer, -1
        return buffer, ((1 << count) - 1) << start

    def disturbs(self, other: Footprint, *more: str) -> bool:
        """Tell whether this one writes what another one, running at once, uses; segments have
        scratch of their own, what runs in lanes has not."""
        return any(self.writes[b] & (other.reads[b] | other.writes[b])
                   for b in (IN, OUT, *more))


class Buffering:
    """A loopback endpoint whose sends complete at once, as those of small messages may."""

    offers = NETWORK

    def __init__(self, endpoint: LoopbackEndpoint):
        self.endpoint, self.rank, self.size = endpoint, endpoint.rank, endpoint.size

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Messages are not used in place."""
        return False

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        apart = [posting._replace(peer=each) for posting in postings for each in (
            [NetworkOperation(posting.peer.sources, (sink,), posting.peer.combine)
             for sink in (posting.peer.sinks if posting.sends else (self.rank,))]
            if isinstance(posting.peer, NetworkOperation) else [posting.peer])]
        return _Buffered(self.endpoint, apart, tag)


class _Buffered(LoopbackBatch):
    def test(self, tries: int = 1) -> bool:
        return all(posted.done or posted.sends for posted in self.pending)


def scrambled(left: Any, right: Any, into: Any) -> None:
    """An operator that commutes and is not associative: results show how they were grouped."""
    mixed = left + right
    mixed ^= mixed >> numpy.uint64(29)
    into[...] = mixed * numpy.uint64(0x9E3779B97F4A7C15)
