"""What programs do as they are written: run on numbers, by the text of :mod:`hpccoll.ir.schedule`.

Nothing here is lowered, and nothing here knows how a proof works. Every slot has memory of its own,
sends wait for their receives, rounds for those that they name, and what the text forbids is looked
for element by element. What the network reduces, it reduces in any order. An element carries three
numbers through every reduction, one for each operator: a sum modulo 2**64, a product of matrices
that do not commute, and a mixture that is not associative and shows how contributions were grouped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import reduce as fold
from random import Random
from typing import NamedTuple, cast

from hpccoll.ir.collectives import IN, OUT, TMP, slot_keys
from hpccoll.ir.in_network import InNetwork, in_network
from hpccoll.ir.schedule import COPY, LEFT, RECV, SEND, Program, Round, Schedule, Span, Step
from support.brute_force import Verdict

WORD = (1 << 64) - 1
PRIME = (1 << 61) - 1


class Element(NamedTuple):
    """One element of memory: a sum, a product of triangular matrices, and a mixture."""

    added: int
    product: tuple[int, int]
    mixed: int

    def combine(self, other: Element) -> Element:
        """``self op other``, for all three operators."""
        (a, b), (c, d) = self.product, other.product
        mixture = (self.mixed + other.mixed) & WORD
        return Element((self.added + other.added) & WORD, (a * c % PRIME, (a * d + b) % PRIME),
                       (mixture ^ mixture >> 29) * 0x9E3779B97F4A7C15 & WORD)


#: A place in memory: its array and its index there.
Cell = tuple[str, int]


class _Wrong(Exception):
    """What is wrong with the programs."""


class _Arrival:
    """One message that waits for its partner."""

    def __init__(self, rank: int, step: Step, data: list[Element], count: int):
        self.rank, self.step, self.data, self.count = rank, step, data, count
        self.done = False

    @property
    def sends(self) -> bool:
        return self.step.kind == SEND


class _Rank:
    """One rank's memory, and where it stands."""

    def __init__(self, schedule: Schedule, rank: int, program: Program, sizes: Sequence[int],
                 in_place: bool, draw: Random):
        self.rank, self.program = rank, program
        self.before = _before(program)
        #: The messages of the rounds that are under way, and the rounds that are over.
        self.open: dict[int, list[_Arrival]] = {}
        self.over: set[int] = set()
        self.memory: dict[Cell, Element] = {}
        self.slots: dict[str, list[list[Cell]]] = {}
        collective = schedule.collective
        keys = dict(slot_keys(collective, rank, schedule.size, schedule.root, schedule.nblocks))
        keys[TMP] = program.scratch
        for buffer, held in keys.items():
            self.slots[buffer], at = [], 0
            for key in held:
                self.slots[buffer].append([(buffer, at + e) for e in range(sizes[key])])
                at += sizes[key]
        if in_place:
            self.share(collective.in_place, schedule.root)
        for cells in self.slots.values():
            for cell in (c for slot in cells for c in slot):
                self.memory.setdefault(cell, _random(draw))
        given = collective.given(rank, schedule.size, schedule.root, schedule.nblocks)
        self.given = {(key, e): self.memory[cell] for buffer, held in given.items()
                      for key, slot in zip(held, self.slots[buffer]) for e, cell in enumerate(slot)}
        self.first = dict(self.memory)
        self.sent = [self.cells((Span(buffer, 0, len(held)),))
                     for buffer, held in self.slots.items() if buffer == IN]

    def share(self, kind: str, root: int) -> None:
        whole, part = (IN, OUT) if kind == "root" else (OUT, IN)
        if whole not in self.slots or part not in self.slots or (
                kind == "root" and self.rank != root):
            return
        if kind in ("own", "root"):
            self.slots[part] = [self.slots[whole][self.rank]]
        elif kind in ("same", "front"):  # the input starts where the output does
            self.slots[IN] = [[(OUT, e) for _, e in slot] for slot in self.slots[IN]]

    def cells(self, spans: Sequence[Span]) -> list[Cell]:
        return [cell for buffer, start, stop in spans for slot in self.slots[buffer][start:stop]
                for cell in slot]

    def read(self, spans: Sequence[Span]) -> list[Element]:
        return [self.memory[cell] for cell in self.cells(spans)]

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return len(self.over) == len(self.program.rounds)

    def begins(self) -> list[int]:
        """The rounds that may begin."""
        return [number for number, before in enumerate(self.before)
                if number not in self.open and number not in self.over and before <= self.over]

    def post(self, number: int) -> list[_Arrival]:
        """Begin a round: check what its messages use, and take what it sends."""
        steps = self.program.rounds[number]
        self.check(steps)
        self.open[number] = [
            _Arrival(self.rank, step, self.read(step.spans) if step.kind == SEND else [],
                     len(self.cells(step.spans)))
            for step in steps if step.kind in (SEND, RECV)
            and (not step.spans or self.cells(step.spans))]
        return self.open[number]

    def check_lanes(self) -> None:
        """Rounds that do not wait for each other leave alone what the other one writes."""
        uses = [self.uses(steps) for steps in self.program.rounds]
        for number, (reads, writes) in enumerate(uses):
            for other in set(range(number)) - self.before[number]:
                if writes & (uses[other][0] | uses[other][1]) or uses[other][1] & reads:
                    raise _Wrong(f"rank {self.rank}: rounds {other} and {number} share memory")

    def uses(self, steps: Round) -> tuple[set[Cell], set[Cell]]:
        reads: set[Cell] = set()
        writes: set[Cell] = set()
        for step in steps:
            into, source = self.cells(step.spans), self.cells(step.source)
            if step.kind == SEND:
                reads.update(into)
            elif step.kind != COPY or into != source:
                writes.update(into)
                reads.update(source)
        return reads, writes

    def check(self, steps: Round) -> None:
        # What arrives from the network may replace what was given to the same operation.
        through = [step for step in steps if isinstance(step.peer, InNetwork) and not step.side]
        kept = [out for out in through for into in through
                if out.kind == SEND and into.kind == RECV and out.peer == into.peer
                and self.cells(out.spans) == self.cells(into.spans)
                and sum(step.peer == out.peer for step in through) == 2]
        taken = {cell for step in steps if step.kind == SEND and step not in kept
                 for cell in self.cells(step.spans)}
        for step in steps:
            if step.kind == RECV:
                cells = self.cells(step.spans)
                if len(set(cells)) < len(cells):
                    raise _Wrong(f"rank {self.rank}: '{step}' names memory twice")
                if not step.side and not taken.isdisjoint(cells):
                    raise _Wrong(f"rank {self.rank}: '{step}' meets another message")
                taken.update(cells)
            elif step.kind != SEND:
                into, source = self.cells(step.spans), self.cells(step.source)
                counts = [[len(slot) for b, start, stop in spans
                           for slot in self.slots[b][start:stop]]
                          for spans in (step.spans, step.source)]
                if counts[0] != counts[1]:
                    raise _Wrong(f"rank {self.rank}: '{step}' has sides of different sizes")
                if into != source and set(into) & set(source):
                    raise _Wrong(f"rank {self.rank}: '{step}' overwrites a part of what it reads")

    def finish(self, number: int) -> None:
        """End a round: what arrived is put into place or reduced, then local steps follow."""
        arrived = self.open.pop(number)
        for arrival in arrived:
            if arrival.step.kind == RECV and not arrival.step.side:
                self.memory.update(zip(self.cells(arrival.step.spans), arrival.data))
        for arrival in arrived:
            if arrival.step.kind == RECV and arrival.step.side:
                self.reduce(arrival.step, arrival.data)
        for step in self.program.rounds[number]:
            if step.kind == COPY:
                self.memory.update(zip(self.cells(step.spans), self.read(step.source)))
            elif step.kind not in (SEND, RECV):
                self.reduce(step, self.read(step.source))
        self.over.add(number)

    def reduce(self, step: Step, arriving: list[Element]) -> None:
        into = self.cells(step.spans)
        mine = [self.memory[cell] for cell in into]
        left, right = (arriving, mine) if step.side == LEFT else (mine, arriving)
        self.memory.update(zip(into, map(Element.combine, left, right)))


def run(schedule: Schedule, programs: Sequence[Program], sizes: Sequence[int], in_place: bool,
        draw: Random) -> Verdict:
    """Run the programs of all ranks as they are written, and say what holds."""
    ranks = [_Rank(schedule, rank, program, sizes, in_place, draw)
             for rank, program in enumerate(programs)]
    try:
        for one in ranks:
            if one.program.after:
                one.check_lanes()
        _drive(ranks, draw)
        if schedule.collective.payload == "none":
            for late in range(schedule.size):
                others = [_Rank(schedule, rank, program, sizes, in_place, draw)
                          for rank, program in enumerate(programs) if rank != late]
                if any(one.done for one in _drive(others, draw, True)):
                    raise _Wrong("somebody leaves before all have entered")
        return _verdict(schedule, ranks, in_place)
    except _Wrong as wrong:
        return Verdict(False, False, False, str(wrong))


def _before(program: Program) -> list[set[int]]:
    """All rounds that are over before each one begins, by the text."""
    before: list[set[int]] = []
    for number, steps in enumerate(program.rounds):
        named = set(program.after[number]) if program.after else set(range(number))
        for other in range(number) if program.after else ():
            if any(one.kind == two.kind and one.kind in (SEND, RECV) and one.peer == two.peer
                   for one in program.rounds[other] for two in steps):
                named.add(other)
        before.append(named.union(*(before[other] for other in named)))
    return before


def _drive(ranks: list[_Rank], draw: Random, buffered: bool = False) -> list[_Rank]:
    """Run until nothing moves; raise where somebody waits, unless sends are ``buffered``."""
    world = _World(draw, buffered)
    moved = True
    while moved:
        moved = False
        for one in ranks:
            # What has begun goes on as far as it can, before the next rank has its turn.
            again = True
            while again:
                again = False
                for number in one.begins():
                    again = True
                    for arrival in one.post(number):
                        world.meet(arrival)
                for number, held in list(one.open.items()):
                    if all(a.done or buffered and a.sends for a in held):
                        one.finish(number)
                        again = True
                moved |= again
    if not buffered and not all(one.done for one in ranks):
        raise _Wrong("deadlock")
    return ranks


class _World:
    """Messages that wait for their partners; ``buffered`` sends do not."""

    def __init__(self, draw: Random, buffered: bool):
        self.draw, self.buffered = draw, buffered
        self.queues: dict[tuple[int, int], deque[_Arrival]] = {}
        self.networks: dict[InNetwork, dict[tuple[bool, int], deque[_Arrival]]] = {}

    def meet(self, arrival: _Arrival) -> None:
        network = arrival.step.peer
        if not isinstance(network, InNetwork):
            _meet(self.queues, arrival)
        elif not self.buffered:
            self.join(arrival, network)
        else:  # no sink waits for the others
            for sink in network.receivers if arrival.sends else (arrival.rank,):
                self.join(arrival, in_network(network.senders, [sink]))

    def join(self, arrival: _Arrival, network: InNetwork) -> None:
        """One end of what the network does; all of them, if it is the last one."""
        waiting = self.networks.setdefault(network, {})
        waiting.setdefault((arrival.sends, arrival.rank), deque()).append(arrival)
        wanted = [*((True, rank) for rank in network.senders),
                  *((False, rank) for rank in network.receivers)]
        if not all(waiting.get(end) for end in wanted):
            return
        ends = [waiting[end].popleft() for end in wanted]
        if len({end.count for end in ends}) > 1:
            raise _Wrong(f"'{arrival.step}' meets others of another size")
        given = [end.data for end in ends if end.sends]
        self.draw.shuffle(given)
        result = [fold(Element.combine, each) for each in zip(*given)]
        for end in ends:
            end.data = result if not end.sends else end.data
            end.done = True


def _meet(queues: dict[tuple[int, int], deque[_Arrival]], arrival: _Arrival) -> None:
    sends, peer = arrival.sends, cast(int, arrival.step.peer)
    ends = (arrival.rank, peer) if sends else (peer, arrival.rank)
    queue = queues.setdefault(ends, deque())
    if not queue or queue[0].step.kind == arrival.step.kind:
        queue.append(arrival)
        return
    partner = queue.popleft()
    out, into = (arrival, partner) if sends else (partner, arrival)
    if out.count != into.count:
        raise _Wrong(f"'{out.step}' of rank {out.rank} meets '{into.step}', of another size")
    into.data = out.data
    out.done = into.done = True


def _verdict(schedule: Schedule, ranks: list[_Rank], in_place: bool) -> Verdict:
    collective, size = schedule.collective, schedule.size
    ordered = identical = True
    seen: dict[tuple[int, int, Sequence[int]], int] = {}
    for one in ranks:
        wanted = collective.wanted(one.rank, size, schedule.root, schedule.nblocks)
        for slot, (key, who) in zip(one.slots.get(OUT, []), wanted):
            for e, cell in enumerate(slot):
                given = [ranks[r].given[key, e] for r in who]
                right, found = fold(Element.combine, given), one.memory[cell]
                if found.added != right.added:
                    raise _Wrong(f"rank {one.rank}: block {key} is wrong")
                ordered &= found.product == right.product
                identical &= seen.setdefault((key, e, who), found.mixed) == found.mixed
        kept = [] if in_place and collective.in_place != "root" else one.sent
        if not wanted and collective.reduces:
            kept = [*kept, one.cells([Span(OUT, 0, len(one.slots[OUT]))])] if OUT in one.slots \
                else kept
        if any(one.memory[cell] != one.first[cell] for cells in kept for cell in cells):
            raise _Wrong(f"rank {one.rank}: memory was written that must be left alone")
    return Verdict(True, ordered, identical)


def _random(draw: Random) -> Element:
    a = draw.getrandbits(60) + 1
    return Element(draw.getrandbits(64), (a, draw.getrandbits(60)), draw.getrandbits(64))
