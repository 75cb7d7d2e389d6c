"""Phases: what this rank does inside its blocking hpccoll calls, as events.

A ``PHASE`` event has the plan and its segment, the phase and the activity that begins. The activity
lasts until the next event of the same segment and lane of phases, or until the call's end.
``HPCCOLL_TRACE_PHASES`` enables it for a communicator; without it, plans have no recording steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from hpccoll.ir.extents import Local
from hpccoll.ir.order import lane_numbers
from hpccoll.ir.schedule import SEND
from hpccoll.runtime.events.ring import PHASE, event_ring

if TYPE_CHECKING:
    from hpccoll.runtime.planning.plan import Plan  # which starts MPI; `hpccoll trace` needs none

#: Largest number of plans of a communicator; the phases of later plans are not recorded.
MOST_PLANS = 1024
#: Bits below the plan's number, and below the phase's.
PLAN_BITS, PHASE_BITS = 32, 8
_numbers = count()


class Activity(IntEnum):
    """Activity of a rank.

    A rank *drains* while its messages to send wait for a free cell. ``OVER`` ends a phase.
    """

    SENDING = 0
    WAITING = 1
    COPYING = 2
    REDUCING = 3
    DRAINING = 4
    OVER = 5


def activity_of(steps: Sequence[Local]) -> Activity:
    """Return the activity of local steps: reducing if any step reduces, else copying."""
    return Activity.REDUCING if any(step.right is not None for step in steps) else Activity.COPYING


class PhaseRecorder(NamedTuple):
    """Recorder of the phases of the plan with a number."""

    plan: int

    def words(self, segment: int, phase: int, activity: Activity) -> tuple[int, int]:
        """Return the two numbers of an event."""
        return self.plan << PLAN_BITS | segment, phase << PHASE_BITS | activity

    def starts(self, segment: int, phase: int, activity: Activity) -> Callable[[], None]:
        """Return a callback that records the start of an activity."""
        return event_ring().phase(*self.words(segment, phase, activity))

    def around(self, function: Callable[..., Any], place: tuple[int, int], activity: Activity
               ) -> Callable[..., Any]:
        """Return a wrapper of a function called inside a wait, which records its activity."""
        return event_ring().around(function, *self.words(*place, activity),
                                   self.words(*place, Activity.WAITING)[1])


class Phases:
    """The plans of one communicator whose phases are recorded.

    Attributes:
        plans: by ``id``, with their numbers in this process.
    """

    def __init__(self) -> None:
        self.plans: dict[int, tuple[int, Plan]] = {}

    def of(self, plan: Plan) -> PhaseRecorder | None:
        """Return the recorder of a plan; ``None`` if there are too many plans."""
        known = self.plans.get(id(plan))
        if known is None:
            if len(self.plans) == MOST_PLANS:
                return None
            known = self.plans[id(plan)] = next(_numbers), plan
            event_ring()  # so that machine code has a ring
        return PhaseRecorder(known[0])

    def as_json(self) -> dict[str, Any]:
        """Return the recorded phases as plain data: plans, and plan, phase and time of each."""
        numbers = numpy.array([number for number, _ in self.plans.values()] or [-1])
        found = event_ring().events(PHASE)
        found = found[numpy.isin(found["what"] >> PLAN_BITS, numbers)]
        # Numbers rise, as plans are added.
        places = numpy.searchsorted(numbers, found["what"] >> PLAN_BITS)
        where = places << PLAN_BITS | found["what"] & (1 << PLAN_BITS) - 1
        return {"whole": not event_ring().is_full,
                "rows": numpy.stack([where, found["detail"], found["start"]], 1).ravel().tolist(),
                "plans": [_plan_as_json(plan) for _, plan in self.plans.values()]}


def _plan_as_json(plan: Plan) -> dict[str, Any]:
    """Return the phases of a plan: their lanes, destinations and sources."""
    programs = {id(segment.program): segment.program for segment in plan.segments}
    numbers = {one: number for number, one in enumerate(programs)}
    return {"title": plan.schedule.title, "depth": plan.depth,
            "segments": [numbers[id(segment.program)] for segment in plan.segments],
            "programs": [[
                [lane, *(sorted({message.peer for message in phase.messages
                                 if (message.kind == SEND) == sends}) for sends in (True, False))]
                for lane, phase in zip(
                    lane_numbers(program.waits) if program.waits else [0] * len(program.phases),
                    program.phases)] for program in programs.values()]}
