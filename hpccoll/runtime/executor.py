"""Running: the one place where a plan meets a transport.

An :class:`Execution` is a plan on concrete memory: a state machine with ``start``,
``progress`` and ``done`` that blocking calls drive to the end, nonblocking calls hand out
inside a request, and loopback drives p of in one process. It never blocks by itself;
:func:`drive` does the waiting, with a back-off and with a deadline.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy

from hpccoll.arrays.kernels import Kernel
from hpccoll.errors import CollectiveTimeout
from hpccoll.ir.collectives import TMP
from hpccoll.ir.dataflow import consumers, fused_with_next
from hpccoll.ir.extents import Extent, Local, Phase, shifted, within
from hpccoll.ir.schedule import RECV
from hpccoll.machine.limits import SPINS
from hpccoll.runtime.plan import Plan
from hpccoll.transport import Batch, Endpoint, Posting, copying

#: Failed tests between two looks at the clock.
PATIENCE = 1000
#: Looks for small messages at once, of a rank with a processor to itself.
TRIES = 50
#: Plans with at most this many messages keep them prepared between calls.
MOST_MESSAGES = 2048

Action = tuple[Callable, tuple]


class Bound(NamedTuple):
    """A phase on memory: calls to make before the messages, the messages, calls after."""

    before: Sequence[Action]
    batch: Batch | None
    after: Sequence[Action]


class Memory(NamedTuple):
    """The arrays a plan runs on: flat, of one dtype and one namespace (NumPy, CuPy).

    ``arrays`` maps ``in`` and ``out`` to arrays that start at element 0 of the layout;
    ``synchronize`` waits for the device, where the namespace works on one; ``hold`` makes memory
    for what passes from step to step of a chain, where that is wider than the elements are; the
    kernel then takes such memory too, and the place for the rounded result as a fourth operand.
    """

    arrays: dict[str, Any]
    scratch: Any
    kernel: Kernel | None
    namespace: Any
    synchronize: Callable[[], None] | None = None
    hold: Callable[[int], Any] | None = None


class Execution:
    """A plan running, or ready to run, on one rank.

    Args:
        plan: what to do.
        endpoint: this rank's side of the transport.
        memory: arrays; ``scratch`` holds ``plan.depth * plan.scratch`` elements.
        tag: first of the ``plan.depth`` tags this execution uses.
        repeated: keep everything prepared for the next ``start``.
        spins: failed tests before the processor is offered to others.
    """

    def __init__(self, plan: Plan, endpoint: Endpoint, memory: Memory, tag: int,
                 repeated: bool = False, spins: int = SPINS):
        self.spins, self.tries = spins, TRIES if spins else 1
        self.plan, self.endpoint, self.memory, self.tag = plan, endpoint, memory, tag
        self.repeated = repeated and plan.messages <= MOST_MESSAGES
        self.kept: dict[int, list[Bound]] = {}
        #: The phases of an only segment, ready to run one after the other.
        self.hot: list[tuple] | None = None
        self.slots: list[_Slot] = []
        self.held: dict[int, Any] = {}
        self.done = True

    def start(self) -> None:
        """Begin; the first messages are posted."""
        self.done = False
        self.slots = [_Slot(index) for index in range(self.plan.depth)]
        self.progress()

    def progress(self) -> bool:
        """Do what can be done now; tell whether anything moved."""
        moved, busy = False, False
        for slot in self.slots:
            moved |= slot.advance(self)
            busy |= slot.phases is not None
        self.done = not busy
        return moved

    def lane(self, number: int, slot: int) -> Iterator[Bound] | None:
        """The phases of one segment; ``None`` past the last one."""
        if number >= len(self.plan.segments):
            return None
        if not self.repeated:
            return self.bind(number, slot)
        if number not in self.kept:
            self.kept[number] = list(self.bind(number, slot))
            if len(self.plan.segments) == 1:
                self.hot = [(before, batch and batch.start, batch and batch.test, after)
                            for before, batch, after in self.kept[number]]
        return iter(self.kept[number])

    def bind(self, number: int, slot: int) -> Iterator[Bound]:
        """Put one segment onto memory, phase by phase."""
        lane = self.plan.segments[number]
        base = slot * self.plan.scratch
        arrays = {**self.memory.arrays,
                  TMP: self.memory.scratch[base:base + self.plan.scratch]}

        def view(extent):
            extent = shifted(extent, lane.shift)
            return arrays[extent.buffer][extent.offset:extent.offset + extent.count]

        for number, phase in enumerate(lane.program.phases):
            wide = slot if self.memory.hold and number in lane.program.single_block else None
            uses, after = self.uses(phase, lane.program.landing, view, wide)
            postings = [Posting(kind, peer, view(extent), use)
                        for (kind, peer, extent), use in zip(phase.messages, uses)]
            yield Bound(self.actions(phase.before, view, wide),
                        self.endpoint.batch(postings, self.tag + slot, self.repeated)
                        if postings else None,
                        self.actions(after, view, wide))

    def uses(self, phase: Phase, landing: int, view: Callable, wide: int | None
             ) -> tuple[Sequence[Sequence], Sequence[Local]]:
        """Local steps that can use messages in place, message by message, and those that cannot."""
        senders = [peer for kind, peer, _ in phase.messages if kind == RECV]
        found = (consumers(phase, landing) if phase.after and self.memory.synchronize is None
                 and self.endpoint.direct(senders, self.tag) else None)
        if found is None:
            return [()] * len(phase.messages), phase.after
        # The steps of one message after the other are those of the phase, in their order.
        calls = iter(self.calls(phase.after, view, wide))
        return [[use(*next(calls), step, message.extent) for step in steps]
                for message, steps in zip(phase.messages, found)], ()

    def calls(self, steps: Sequence[Local], view: Callable, wide: int | None) -> list[Action]:
        """Local steps as calls; in a chain, the next step gets the result as it was computed.

        ``wide`` says which wide memory holds it; without, it gets the rounded one.
        """
        made: list[Action] = []
        held, where = None, None
        for (into, left, right), after, more in zip(
                steps, (*steps[1:], None), repeat(False) if wide is None else fused_with_next(steps)):
            if right is None:
                made.append((self.memory.namespace.copyto, (view(into), view(left))))
                continue
            operands = [view(left), view(right), view(into)]
            if held is not None:
                operands[0 if left == where else 1] = held
            held, where = self.wide(wide, into.count) if more else None, into
            if held is not None:
                # Rounded as well, unless the next step overwrites it.
                operands[2:] = [held] if after.into == into else [held, operands[2]]
            made.append((self.memory.kernel, tuple(operands)))
        return made

    def wide(self, slot: int, count: int) -> Any:
        """Memory for the chains of a segment, which follow each other."""
        if slot not in self.held or self.held[slot].size < count:
            self.held[slot] = self.memory.hold(count)
        return self.held[slot][:count]

    def actions(self, steps: Sequence[Local], view: Callable, wide: int | None) -> list[Action]:
        """Local steps as calls, and what makes sure that they are done."""
        made = self.calls(steps, view, wide)
        if self.memory.namespace is numpy:
            made = [copying(*operands) if function is numpy.copyto else (function, operands)
                    for function, operands in made]
        if made and self.memory.synchronize:
            made.append((self.memory.synchronize, ()))
        return made

    @property
    def title(self) -> str:
        """What runs, for messages to people."""
        return self.plan.schedule.title

    @property
    def rank(self) -> int:
        """The rank it runs on."""
        return self.endpoint.rank

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers this rank waits for, for messages to people."""
        for slot in self.slots:
            if slot.phases is not None and slot.number is not None:
                return slot.number, self.peers(slot.lane, slot.number)
        return 0, ()

    def peers(self, lane: int, number: int) -> tuple[int, ...]:
        """Ranks that this one exchanges messages with in a phase."""
        phase: Phase = self.plan.segments[lane].program.phases[number]
        return tuple(sorted({message.peer for message in phase.messages}))

    def prepare(self) -> bool:
        """Prepare the phases now, if there is one segment; tell whether they are ready."""
        if self.repeated and len(self.plan.segments) == 1:
            self.lane(0, 0)
        return self.hot is not None

    def free(self) -> None:
        """Give prepared messages back; the execution cannot be started again."""
        for phases in self.kept.values():
            for bound in phases:
                if bound.batch:
                    bound.batch.free()
        self.kept, self.hot = {}, None


def use(function: Callable, operands: tuple, step: Local, landing: Extent) -> tuple:
    """A local step's call as a use of the message that would land in ``landing``."""
    place = 0 if step.right is not None and within(step.left, landing) else 1
    arriving = step[1 + place] if step.right is not None else step.left
    start = arriving.offset - landing.offset
    return function, operands, place, start, start + arriving.count


class _Slot:
    """One of the segments in flight: it runs segments index, index + depth, ... in turn.

    The order must not depend on timing: segments in one slot share a tag, so every rank
    has to run the same ones there in the same order.
    """

    def __init__(self, index: int):
        self.index, self.lane, self.number = index, index, None
        self.following = index
        self.phases: Iterator[Bound] | None = iter(())
        self.current: Bound | None = None

    def advance(self, execution: Execution) -> bool:
        """Go on until a message is missing; tell whether anything moved."""
        moved = False
        while self.phases is not None:
            if self.current is not None:
                if not self.current.batch.test():
                    return moved
                for function, operands in self.current.after:
                    function(*operands)
                self.current = None
                moved = True
            bound = next(self.phases, None)
            if bound is None:
                self.lane = self.following
                self.following += execution.plan.depth
                self.phases, self.number = execution.lane(self.lane, self.index), None
                continue
            self.number = 0 if self.number is None else self.number + 1
            for function, operands in bound.before:
                function(*operands)
            if bound.batch is None:
                for function, operands in bound.after:
                    function(*operands)
            else:
                bound.batch.start()
                self.current = bound
        return moved


class Steps:
    """A prepared execution of one segment, phase by phase: the state machine without its costs.

    Attributes:
        phase: the one whose messages are missing.
    """

    def __init__(self, execution: Execution):
        self.execution, self.hot = execution, execution.hot
        self.phase = 0

    def start(self) -> None:
        """Post the first messages."""
        self.phase = 0
        for before, start, _, _ in self.hot[:1]:
            for function, operands in before:
                function(*operands)
            if start is not None:
                start()

    def advance(self, tries: int = 1) -> bool:
        """Go on until a message is missing, looked for so often; tell whether it is all over."""
        hot, number = self.hot, self.phase
        while number < len(hot):
            _, _, test, after = hot[number]
            if test is not None and not test(tries):
                return False
            for function, operands in after:
                function(*operands)
            self.phase = number = number + 1
            if number < len(hot):
                before, start, _, _ = hot[number]
                for function, operands in before:
                    function(*operands)
                if start is not None:
                    start()
        return True

    @property
    def title(self) -> str:
        """What runs, for messages to people."""
        return self.execution.title

    @property
    def rank(self) -> int:
        """The rank it runs on."""
        return self.execution.rank

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers this rank waits for, for messages to people."""
        return (0, ()) if self.phase >= len(self.hot) else (
            self.phase, self.execution.peers(0, self.phase))


def run_prepared(execution: Execution, config: Any) -> None:
    """Run an execution that is prepared already; one of a single segment takes the hot path.

    ``config`` has ``timeout`` and ``report`` in seconds; see :func:`drive`.
    """
    if execution.hot is None:
        drive(execution, config.timeout, config.report)
        return
    # Written out: through Steps a small collective would take longer.
    tries = execution.tries
    for before, start, test, after in execution.hot:
        for function, operands in before:
            function(*operands)
        if start is not None:
            start()
            if not test(tries):
                _patiently(test, execution, config)
        for function, operands in after:
            function(*operands)


def _patiently(test: Callable[[], bool], execution: Execution, config: Any) -> None:
    steps = Steps(execution)  # tells whom this rank waits for
    steps.phase = next(i for i, phase in enumerate(execution.hot) if phase[2] == test)
    watch = Watch(steps, config.timeout, config.report, execution.spins)
    while not test():
        watch.idle()


def drive(execution: Execution, timeout: float, report: float) -> None:
    """Start an execution and wait for its end.

    Raises:
        CollectiveTimeout: nothing moved for ``timeout`` seconds.
    """
    execution.start()
    wait(execution, timeout, report)


def wait(execution: Execution, timeout: float, report: float) -> None:
    """Wait for the end of a started execution; see :func:`drive`."""
    watch = Watch(execution, timeout, report, execution.spins)
    while not execution.done:
        if execution.progress():
            watch.moved()
        else:
            watch.idle()


class Watch:
    """Patience while nothing moves: spin, then yield, then warn, then fail.

    ``execution`` is one, or whatever has its ``title``, ``rank`` and ``pending``.
    """

    def __init__(self, execution: Any, timeout: float, report: float, spins: int = SPINS):
        self.execution, self.timeout, self.report, self.spins = execution, timeout, report, spins
        self.moved()

    def moved(self) -> None:
        """Something moved: start counting again."""
        self.idles, self.since, self.warned = 0, None, False

    def idle(self) -> None:
        """Nothing moved: let others run, and look at the clock now and then."""
        self.idles += 1
        if self.idles > self.spins:
            os.sched_yield()
        if self.idles % PATIENCE == 0:
            self.look()

    def look(self) -> None:
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elapsed = now - self.since
        if elapsed < min(self.report, self.timeout):
            return
        round_, peers = self.execution.pending()
        title, rank = self.execution.title, self.execution.rank
        if elapsed >= self.timeout:
            raise CollectiveTimeout(title, rank, round_, peers, self.timeout)
        if not self.warned:
            self.warned = True
            text = (f"hpccoll: {title} on rank {rank} has waited {elapsed:.0f} s in round "
                    f"{round_} for rank(s) {', '.join(map(str, peers))}")
            try:
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            except RuntimeWarning:  # a filter makes it an error, which would break the communicator
                print(text, file=sys.stderr, flush=True)
