"""Slow path of compiled plans: waits, their timeouts, and messages outside of the cells.

A compiled plan runs in machine code until a message is late or is outside its cell, or until a
batch of messages to other nodes has to be started or waited for. Its :class:`SlowPath` then handles
that like the interpreter and resumes the compiled plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy
from mpi4py import MPI

from hpccoll.arrays.kernels import kernel
from hpccoll.calls.call import Call
from hpccoll.errors import cause_of
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import Phase
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.execution.compiled_plan import DONE, REMOTE, WAITING, WIDTH, Code, Instruction
from hpccoll.runtime.execution.executor import RunBatches
from hpccoll.runtime.execution.remote import RemoteMessages
from hpccoll.runtime.planning.binding import Binder, Memory
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.runtime.progress.waiting import WaitTimer
from hpccoll.transport import Batch, MessageSpec
from hpccoll.transport.call_hashes import tag_with_hash
from hpccoll.transport.shm.channels import ELSEWHERE, PLACES, SIZE_BITS, Channel
from hpccoll.transport.shm.endpoint import BY_MPI, Receive, SharedEndpoint

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

#: Waits for a message inside the node, with a pending batch, between two checks of all bounds.
WAITS = 10
#: Phases with cached messages.
KEPT = 16


class _Postings:
    """Endpoint that only records the requested messages."""

    def __init__(self, endpoint: SharedEndpoint):
        self.endpoint, self.rank, self.size = endpoint, endpoint.rank, endpoint.size
        self.offers = endpoint.offers
        self.noted: list[MessageSpec] = []

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return the value of the real endpoint."""
        return self.endpoint.direct(peers, tag)

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Record the messages from this node."""
        self.noted = [posting for posting in postings
                      if not posting.sends and posting.peer in self.endpoint.node.local]
        return _NoBatch()


class _NoBatch:
    """Batch of messages that others progress."""

    def start(self) -> None:
        """Do nothing."""

    def test(self, tries: int = 1) -> bool:
        """Return True."""
        return True

    def free(self) -> None:
        """Do nothing."""


class LandingReceive(Receive):
    """Message of a blocking call that MPI delivers into its own memory.

    After a failed call nothing keeps the caller's arrays alive, and the message may still arrive.
    The extra copy has at most the size of a cell.
    """

    def recv_buffer(self) -> Any:
        """Return new memory: an earlier message may still arrive in the old memory."""
        self.landed = numpy.empty_like(self.array)
        return self.landed

    def fetch(self) -> int:
        """Return where the message can be used, after a copy if MPI has delivered it."""
        place = super().fetch()
        if not self.in_cell and self.where == BY_MPI:
            self.array[...] = self.landed
        return place


class PlanWaits:
    """State of the waiting runs of one compiled plan: timeouts, and messages outside their cells.

    It has no reference to the compiled plan, which references it and the channels.
    """

    def __init__(self, context: Context, call: Call, plan: Plan, code: Code,
                 channels: list[Channel], memory: tuple[numpy.ndarray, numpy.ndarray], tag: int,
                 remote_messages: RemoteMessages | None = None):
        self.endpoint = cast(SharedEndpoint, context.endpoint)
        self.plan, self.code, self.channels = plan, code, channels
        self.remote_messages = remote_messages
        self.tag = tag_with_hash(tag, plan.call_hash)
        self.context = context
        self.scratch, self.accumulator = memory
        self.op, self.datatype = call.op, call.datatype
        self.dtype = call.dtype if call.datatype is not None else numpy.dtype("u1")
        self.nbytes = {name: one.array.nbytes
                       for name, one in ((IN, call.source), (OUT, call.sink)) if one is not None}
        self.overlaps = bool(tag)
        phases = context.phases if not tag else None
        self.noting = phases.of(plan) if phases is not None else None
        self.kept: dict[tuple[int, int, int], dict[int, Receive]] = {}

    def wait(self, run: Any) -> None:
        """Wait for the end of a run; report to the others that there is no memory for it.

        Raises:
            CollectiveTimeout: no progress within the timeout.
        """
        try:
            if run is MemoryError:
                raise MemoryError("no memory for the state of a call")
            slow_path = SlowPath(self, run)
        except MemoryError as error:
            diagnosis = self.context.fail(error, self.plan.schedule.title, self.plan, self.tag)
            raise diagnosis from cause_of(error) if diagnosis is not error else None
        try:
            slow_path.finish()
        finally:
            # A reference cycle would keep the caller's arrays until the next garbage collection.
            del slow_path.watch

    def place(self, number: int) -> tuple[int, int]:
        """Return the segment of a phase number of the plan, and the phase's index there."""
        index = 0
        while number >= len(self.plan.segments[index].program.phases):
            number -= len(self.plan.segments[index].program.phases)
            index += 1
        return index, number

    def phase(self, number: int) -> Phase:
        """Return the phase of a phase number of the compiled plan."""
        segment, local = self.place(number)
        return self.plan.segments[segment].program.phases[local]

    def receives(self, run: Any) -> dict[int, Receive]:
        """Return the messages of a run's current phase, by the instructions that take them.

        If another rank uses the interpreter, every call needs them, and their creation takes longer
        than a message. So those of the last phases are cached for runs on the same memory. Messages
        of compiled plans with overlapping runs, which are not blocking calls, are not cached.
        """
        key = run.input, run.output, self.code.phase(run.at)
        found = self.kept.get(key)
        if found is None:
            found = self._receives(run)
            if not self.overlaps:
                if len(self.kept) >= KEPT:
                    self.kept.clear()
                self.kept[key] = found
        for receive in found.values():
            receive.expect(0)
        return found

    def _receives(self, run: Any) -> dict[int, Receive]:
        number = self.code.phase(run.at)
        segment, local = self.place(number)
        arrays = {name: numpy.frombuffer(
            cast(Any, MPI.memory.fromaddress(start, self.nbytes[name])), self.dtype)
            for name, start in ((IN, run.input), (OUT, run.output)) if name in self.nbytes}
        reducer = (kernel(self.op, self.dtype, self.datatype)
                   if self.op is not None and self.datatype is not None else None)
        noted = _Postings(self.endpoint)
        # A chain may begin in machine code and continue here: both use the same accumulator.
        held = self.accumulator
        memory = Memory(arrays, self.scratch.view(self.dtype), reducer, numpy, None,
                        (lambda count: held[:count]) if held.size else None)
        phases = Binder(self.plan, noted, memory, self.tag, False, 1,
                        noting=self.noting).phases(segment, 0)
        for phase in phases:
            if phase.number == local:
                break
        takes = [index for index, step in enumerate(self.code.steps())
                 if step[0] == Instruction.TAKE and step[1] == number]
        # Requests keep their memory alive, also after an error.
        kind = Receive if self.overlaps else LandingReceive
        return {index: kind(self.endpoint, posting, self.channel(index), self.plan.call_hash)
                for index, posting in zip(takes, noted.noted)}

    def abandon(self, receives: dict[int, Receive]) -> None:
        """Keep messages of a failed run that MPI may still deliver, and never reuse them."""
        if any(receive.request is not None for receive in receives.values()):
            self.kept.clear()
            self.context.abandoned.append(receives)

    def channel(self, index: int) -> Channel:
        """Return the channel of an instruction."""
        return self.channels[self.code.words[index * WIDTH + 2]]


class SlowPath:
    """Progresses one run while it waits."""

    def __init__(self, of: PlanWaits, run: Any):
        self.of, self.run = of, run
        self.watch = WaitTimer(self, *of.context.timeouts)
        if of.remote_messages is not None:
            self.watch.spins = of.remote_messages.spins
        self.number = -1
        self.receives: dict[int, Receive] = {}
        #: Messages to other nodes, and the number of the pending batch, if any.
        self.remote: RunBatches | None = None
        self.under_way: int | None = None

    @property
    def title(self) -> str:
        """Name of the schedule, for messages."""
        return self.of.plan.schedule.title

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.of.endpoint.rank

    @property
    def tag(self) -> int:
        """First of its tags, with its call hash."""
        return self.of.tag

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return the round and the peers that this rank waits for, for messages."""
        number = self.of.code.phase(self.run.at)
        return number, tuple(sorted({cast(int, message.peer)
                                     for message in self.of.phase(number).messages}))

    def finish(self) -> None:
        """Wait for the end of the run.

        Raises:
            HpccollError: the wait cannot complete.
        """
        seen, waits = self.run.at, 0
        try:
            self.open()
            while (found := self.run.advance()) != DONE:
                if found == REMOTE:
                    self.carry()
                    continue
                waits += 1
                PROGRESS.step()
                if self.run.at != seen:
                    self.watch.reset()
                if self.fetch():
                    self.watch.reset()
                elif found != WAITING:  # its message is under way
                    self.watch.pause()
                elif self.under_way is None or waits % WAITS == 0:
                    self.watch.look()
                else:  # MPI progresses its messages only in calls
                    self.batch(self.under_way).test()
                seen = self.run.at
        except BaseException as error:
            self.give_up()
            self.of.abandon(self.receives)
            if self.of.remote_messages is not None and self.remote is not None:
                self.of.remote_messages.abandon(self.run, self.remote)
            diagnosis = self.of.context.fail(error, self.title, self.of.plan, self.of.tag)
            if diagnosis is not error:
                raise diagnosis from cause_of(error)
            raise

    def open(self) -> None:
        """Raise an error if another rank has failed, before the first message of a run."""
        if self.of.remote_messages is None:
            self.listen()
        else:  # every call enters here: a check of all ranks takes too long
            self.of.remote_messages.opening()

    def batch(self, number: int) -> Batch:
        """Return a batch of the compiled plan, on the memory of this run."""
        if self.remote is None:
            self.remote = cast(RemoteMessages, self.of.remote_messages).batches_for(self.run)
        return self.remote.batches[number]

    def carry(self) -> None:
        """Start the batch of the current instruction, or wait until its messages are complete.

        Raises:
            HpccollError: the wait cannot complete.
        """
        at = self.run.at * WIDTH
        operation, number = self.of.code.words[at], self.of.code.words[at + 2]
        batch = self.batch(number)
        if operation == Instruction.START:
            self.under_way = number
            batch.start()
        else:
            wait_until(partial(self._has_landed, batch), self.watch)
            self.watch.reset()
            self.under_way = None
        self.run.skip()

    def _has_landed(self, batch: Batch) -> bool:
        if batch.test():
            return True
        if PROGRESS.operations:
            PROGRESS.step()
        return False

    @property
    def batches(self) -> list[Batch]:
        """Pending batches of messages to and from other nodes."""
        return [] if self.under_way is None else [self.batch(self.under_way)]

    def listen(self) -> None:
        """Raise an error if another rank has failed."""
        listen = self.of.context.timeouts.listen
        if listen is not None:
            listen(self)

    def fetch(self) -> bool:
        """Use the awaited message if it is outside its cell; release the senders of later ones.

        Returns True if the run can resume.
        """
        of, run = self.of, self.run
        if of.code.words[run.at * WIDTH] != Instruction.TAKE:
            return False
        if self.number != of.code.phase(run.at):
            self.number, self.receives = of.code.phase(run.at), of.receives(run)
        receive = self.receives[run.at]
        if receive.aside or self._lies_elsewhere(receive, 1) and receive.is_readable():
            receive.use()
            run.skip()
            return True
        ahead = {id(receive.channel): 1}
        for index, later in self.receives.items():
            if index > run.at:
                key = id(later.channel)
                ahead[key] = ahead.get(key, 0) + 1
                if (not later.aside and self._lies_elsewhere(later, ahead[key])
                        and later.is_readable()):
                    later.put_aside()
        return False

    def _lies_elsewhere(self, receive: Receive, ahead: int) -> bool:
        """Return True if the ``ahead``-th message after the last one is there, outside its cell."""
        channel = receive.channel
        number = channel.received + ahead
        word = channel.line[number & (PLACES - 1)]
        if word >> SIZE_BITS != number or word & ELSEWHERE == receive.announced:
            return False
        if receive.number != number:
            receive.expect(number)
        return True

    def give_up(self) -> None:
        """Count the messages of this phase as received, after a failed wait."""
        number = self.of.code.phase(self.run.at)
        for index, step in enumerate(self.of.code.steps()):
            if index >= self.run.at and step[0] == Instruction.TAKEN and step[1] == number:
                self.of.channels[step[2]].received += 1
