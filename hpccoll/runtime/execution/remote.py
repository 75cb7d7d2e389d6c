"""Messages of compiled plans to other nodes: batches of MPI messages that Python starts and tests.

    CompiledPlan --stops at start, await--> Slow path --starts, tests--> Batch --> MPI

A compiled plan depends on the sizes of a call, an MPI request on its memory. So the batches of a
compiled plan are created for the memory of a run: single messages on its first use, persistent
requests from the second use on, as for the calls that the interpreter prepares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy
from mpi4py import MPI

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import SEND
from hpccoll.runtime.execution.compiled_plan import Code, RemoteMessage, split_address
from hpccoll.runtime.execution.executor import MOST_MESSAGES, RunBatches
from hpccoll.transport import Batch, MessageSpec
from hpccoll.transport.call_hashes import split

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context


class RemoteMessages:
    """Messages of one compiled plan to and from other nodes.

    Args:
        context: the context of the communicator, which caches the persistent batches.
        code: the compiled plan.
        scratch: its scratch memory.
        tag: the tag of the first segment's messages, with its call hash.
    """

    def __init__(self, context: Context, code: Code, scratch: numpy.ndarray, tag: int):
        self.context, self.tag = context, tag
        self.scratch: int = scratch.__array_interface__["data"][0]
        self.messages = code.batches()
        self.count = sum(map(len, self.messages))
        # A poll for TCP messages takes longer than a yield, which may let the sender run.
        self.spins = context.limits.spins if context.place.fabric else 0
        self.hears = context.guard if split(tag)[1] else None

    def opening(self) -> None:
        """Prepare for the first message of a run.

        Raises:
            BrokenCommunicatorError: a rank has reported a failure by message.
        """
        if self.hears is not None:
            self.hears.on_alarm()

    def batches_for(self, run: Any) -> RunBatches:
        """Return the batches for the memory of a run."""
        context, key = self.context, (self, run.input, run.output)
        found = context.batches.get(key)
        if found is None:
            again = key in context.seen and self.count <= MOST_MESSAGES
            found = RunBatches(tuple(self._make_batches(run, again)), self.count)
            if again:
                context.batches.keep(key, found)
            else:
                context.seen.keep(key, True)
        return found

    def abandon(self, run: Any, batches: RunBatches) -> None:
        """Keep the messages of a failed run that may be in flight, and never start them again."""
        key = self, run.input, run.output
        if self.context.batches.get(key) is batches:
            self.context.batches.drop(key)
        self.context.abandoned.append((run, batches))

    def _make_batches(self, run: Any, again: bool) -> Iterator[Batch]:
        starts = {IN: run.input, OUT: run.output, TMP: self.scratch}
        for messages in self.messages:
            yield self.context.remote.batch(
                [self._create_posting(message, starts) for message in messages],
                self.tag + messages[0].way.slot, again)

    def _create_posting(self, message: RemoteMessage, starts: dict[str, int]) -> MessageSpec:
        base, offset = split_address(message.address)
        memory = cast(Any, MPI.memory.fromaddress(starts[base] + offset, message.nbytes))
        return MessageSpec(message.way.kind == SEND, message.way.peer,
                           numpy.frombuffer(memory, "u1"))
