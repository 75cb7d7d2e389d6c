"""Creation of persistent requests: the user's algorithm, or the native method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
from mpi4py import MPI

from hpccoll.calls.call import Call, is_loaded
from hpccoll.calls.datatypes import with_own_datatypes
from hpccoll.calls.facts import CallFacts
from hpccoll.calls.memory import is_staged
from hpccoll.comm.methods import Method
from hpccoll.comm.preferences import check_preference, has_new_preference
from hpccoll.comm.promise import check_promise
from hpccoll.comm.requests import Prequest
from hpccoll.comm.uncached.conditions import (
    conditions_of,
    native_arguments,
    preference_of,
    record_choice,
    reject_staged,
    resolve_call,
)
from hpccoll.comm.uncached.steps import choose_algorithm
from hpccoll.config import THREAD
from hpccoll.guard.pending_calls import keep_prepared
from hpccoll.runtime.context import Context
from hpccoll.runtime.events.logger import served_by
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.execution.compiled import compiled_plan_for
from hpccoll.runtime.planning.call_hash import describe_native
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.planner import plan_for, prepare
from hpccoll.runtime.planning.ready import ready_call
from hpccoll.tune.choose import fallback

if BUILT:
    from hpccoll.runtime.execution.compiled_operations import CompiledOperation
if TYPE_CHECKING:
    from hpccoll.comm.base import Base


def create_request(comm: Base, method: Method, info: MPI.Info, args: tuple[Any, ...]
                   ) -> MPI.Prequest:
    """Check the arguments; prepare the user's algorithm or the native method."""
    check_promise(method, args, comm._device)
    call = resolve_call(comm, method, args)
    if has_new_preference(comm, method):
        check_preference(comm, method, call)
    choice = None
    if call is not None:
        facts, choice = choose_algorithm(comm, method, call)
        preference = preference_of(comm, method)[0]
        if (preference is not None and preference.is_auto and not choice.is_native
                and not comm._private().has_channels):
            # The measured times assume separate channels, which are allocated only once.
            choice = fallback(facts, conditions_of(comm, method))
    record_choice(comm, method, call, choice)
    if comm._guards:
        # MPI allows the creation of a request to wait for other ranks, but never its start.
        comm._compare(call and describe_native(call, method.title)._replace(
            collective=method.title, algorithm=served_by(choice)), method.title)
    if call is None or choice is None or choice.is_native:
        reject_staged(method, args)
        request = method.serve_native(comm, *native_arguments(call, args), info=info)
        library = comm._known_library()
        return (library.watch_persistent(request, args, method.name) if library
                else keep_prepared(request, args))
    one = call.sink or call.source
    if not is_loaded(call) and (one is None or one.namespace is numpy) and not any(
            map(is_staged, args)):
        return request_on_memory(comm, call, facts, choice)
    # Every start must copy its input again, or wait again for the work of its device.
    datatypes: list[MPI.Datatype] = []
    args = tuple(with_own_datatypes(arg, datatypes) for arg in args)
    return request_on_copies(comm, call, choice, partial(resolve_call, comm, method, args),
                             datatypes)


def request_on_memory(comm: Base, call: Call, facts: CallFacts, choice: Choice) -> Prequest:
    """Return the request of a call whose messages use its memory directly."""
    context, threaded = comm._private(), comm._config.progress == THREAD
    tag, call = context.persistent_tag(), ready_call(context, call, choice)
    plan = plan_for(context, call, choice.in_segments(context.request_segment(facts, tag)))
    compiled_plan = (compiled_plan_for(context, call, plan, tag, False)
                     if comm._calls is not None else None)
    if compiled_plan is not None:
        started = CompiledOperation(context, compiled_plan, call, None, threaded)
        return Prequest(context, lambda: (), free_with_tag(context, tag, started.free),
                        started)
    execution = prepare(context, call, plan, tag, repeated=True, own_scratch=True)
    return Prequest(context, lambda: (execution, call, None, threaded),
                    free_with_tag(context, tag, execution.free))


def request_on_copies(comm: Base, call: Call, choice: Choice, again: Callable[[], Call | None],
                     datatypes: list[MPI.Datatype]) -> Prequest:
    """Return the request of a call on copies; ``again`` resolves the call at every start.

    ``datatypes`` were created for the call, and are freed with the request.
    """
    context, threaded = comm._private(), comm._config.progress == THREAD
    plan, tag = plan_for(context, ready_call(context, call, choice), choice), (
        context.persistent_tag())

    def fresh() -> tuple[Any, ...]:
        new = again() or call
        return (prepare(context, new, plan, tag, own_scratch=True), new,
                new.sink and new.sink.store, threaded)

    return Prequest(context, fresh, free_with_tag(context, tag, partial(_free, datatypes)))


def _free(datatypes: list[MPI.Datatype]) -> None:
    for datatype in datatypes:
        datatype.Free()


def free_with_tag(context: Context, tag: int, free: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that frees a request's resources and its tag."""
    def free_all() -> None:
        free()
        context.release_tag(tag)
    return free_all
