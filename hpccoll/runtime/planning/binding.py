"""Binding: turns a segment of a plan on given memory into a list of actions.

An action is a function with its operands. The actions of a phase are: the local steps before its
messages, the start of the messages, the test for their completion, and the local steps after them.
Only a test returns ``False``, while messages are missing. If data must first be copied from
elsewhere, a test also comes first. If phases are traced, an action that records the moment precedes
each of these (:mod:`hpccoll.runtime.events.phase_events`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy

from hpccoll.arrays.kernels import Kernel
from hpccoll.cuda import Windows, fuse
from hpccoll.ir.collectives import TMP
from hpccoll.ir.dataflow import Link, consumers, links
from hpccoll.ir.extents import Extent, Local, Phase, Segment, is_within, shift_scratch
from hpccoll.ir.in_network import InNetwork, Peer
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.events.phase_events import Activity, PhaseRecorder, activity_of
from hpccoll.runtime.planning.capabilities import check
from hpccoll.runtime.planning.plan import Plan
from hpccoll.transport import Batch, Endpoint, MessageSpec, NetworkOperation, copy_action
from hpccoll.transport.checked import CheckedBatch

Action = tuple[Callable[..., Any], tuple[Any, ...]]
#: Function that returns the memory of an extent.
View = Callable[[Extent], Any]
#: Form of a step outside chains.
ROUNDED = Link(False, False, False, True)


class Memory(NamedTuple):
    """Arrays of a plan: flat, of one dtype and one namespace (NumPy, CuPy).

    Attributes:
        arrays: ``in`` and ``out``, each an array that starts at element 0 of the layout.
        scratch: elements for all segments in flight.
        kernel: the reduction kernel; ``None`` without a reduction.
        namespace: the module of the arrays.
        perform: runs local steps on a device and waits for them; ``None`` on the host.
        accumulator: allocates n float32 elements for a chain of 16-bit reductions. The kernel then
            accepts such memory as operands, and the destination of the rounded result as a fourth
            one.
        windows: replaces ``arrays`` for memory that the transport cannot access.
        queued: ``perform`` and the transport only enqueue: a stream orders messages and steps.
    """

    arrays: dict[str, Any]
    scratch: Any
    kernel: Kernel | None
    namespace: Any
    perform: Callable[[Sequence[Action]], None] | None = None
    accumulator: Callable[[int], Any] | None = None
    windows: Windows | None = None
    queued: bool = False


class BoundPhase(NamedTuple):
    """Phase bound to memory.

    Attributes:
        number: the number of the phase in its program.
        actions: the actions to call, in order.
        wait: the test among them; ``None`` without messages.
        batch: the messages, which must be freed.
    """

    number: int
    actions: list[Action]
    wait: Action | None
    batch: Batch | None


class Binder:
    """Binds the segments of one plan to memory.

    Args:
        plan: the plan.
        endpoint: this rank's side of the transport.
        memory: its arrays; ``scratch`` holds ``plan.depth * plan.scratch`` elements.
        tag: the tag of the first segment in flight; the others have the next ones.
        repeated: prepare messages that can be started many times.
        tries: polls for messages per test.
        opening: action before all others.
        noting: records phases; ``None`` if phases are not traced.
    """

    def __init__(self, plan: Plan, endpoint: Endpoint, memory: Memory, tag: int, repeated: bool,
                 tries: int, opening: Action | None = None, noting: PhaseRecorder | None = None):
        self.plan, self.endpoint, self.memory, self.tag = plan, endpoint, memory, tag
        self.repeated, self.tries, self.opening, self.noting = repeated, tries, opening, noting
        self.accumulators: dict[int, Any] = {}

    def phases(self, number: int, slot: int) -> Iterator[BoundPhase]:
        """Bind one segment to memory, phase by phase; ``slot`` selects its part of the scratch."""
        segment, windows = self.plan.segments[number], self.memory.windows
        view = self._view(segment, slot)
        if windows is not None:
            view = windows.view(number, view)
            windows.begin(number)
        program = segment.program
        if self.opening is not None and not number and not program.phases:
            yield BoundPhase(0, [self.opening], None, None)
        for index, phase in enumerate(program.phases):
            chained = slot if self.memory.accumulator and index in program.single_block else None
            place = number, index
            uses, after = self._uses(phase, program.landing, view, chained, place)
            batch = wait = None
            actions = self._bind_recorded(place, phase.before) + self._local(phase.before, view,
                                                                             chained)
            if windows is not None:
                actions.insert(0, (windows.can_start, (number, index)))
            if self.opening is not None and not number and not index:
                actions.insert(0, self.opening)
            if phase.messages:
                batch = self.endpoint.batch(
                    [MessageSpec(kind == SEND, self._peer(peer), view(extent), use)
                     for (kind, peer, extent), use in zip(phase.messages, uses)],
                    self.tag + slot, self.repeated)
                if isinstance(batch, CheckedBatch):
                    batch.round = index
                wait = batch.test, (self.tries,)
                actions += [*self._note(place, Activity.SENDING), (batch.start, ()),
                            *self._note(place, Activity.WAITING), wait]
            actions += self._bind_recorded(place, after) + self._local(after, view, chained)
            if windows is not None:
                actions.append((windows.queue_stores, (number, index)))
            if program.waits or index == len(program.phases) - 1:
                actions += self._note(place, Activity.OVER)
            yield BoundPhase(index, actions, wait, batch)

    def _note(self, place: tuple[int, int], activity: Activity) -> list[Action]:
        """Return the action that records the start of an activity; empty if not traced."""
        if self.noting is None:
            return []
        return [(self.noting.starts(*place, activity), ())]

    def _bind_recorded(self, place: tuple[int, int], steps: Sequence[Local]) -> list[Action]:
        """Return the same for local steps; empty without steps."""
        return self._note(place, activity_of(steps)) if steps else []

    def _peer(self, peer: Peer) -> int | NetworkOperation:
        """Return a rank, or an operation of the network, as transports represent it."""
        if not isinstance(peer, InNetwork):
            return peer
        check(self.plan.schedule, peer.needs, self.endpoint.offers)
        return NetworkOperation(tuple(peer.senders), tuple(peer.receivers), self.memory.kernel)

    def _view(self, segment: Segment, slot: int) -> View:
        base = slot * self.plan.scratch
        arrays = {**self.memory.arrays,
                  TMP: self.memory.scratch[base:base + self.plan.scratch]}

        def view(extent: Extent) -> Any:
            extent = shift_scratch(extent, segment.shift)
            return arrays[extent.buffer][extent.offset:extent.offset + extent.count]
        return view

    def _uses(self, phase: Phase, landing: int, view: View, chained: int | None,
              place: tuple[int, int]) -> tuple[Sequence[Sequence[Any]], Sequence[Local]]:
        """Split local steps into those that use a message in place, by message, and the others."""
        senders = [peer for kind, peer, _ in phase.messages if kind == RECV]
        ranks = [peer for peer in senders if not isinstance(peer, InNetwork)]
        steps_of = (consumers(phase, landing)
                    if phase.after and (self.memory.perform is None or self.memory.queued)
                    and len(ranks) == len(senders)
                    and self.endpoint.direct(ranks, self.tag) else None)
        if steps_of is None:
            return [()] * len(phase.messages), phase.after
        # The steps of the messages, in their order, are those of the phase, in their order.
        calls = iter(self._calls(phase.after, view, chained))
        return [[in_place(*self._bind_within_wait(next(calls), place, step), step, message.extent)
                 for step in steps]
                for message, steps in zip(phase.messages, steps_of)], ()

    def _bind_within_wait(self, call: Action, place: tuple[int, int], step: Local) -> Action:
        """Return the call of a step that uses a message during the wait for all messages."""
        if self.noting is None:
            return call
        return self.noting.around(call[0], place, activity_of((step,))), call[1]

    def _calls(self, steps: Sequence[Local], view: View, chained: int | None) -> list[Action]:
        """Return local steps as calls; in a chain, the next step gets the unrounded result.

        ``chained`` selects the accumulator; without it, the next step gets the rounded result.
        """
        actions: list[Action] = []
        kernel: Callable[..., Any] = self.memory.kernel or _no_kernel
        held = None
        for (into, left, right), link in zip(
                steps, repeat(ROUNDED) if chained is None else links(steps)):
            if right is None:
                actions.append((self.memory.namespace.copyto, (view(into), view(left))))
                continue
            operands = [held if link.left else view(left), held if link.right else view(right)]
            held = self._accumulator(chained or 0, into.count) if link.held else None
            operands += [held] * link.held + [view(into)] * link.rounded
            actions.append((kernel, tuple(operands)))
        return actions

    def _accumulator(self, slot: int, count: int) -> Any:
        """Return memory for the chains of a segment, which run one after the other."""
        allocate = self.memory.accumulator
        if allocate is not None and (
                slot not in self.accumulators or self.accumulators[slot].size < count):
            self.accumulators[slot] = allocate(count)
        return self.accumulators[slot][:count]

    def _local(self, steps: Sequence[Local], view: View, chained: int | None) -> list[Action]:
        """Return local steps as actions that have completed when they return."""
        actions = self._calls(steps, view, chained)
        if self.memory.namespace is numpy:
            actions = [copy_action(*operands) if function is numpy.copyto else (function, operands)
                       for function, operands in actions]
        if actions and self.memory.perform:
            return [(self.memory.perform, (fuse(actions),))]
        return actions


def _no_kernel(*operands: Any) -> None:
    """Raise an error: the plan reduces, but the memory has no kernel."""
    raise TypeError("the plan reduces, but its memory has no kernel")


def in_place(function: Callable[..., Any], operands: tuple[Any, ...], step: Local,
             landing: Extent) -> tuple[Any, ...]:
    """Return a local step's call as a use of the message for ``landing``.

    See :class:`hpccoll.transport.MessageSpec` for the form.
    """
    place = 0 if step.right is not None and is_within(step.left, landing) else 1
    arriving = step.right if step.right is not None and place else step.left
    start = arriving.offset - landing.offset
    return function, operands, place, start, start + arriving.count
