"""Moments: when this rank went over from one activity to another, inside of blocking calls of ours.

    Binder, tape --note--> Moments, a ring of rows <--read by-- hpccoll.measure.observed

A row has three numbers: the plan and its segment; the phase, and what this rank does from now on;
nanoseconds of the clock of :func:`time.perf_counter`. The activity lasts until the next row of the
same segment and lane of phases, or until the call's end. With ``HPCCOLL_TRACE_PHASES`` a
communicator has such a ring, otherwise its plans and tapes have no place where anything is noted.

Nothing is allocated while calls run; the last :data:`KEPT` rows are kept.
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
    from hpccoll.runtime.execution import _tape
except ImportError:  # it was not built
    _tape = None  # type: ignore[assignment]

#: Rows that are kept, a power of two; numbers of a row, as in ``_tape.h``.
KEPT, ROW = 1 << 17, 3
#: Plans that are told apart; the phases of later ones are not noted.
MOST_PLANS = 1024
#: Bits below the plan's number, and below the phase's.
PLAN_BITS, PHASE_BITS = 32, 8


class Activity(IntEnum):
    """What a rank is doing.

    It *drains* while messages to send find no free cell; with ``OVER`` a phase ends after which
    there may be none for a while.
    """

    SENDING = 0
    WAITING = 1
    COPYING = 2
    REDUCING = 3
    DRAINING = 4
    OVER = 5


def activity_of(steps: Sequence[Local]) -> Activity:
    """What local steps are: reductions, if there is one among them."""
    return Activity.REDUCING if any(step.right is not None for step in steps) else Activity.COPYING


class Noting(NamedTuple):
    """Where the moments of one plan are noted."""

    moments: Moments
    plan: int

    def words(self, segment: int, phase: int, activity: Activity) -> tuple[int, int]:
        """The first two numbers of a row."""
        return self.plan << PLAN_BITS | segment, phase << PHASE_BITS | activity

    @staticmethod
    def activity(what: int) -> Activity:
        """The activity in the second number of a row."""
        return Activity(what & (1 << PHASE_BITS) - 1)

    def moment(self, segment: int, phase: int, activity: Activity) -> Callable[[], None]:
        """What notes, whenever it is called, that this rank goes over to something."""
        return self.moments.moment(*self.words(segment, phase, activity))

    def around(self, function: Callable[..., Any], place: tuple[int, int], activity: Activity
               ) -> Callable[..., Any]:
        """A function that is called amid a wait, and notes so, in a segment and phase."""
        (where, what), (_, after) = (self.words(*place, one)
                                     for one in (activity, Activity.WAITING))
        if self.moments.built:
            return _tape.amid(*self.moments.ring, where, what, after, function, self.moments)
        note = self.moments.noted

        def call(*operands: Any) -> None:
            note(where, what)
            function(*operands)
            note(where, after)
        return call


class Moments:
    """The ring of one communicator, and whose moments are in it.

    Args:
        kept: rows, a power of two.

    Attributes:
        memory: how many rows there have been, and the ring behind that row.
        plans: those with moments, by their numbers.
        ring: where the memory is, and how many rows are kept.
        built: machine code notes.
    """

    def __init__(self, kept: int = KEPT):
        self.memory = numpy.zeros(ROW * (kept + 1), numpy.int64)
        self.plans: list[Plan] = []
        self._numbers: dict[int, int] = {}
        self._words, self._last = memoryview(cast(Any, self.memory)), kept - 1
        self.ring: tuple[int, int] = self.memory.__array_interface__["data"][0], kept
        self.built = hasattr(_tape, "moment")

    def of(self, plan: Plan) -> Noting | None:
        """Where a plan's moments go; ``None`` where there have been too many plans."""
        number = self._numbers.get(id(plan))
        if number is None:
            if len(self.plans) == MOST_PLANS:
                return None
            number = self._numbers[id(plan)] = len(self.plans)
            self.plans.append(plan)
        return Noting(self, number)

    def moment(self, where: int, what: int) -> Callable[[], None]:
        """What notes a moment, by the first two numbers of its row, whenever it is called."""
        if self.built:
            return _tape.moment(*self.ring, where, what, self)
        return partial(self.noted, where, what)

    def noted(self, where: int, what: int) -> None:
        """Note a moment, by the first two numbers of its row."""
        words = self._words
        number = words[0]
        words[0] = number + 1
        at = ROW * ((number & self._last) + 1)
        words[at], words[at + 1], words[at + 2] = where, what, perf_counter_ns()

    def rows(self) -> numpy.ndarray:
        """The rows that are kept, in the order of time."""
        ring, count = self.memory[ROW:].reshape(-1, ROW), int(self.memory[0])
        first = count % len(ring) if count > len(ring) else 0
        found: numpy.ndarray = numpy.roll(ring, -first, axis=0)[:count]
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain data: the rows, and of each plan what its numbers mean."""
        rows = self.rows()
        return {"rows": rows.ravel().tolist(), "plans": list(map(_told, self.plans))}


def _told(plan: Plan) -> dict[str, Any]:
    """A plan's phases: their lanes, and to whom and from whom there are messages."""
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
