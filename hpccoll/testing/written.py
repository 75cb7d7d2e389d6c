"""What programs do as they are written: run on numbers, by the text of :mod:`hpccoll.ir.schedule`.

Nothing here is lowered, and nothing here knows how a proof works. Every slot has memory of its own,
sends wait for their receives, and what the text forbids is looked for element by element. An
element carries three numbers through every reduction, one for each operator: a sum modulo 2**64, a
product of matrices that do not commute, and a mixture that is not associative and shows how
contributions were grouped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import reduce as fold
from random import Random
from typing import NamedTuple

from hpccoll.ir.collectives import IN, OUT, TMP, slot_keys
from hpccoll.ir.schedule import COPY, LEFT, RECV, SEND, Program, Round, Schedule, Span, Step
from hpccoll.testing.truth import Verdict

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


class _Rank:
    """One rank's memory, and where it stands."""

    def __init__(self, schedule: Schedule, rank: int, program: Program, sizes: Sequence[int],
                 in_place: bool, draw: Random):
        self.rank, self.program, self.number = rank, program, 0
        self.open: list[_Arrival] = []
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
        self.before = dict(self.memory)
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

    def post(self) -> list[_Arrival]:
        """Begin a round: check what its messages use, and take what it sends."""
        steps = self.program.rounds[self.number]
        self.check(steps)
        self.open = [
            _Arrival(self.rank, step, self.read(step.spans) if step.kind == SEND else [],
                     len(self.cells(step.spans)))
            for step in steps if step.kind in (SEND, RECV)
            and (not step.spans or self.cells(step.spans))]
        return self.open

    def check(self, steps: Round) -> None:
        taken = {cell for step in steps if step.kind == SEND for cell in self.cells(step.spans)}
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

    def finish(self) -> None:
        """End a round: what arrived is put into place or reduced, then local steps follow."""
        for arrival in self.open:
            if arrival.step.kind == RECV and not arrival.step.side:
                self.memory.update(zip(self.cells(arrival.step.spans), arrival.data))
        for arrival in self.open:
            if arrival.step.kind == RECV and arrival.step.side:
                self.reduce(arrival.step, arrival.data)
        for step in self.program.rounds[self.number]:
            if step.kind == COPY:
                self.memory.update(zip(self.cells(step.spans), self.read(step.source)))
            elif step.kind not in (SEND, RECV):
                self.reduce(step, self.read(step.source))
        self.number += 1
        self.open = []

    def reduce(self, step: Step, arriving: list[Element]) -> None:
        into = self.cells(step.spans)
        mine = [self.memory[cell] for cell in into]
        left, right = (arriving, mine) if step.side == LEFT else (mine, arriving)
        self.memory.update(zip(into, map(Element.combine, left, right)))


def run(schedule: Schedule, programs: Sequence[Program], sizes: Sequence[int], in_place: bool,
        draw: Random) -> Verdict:
    """Run the programs of all ranks as they are written, and say what holds.

    Args:
        sizes: elements of every block, by its key.
    """
    ranks = [_Rank(schedule, rank, program, sizes, in_place, draw)
             for rank, program in enumerate(programs)]
    try:
        _drive(ranks)
        if schedule.collective.payload == "none":
            for late in range(schedule.size):
                others = [_Rank(schedule, rank, program, sizes, in_place, draw)
                          for rank, program in enumerate(programs) if rank != late]
                if any(one.number >= len(one.program.rounds) for one in _drive(others, True)):
                    raise _Wrong("somebody leaves before all have entered")
        return _verdict(schedule, ranks, in_place)
    except _Wrong as wrong:
        return Verdict(False, False, False, str(wrong))


def _drive(ranks: list[_Rank], buffered: bool = False) -> list[_Rank]:
    """Run until nothing moves; raise where somebody waits, unless sends are ``buffered``."""
    queues: dict[tuple[int, int], deque[_Arrival]] = {}
    started: set[int] = set()
    moved = True
    while moved:
        moved = False
        for one in ranks:
            while one.number < len(one.program.rounds):
                if one.rank not in started:
                    started.add(one.rank)
                    for arrival in one.post():
                        _meet(queues, arrival)
                    moved = True
                if any(not (a.done or buffered and a.step.kind == SEND) for a in one.open):
                    break
                one.finish()
                started.discard(one.rank)
                moved = True
    if not buffered and any(one.number < len(one.program.rounds) for one in ranks):
        raise _Wrong("deadlock")
    return ranks


def _meet(queues: dict[tuple[int, int], deque[_Arrival]], arrival: _Arrival) -> None:
    sends = arrival.step.kind == SEND
    ends = (arrival.rank, arrival.step.peer) if sends else (arrival.step.peer, arrival.rank)
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
        if any(one.memory[cell] != one.before[cell] for cells in kept for cell in cells):
            raise _Wrong(f"rank {one.rank}: memory was written that must be left alone")
    return Verdict(True, ordered, identical)


def _random(draw: Random) -> Element:
    a = draw.getrandbits(60) + 1
    return Element(draw.getrandbits(64), (a, draw.getrandbits(60)), draw.getrandbits(64))
