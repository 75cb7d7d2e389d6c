"""The compiled executor as a transport: every batch of messages is a compiled plan, where it can be
one.

The interpreter moves messages that fit no cell, as in calls: both use the channels of a node.
Batches that share a channel run in the order in which they are started, as operations of a queue.

With pauses, the loop stops for a random time before each instruction that sends, takes or flushes.
It stops where messages to other nodes would start and complete; these batches have none.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy

from hpccoll.ir.collectives import OUT
from hpccoll.ir.extents import Extent, LoweredProgram, Message, Phase
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.execution import compiled
from hpccoll.runtime.execution.compiled_plan import (
    BASES,
    DONE,
    OFFSET_BITS,
    REMOTE,
    WIDTH,
    Code,
    Instruction,
    encode,
)
from hpccoll.runtime.execution.executor import Timeouts
from hpccoll.runtime.execution.slow_path import PlanWaits, SlowPath
from hpccoll.transport import Batch, MessageSpec
from hpccoll.transport.shm.channels import PLACES, Channel
from hpccoll.transport.shm.endpoint import Receive, SharedEndpoint

#: Tests that a pause takes, one of these; and seconds that it sleeps now and then.
TESTS, NAP = (0, 0, 1, 2, 7), 2e-4
#: Instructions before which a pause may be.
PAUSED = (Instruction.SEND, Instruction.TAKE, Instruction.FLUSH, Instruction.END)


class CompiledEndpoint:
    """The channels of a node, driven by the compiled executor.

    Args:
        endpoint: the channels, and what moves the messages that no compiled plan can.
        pauses: a seed; ``None`` for a loop without pauses.
    """

    def __init__(self, endpoint: SharedEndpoint, pauses: int | None):
        self.endpoint = endpoint
        self.rank, self.size, self.offers = endpoint.rank, endpoint.size, endpoint.offers
        self.numbers = None if pauses is None else random.Random(pauses)
        self.open: list[TurnBatch] = []
        #: Batches that ran as compiled plans.
        self.compiled_plans = 0

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Uses of messages are reductions of a plan: tests/unit/runtime/execution has them."""
        return False

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        if tag not in self.endpoint.node.tags:
            return self.endpoint.batch(postings, tag, repeated)
        batch = self._compiled_plan(postings, tag) or self.endpoint.batch(postings, tag, repeated)
        return TurnBatch(self.open, batch, {(tag, *posting[:2]) for posting in postings})

    def _compiled_plan(self, postings: Sequence[MessageSpec], tag: int) -> PlanBatch | None:
        if any(posting.peer not in self.endpoint.node.local for posting in postings):
            return None
        starts = [posting.array.__array_interface__["data"][0] for posting in postings]
        base = min(starts, default=0)
        phases: list[list[MessageSpec]] = []
        messages: list[list[Message]] = []
        count: Counter[tuple[bool, int]] = Counter()
        for posting, start in zip(postings, starts):
            # Message i of a pair is in the same phase of either rank.
            number = count[posting[:2]] // PLACES
            count[posting[:2]] += 1
            if number == len(phases):
                phases.append([])
                messages.append([])
            phases[number].append(posting)
            messages[number].append(Message(
                SEND if posting.sends else RECV, posting.peer,
                Extent(OUT, start - base, posting.array.nbytes)))
        code = encode(LoweredProgram(tuple(Phase((), tuple(each), ()) for each in messages), 0, 0),
                      1,
                      PLACES)
        assert code is not None
        channels = compiled.channels_of(self.endpoint, code, tag)
        if channels is None:
            return None
        size = max((start - base + posting.array.nbytes
                    for posting, start in zip(postings, starts)), default=0)
        if self.numbers is not None:
            code = paused(code)
        return PlanBatch(self, phases, code, channels, base, size)


def paused(code: Code) -> Code:
    """The same compiled plan, with a pause before each instruction that concerns a channel."""
    words: array[int] = array("q")
    pauses, out = 0, BASES.index(OUT) << OFFSET_BITS
    for step in code.steps():
        if step[0] in PAUSED:
            for pause in ((Instruction.POST, step[1], 0, out), (Instruction.START, step[1], pauses),
                          (Instruction.AWAIT, step[1], pauses)):
                words.extend((*pause, *[0] * (WIDTH - len(pause))))
            pauses += 1
        words.extend(step)
    return code._replace(words=words)


class PlanBatch:
    """Messages as a compiled plan."""

    def __init__(self, endpoint: CompiledEndpoint, phases: list[list[MessageSpec]], code: Code,
                 channels: list[Channel], base: int, size: int):
        self.endpoint, self.base = endpoint, base
        self.waits = MessagePlanWaits(endpoint.endpoint, phases, code, channels)
        self.compiled_plan = compiled._executor.CompiledPlan(
            code.words, (0, size), tuple(map(compiled.addresses, channels)), None,
            numpy.empty(0, "u1"), self.waits, None, True)
        self.rest = 0

    def start(self) -> None:
        self.run = self.compiled_plan.begin(0, self.base, None)
        self.slow_path = SlowPath(self.waits, self.run)
        self.endpoint.compiled_plans += 1

    def test(self, tries: int = 1) -> bool:
        numbers = self.endpoint.numbers
        if self.rest:
            self.rest -= 1
            return False
        while (found := self.run.advance(0)) != DONE:
            if found == REMOTE and numbers is not None:
                self.run.skip()
                self.rest = numbers.choice(TESTS)
                if numbers.random() < 0.05:
                    time.sleep(NAP)
                if self.rest:
                    return False
            elif not self.slow_path.fetch():
                return False
        return True

    def free(self) -> None:
        del self.compiled_plan


class MessagePlanWaits(PlanWaits):
    """Has the messages of a compiled plan that was made of postings, and not of a plan."""

    def __init__(self, endpoint: SharedEndpoint, phases: list[list[MessageSpec]], code: Code,
                 channels: list[Channel]):
        self.endpoint, self.code, self.channels = endpoint, code, channels
        self.remote_messages = None
        self.context: Any = SimpleNamespace(timeouts=Timeouts(60.0, 60.0))
        self.postings = [[posting for posting in phase if not posting.sends] for phase in phases]

    def receives(self, run: Any) -> dict[int, Receive]:
        """The messages of the phase that a run has come to, by the instructions that take them."""
        number = self.code.phase(run.at)
        takes = [index for index, step in enumerate(self.code.steps())
                 if step[0] == Instruction.TAKE and step[1] == number]
        found = {index: Receive(self.endpoint, posting, self.channel(index))
                 for index, posting in zip(takes, self.postings[number], strict=True)}
        for receive in found.values():
            receive.expect(0)
        return found


class TurnBatch:
    """A batch that starts when all those before it that share a channel with it are done."""

    def __init__(self, open_: list[TurnBatch], batch: Batch, channels: set[tuple]):
        self.open, self.batch, self.channels = open_, batch, channels
        self.begun, self.done = False, True

    def start(self) -> None:
        self.begun = self.done = False
        self.open.append(self)
        self.test()

    def test(self, tries: int = 1) -> bool:
        before: set[tuple] = set()
        for each in () if self.done else tuple(self.open):
            if not each.channels & before:
                each.move()
            if not each.done:
                before |= each.channels
        return self.done

    def move(self) -> None:
        """Start it, or test it."""
        if not self.begun:
            self.begun = True
            self.batch.start()
        elif self.batch.test():
            self.done = True
            self.open.remove(self)

    def free(self) -> None:
        self.batch.free()
