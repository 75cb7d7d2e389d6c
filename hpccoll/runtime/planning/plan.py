"""Plans: one rank's program lowered onto concrete counts, ready to be run again and again.

A plan knows element ranges, not addresses; ``binding`` puts it onto memory.
Plans are pure functions of (schedule, rank, layout, segment), so every rank makes the matching one
without talking.
"""

from __future__ import annotations

from typing import NamedTuple

from hpccoll.ir.extents import Segment, SlotLayout
from hpccoll.ir.lowering import segments
from hpccoll.ir.schedule import Schedule
from hpccoll.machine.limits import LINE
from hpccoll.runtime.planning.description import Description

#: Segments in flight at once: one travels while another is reduced.
DEPTH = 2


class Plan(NamedTuple):
    """What one rank does for one call shape.

    Attributes:
        schedule: the proved object this was lowered from.
        segments: one lowered program per segment.
        depth: segments in flight at once; each has scratch of its own.
        scratch: elements of scratch per segment in flight.
        messages: messages sent and received in all.
        description: what the ranks must agree on; ``None`` where nobody asked for it.
        stamp: the same as a number, which its messages carry; 0 where they carry none.
    """

    schedule: Schedule
    segments: tuple[Segment, ...]
    depth: int
    scratch: int
    messages: int
    description: Description | None = None
    stamp: int = 0


def make(schedule: Schedule, rank: int, layout: SlotLayout, longest: int, segment: int) -> Plan:
    """Lower a schedule for one rank; ``segment`` is in elements of a block, 0 for whole."""
    cut = tuple(segments(schedule.program(rank), layout, longest, segment))
    return Plan(schedule, cut, min(DEPTH, len(cut)),
                max(each.program.scratch for each in cut),
                sum(len(phase.messages) for each in cut for phase in each.program.phases))


def segment_elements(itemsize: int, longest: int, segment_bytes: int, shared: bool) -> int:
    """Elements of a block per segment; 0 when one segment suffices.

    Segments are evened out only when every rank knows the longest block (``shared``): two
    ranks must cut the block they exchange at the same places.
    """
    most = max(segment_bytes // itemsize, 1)
    if longest <= most:
        return 0
    if not shared:
        return most
    even, unit = -(-longest // -(-longest // most)), max(LINE // itemsize, 1)
    return min(-(-even // unit) * unit, most)
