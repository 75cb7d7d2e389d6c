"""Executions: run plans on a transport in the interpreter.

An :class:`Execution` is a plan on concrete memory: a state machine with ``start``, ``progress`` and
``done``. Blocking calls run it to the end, nonblocking calls wrap it in a request, and loopback
runs p of them in one process. It never blocks; :func:`drive` waits, with back-off and a deadline.

The interpreter is :func:`advance`: it calls actions until one returns False because its messages
are missing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hpccoll.errors.waits import RankStates
from hpccoll.ir.in_network import InNetwork
from hpccoll.machine.backoff import wait_until
from hpccoll.machine.limits import SPINS
from hpccoll.runtime.events.phase_events import PhaseRecorder
from hpccoll.runtime.execution.tracks import LaneTrack
from hpccoll.runtime.planning.binding import Action, Binder, BoundPhase, Memory
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.progress.waiting import PendingRun, WaitTimer
from hpccoll.transport import Batch, Endpoint

#: Polls for small messages per test, on a rank with its own core.
TRIES = 50
#: Largest number of messages of a plan that stay prepared between calls.
MOST_MESSAGES = 2048


class Timeouts(NamedTuple):
    """Limits of a wait: seconds without progress until it fails, and between reports.

    ``listen`` raises an error if the wait cannot complete. ``states_of`` returns the states of the
    ranks, given those that this one waits for.
    """

    timeout: float
    report: float
    listen: Callable[[PendingRun], None] | None = None
    states_of: Callable[[Sequence[int]], RankStates] | None = None


class RunBatches(NamedTuple):
    """Batches of a compiled plan on one memory, in its order, and their number of messages."""

    batches: tuple[Batch, ...]
    messages: int

    def free(self) -> None:
        """Free all batches."""
        for batch in self.batches:
            batch.free()


def advance(actions: Iterator[Action]) -> Action | None:
    """Call actions until messages are missing; return the failed test, or ``None`` at the end."""
    for action in actions:
        function, operands = action
        if function(*operands) is False:
            return action
    return None


class Execution:
    """Plan that runs, or can run, on one rank.

    Args:
        plan: the plan.
        endpoint: this rank's side of the transport.
        memory: arrays; ``scratch`` holds ``plan.depth * plan.scratch`` elements.
        tag: first of the ``plan.depth`` tags this execution uses.
        repeated: keep all actions prepared for the next ``start``.
        spins: failed tests before a wait yields the processor.
        opening: called at every start; it may raise an error.
        closing: called after every successful end.
        noting: records phases; ``None`` if phases are not traced.
    """

    def __init__(self, plan: Plan, endpoint: Endpoint, memory: Memory, tag: int,
                 repeated: bool = False, spins: int = SPINS, opening: Action | None = None,
                 closing: Action | None = None, noting: PhaseRecorder | None = None):
        self.plan, self.endpoint, self.memory, self.spins = plan, endpoint, memory, spins
        self.repeated = repeated and plan.messages <= MOST_MESSAGES
        single = self.repeated and len(plan.segments) == 1
        # A segment that waits long delays the others.
        self.binder = Binder(plan, endpoint, memory, tag, self.repeated,
                             TRIES if spins and single else 1, opening, noting)
        self.prepared: dict[int, list[BoundPhase]] = {}
        self.closing = closing
        self.lanes = any(segment.program.waits for segment in plan.segments)
        self.tracks: list[_Track | LaneTrack] = []
        self.done = True

    def start(self) -> None:
        """Start the execution and post the first messages."""
        self.done = False
        # Tracks have no reference to the execution: a cycle would keep arrays until garbage
        # collection.
        track = LaneTrack if self.lanes else _Track
        self.tracks = [track(index) for index in range(self.plan.depth)]
        self.progress()

    def progress(self) -> bool:
        """Make progress without blocking; return True if any segment progressed."""
        moved, busy = False, False
        for track in self.tracks:
            moved |= track.advance(self)
            busy |= track.phases is not None
        self.done = not busy
        if not busy and self.closing is not None:
            self.closing[0]()
        return moved

    def phases(self, number: int, slot: int) -> Iterator[BoundPhase] | None:
        """Return the phases of one segment; ``None`` past the last one."""
        if number >= len(self.plan.segments):
            return None
        if not self.repeated:
            return self.binder.phases(number, slot)
        if number not in self.prepared:
            self.prepared[number] = list(self.binder.phases(number, slot))
        return iter(self.prepared[number])

    @property
    def title(self) -> str:
        """Name of the schedule, for messages."""
        return self.plan.schedule.title

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.endpoint.rank

    @property
    def tag(self) -> int:
        """First of its tags, with its call hash."""
        return self.binder.tag

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return the round and the peers that this rank waits for, for messages.

        No peers while it waits for its own device.
        """
        windows = self.memory.windows
        for track in self.tracks:
            if track.phases is not None and track.phase is not None:
                if windows is not None and track.wait and track.wait[0] == windows.can_start:
                    return track.phase, ()
                return track.phase, self.peers(track.segment, track.phase)
        return 0, ()

    @property
    def batches(self) -> list[Batch]:
        """Pending batches of messages."""
        return [track.batch for track in self.tracks if track.batch is not None]

    def peers(self, segment: int, number: int) -> tuple[int, ...]:
        """Return the ranks that this one exchanges messages with in a phase."""
        phase = self.plan.segments[segment].program.phases[number]
        peers = (message.peer for message in phase.messages)
        return tuple(sorted({rank for peer in peers for rank in (
            peer.others(self.rank) if isinstance(peer, InNetwork) else (peer,))}))

    def free(self) -> None:
        """Free the prepared messages; the execution cannot be started again."""
        for phases in self.prepared.values():
            for phase in phases:
                if phase.batch:
                    phase.batch.free()
        self.prepared = {}


class _Track:
    """Sequence of segments index, index + depth, ..., which run one after the other.

    The order must not depend on timing: segments of one track share a tag, so every rank has to run
    the same segments in the same order.
    """

    def __init__(self, index: int):
        self.index, self.segment, self.following = index, index, index
        self.phase: int | None = None
        self.phases: Iterator[BoundPhase] | None = iter(())
        self.actions: Iterator[Action] = iter(())
        self.wait: Action | None = None
        self.batch: Batch | None = None

    def advance(self, execution: Execution) -> bool:
        """Run until a message is missing; return True on progress."""
        moved = False
        while self.phases is not None:
            if self.wait is not None:
                function, operands = self.wait
                if function(*operands) is False:
                    return moved
                moved = True
            self.wait = advance(self.actions)
            if self.wait is not None:
                return moved
            phase = next(self.phases, None)
            if phase is not None:
                self.phase, self.actions = phase.number, iter(phase.actions)
                self.batch = phase.batch
                continue
            self.segment = self.following
            self.following += execution.plan.depth
            self.phases, self.phase = execution.phases(self.segment, self.index), None
            self.batch = None
        return moved


class ShortTurns:
    """Context in which other Python threads release the GIL soon after this one needs it.

    A call of many segments takes the GIL again after each copy and reduction. Beside a thread that
    computes in Python every turn would take the interpreter's switch interval, 5 ms.
    """

    SECONDS = 1e-4

    def __init__(self) -> None:
        self.lock, self.users, self.before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self.lock:
            if not self.users:
                self.before = sys.getswitchinterval()
                sys.setswitchinterval(min(self.before, self.SECONDS))
            self.users += 1

    def __exit__(self, *args: object) -> None:
        with self.lock:
            self.users -= 1
            if not self.users:
                sys.setswitchinterval(self.before)


SHORT_TURNS = ShortTurns()


def drive(execution: Execution, timeouts: Timeouts) -> None:
    """Start an execution and wait for its end.

    Raises:
        CollectiveTimeout: no progress for ``timeouts.timeout`` seconds.
    """
    with SHORT_TURNS:
        execution.start()
        finish(execution, timeouts)


def finish(execution: Execution, timeouts: Timeouts) -> None:
    """Wait for the end of a started execution; see :func:`drive`."""
    watch = WaitTimer(execution, *timeouts, execution.spins)

    def advance() -> bool:
        while not execution.done and execution.progress():
            watch.reset()
        return execution.done
    wait_until(advance, watch)
