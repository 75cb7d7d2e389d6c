"""Running: the one place where a plan meets a transport.

An :class:`Execution` is a plan on concrete memory: a state machine with ``start``, ``progress`` and
``done`` that blocking calls drive to the end, nonblocking calls hand out inside a request, and
loopback drives p of in one process. It never blocks by itself; :func:`drive` does the
waiting, with a back-off and with a deadline.

There is one interpreter, :func:`advance`: it calls actions until one says that its messages are
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hpccoll.errors.waits import RankStates
from hpccoll.ir.in_network import InNetwork
from hpccoll.machine.limits import SPINS
from hpccoll.runtime.events.moments import Noting
from hpccoll.runtime.execution.lanes import LaneTrack
from hpccoll.runtime.planning.binding import Action, Binder, BoundPhase, Memory
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.progress.waiting import Awaited, Watch
from hpccoll.transport import Batch, Endpoint

#: Looks for small messages at once, of a rank with a processor to itself.
TRIES = 50
#: Plans with at most this many messages keep them prepared between calls.
MOST_MESSAGES = 2048


class Bounds(NamedTuple):
    """Seconds without progress until a wait fails, and between reports; what may end it before.

    ``tell`` returns where the ranks are, given those that this one waits for.
    """

    timeout: float
    report: float
    listen: Callable[[Awaited], None] | None = None
    tell: Callable[[Sequence[int]], RankStates] | None = None


def advance(actions: Iterator[Action]) -> Action | None:
    """Call actions until one is a test whose messages are missing; return it, or ``None``."""
    for action in actions:
        function, operands = action
        if function(*operands) is False:
            return action
    return None


class Execution:
    """A plan running, or ready to run, on one rank.

    Args:
        plan: what to do.
        endpoint: this rank's side of the transport.
        memory: arrays; ``scratch`` holds ``plan.depth * plan.scratch`` elements.
        tag: first of the ``plan.depth`` tags this execution uses.
        repeated: keep everything prepared for the next ``start``.
        spins: failed tests before the processor is offered to others.
        opening: called whenever it starts; it may refuse that.
        closing: called whenever it has ended well.
        noting: where moments are noted, if anywhere.

    Attributes:
        program: all actions, where there is one segment of one lane and it is prepared; else
            ``None``.
    """

    def __init__(self, plan: Plan, endpoint: Endpoint, memory: Memory, tag: int,
                 repeated: bool = False, spins: int = SPINS, opening: Action | None = None,
                 closing: Action | None = None, noting: Noting | None = None):
        self.plan, self.endpoint, self.memory, self.spins = plan, endpoint, memory, spins
        self.repeated = repeated and plan.messages <= MOST_MESSAGES
        single = self.repeated and len(plan.segments) == 1
        # A segment that waits long keeps the others waiting too.
        self.binder = Binder(plan, endpoint, memory, tag, self.repeated,
                             TRIES if spins and single else 1, opening, noting)
        self.prepared: dict[int, list[BoundPhase]] = {}
        self.closing = closing
        self.program: list[Action] | None = None
        self.lanes = any(segment.program.waits for segment in plan.segments)
        self.tracks: list[_Track | LaneTrack] = []
        self.done = True

    def start(self) -> None:
        """Begin; the first messages are posted."""
        self.done = False
        # Tracks do not hold the execution: a circle would keep arrays until the next collection.
        track = LaneTrack if self.lanes else _Track
        self.tracks = [track(index) for index in range(self.plan.depth)]
        self.progress()

    def progress(self) -> bool:
        """Do what can be done now; tell whether anything moved."""
        moved, busy = False, False
        for track in self.tracks:
            moved |= track.advance(self)
            busy |= track.phases is not None
        self.done = not busy
        if not busy and self.closing is not None:
            self.closing[0]()
        return moved

    def phases(self, number: int, slot: int) -> Iterator[BoundPhase] | None:
        """The phases of one segment; ``None`` past the last one."""
        if number >= len(self.plan.segments):
            return None
        if not self.repeated:
            return self.binder.phases(number, slot)
        if number not in self.prepared:
            self.prepared[number] = list(self.binder.phases(number, slot))
            if len(self.plan.segments) == 1 and not self.lanes:
                self.program = [action for phase in self.prepared[number]
                                for action in phase.actions]
                self.program += [self.closing] if self.closing is not None else []
        return iter(self.prepared[number])

    def prepare(self) -> bool:
        """Prepare the program now, if there is one segment; tell whether it is ready."""
        if self.repeated and len(self.plan.segments) == 1:
            self.phases(0, 0)
        return self.program is not None

    @property
    def title(self) -> str:
        """What runs, for messages to people."""
        return self.plan.schedule.title

    @property
    def rank(self) -> int:
        """The rank it runs on."""
        return self.endpoint.rank

    @property
    def tag(self) -> int:
        """The first of its tags, with its stamp."""
        return self.binder.tag

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers this rank waits for, for messages to people; none where it waits for its
        own device."""
        windows = self.memory.windows
        for track in self.tracks:
            if track.phases is not None and track.phase is not None:
                if windows is not None and track.wait and track.wait[0] == windows.ready:
                    return track.phase, ()
                return track.phase, self.peers(track.segment, track.phase)
        return 0, ()

    @property
    def batches(self) -> list[Batch]:
        """What it waits for."""
        return [track.batch for track in self.tracks if track.batch is not None]

    def peers(self, segment: int, number: int) -> tuple[int, ...]:
        """Ranks that this one exchanges messages with in a phase."""
        phase = self.plan.segments[segment].program.phases[number]
        peers = (message.peer for message in phase.messages)
        return tuple(sorted({rank for peer in peers for rank in (
            peer.others(self.rank) if isinstance(peer, InNetwork) else (peer,))}))

    def free(self) -> None:
        """Give prepared messages back; the execution cannot be started again."""
        for phases in self.prepared.values():
            for phase in phases:
                if phase.batch:
                    phase.batch.free()
        self.prepared, self.program = {}, None


class _Track:
    """One of the segments in flight: it runs segments index, index + depth, ... in turn.

    The order must not depend on timing: segments of one track share a tag, so every rank has to
    run the same ones there in the same order.
    """

    def __init__(self, index: int):
        self.index, self.segment, self.following = index, index, index
        self.phase: int | None = None
        self.phases: Iterator[BoundPhase] | None = iter(())
        self.actions: Iterator[Action] = iter(())
        self.wait: Action | None = None
        self.batch: Batch | None = None

    def advance(self, execution: Execution) -> bool:
        """Go on until a message is missing; tell whether anything moved."""
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


class PreparedRun:
    """Runs of a prepared program: the state machine without its costs.

    Attributes:
        wait: the test whose messages are missing; ``None`` when all is over.
    """

    def __init__(self, execution: Execution):
        self.execution, self.program = execution, execution.program or []
        waits = [phase.wait for phase in execution.prepared.get(0, ()) if phase.wait]
        self.first = waits[0] if waits else None
        # By identity: equality would compare operands, which are arrays.
        end = next((index for index, action in enumerate(self.program) if action is self.first),
                   len(self.program))
        self.opening, self.following = self.program[:end], self.program[end + 1:]
        self.rest: Iterator[Action] = iter(())
        self.wait: Action | None = None

    def start(self) -> None:
        """Post the first messages; look for none."""
        for function, operands in self.opening:
            function(*operands)
        self.rest, self.wait = iter(self.following), self.first

    def advance(self, tries: int = 1) -> bool:
        """Go on until a message is missing, looked for so often; tell whether it is all over."""
        while self.wait is not None:
            if self.wait[0](tries) is False:
                return False
            self.wait = advance(self.rest)
        return True

    def finish(self, wait: Action, rest: Iterator[Action], bounds: Bounds) -> None:
        """Wait for what :func:`advance` found missing, and run the rest."""
        self.wait, self.rest = wait, rest
        watch = Watch(self, *bounds, self.execution.spins)
        while not self.advance():
            if self.wait is wait:
                watch.idle()
            else:
                wait = self.wait
                watch.moved()

    @property
    def title(self) -> str:
        """What runs, for messages to people."""
        return self.execution.title

    @property
    def rank(self) -> int:
        """The rank it runs on."""
        return self.execution.rank

    @property
    def tag(self) -> int:
        """The first of its tags, with its stamp."""
        return self.execution.tag

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers this rank waits for, for messages to people."""
        for phase in self.execution.prepared.get(0, ()):
            if phase.wait is self.wait and self.wait is not None:
                return phase.number, self.execution.peers(0, phase.number)
        return 0, ()

    @property
    def batches(self) -> list[Batch]:
        """What it waits for."""
        return [phase.batch for phase in self.execution.prepared.get(0, ())
                if phase.batch is not None and phase.wait is self.wait]

    @property
    def plan(self) -> Plan:
        """What runs."""
        return self.execution.plan

    @property
    def at(self) -> int:
        """A number that says where it is."""
        return id(self.wait)

    def free(self) -> None:
        """Give prepared messages back."""
        self.execution.free()


def run_prepared(execution: Execution, bounds: Bounds) -> None:
    """Run an execution that is prepared already; one of a single segment takes the short way.

    Raises:
        CollectiveTimeout: nothing moved for ``bounds.timeout`` seconds.
    """
    if execution.program is None:
        drive(execution, bounds)
        return
    actions = iter(execution.program)
    wait = advance(actions)
    if wait is not None:
        PreparedRun(execution).finish(wait, actions, bounds)


def drive(execution: Execution, bounds: Bounds) -> None:
    """Start an execution and wait for its end.

    Raises:
        CollectiveTimeout: nothing moved for ``bounds.timeout`` seconds.
    """
    execution.start()
    finish(execution, bounds)


def finish(execution: Execution, bounds: Bounds) -> None:
    """Wait for the end of a started execution; see :func:`drive`."""
    watch = Watch(execution, *bounds, execution.spins)
    while not execution.done:
        if execution.progress():
            watch.moved()
        else:
            watch.idle()
