"""Moments: timestamps of the activity changes of this rank inside blocking hpccoll calls.

    Binder, compiled plan --note--> Moments, a ring of rows <--read by-- hpccoll.measure.profiling

A row has three numbers: the plan and its segment; the phase and the activity that begins;
nanoseconds of the clock of :func:`time.perf_counter`. The activity lasts until the next row of the
same segment and lane of phases, or until the call's end. ``HPCCOLL_TRACE_PHASES`` enables the ring
of a communicator. Without it, plans and compiled plans contain no recording steps.

Running calls allocate nothing. The ring holds the last :data:`KEPT` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy

from hpccoll.ir.extents import Local
from hpccoll.ir.order import lane_numbers
from hpccoll.ir.schedule import SEND

if TYPE_CHECKING:
    from hpccoll.runtime.planning.plan import Plan  # which starts MPI; `hpccoll trace` needs none

try:
    from hpccoll.runtime.execution import _executor
except ImportError:  # it was not built
    _executor = None  # type: ignore[assignment]

#: Rows of the ring, a power of two; numbers per row, as in ``_moments.h``.
KEPT, ROW = 1 << 17, 3
#: Largest number of plans in a ring; the phases of later plans are not recorded.
MOST_PLANS = 1024
#: Bits below the plan's number, and below the phase's.
PLAN_BITS, PHASE_BITS = 32, 8


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
    """Recorder of the moments of one plan."""

    moments: Moments
    plan: int

    def words(self, segment: int, phase: int, activity: Activity) -> tuple[int, int]:
        """Return the first two numbers of a row."""
        return self.plan << PLAN_BITS | segment, phase << PHASE_BITS | activity

    @staticmethod
    def activity(what: int) -> Activity:
        """Return the activity in the second number of a row."""
        return Activity(what & (1 << PHASE_BITS) - 1)

    def moment(self, segment: int, phase: int, activity: Activity) -> Callable[[], None]:
        """Return a callback that records the start of an activity."""
        return self.moments.moment(*self.words(segment, phase, activity))

    def around(self, function: Callable[..., Any], place: tuple[int, int], activity: Activity
               ) -> Callable[..., Any]:
        """Return a wrapper of a function called inside a wait, which records its activity."""
        (where, what), (_, after) = (self.words(*place, one)
                                     for one in (activity, Activity.WAITING))
        if self.moments.built:
            return _executor.amid(*self.moments.ring, where, what, after, function, self.moments)
        note = self.moments.record

        def call(*operands: Any) -> None:
            note(where, what)
            function(*operands)
            note(where, after)
        return call


class Moments:
    """Ring of the moments of one communicator, and the plans in it.

    Args:
        kept: rows of the ring, a power of two.

    Attributes:
        memory: a first row with the number of rows written so far, then the ring.
        plans: the plans with moments, by their numbers.
        ring: the address of the memory, and the number of rows.
        built: True if machine code records.
    """

    def __init__(self, kept: int = KEPT):
        self.memory = numpy.zeros(ROW * (kept + 1), numpy.int64)
        self.plans: list[Plan] = []
        self._numbers: dict[int, int] = {}
        self._words, self._last = memoryview(cast(Any, self.memory)), kept - 1
        self.ring: tuple[int, int] = self.memory.__array_interface__["data"][0], kept
        self.built = hasattr(_executor, "moment")

    def of(self, plan: Plan) -> PhaseRecorder | None:
        """Return the recorder of a plan; ``None`` if there are too many plans."""
        number = self._numbers.get(id(plan))
        if number is None:
            if len(self.plans) == MOST_PLANS:
                return None
            number = self._numbers[id(plan)] = len(self.plans)
            self.plans.append(plan)
        return PhaseRecorder(self, number)

    def moment(self, where: int, what: int) -> Callable[[], None]:
        """Return a callback that records a moment, given the first two numbers of its row."""
        if self.built:
            return _executor.moment(*self.ring, where, what, self)
        return partial(self.record, where, what)

    def record(self, where: int, what: int) -> None:
        """Record a moment, given the first two numbers of its row."""
        words = self._words
        number = words[0]
        words[0] = number + 1
        at = ROW * ((number & self._last) + 1)
        words[at], words[at + 1], words[at + 2] = where, what, perf_counter_ns()

    def rows(self) -> numpy.ndarray:
        """Return the rows of the ring, in chronological order."""
        ring, count = self.memory[ROW:].reshape(-1, ROW), int(self.memory[0])
        first = count % len(ring) if count > len(ring) else 0
        found: numpy.ndarray = numpy.roll(ring, -first, axis=0)[:count]
        return found

    def as_json(self) -> dict[str, Any]:
        """Return plain data: the rows and the phases of each plan."""
        rows = self.rows()
        return {"rows": rows.ravel().tolist(), "plans": list(map(_plan_as_json, self.plans))}


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
