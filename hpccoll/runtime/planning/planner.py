"""Planner: makes schedules, plans and executions of calls and choices.

Plans are cached by call and choice. A cached execution never keeps a user's array alive: it holds
addresses, and a lookup needs the address of a living array.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.algorithms import schedule as make_schedule
from hpccoll.arrays.kernels import accumulator_factory
from hpccoll.calls.any_size import NO_LIMIT
from hpccoll.calls.call import Call
from hpccoll.calls.datatypes import element_type
from hpccoll.calls.facts import needs_whole_vector
from hpccoll.calls.specification import Buffer
from hpccoll.cuda import RegisteredCall, allocator_like, kernel_for, performer, windows_of
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import SlotLayout
from hpccoll.ir.schedule import Schedule
from hpccoll.runtime.context import Context
from hpccoll.runtime.events.logger import DEBUG, is_enabled, logger
from hpccoll.runtime.events.phase_events import PhaseRecorder
from hpccoll.runtime.execution.executor import Execution
from hpccoll.runtime.planning import plan as plans
from hpccoll.runtime.planning.binding import Action, Memory
from hpccoll.runtime.planning.call_hash import describe, element_of
from hpccoll.runtime.planning.choice import Choice
from hpccoll.transport.call_hashes import tag_with_hash


def plan_for(context: Context, call: Call, choice: Choice) -> plans.Plan:
    """Return the plan of a call, from the cache or newly made; never communicates.

    The call must have all counts that the algorithm needs, and the algorithm must be proved
    (:func:`hpccoll.runtime.planning.ready.ready_call`).
    """
    key = key_of(call, choice)
    known = context.plans.get(key)
    if known is None:
        known = context.plans.keep(key, _plan(context, call, choice))
        if is_enabled(DEBUG):
            logger().debug(
                "plan of rank %d: %s, %d messages, %d segments, %d elements of scratch",
                context.rank, known.schedule.title, known.messages, len(known.segments),
                known.depth * known.scratch)
    return known


def key_of(call: Call, choice: Choice) -> Hashable:
    """Return the key of a plan in the cache."""
    return (call.name, *choice.key, call.root, call.in_place, in_any_order(call),
            call.key, element_type(call.datatype) if call.datatype else None,
            call.op.handle if call.op is not None else element_of(call))


def in_any_order(call: Call) -> bool:
    """Return True if contributions may be combined in any order of the ranks."""
    return call.op is None or bool(call.op.Is_commutative())


def _plan(context: Context, call: Call, choice: Choice) -> plans.Plan:
    schedule, layout, longest, segment = parts_of(context, call, choice)
    plan = plans.make(schedule, context.rank, layout, longest, segment)
    description = describe(call, schedule, choice.segment_bytes or context.config.segment_bytes)
    return plan._replace(description=description, call_hash=context.guard.call_hash(description))


def parts_of(context: Context, call: Call, choice: Choice
             ) -> tuple[Schedule, SlotLayout, int, int]:
    """Return the schedule of a call, its layout, and the elements of a block and of a segment."""
    schedule = schedule_for(context, call, choice)
    layout, longest = call.layout(schedule, context.rank)
    return schedule, layout, longest, _segment(context, call, choice, longest, schedule)


def _segment(context: Context, call: Call, choice: Choice, longest: int, schedule: Schedule
             ) -> int:
    """Return the elements of a block per segment, 0 for whole blocks; the same on all ranks."""
    if not longest or _is_whole(call):
        return 0
    itemsize = call.dtype.itemsize
    nbytes = (choice.segment_bytes or context.config.segment_bytes
              or context.limits.segment_of(longest * itemsize if call.shared else None))
    if context.scratch_bytes and call.shared:
        nbytes = _in_scratch(context.scratch_bytes, schedule, longest * itemsize, nbytes)
    return plans.segment_elements(itemsize, longest, nbytes, call.shared)


def _in_scratch(most: int, schedule: Schedule, longest: int, nbytes: int) -> int:
    """Return the bytes of a segment whose scratch fits into ``most`` bytes on every rank.

    Args:
        most: bytes of scratch of each rank.
        longest: bytes of the longest block.
        nbytes: bytes of a segment with scratch of any size.
    """
    from hpccoll.proof.cases import most_scratch_blocks
    if 4 * plans.DEPTH * schedule.size * longest <= most:
        return nbytes  # no algorithm needs more than four blocks for every rank
    blocks = most_scratch_blocks(schedule)
    if not blocks or longest <= nbytes and longest * blocks <= most:
        return nbytes
    return min(nbytes, most // (plans.DEPTH * blocks))


def _is_whole(call: Call) -> bool:
    """Return True if the blocks of a call must not be cut.

    In place, a reduce-scatter's result may overlap other ranks' blocks, which other segments still
    read, unless all blocks have the size of the first.
    """
    return (call.in_place and call.collective == "reduce_scatter" and not call.uniform
            or call.op is not None and needs_whole_vector(call.op))


def segment_rule(context: Context, call: Call, choice: Choice) -> plans.SegmentRule:
    """Return how blocks of any size are cut into segments."""
    if _is_whole(call):
        return plans.SegmentRule(NO_LIMIT, 0)
    limits, fixed = context.limits, choice.segment_bytes or context.config.segment_bytes
    nbytes = fixed or min(limits.segment_bytes, limits.large_block_bytes)
    most = max(nbytes // call.dtype.itemsize, 1)
    if context.scratch_bytes or not fixed and limits.segment_bytes != limits.large_segment_bytes:
        return plans.SegmentRule(most, 0)  # longer blocks follow other rules
    return plans.SegmentRule(most, plans.unit_of(call.dtype.itemsize) if call.shared else most)


def schedule_for(context: Context, call: Call, choice: Choice) -> Schedule:
    """Return the schedule of a choice."""
    if isinstance(choice.algorithm, Schedule):
        return choice.algorithm
    entry = choice.entry(call.collective)
    layout = context.topology if entry and entry.hierarchical else None
    if layout is not None and layout.order and not in_any_order(call):
        # Groups of ranks that are not neighbours cannot keep rank order; single ranks can.
        layout = None
    return make_schedule(call.collective, choice.algorithm, context.size, root=call.root,
                         topology=layout, **choice.params)


def prepare(context: Context, call: Call, plan: plans.Plan, tag: int = 0,
            repeated: bool = False, own_scratch: bool = False) -> Execution:
    """Bind a plan to the memory of a call.

    Args:
        context, call, plan: the communicator's context, the call and its plan.
        tag: the first tag of its messages.
        repeated: keep messages prepared, and hold the user's arrays by address only.
        own_scratch: allocate scratch that no other call uses.
    """
    one, rest = call.sink or call.source, _monitoring(context, plan, tag)
    if one is None:
        empty = Memory({}, numpy.empty(plan.depth * plan.scratch, "u1"), None, numpy)
        return Execution(plan, context.endpoint, empty, tag_with_hash(tag, plan.call_hash),
                         repeated, *rest)
    dtype, namespace = call.dtype, one.namespace
    nbytes = plan.depth * plan.scratch * dtype.itemsize
    if namespace is numpy and not own_scratch:
        scratch = context.scratch(nbytes)
    else:
        scratch = allocator_like(one.array, namespace, partial(namespace.empty, dtype="u1"))(nbytes)
    for buffer in {id(each): each for each in (call.source, call.sink) if each}.values():
        if buffer.load is not None:
            buffer.load()
    arrays = {name: _without_owner(buffer) if repeated else buffer.array
              for name, buffer in ((IN, call.source), (OUT, call.sink))
              if buffer is not None and buffer.staged is None}
    reducer = accumulator = None
    if call.op is not None and call.datatype is not None:
        reducer = kernel_for(call.op, dtype, call.datatype, namespace)
        accumulator = accumulator_factory(call.op, dtype, namespace)
        if accumulator is not None:
            accumulator = allocator_like(one.array, namespace, accumulator)
    memory = Memory(arrays, scratch.view(dtype), reducer, namespace,
                    performer(one.array, namespace), accumulator, windows_of(call, plan))
    return Execution(plan, context.endpoint, memory, tag_with_hash(tag, plan.call_hash), repeated,
                     *rest)


def prepare_registered(context: Context, call: Call, plan: plans.Plan, registered: RegisteredCall
                       ) -> Execution | None:
    """Bind a plan to registered device memory; ``None`` if it needs more scratch."""
    dtype, queue = call.dtype, registered.queue
    scratch = registered.scratch(plan.depth * plan.scratch * dtype.itemsize)
    if scratch is None:
        return None
    reducer = accumulator = None
    if call.op is not None and call.datatype is not None:
        reducer = kernel_for(call.op, dtype, call.datatype, queue.cupy)
        made = accumulator_factory(call.op, dtype, queue.cupy)
        accumulator = partial(queue.allocate, make=made) if made is not None else None
    arrays = {name: buffer.array for name, buffer in ((IN, call.source), (OUT, call.sink))
              if buffer is not None}
    memory = Memory(arrays, scratch.view(dtype), reducer, queue.cupy, queue.run, accumulator,
                    queued=True)
    return Execution(plan, registered.endpoint(), memory, tag_with_hash(0, plan.call_hash), False,
                     *_monitoring(context, plan, 0))


def _monitoring(context: Context, plan: plans.Plan, tag: int
                ) -> tuple[int, Action | None, Action | None, PhaseRecorder | None]:
    """Return the spins of an execution, its callbacks at start and end, and its recorder."""
    guard, noting = context.guard, None
    if context.phases is not None and not tag:
        noting = context.phases.of(plan)
    return (context.limits.spins, guard.opening(plan.call_hash, tag),
            guard.end_callback(plan.call_hash, tag), noting)


def _without_owner(buffer: Buffer) -> Any:
    """Return the same memory as an array that does not keep its owner alive."""
    array = buffer.array
    address = array.__array_interface__["data"][0]
    memory: Any = MPI.memory.fromaddress(address, array.nbytes)
    return numpy.frombuffer(memory, array.dtype)
