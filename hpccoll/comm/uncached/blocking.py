"""Uncached calls: their entry; blocking ones are checked, chosen, run, stored in the caches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.calls.call import Call, is_loaded
from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.calls.memory import any_staged, as_host_arrays, is_staged, stage_spec
from hpccoll.comm.cache import MOST_CALLS
from hpccoll.comm.devices import on_registered_memory, run_by_nccl, run_registered
from hpccoll.comm.first_calls import BARE, FIRST, needs_no_setup, precedes_setup
from hpccoll.comm.methods import Method
from hpccoll.comm.online import measure_first
from hpccoll.comm.preferences import check_preference, has_new_preference
from hpccoll.comm.promise import check_promise, is_queued_or_promised
from hpccoll.comm.recognition import note_any_size
from hpccoll.comm.reproducible_sums import is_served, sum_call
from hpccoll.comm.staged_calls import is_small, run_new, run_staged
from hpccoll.comm.uncached.conditions import (
    conditions_of,
    native_arguments,
    preference_of,
    record_choice,
    resolve_call,
)
from hpccoll.comm.uncached.nonblocking import begin
from hpccoll.comm.uncached.steps import (
    choose_algorithm,
    guarded_native,
    measurements_of,
    serve_arrays,
)
from hpccoll.config import ANY_P, NAN, NATIVE, RESULTS
from hpccoll.errors.uncaught import stack_level
from hpccoll.guard.data_checks import check_equal, check_finite, result_of
from hpccoll.ir.methods import BLOCKING
from hpccoll.runtime.events.logger import served_by
from hpccoll.runtime.execution.any_size import form_hash, native_at_any_size, plan_at_any_size
from hpccoll.runtime.execution.compiled import compiled_plan_for, run_plan
from hpccoll.runtime.execution.executor import drive
from hpccoll.runtime.planning.call_hash import describe_native
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.planner import plan_for, prepare, segment_rule
from hpccoll.runtime.planning.ready import proved_plan_for, ready_call
from hpccoll.tune.choose import range_of_choice

if TYPE_CHECKING:
    from hpccoll.comm.base import Base


def serve(comm: Base, method: Method, args: tuple[Any, ...]) -> Any:
    """Run an uncached blocking or nonblocking call."""
    with comm._check_alive().call_guard:
        check_promise(method, args, comm._device)
        arrays = as_host_arrays(args, len(method.buffers))
        if arrays:
            return serve_arrays(comm, method, arrays)
        if method.form != BLOCKING:
            return begin(comm, method, args)
        if not (comm._cache.staged and run_staged(comm, method, args)):
            run_blocking(comm, method, args)
        return None


def run_blocking(comm: Base, method: Method, args: tuple[Any, ...]) -> None:
    """Run a call; check its input for NaN, and its result for equality, if that is asked for."""
    if preference_of(comm, method)[0] is None and (
            precedes_setup(comm) or stays_without(comm)) and run_first(comm, method, args):
        return
    read: Callable[[], Call | None] = partial(resolve_call, comm, method, args)
    checks, first = comm._config.check, has_new_preference(comm, method)
    if not checks and not first:
        run_choice(comm, method, args, read)
        return
    call = read()
    if first:
        check_preference(comm, method, call)
    if NAN in checks and call is not None and facts_of(call).rounds:
        check_finite(comm._private(), call.source, method.name)
    run_choice(comm, method, args, lambda: call)
    if RESULTS in checks and (result := result_of(call)) is not None:
        check_equal(comm._private(), result, f"the result of {method.name}")


def run_choice(comm: Base, method: Method, args: tuple[Any, ...],
               read: Callable[[], Call | None]) -> None:
    """Choose an algorithm, and run it or the native method.

    ``read`` resolves the call, or returns it if it is resolved: no step of all ranks may come after
    an error of the arguments, which one rank may have.
    """
    tuned = measurements_of(comm)
    barred, (preference, gives_way) = "", preference_of(comm, method)
    if is_queued_or_promised(comm, method, preference):
        barred = run_by_nccl(comm, method, args, preference, gives_way)
        if not barred:
            return
    found, always = on_registered_memory(comm, method, args), comm._always
    call, registered = found or (read(), None)
    if call is None:
        record_choice(comm, method, None, None)
        if always:
            comm._compare(describe_native(None, method.name))
        _call_native(comm, method, args, guarded_native(comm, method, None))
        return
    if registered is None and is_small(call) and not (
            preference is not None and preference.is_queued):
        run_new(comm, method, args, call)
        return
    if comm._config.determinism == ANY_P and is_served(facts_of(call)):
        with comm._outside():
            sum_call(comm, call)
        return
    if tuned is not None:
        measure_first(comm, method, facts_of(call), tuned)
    facts, choice = choose_algorithm(comm, method, call, barred)
    record_choice(comm, method, call, choice)
    if always:
        comm._compare(describe_native(call, method.name)._replace(algorithm=str(choice.name)))
    if choice.is_native:
        native = guarded_native(comm, method, call)
        # With checksums hpccoll may run another call with the same signature.
        remembers = comm._remembers and not comm._config.checksums
        if remembers and comm._note(method, args, native):
            store_any_size(comm, method, args, facts, lambda nbytes: native_at_any_size(
                call, native, hash_of_form(comm, method, call), comm.Get_rank(), comm.Get_size(),
                nbytes))
        elif remembers:
            comm._cache.store(method, args, native)
        _call_native(comm, method, native_arguments(call, args), native)
    elif registered is None:
        run_algorithm(comm, method, args, call, choice)
    else:
        context = comm._private()
        plan = plan_for(context, ready_call(context, call, choice), choice)
        if not run_registered(context, registered, call, plan):
            run_algorithm(comm, method, args, resolve_call(comm, method, args) or call, choice)


def stays_without(comm: Base) -> bool:
    """Set the communicator up; return True if the MPI library has no communicator left for it.

    The library says so on all ranks.
    """
    lifetime = comm._check_usable()
    if not lifetime.bare and needs_no_setup(comm):
        try:
            comm._private()
        except MPI.Exception as error:
            lifetime.bare = True
            warnings.warn("hpccoll: the MPI library runs the calls of a communicator that "
                          f"cannot be set up: {error.Get_error_string()}; free communicators "
                          "that are not needed", RuntimeWarning, stacklevel=stack_level())
    return lifetime.bare


def run_first(comm: Base, method: Method, args: tuple[Any, ...]) -> bool:
    """Run a first call by the MPI library; return False if it cannot reduce the type."""
    call = resolve_call(comm, method, args)
    if call is not None and not facts_of(call).has_mpi_type:
        return False
    comm._check_alive().first_calls += 1
    record_choice(comm, method, call, Choice(
        NATIVE, reason=BARE if comm._check_alive().bare else FIRST))
    native = native_arguments(call, args)
    # Also without a contract: another rank may have one, or other settings.
    with comm._setup(method.name, describe_native(call, method.name).without_moved_type()):
        _call_native(comm, method, native, method.native)
    return True


def run_algorithm(comm: Base, method: Method, args: tuple[Any, ...], call: Call,
                  choice: Choice) -> None:
    """Run an algorithm: a compiled plan, which later calls use, or in the interpreter."""
    context = comm._private()
    call = ready_call(context, call, choice)
    plan = plan_for(context, call, choice)
    # Calls on temporary copies are not cached.
    compiled_plan = (compiled_plan_for(context, call, plan)
                     if comm._calls is not None and not is_loaded(call) else None)
    if compiled_plan is not None and comm._note(method, args, compiled_plan, call):
        store_any_size(comm, method, args, facts_of(call), lambda nbytes: plan_at_any_size(
            context, call, plan, partial(proved_plan_for, context, choice=choice), nbytes,
            segment_rule(context, call, choice)))
        run_plan(compiled_plan, call)
        return
    comm._served = f"{served_by(choice)}, in Python", call.nbytes
    execution = prepare(context, call, plan)
    try:
        drive(execution, context.timeouts)
    except BaseException as error:
        context.abandon(execution, error)
        raise
    if call.sink is not None and call.sink.store is not None:
        call.sink.store()


def store_any_size(comm: Base, method: Method, args: tuple[Any, ...], facts: CallFacts,
                   make: Callable[[tuple[int, int]], Any]) -> None:
    """Store a target for calls that differ from this one only in their sizes, if there are any.

    ``make`` returns it for a range of bytes, or ``None`` if there is no such target.
    """
    form, forms = (method, facts._replace(nbytes=0)), comm._cache.forms
    if form not in forms:  # only programs with several sizes need it
        if len(forms) >= MOST_CALLS:
            forms.clear()
        forms[form] = True
    elif forms[form] and comm._check_alive().observed is None and method.buffers:
        nbytes = range_of_choice(facts, conditions_of(comm, method), comm._known_place())
        target = make(nbytes) if nbytes is not None else None
        if target is not None:  # otherwise a block is empty, for example
            forms[form] = note_any_size(comm._calls, method, args, target)


def hash_of_form(comm: Base, method: Method, call: Call) -> int:
    """Return the call hash of the form of a native call."""
    context = comm._context
    return form_hash(context, describe_native(call, method.name)) if (
        context is not None and comm._guards) else 0


def _call_native(comm: MPI.Intracomm, method: Method, args: tuple[Any, ...],
                 native: Callable[..., Any]) -> None:
    """Call the native method, on host copies of device memory that it cannot reach."""
    if not any_staged(args):
        method.serve_native(comm, *args, native=native)
        return
    roles = method.row.roles
    if method.row.at_root and comm.Get_rank() != args[-1]:
        args = tuple(None if role == method.row.at_root else arg for role, arg in zip(roles, args))
    places = [stage_spec(arg, "buffer") if is_staged(arg) else (arg, None) for arg in args]
    method.serve_native(comm, *(arg for arg, _ in places), native=native)
    for role, (_, store) in zip(roles, places):
        if store is not None and (role == "r" or role == "b" and comm.Get_rank() != args[-1]):
            store()
