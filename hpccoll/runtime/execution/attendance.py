"""Looking after runs of tapes that wait: bounds, and messages that are not in their cells.

A tape runs in machine code until a message is missing for long, or lies elsewhere, or until a batch
of messages to other nodes is to be started or waited for. Then its :class:`Attendant` sees to it as
the interpreter would, and lets it go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy
from mpi4py import MPI

from hpccoll.arrays.kernels import kernel
from hpccoll.calls.call import Call
from hpccoll.errors import cause_of
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import Phase
from hpccoll.runtime.execution.remote import FarMessages, RunBatches
from hpccoll.runtime.execution.tape import DONE, REMOTE, WIDTH, Code, Instruction
from hpccoll.runtime.planning.binding import Binder, Memory
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.runtime.progress.waiting import Watch
from hpccoll.transport import Batch, Posting
from hpccoll.transport.shm.channels import ELSEWHERE, PLACES, SIZE_BITS, Channel
from hpccoll.transport.shm.endpoint import SharedEndpoint
from hpccoll.transport.shm.rendezvous import BY_MPI, Receive
from hpccoll.transport.stamps import stamped

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

#: Microseconds that a wait takes before Python looks after it, at first and then; with other
#: operations under way.
PATIENCE, LATER, SLICE = 1000, 100, 50
#: Waits for a message inside the node, with a batch under way, between two looks at all bounds.
WAITS = 10
#: Phases whose messages are kept.
KEPT = 16


class _Postings:
    """An endpoint that only notes what it is asked for."""

    def __init__(self, endpoint: SharedEndpoint):
        self.endpoint, self.rank, self.size = endpoint, endpoint.rank, endpoint.size
        self.offers = endpoint.offers
        self.noted: list[Posting] = []

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """As the endpoint has it."""
        return self.endpoint.direct(peers, tag)

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Note the messages that come from this node."""
        self.noted = [posting for posting in postings
                      if not posting.sends and posting.peer in self.endpoint.node.local]
        return _NoBatch()


class _NoBatch:
    """Messages that somebody else moves."""

    def start(self) -> None:
        """Nothing."""

    def test(self, tries: int = 1) -> bool:
        """Nothing."""
        return True

    def free(self) -> None:
        """Nothing."""


class LandingReceive(Receive):
    """A message of a blocking call, which MPI delivers into memory of the message's own.

    The caller's arrays are kept alive by nobody once the call has failed, and the message may come
    later. The copy is of a cell's size at most.
    """

    def landing(self) -> Any:
        """New memory: another message may still come to that of before."""
        self.landed = numpy.empty_like(self.array)
        return self.landed

    def fetch(self) -> int:
        """Where the message can be used; here, if MPI has delivered it."""
        place = super().fetch()
        if not self.in_cell and self.where == BY_MPI:
            self.array[...] = self.landed
        return place


class Attendance:
    """Looks after runs of one tape that wait: bounds, and messages that are not in their cells.

    It does not refer to the tape, which refers to it and to the channels.
    """

    def __init__(self, context: Context, call: Call, plan: Plan, code: Code,
                 channels: list[Channel], memory: tuple[numpy.ndarray, numpy.ndarray], tag: int,
                 far: FarMessages | None = None):
        self.endpoint = cast(SharedEndpoint, context.endpoint)
        self.plan, self.code, self.channels, self.far = plan, code, channels, far
        self.tag = stamped(tag, plan.stamp)
        self.context = context
        self.scratch, self.accumulator = memory
        self.op, self.datatype = call.op, call.datatype
        self.dtype = call.dtype if call.datatype is not None else numpy.dtype("u1")
        self.nbytes = {name: one.array.nbytes
                       for name, one in ((IN, call.source), (OUT, call.sink)) if one is not None}
        self.overlaps = bool(tag)
        moments = context.moments if not tag else None
        self.noting = moments.of(plan) if moments is not None else None
        self.kept: dict[tuple[int, int, int], dict[int, Receive]] = {}

    def wait(self, run: Any) -> None:
        """Wait for the end of a run.

        Raises:
            CollectiveTimeout: nothing moved for too long.
        """
        attendant = Attendant(self, run)
        try:
            attendant.finish()
        finally:
            # They refer to each other, and would keep the caller's arrays until somebody collects.
            del attendant.watch

    def place(self, number: int) -> tuple[int, int]:
        """The segment, and its phase, that a tape numbers so."""
        index = 0
        while number >= len(self.plan.segments[index].program.phases):
            number -= len(self.plan.segments[index].program.phases)
            index += 1
        return index, number

    def phase(self, number: int) -> Phase:
        """The phase that a tape numbers so."""
        segment, local = self.place(number)
        return self.plan.segments[segment].program.phases[local]

    def receives(self, run: Any) -> dict[int, Receive]:
        """The messages of the phase that a run has come to, by the instructions that take them.

        Where another rank runs no tape they are wanted in every call, and making them takes longer
        than a message: those of the last phases are kept, for runs on the same memory. A tape whose
        runs overlap is no blocking call's, and none of its messages is kept.
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
        # A chain may begin in machine code and go on here: it is held in the same memory.
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
        # Requests keep their memory themselves, also after an error.
        kind = Receive if self.overlaps else LandingReceive
        return {index: kind(self.endpoint, posting, self.channel(index), self.plan.stamp)
                for index, posting in zip(takes, noted.noted)}

    def abandon(self, receives: dict[int, Receive]) -> None:
        """Keep messages of a run that failed where MPI may still deliver; nobody has them again."""
        if any(receive.request is not None for receive in receives.values()):
            self.kept.clear()
            self.context.abandoned.append(receives)

    def channel(self, index: int) -> Channel:
        """The channel of an instruction."""
        return self.channels[self.code.words[index * WIDTH + 2]]


class Attendant:
    """Looks after one run, while it waits."""

    def __init__(self, of: Attendance, run: Any):
        self.of, self.run = of, run
        self.watch = Watch(self, *of.context.bounds)
        if of.far is not None:
            self.watch.spins = of.far.spins
        self.number = -1
        self.receives: dict[int, Receive] = {}
        #: Messages to other nodes, and which batch of them is under way, if one is.
        self.remote: RunBatches | None = None
        self.under_way: int | None = None

    @property
    def title(self) -> str:
        """What runs, for messages to people."""
        return self.of.plan.schedule.title

    @property
    def rank(self) -> int:
        """The rank it runs on."""
        return self.of.endpoint.rank

    @property
    def tag(self) -> int:
        """The first of its tags, with its stamp."""
        return self.of.tag

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Round and peers this rank waits for, for messages to people."""
        number = self.of.code.phase(self.run.at)
        return number, tuple(sorted({cast(int, message.peer)
                                     for message in self.of.phase(number).messages}))

    def finish(self) -> None:
        """Wait for the end of the run.

        Raises:
            HpccollError: the wait is in vain.
        """
        seen, patience, waits = self.run.at, PATIENCE, 0
        try:
            self.open()
            while (found := self.run.advance(
                    SLICE if PROGRESS.operations or self.under_way is not None else patience
                    )) != DONE:
                if found == REMOTE:
                    self.carry()
                    continue
                patience, waits = LATER, waits + 1
                PROGRESS.once()
                if self.run.at != seen:
                    self.watch.moved()
                if self.fetched():
                    self.watch.moved()
                elif self.under_way is None or waits % WAITS == 0:
                    self.watch.look()
                else:  # MPI moves its messages on when it is called
                    self.batch(self.under_way).test()
                seen = self.run.at
        except BaseException as error:
            self.give_up()
            self.of.abandon(self.receives)
            if self.of.far is not None and self.remote is not None:
                self.of.far.abandon(self.run, self.remote)
            verdict = self.of.context.fail(error, self.title, self.of.plan, self.of.tag)
            if verdict is not error:
                raise verdict from cause_of(error)
            raise

    def open(self) -> None:
        """Raise an error if another rank has given up, before anything is done for a run."""
        if self.of.far is None:
            self.listen()
        else:  # it comes here in every call: to look everywhere takes too long
            self.of.far.opening()

    def batch(self, number: int) -> Batch:
        """A batch of the tape, on the memory of this run."""
        if self.remote is None:
            self.remote = cast(FarMessages, self.of.far).on(self.run)
        return self.remote.batches[number]

    def carry(self) -> None:
        """Start the batch that the run has come to, or wait until its messages are complete.

        Raises:
            HpccollError: the wait is in vain.
        """
        at = self.run.at * WIDTH
        operation, number = self.of.code.words[at], self.of.code.words[at + 2]
        batch = self.batch(number)
        if operation == Instruction.START:
            self.under_way = number
            batch.start()
        else:
            while not batch.test():
                self.watch.idle()
                if PROGRESS.operations:
                    PROGRESS.once()
            self.watch.moved()
            self.under_way = None
        self.run.skip()

    @property
    def batches(self) -> list[Batch]:
        """What it waits for from other nodes."""
        return [] if self.under_way is None else [self.batch(self.under_way)]

    def listen(self) -> None:
        """Raise an error if another rank has given up."""
        listen = self.of.context.bounds.listen
        if listen is not None:
            listen(self)

    def fetched(self) -> bool:
        """Use the message that is awaited if it lies elsewhere; let later senders go on."""
        of, run = self.of, self.run
        if of.code.words[run.at * WIDTH] != Instruction.TAKE:
            return False
        if self.number != of.code.phase(run.at):
            self.number, self.receives = of.code.phase(run.at), of.receives(run)
        receive = self.receives[run.at]
        if receive.aside or self._lies_elsewhere(receive, 1) and receive.arrived():
            receive.use()
            run.skip()
            return True
        ahead = {id(receive.channel): 1}
        for index, later in self.receives.items():
            if index > run.at and not later.aside:
                key = id(later.channel)
                ahead[key] = ahead.get(key, 0) + 1
                if self._lies_elsewhere(later, ahead[key]) and later.arrived():
                    later.put_aside()
        return False

    def _lies_elsewhere(self, receive: Receive, ahead: int) -> bool:
        """Tell whether a message is there, so many after the last one, but not as expected."""
        channel = receive.channel
        number = channel.received + ahead
        word = channel.line[number & (PLACES - 1)]
        if word >> SIZE_BITS != number or word & ELSEWHERE == receive.announced:
            return False
        if receive.number != number:
            receive.expect(number)
        return True

    def give_up(self) -> None:
        """Count the messages of this phase as received: they were waited for in vain."""
        number = self.of.code.phase(self.run.at)
        for index, step in enumerate(self.of.code.steps()):
            if index >= self.run.at and step[0] == Instruction.TAKEN and step[1] == number:
                self.of.channels[step[2]].received += 1
