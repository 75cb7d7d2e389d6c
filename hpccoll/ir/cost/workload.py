"""Workload of one rank in bytes: the schedule's rounds on a message of a given size.

Blocks are equal by default, including fractions of bytes, so that equivalent ranks have equal
work. With an ``itemsize``, blocks are whole elements, as a plan cuts them, and empty
blocks vanish.

Messages of a round from one rank to another count as one: algorithms cut them at the end of a
buffer, which is irrelevant to the network. Copies of the input are free: plans read the input in
place. Packing of messages that are not contiguous in memory is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import IN, TMP, block_counts, slot_keys
from hpccoll.ir.in_network import Peer
from hpccoll.ir.order import waits
from hpccoll.ir.schedule import COPY, RECV, SEND, Schedule, Span
from hpccoll.ir.wellformed import program_of

#: Segments in flight, as in plans.
DEPTH = 2
#: Maximum bytes of a message, and maximum segments of a block, in a simulation.
MOST_BYTES, MOST_SEGMENTS = 1e30, 1_000_000


class SimulatedMessage(NamedTuple):
    """A message sent to, or received from, a peer."""

    sends: bool
    peer: Peer
    nbytes: float


class Round(NamedTuple):
    """Messages posted together, and the bytes reduced and copied once all are complete.

    In a program with lanes, ``waits`` are the rounds that must be over before; without, it is
    ``None``, and a round waits for the one before it.
    """

    messages: tuple[SimulatedMessage, ...]
    reduced: float
    copied: float
    waits: tuple[int, ...] | None = None


class Workload:
    """The rounds of any rank, segment by segment.

    Args:
        nbytes: bytes of a rank's vector, or of all its blocks together.
        itemsize: bytes of an element, for blocks of whole elements; 0 for equal blocks.
        segment_bytes: maximum bytes of a segment of a block; 0 for one segment.
        joined: True to count the messages of a round from one rank to another as one.
    """

    def __init__(self, schedule: Schedule, nbytes: float, itemsize: int = 0,
                 segment_bytes: float = 0, joined: bool = True):
        self.schedule, self.joined = schedule, joined
        for name, value in (("nbytes", nbytes), ("itemsize", itemsize),
                            ("segment_bytes", segment_bytes)):
            if (isinstance(value, bool) or not isinstance(value, (int, float))
                    or not 0 <= value <= MOST_BYTES):
                got = repr(value) if not isinstance(value, int) or value < MOST_BYTES else (
                    f"one of {value.bit_length()} bits")
                raise ArgumentError(name, f"expected a number of bytes, 0 to {MOST_BYTES:g}, "
                                          f"got {got}")
        payload = schedule.collective.payload
        self.nblocks = schedule.nblocks if payload == "vector" else schedule.size
        self.unit = nbytes / self.nblocks
        self.counts: list[int] = []
        if itemsize:
            count, rest = divmod(nbytes, itemsize)
            if rest:
                raise ArgumentError("nbytes", f"{nbytes} bytes are not a multiple of the element "
                                              f"size, {itemsize} bytes")
            self.counts = block_counts(int(count), self.nblocks)
            self.unit = float(itemsize)
            if self.counts[0] == self.counts[-1]:
                self.unit *= self.counts[0]
                self.counts = []
        longest = (self.counts[0] if self.counts else 1) * self.unit
        if segment_bytes and longest > MOST_SEGMENTS * segment_bytes:
            raise ArgumentError("segment_bytes", f"{segment_bytes:g} splits blocks of {longest:g} "
                                                 f"bytes into more than {MOST_SEGMENTS:,} "
                                                 "segments", "increase it")
        self.segments = max(1, math.ceil(longest / segment_bytes)) if segment_bytes else 1
        if payload == "none":
            self.unit, self.segments, self.counts = 0.0, 1, []
        # Elements per segment, so that all segments but the last are equal.
        self.step = -(-self.counts[0] // self.segments) if self.counts else 0

    @property
    def depth(self) -> int:
        """Return the number of segments in flight."""
        return min(DEPTH, self.segments)

    def kind(self, segment: int) -> int:
        """Return a number that is equal for segments of equal rounds."""
        return segment if self.counts else 0

    @property
    def kinds(self) -> range:
        """Return a segment of every kind; its number is that of the kind."""
        return range(self.segments if self.counts else 1)

    def rounds(self, rank: int, segment: int = 0) -> list[Round]:
        """Return one rank's rounds of one segment.

        Empty rounds are dropped, unless others wait for them by number.
        """
        program = program_of(self.schedule, rank)
        measure = self._measure(rank, program.scratch, segment)
        unit = self.unit if self.counts else self.unit / self.segments
        rounds: list[Round] = []
        order = waits(program)
        for number, steps in enumerate(program.rounds):
            # In exact units: sums of bytes would depend on how they were cut.
            messages: list[tuple[bool, Peer, int]] = []
            reduced = copied = 0
            places: dict[tuple[bool, Peer], int] = {}
            for step in steps:
                units = measure(step.spans)
                if step.kind in (SEND, RECV):
                    end = step.kind == SEND, step.peer
                    reduced += units if step.side else 0
                    if units and end in places:
                        sends, peer, before = messages[places[end]]
                        messages[places[end]] = sends, peer, before + units
                    elif units or not step.spans:
                        if units and self.joined:
                            places[end] = len(messages)
                        messages.append((*end, units))
                elif step.kind == COPY:
                    copied += units if any(s.buffer != IN for s in step.source) else 0
                else:
                    reduced += units
            if messages or reduced or copied or order:
                rounds.append(Round(tuple(SimulatedMessage(sends, peer, units * unit)
                                          for sends, peer, units in messages),
                                    reduced * unit, copied * unit,
                                    order[number] if order else None))
        return rounds

    def _measure(self, rank: int, scratch: Sequence[int],
                 segment: int) -> Callable[[Sequence[Span]], int]:
        """Return a callback that counts the units, of one size, in some spans."""
        if not self.unit:
            return lambda spans: 0
        if not self.counts:
            return _slots
        s, start = self.schedule, segment * self.step
        pairs, size = s.collective.payload == "pairs", s.size

        def count(key: int) -> int:
            # A pair's block has the size of its destination in every rank's list.
            held = self.counts[key % size if pairs else key]
            return min(max(held - start, 0), self.step) if self.segments > 1 else held

        keys = {**slot_keys(s.collective, rank, size, s.root, s.nblocks), TMP: scratch}
        before = {buffer: list(accumulate(map(count, held), initial=0))
                  for buffer, held in keys.items()}
        return lambda spans: sum(
            before[span.buffer][span.stop] - before[span.buffer][span.start] for span in spans)


def _slots(spans: Sequence[Span]) -> int:
    slots = 0
    for _, start, stop in spans:
        slots += stop - start
    return slots
