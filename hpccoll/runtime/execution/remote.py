"""Messages of tapes to other nodes: MPI carries them, in batches that Python starts and tests.

    Tape --stops at start, await--> Attendant --starts, tests--> Batch --> MPI

A tape belongs to a call of some sizes, MPI's requests to memory. So the batches of a tape are made
for the memory of a run: single messages where it is new, requests that are started again and again
where it comes once more, as for calls that the interpreter prepares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy
from mpi4py import MPI

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import SEND
from hpccoll.runtime.execution.executor import MOST_MESSAGES
from hpccoll.runtime.execution.tape import Code, RemoteMessage, split_address
from hpccoll.transport import Batch, Posting
from hpccoll.transport.stamps import split

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context


class RunBatches(NamedTuple):
    """The batches of a tape on some memory, in the order of the tape, and their messages in all."""

    batches: tuple[Batch, ...]
    messages: int

    def free(self) -> None:
        """Give all of them back."""
        for batch in self.batches:
            batch.free()


class FarMessages:
    """The messages of one tape to and from other nodes.

    Args:
        context: of the communicator; it keeps the batches that are started again.
        code: the tape.
        scratch: the memory it runs on, beside a call's.
        tag: of the first segment's messages, with its stamp.
    """

    def __init__(self, context: Context, code: Code, scratch: numpy.ndarray, tag: int):
        self.context, self.tag = context, tag
        self.scratch: int = scratch.__array_interface__["data"][0]
        self.messages = code.batches()
        self.count = sum(map(len, self.messages))
        # A look for messages of TCP takes longer than to offer the processor: to the rank, perhaps,
        # that sends them.
        self.spins = context.limits.spins if context.place.fabric else 0
        self.hears = context.guard if split(tag)[1] else None

    def opening(self) -> None:
        """What comes before the first message of a run.

        Raises:
            BrokenCommunicatorError: a rank has given up. That was told by a message.
        """
        if self.hears is not None:
            self.hears.heard()

    def on(self, run: Any) -> RunBatches:
        """The batches for the memory of a run."""
        context, key = self.context, (self, run.input, run.output)
        found = context.batches.get(key)
        if found is None:
            again = key in context.seen and self.count <= MOST_MESSAGES
            found = RunBatches(tuple(self._made(run, again)), self.count)
            if again:
                context.batches.keep(key, found)
            else:
                context.seen.keep(key, True)
        return found

    def abandon(self, run: Any, batches: RunBatches) -> None:
        """Keep what a run that failed half-way may have in flight; nobody starts it again."""
        key = self, run.input, run.output
        if self.context.batches.get(key) is batches:
            self.context.batches.drop(key)
        self.context.abandoned.append((run, batches))

    def _made(self, run: Any, again: bool) -> Iterator[Batch]:
        starts = {IN: run.input, OUT: run.output, TMP: self.scratch}
        for messages in self.messages:
            yield self.context.remote.batch(
                [self._posting(message, starts) for message in messages],
                self.tag + messages[0].way.slot, again)

    def _posting(self, message: RemoteMessage, starts: dict[str, int]) -> Posting:
        base, offset = split_address(message.address)
        memory = cast(Any, MPI.memory.fromaddress(starts[base] + offset, message.nbytes))
        return Posting(message.way.kind == SEND, message.way.peer,
                       numpy.frombuffer(memory, "u1"))
