"""Running tapes: a plan whose messages all go through cells, handed to the compiled executor.

    Plan --encode--> Code --with channels and scratch--> Tape --run--> result
                                                           | a message is missing for long, or
                                                           v lies elsewhere
                                                         Attendant

``_tape.c`` is that executor. It is optional: without it, and for every plan that it cannot run,
there is the interpreter of :mod:`hpccoll.runtime.executor`, which follows the same plans and the
same channels, so the ranks of a communicator may differ in what they use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy
from mpi4py import MPI

from hpccoll.arrays.kernels import kernel, ufunc_of
from hpccoll.calls.call import Call
from hpccoll.config import COMPILED, Config
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import Extent, Lowered, Message, Phase
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.binding import Binder, Memory
from hpccoll.runtime.log import NUMBER, REMEMBERED, STAMPS
from hpccoll.runtime.plan import Plan
from hpccoll.runtime.progress import PROGRESS
from hpccoll.runtime.tape import WIDTH, Code, Instruction, encode
from hpccoll.runtime.waiting import Watch
from hpccoll.transport import Batch, Posting
from hpccoll.transport.shm.channels import ELSEWHERE, PLACES, SIZE_BITS, Channel
from hpccoll.transport.shm.endpoint import SharedEndpoint
from hpccoll.transport.shm.rendezvous import Receive
from hpccoll.transport.stamps import stamped

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

try:
    from hpccoll.runtime import _tape
except ImportError:  # it was not built
    BUILT = False
else:
    BUILT = (_tape.PLACES, _tape.SIZE_BITS, _tape.WIDTH) == (PLACES, SIZE_BITS, WIDTH) and (
        (_tape.NUMBER, _tape.STAMPS, _tape.REMEMBERED) == (NUMBER, STAMPS, REMEMBERED))
    _tape.set_in_place(MPI.IN_PLACE)

#: Microseconds that a wait takes before Python looks after it, at first and then; with other
#: operations under way.
PATIENCE, LATER, SLICE = 1000, 100, 50


def executor(config: Config) -> str:
    """Which executor runs plans in this process: ``compiled`` or ``python``.

    Raises:
        ArgumentError: the compiled one is asked for, and was not built.
    """
    if config.executor == COMPILED and not BUILT:
        raise ArgumentError("HPCCOLL_EXECUTOR", "the compiled executor was not built",
                            "install hpccoll where there is a C compiler, or leave it to 'python'")
    return config.executor or (COMPILED if BUILT else "python")


def channel_class() -> type[Channel]:
    """What channels are made of: their numbers are shared with the compiled executor."""
    if not BUILT:
        return Channel

    class CountedChannel(_tape.Counters, Channel):
        """A channel whose numbers both executors read and write."""

    return CountedChannel


def new_lane() -> Any:
    """What puts nonblocking operations that share channels in order; see ``operations``."""
    return _tape.Lane() if BUILT else None


def run_tape(tape: Any, call: Call) -> None:
    """Run a tape on the memory of a call."""
    buffers = [one for one in (call.source, call.sink) if one is not None]
    for one in buffers:
        if one.load is not None:
            one.load()
    tape.run(*addresses_of(call))
    if call.sink is not None and call.sink.store is not None:
        call.sink.store()


def addresses_of(call: Call) -> tuple[int, int]:
    """The addresses of a call's input and output."""
    source, sink = (MPI.Get_address(one.array) if one is not None else 0
                    for one in (call.source, call.sink))
    return source, sink


class Bound(NamedTuple):
    """A plan as a tape on channels; keeps the plan alive, by whose ``id`` it is found."""

    plan: Plan
    tape: Any


def tape_for(context: Context, call: Call, plan: Plan, tag: int = 0, kept: bool = True) -> Any:
    """The tape of a call's plan; ``None`` where Python has to run it.

    With a tag, which is not that of blocking calls, it has scratch of its own. It is kept for calls
    of the same plan, unless it belongs to one call.
    """
    if not context.compiled or not isinstance(context.endpoint, SharedEndpoint):
        return None
    if not kept:
        return _tape_for(context, call, plan, tag)
    key = id(plan), call.op.handle if call.op is not None else 0, tag
    bound = context.tapes.get(key)
    if bound is None or bound.plan is not plan:
        bound = context.tapes.keep(key, Bound(plan, _tape_for(context, call, plan, tag)))
    return bound.tape


def _tape_for(context: Context, call: Call, plan: Plan, tag: int) -> Any:
    buffers = [one for one in (call.source, call.sink) if one is not None]
    if (len(plan.segments) != 1 or plan.segments[0].shift
            or any(one.namespace is not numpy or not one.array.nbytes for one in buffers)):
        return None
    itemsize, kernels = 1, cast(tuple[tuple[numpy.ufunc, Any], ...], ())
    if buffers:
        itemsize = call.dtype.itemsize
    if call.op is not None:
        ufunc = ufunc_of(call.op, call.dtype)
        if ufunc is None or not _tape.has_loop(ufunc, call.dtype):
            return None
        kernels = ((ufunc, call.dtype),)
    code = encode(plan.segments[0].program, itemsize, PLACES)
    if code is None:
        return None
    # Nonblocking and persistent calls may be in another order on every rank: no log has them.
    guard = context.guard
    log, alarm = (guard.log if not tag else 0, guard.alarm) if guard is not None else (0, 0)
    channels = _channels(cast(SharedEndpoint, context.endpoint), code, tag,
                         context.limits.tape_bytes)
    if channels is None:
        return None
    nbytes = plan.scratch * itemsize
    scratch = numpy.empty(nbytes, "u1") if tag else context.scratch(nbytes)
    attendance = Attendance(context, call, plan, code, channels, scratch, tag)
    sizes = [one.array.nbytes if one is not None else 0 for one in (call.source, call.sink)]
    return _tape.Tape(code.words, (sizes[0], sizes[1]), tuple(map(_addresses, channels)), kernels,
                      scratch, attendance, attendance.wait, not context.limits.spins,
                      plan.stamp, log if plan.stamp else 0, alarm)


def _channels(endpoint: SharedEndpoint, code: Code, tag: int, most: int) -> list[Channel] | None:
    """The channels of a tape; ``None`` where a message cannot be sure of a cell."""
    node = endpoint.node
    if tag not in node.tags or any(way.peer not in node.local for way in code.ways):
        return None
    channels = [node.outgoing(way.peer, tag) if way.kind == SEND else node.incoming(way.peer, tag)
                for way in code.ways]
    if any(not channel.cells or code.longest > min(channel.cells[0].nbytes, most)
           for channel in channels):
        return None
    return channels


def _addresses(channel: Channel) -> tuple[Any, int, int, int, int]:
    """A channel as the compiled executor wants it: its words, its cells, and bytes of a cell."""
    return (channel, MPI.Get_address(channel.line), MPI.Get_address(channel.taken),
            MPI.Get_address(channel.cells[0]), channel.cells[0].nbytes)


def swap_tape(context: Context, peer: int, memory: tuple[Any, Any], tag: int,
              wait: Callable[[Callable[[], bool]], None]) -> Any:
    """A tape that exchanges messages of one size with a rank; ``None`` where Python has to.

    Args:
        context, peer, tag: with whom, and on which channels.
        memory: what is sent, and where the other rank's message goes: as many bytes.
        wait: waits for a test that says whether it is over.
    """
    if not context.compiled or not isinstance(context.endpoint, SharedEndpoint):
        return None
    (sent, arriving), endpoint = memory, context.endpoint
    whole = len(sent)
    phase = Phase((), (Message(SEND, peer, Extent(IN, 0, whole)),
                       Message(RECV, peer, Extent(OUT, 0, whole))), ())
    code = encode(Lowered((phase,), 0, 0), 1, PLACES)
    channels = _channels(endpoint, code, tag, whole) if code is not None else None
    if code is None or channels is None:
        return None
    posting, incoming = Posting(False, peer, numpy.frombuffer(arriving, "u1")), channels[1]

    def attend(run: Any) -> None:
        receive = Receive(endpoint, posting, incoming)

        def test() -> bool:
            found = run.advance(SLICE)
            if found == _tape.ELSEWHERE:
                if receive.number != incoming.received + 1:
                    receive.expect(incoming.received + 1)
                if receive.arrived():
                    receive.use()
                    run.skip()
            return bool(found == _tape.DONE)
        try:
            wait(test)
        except BaseException:
            if code.words[run.at * WIDTH] in (Instruction.TAKE, Instruction.TAKEN):
                incoming.received += 1  # it was waited for in vain
            raise

    return _tape.Tape(code.words, (whole, whole), tuple(map(_addresses, channels)), (),
                      numpy.empty(0, "u1"), None, attend, not context.limits.spins)


class _Postings:
    """An endpoint that only notes what it is asked for."""

    def __init__(self, endpoint: SharedEndpoint):
        self.endpoint, self.rank, self.size = endpoint, endpoint.rank, endpoint.size
        self.noted: list[Posting] = []

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """As the endpoint has it."""
        return self.endpoint.direct(peers, tag)

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Note the messages."""
        self.noted = [posting for posting in postings if not posting.sends]
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


class Attendance:
    """Looks after runs of one tape that wait: bounds, and messages that are not in their cells.

    It does not refer to the tape, which refers to it and to the channels.
    """

    def __init__(self, context: Context, call: Call, plan: Plan, code: Code,
                 channels: list[Channel], scratch: numpy.ndarray, tag: int):
        self.endpoint = cast(SharedEndpoint, context.endpoint)
        self.plan, self.code, self.channels = plan, code, channels
        self.tag = stamped(tag, plan.stamp)
        self.context, self.bounds, self.scratch = context, context.bounds, scratch
        self.op, self.datatype = call.op, call.datatype
        self.dtype = call.dtype if call.datatype is not None else numpy.dtype("u1")
        self.nbytes = {name: one.array.nbytes
                       for name, one in ((IN, call.source), (OUT, call.sink)) if one is not None}

    def wait(self, run: Any) -> None:
        """Wait for the end of a run.

        Raises:
            CollectiveTimeout: nothing moved for too long.
        """
        Attendant(self, run).finish()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the plan."""
        return self.plan.segments[0].program.phases

    def receives(self, run: Any) -> dict[int, Receive]:
        """The messages of the phase that a run has come to, by the instructions that take them."""
        number = self.code.phase(run.at)
        arrays = {name: numpy.frombuffer(
            cast(Any, MPI.memory.fromaddress(start, self.nbytes[name])), self.dtype)
            for name, start in ((IN, run.input), (OUT, run.output)) if name in self.nbytes}
        reducer = (kernel(self.op, self.dtype, self.datatype, numpy)
                   if self.op is not None and self.datatype is not None else None)
        noted = _Postings(self.endpoint)
        memory = Memory(arrays, self.scratch.view(self.dtype), reducer, numpy)
        phases = Binder(self.plan, noted, memory, self.tag, False, 1).phases(0, 0)
        for phase in phases:
            if phase.number == number:
                break
        takes = [index for index, step in enumerate(self.code.steps())
                 if step[0] == Instruction.TAKE and step[1] == number]
        return {index: Receive(self.endpoint, posting, self.channel(index), self.plan.stamp)
                for index, posting in zip(takes, noted.noted)}

    def channel(self, index: int) -> Channel:
        """The channel of an instruction."""
        return self.channels[self.code.words[index * WIDTH + 2]]


class Attendant:
    """Looks after one run, while it waits."""

    def __init__(self, of: Attendance, run: Any):
        self.of, self.run = of, run
        self.watch = Watch(self, *of.bounds)
        self.number = -1
        self.receives: dict[int, Receive] = {}

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
        return number, tuple(sorted({message.peer for message in self.of.phases[number].messages}))

    def finish(self) -> None:
        """Wait for the end of the run.

        Raises:
            HpccollError: the wait is in vain.
        """
        seen, patience = self.run.at, PATIENCE
        try:
            self.listen()
            while self.run.advance(SLICE if PROGRESS.operations else patience) != _tape.DONE:
                patience = LATER
                PROGRESS.once()
                if self.run.at != seen:
                    self.watch.moved()
                if self.fetched():
                    self.watch.moved()
                else:
                    self.watch.look()
                seen = self.run.at
        except BaseException as error:
            self.give_up()
            verdict = self.of.context.fail(error, self.title, self.of.plan, self.of.tag)
            if verdict is not error:
                raise verdict from error
            raise

    def listen(self) -> None:
        """Raise an error if another rank has given up."""
        if self.of.bounds.listen is not None:
            self.of.bounds.listen(self)

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
