"""The engine: from a resolved call to a finished one.

    call --choose--> algorithm --schedule--> plan --put onto memory--> execution --drive--> done

Plans are kept by call shape; executions that repeat on the same memory are kept prepared,
by address. A kept execution never keeps a user's array alive: it holds addresses, and is
found again only by the address of an array that is alive now.
"""

from __future__ import annotations

from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms import schedule as make_schedule
from hpccoll.arrays.device import synchronizer
from hpccoll.arrays.kernels import accumulator_factory, kernel
from hpccoll.calls.resolve import Call
from hpccoll.calls.specification import Buffer, element_type
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Schedule
from hpccoll.proof.verifier import verify
from hpccoll.runtime import plan as plans
from hpccoll.runtime.choice import Choice
from hpccoll.runtime.context import Context
from hpccoll.runtime.executor import Execution, Memory


def plan_for(context: Context, call: Call, choice: Choice) -> plans.Plan:
    """The plan of a call, from the cache or made now."""
    if call.learn is not None and not _needs_own_count_only(call, choice):
        # Only the root knows the counts, and ranks on the way pass on blocks of others.
        call = call.learn(context.comm.bcast(call.key[0], call.root))
    key = (call.name, choice.algorithm, tuple(choice.params.items()), choice.segment_bytes,
           call.root, call.in_place, _any_order(call),
           call.key, element_type(call.datatype) if call.datatype else None)
    made = context.plans.get(key)
    return made or context.plans.keep(key, _make(context, call, choice))


def _any_order(call: Call) -> bool:
    """Tell whether contributions may be combined in another order than that of the ranks."""
    return call.op is None or bool(call.op.Is_commutative())


def _needs_own_count_only(call: Call, choice: Choice) -> bool:
    return (isinstance(choice.algorithm, str)
            and ALGORITHMS[call.collective][choice.algorithm].own_blocks)


def _make(context: Context, call: Call, choice: Choice) -> plans.Plan:
    schedule = schedule_for(context, call, choice)
    layout, longest = call.layout(schedule, context.rank)
    segment = 0
    # In place, a reduce-scatter's result may reach into other ranks' blocks, which other
    # segments still read, unless all blocks have the size of the first.
    if longest and not (call.in_place and call.collective == "reduce_scatter"
                        and not call.uniform):
        itemsize = element_type(call.datatype).itemsize
        segment = plans.segment_elements(
            itemsize, longest, choice.segment_bytes or context.config.segment_bytes
            or context.limits.segment_of(longest * itemsize if call.shared else None), call.shared)
    return plans.make(schedule, context.rank, layout, longest, segment)


def schedule_for(context: Context, call: Call, choice: Choice) -> Schedule:
    """The schedule of a choice; one that a user brought along is proved before it runs."""
    if isinstance(choice.algorithm, Schedule):
        made = choice.algorithm
    else:
        hierarchical = (isinstance(choice.algorithm, str)
                        and ALGORITHMS[call.collective][choice.algorithm].hierarchical)
        layout = context.topology if hierarchical else None
        if layout is not None and layout.order and not _any_order(call):
            # Groups of ranks that are not neighbours cannot keep rank order; single ranks can.
            layout = None
        made = make_schedule(call.collective, choice.algorithm, context.size, root=call.root,
                             topology=layout, **choice.params)
    if not isinstance(choice.algorithm, str):
        verify(made, commutative=_any_order(call))
    return made


def prepare(context: Context, call: Call, plan: plans.Plan, tag: int = 0,
            repeated: bool = False, own_scratch: bool = False) -> Execution:
    """Put a plan onto the memory of a call."""
    one = call.sink or call.source
    arrays: dict[str, Any] = {}
    if one is None:
        return Execution(plan, context.endpoint,
                         Memory({}, numpy.empty(plan.depth * plan.scratch, "u1"), None, numpy),
                         tag, repeated, context.limits.spins)
    dtype, namespace = element_type(call.datatype), one.namespace
    nbytes = plan.depth * plan.scratch * dtype.itemsize
    if namespace is not numpy:
        scratch = namespace.empty(nbytes, "u1")
    else:
        scratch = numpy.empty(nbytes, "u1") if own_scratch else context.scratch(nbytes)
    for buffer in {id(each): each for each in (call.source, call.sink) if each}.values():
        if buffer.load is not None:
            buffer.load()
    for name, buffer in ((IN, call.source), (OUT, call.sink)):
        if buffer is not None:
            arrays[name] = unowned(buffer) if repeated else buffer.array
    reducer = accumulator = None
    if call.op is not None:
        reducer = kernel(call.op, dtype, call.datatype, namespace)
        accumulator = accumulator_factory(call.op, dtype, namespace)
    return Execution(plan, context.endpoint,
                     Memory(arrays, scratch.view(dtype), reducer, namespace,
                            synchronizer(namespace), accumulator),
                     tag, repeated, context.limits.spins)


def unowned(buffer: Buffer) -> Any:
    """The same memory as an array that does not keep its owner alive."""
    array = buffer.array
    address = array.__array_interface__["data"][0]
    return numpy.frombuffer(MPI.memory.fromaddress(address, array.nbytes), array.dtype)
