"""Lanes: run a segment whose phases start after the phases that they depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from hpccoll.ir.order import Waits, by_lane
from hpccoll.runtime.planning.binding import Action, BoundPhase
from hpccoll.runtime.planning.plan import Plan
from hpccoll.transport import Batch


class SegmentedExecution(Protocol):
    """Execution that binds the segments of its plan to memory."""

    plan: Plan

    def phases(self, number: int, slot: int) -> Iterator[BoundPhase] | None: ...


class LaneTrack:
    """Sequence of segments index, index + depth, ..., which run one after the other.

    Attributes:
        segment: the current segment.
        phase, wait: its pending phase, and the test of that phase.
        phases: ``None`` at the end.
    """

    def __init__(self, index: int):
        self.index, self.segment, self.following = index, index, index
        self.phase: int | None = None
        self.phases: Sequence[BoundPhase] | None = ()
        self.lanes: list[_Lane] = []
        self.wait: Action | None = None

    @property
    def batch(self) -> Batch | None:
        """Return the pending batch of messages, or None."""
        return None if not self.phases or self.phase is None else self.phases[self.phase].batch

    def advance(self, execution: SegmentedExecution) -> bool:
        """Run until every lane waits for messages; return True on progress."""
        moved = False
        while self.phases is not None:
            while any([lane.advance() for lane in self.lanes]):
                moved = True
            waiting = next((lane for lane in self.lanes if lane.actions is not None), None)
            if waiting is not None:
                self.phase, self.wait = waiting.phase, waiting.wait
                return moved
            self.segment = self.following
            self.following += execution.plan.depth
            phases = execution.phases(self.segment, self.index)
            self.phases, self.phase, self.lanes = None, None, []
            if phases is not None:
                self.phases = list(phases)
                waits = execution.plan.segments[self.segment].program.waits
                over = [False] * len(waits)
                self.lanes = [_Lane(numbers, self.phases, waits, over)
                              for numbers in by_lane(waits)]
        return moved


class _Lane:
    """State of one lane of a segment.

    Attributes:
        actions: the remaining actions of the current phase; ``None`` between two phases.
    """

    def __init__(self, numbers: Sequence[int], phases: Sequence[BoundPhase], waits: Waits,
                 over: list[bool]):
        self.numbers, self.phases, self.waits, self.over = iter(numbers), phases, waits, over
        self.phase = next(self.numbers, None)
        self.actions: Iterator[Action] | None = None
        self.wait: Action | None = None

    def advance(self) -> bool:
        """Run until it waits for a message or another lane; return True on progress."""
        moved = False
        while self.phase is not None:
            if self.actions is None:
                if not all(map(self.over.__getitem__, self.waits[self.phase])):
                    return moved
                self.actions = iter(self.phases[self.phase].actions)
            elif self.wait is not None:
                function, operands = self.wait
                if function(*operands) is False:
                    return moved
            moved = True
            self.wait = next((action for action in self.actions
                              if action[0](*action[1]) is False), None)
            if self.wait is not None:
                return moved
            self.over[self.phase] = True
            self.phase, self.actions = next(self.numbers, None), None
        return moved
