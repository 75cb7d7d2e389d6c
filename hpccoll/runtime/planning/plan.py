"""Plans: the program of one rank, lowered to concrete counts, that can run many times.

A plan has element ranges, not addresses; ``binding`` binds it to memory.
Plans are pure functions of (schedule, rank, layout, segment), so every rank creates the matching
plan without communication.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpccoll.ir.extents import Segment, SlotLayout
from hpccoll.ir.lowering import segments
from hpccoll.ir.schedule import Schedule
from hpccoll.machine.limits import LINE
from hpccoll.runtime.planning.description import Description

#: Segments in flight: one is transferred while another is reduced.
DEPTH = 2


class Plan(NamedTuple):
    """Program of one rank for one call shape.

    Attributes:
        schedule: the proved schedule that was lowered.
        segments: a lowered program per segment.
        depth: segments in flight; each has its own scratch.
        scratch: elements of scratch per segment in flight.
        messages: total number of messages sent and received.
        description: the properties that ranks must agree on; ``None`` without a guard.
        call_hash: the hash of the description in its messages; 0 without one.
    """

    schedule: Schedule
    segments: tuple[Segment, ...]
    depth: int
    scratch: int
    messages: int
    description: Description | None = None
    call_hash: int = 0


class SegmentRule(NamedTuple):
    """Rule of cutting the calls of one form and any size, as :func:`segment_elements` does.

    Attributes:
        most: elements of a block per segment, at most.
        unit: divides the elements of a segment, unless they are the most; 0 if longer blocks than
            the most are cut in another way.
    """

    most: int
    unit: int


class BoundPlan(NamedTuple):
    """Compiled plan of a plan; keeps the plan alive, because its ``id`` is the cache key."""

    plan: Plan
    compiled_plan: Any


def make(schedule: Schedule, rank: int, layout: SlotLayout, longest: int, segment: int) -> Plan:
    """Lower a schedule for one rank; ``segment`` is in elements of a block, 0 for whole."""
    cut = tuple(segments(schedule.program(rank), layout, longest, segment))
    return Plan(schedule, cut, min(DEPTH, len(cut)),
                max(each.program.scratch for each in cut),
                sum(len(phase.messages) for each in cut for phase in each.program.phases))


def segment_elements(itemsize: int, longest: int, segment_bytes: int, shared: bool) -> int:
    """Return the elements of a block per segment; 0 if one segment suffices.

    Segments have equal sizes only if every rank has the longest block (``shared``): two
    ranks must cut the block they exchange at the same places.
    """
    most = max(segment_bytes // itemsize, 1)
    if longest <= most:
        return 0
    if not shared:
        return most
    even, unit = -(-longest // -(-longest // most)), unit_of(itemsize)
    return min(-(-even // unit) * unit, most)


def unit_of(itemsize: int) -> int:
    """Return the number of elements that divides the elements of equal segments."""
    return max(LINE // itemsize, 1)
