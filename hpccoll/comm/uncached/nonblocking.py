"""Uncached nonblocking calls: the user's algorithm, or the native method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.calls.call import is_loaded
from hpccoll.comm.methods import Method
from hpccoll.comm.requests import request_factory, request_of
from hpccoll.comm.uncached.conditions import (
    native_arguments,
    record_choice,
    reject_staged,
    resolve_call,
)
from hpccoll.comm.uncached.steps import choose_algorithm, guarded_begin
from hpccoll.config import THREAD
from hpccoll.runtime.context import LANE_BYTES
from hpccoll.runtime.execution.compiled import addresses_of, compiled_plan_for
from hpccoll.runtime.planning.planner import plan_for, prepare
from hpccoll.runtime.planning.ready import prove_brought
from hpccoll.runtime.progress.operations import Operation
from hpccoll.runtime.ranks import LANE_TAG

if TYPE_CHECKING:
    from hpccoll.comm.base import Base


def begin(comm: Base, method: Method, args: tuple[Any, ...]) -> MPI.Request:
    """Check the arguments, and start the user's algorithm or the native method."""
    call = resolve_call(comm, method, args)
    choice = None
    if call is not None:
        facts, choice = choose_algorithm(comm, method, call)
    record_choice(comm, method, call, choice)
    if call is None or choice is None or choice.is_native:
        reject_staged(method, args)
        native = guarded_begin(comm, method, call)
        if call is not None and not comm._note(method, args, native):
            comm._cache.store(method, args, native)
        return method.serve_native(comm, *native_arguments(call, args), native=native)
    context, threaded = comm._private(), comm._config.progress == THREAD
    queue, tag = None, LANE_TAG
    if context.request_queue is not None:
        # Depends only on data of all ranks: operations without a plan use the queue, too.
        segment = context.request_segment(facts, tag)
        if segment or call.nbytes is not None and call.nbytes <= LANE_BYTES:
            queue, choice = context.request_queue, choice.in_segments(segment)
    if queue is None:
        tag = context.next_tag()
    prove_brought(context, call, choice)
    plan = plan_for(context, call, choice)
    compiled_plan = None
    plain = not is_loaded(call) and (call.sink is None or call.sink.store is None)
    if queue is not None and comm._calls is not None and plain:
        compiled_plan = compiled_plan_for(context, call, plan, tag)
    if compiled_plan is not None:
        begins = request_factory(context, compiled_plan, threaded)
        comm._note(method, args, begins, call)
        return begins.begin(*addresses_of(call), call)
    execution = prepare(context, call, plan, tag, own_scratch=True)
    return request_of(Operation(context, execution, call, call.sink and call.sink.store,
                                threaded, queue))
