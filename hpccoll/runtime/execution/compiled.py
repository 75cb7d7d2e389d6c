"""Compiled executor: runs plans as compiled plans, whose messages inside the node use cells.

    Plan --encode--> Code --with channels and scratch--> CompiledPlan --run--> result
                                                           | a message is late or outside its
                                                           v cell; a batch of MPI messages
                                                         Slow path

``_executor`` implements it. It is optional: the interpreter (``executor``) runs all other plans.
Both use the same plans and channels, so the ranks of a communicator may use different executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy
from mpi4py import MPI

from hpccoll.arrays import half
from hpccoll.arrays.kernels import UFUNCS, operator_of, ufunc_of
from hpccoll.calls.call import Call
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import Extent, LoweredProgram, Message, Phase
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.execution.compiled_plan import (
    DONE,
    WIDTH,
    Code,
    Instruction,
    encode,
    encode_segments,
)
from hpccoll.runtime.execution.remote import RemoteMessages
from hpccoll.runtime.execution.slow_path import PlanWaits
from hpccoll.runtime.planning.plan import BoundPlan, Plan
from hpccoll.transport import MessageSpec
from hpccoll.transport.call_hashes import tag_with_hash
from hpccoll.transport.shm.channels import PLACES, Channel
from hpccoll.transport.shm.endpoint import Receive, SharedEndpoint

if BUILT:
    from hpccoll.runtime.execution import _executor

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context

#: Segments of a compiled plan. The interpreter runs calls with more, and blocking calls of several
#: segments with messages to other nodes, which it sends while others are reduced.
MOST_SEGMENTS = 2048


def run_plan(compiled_plan: Any, call: Call) -> None:
    """Run a compiled plan on the memory of a call."""
    buffers = [one for one in (call.source, call.sink) if one is not None]
    for one in buffers:
        if one.load is not None:
            one.load()
    compiled_plan.run(*addresses_of(call), call)
    if call.sink is not None and call.sink.store is not None:
        call.sink.store()


def addresses_of(call: Call) -> tuple[int, int]:
    """Return the addresses of a call's input and output."""
    source, sink = (MPI.Get_address(one.array) if one is not None else 0
                    for one in (call.source, call.sink))
    return source, sink


def compiled_plan_for(context: Context, call: Call, plan: Plan, tag: int = 0,
                      kept: bool = True) -> Any:
    """Return the compiled plan of a call's plan; ``None`` if the interpreter has to run the plan.

    With the tag of a nonblocking call it has its own scratch. If ``kept``, it is cached for later
    calls of the same plan.
    """
    if not context.compiled or not isinstance(context.endpoint, SharedEndpoint):
        return None
    if not kept:
        return _compiled_plan_for(context, call, plan, tag)
    key = id(plan), call.op.handle if call.op is not None else 0, tag
    bound = context.compiled_plans.get(key)
    if bound is None or bound.plan is not plan:
        bound = context.compiled_plans.keep(key, BoundPlan(plan, _compiled_plan_for(context, call,
                                                                                    plan, tag)))
    return bound.compiled_plan


def _compiled_plan_for(context: Context, call: Call, plan: Plan, tag: int) -> Any:
    buffers = [one for one in (call.source, call.sink) if one is not None]
    if (not 0 < len(plan.segments) <= MOST_SEGMENTS
            or any(segment.program.waits for segment in plan.segments)
            or any(one.namespace is not numpy or not one.array.nbytes for one in buffers)):
        return None
    itemsize = call.dtype.itemsize if buffers else 1
    compiled = kernel_of(call) if call.op is not None else None
    if call.op is not None and compiled is None:
        return None
    phases = context.phases if not tag else None
    # The interpreter runs requests with MPI messages: a thread that may not call MPI progresses the
    # compiled plans.
    local = cast(SharedEndpoint, context.endpoint).node.local
    remote: set[int] = set() if tag else {*range(context.size)} - {context.rank, *local}
    code = encode_segments(plan.segments, plan.depth, itemsize, PLACES,
                           call.op is not None and half.is_half(call.dtype), remote,
                           phases.of(plan) if phases is not None else None)
    if code is None or code.remote and len(plan.segments) > 1:
        return None
    channels = channels_of(cast(SharedEndpoint, context.endpoint), code, tag)
    if channels is None:
        return None
    nbytes = plan.scratch * itemsize
    scratch = numpy.empty(nbytes, "u1") if tag else context.scratch(nbytes)
    accumulator = half.accumulator(code.held)
    messages = (RemoteMessages(context, code, scratch, tag_with_hash(tag, plan.call_hash))
                if code.remote else None)
    waits = PlanWaits(context, call, plan, code, channels, (scratch, accumulator), tag, messages)
    sizes = [one.array.nbytes if one is not None else 0 for one in (call.source, call.sink)]
    return _executor.CompiledPlan(
        code.words, (sizes[0], sizes[1]), tuple(map(addresses, channels)), compiled, scratch,
        waits, waits.wait, not context.limits.spins, *hash_of(context, plan, tag),
        accumulator)


def hash_of(context: Context, plan: Plan, tag: int = 0) -> tuple[int, int, int]:
    """Return the call hash of a compiled plan, and the addresses of the log and the alarm.

    Nonblocking and persistent calls are not logged: their order may differ between ranks.
    """
    log = context.guard.log if plan.call_hash and not tag else 0
    return plan.call_hash, log, context.guard.alarm


def kernel_of(call: Call) -> Any:
    """Return the compiled reduction kernel of a call; ``None`` if Python has to reduce."""
    op = cast(MPI.Op, call.op)
    if half.is_half(call.dtype):
        operator = operator_of(op)
        return None if operator is None or operator.pairs else half.compiled_ufunc(
            getattr(numpy, UFUNCS[operator.name]), call.dtype)
    ufunc = ufunc_of(op, call.dtype)
    return None if ufunc is None or not _executor.has_loop(ufunc, call.dtype) else (ufunc,
                                                                                    call.dtype)


def channels_of(endpoint: SharedEndpoint, code: Code, tag: int) -> list[Channel] | None:
    """Return the channels of a compiled plan; ``None`` if a message may find no way."""
    node = endpoint.node
    if any(tag + way.slot not in node.tags or way.peer not in node.local for way in code.ways):
        return None
    channels = [(node.send_channel if way.kind == SEND else node.recv_channel)(way.peer,
                                                                               tag + way.slot)
                for way in code.ways]
    in_cells = all(channel.cells and channel.cells_for(min(code.longest, channel.cell_bytes))
                   for channel in channels)
    if not in_cells or node.readv is None and any(code.longest > channel.cell_bytes
                                                  for channel in channels):
        return None
    return channels


def addresses(channel: Channel) -> tuple[Any, int, int, int, int, int, int, int, int]:
    """Return the words, the cells and the peer of a channel for the compiled executor."""
    process, index, regions = channel.peer
    return (channel, MPI.Get_address(channel.line), MPI.Get_address(channel.taken),
            MPI.Get_address(channel.small[0]), MPI.Get_address(channel.cells[0]),
            channel.cell_bytes, process, MPI.Get_address(regions), index)


def exchange_plan(context: Context, messages: Sequence[MessageSpec], tag: int,
                  wait: Callable[[Callable[[], bool]], None]) -> Any:
    """Return a compiled plan of messages with one rank; ``None`` if Python has to exchange them.

    Args:
        context, tag: select the channels.
        messages: a message to the rank, a message from it, or both in this order.
        wait: waits until a test returns True.
    """
    if not context.compiled or not isinstance(context.endpoint, SharedEndpoint):
        return None
    endpoint, sizes = context.endpoint, [0, 0]
    for one in messages:
        sizes[not one.sends] = one.array.nbytes
    phase = Phase((), tuple(
        Message(SEND if one.sends else RECV, one.peer, Extent(IN if one.sends else OUT, 0,
                                                              one.array.nbytes))
        for one in messages), ())
    code = encode(LoweredProgram((phase,), 0, 0), 1, PLACES)
    channels = channels_of(endpoint, code, tag) if code is not None else None
    if code is None or channels is None:
        return None
    posting, incoming = messages[-1], channels[-1]

    def resume(run: Any) -> None:
        receive = Receive(endpoint, posting, incoming) if not posting.sends else None

        def test() -> bool:
            if run is MemoryError:
                raise MemoryError("no memory for the state of a message")
            found = run.advance()
            if found == _executor.ELSEWHERE and receive is not None:
                if receive.number != incoming.received + 1:
                    receive.expect(incoming.received + 1)
                if receive.is_readable():
                    receive.use()
                    run.skip()
            return bool(found == DONE)
        try:
            wait(test)
        except BaseException:
            if run is not MemoryError and code.words[run.at * WIDTH] in (Instruction.TAKE,
                                                                         Instruction.TAKEN):
                incoming.received += 1  # the wait failed; the message still counts
            raise

    return _executor.CompiledPlan(code.words, (sizes[0], sizes[1]), tuple(map(addresses, channels)),
                                  None,
                                  numpy.empty(0, "u1"), None, resume, not context.limits.spins)
