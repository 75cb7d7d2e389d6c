"""Blocking upper-case collectives of mpi4py.

Every method has mpi4py's name, parameters and meaning. Arguments are checked before any message is
sent. Calls that hpccoll does not run go to the native method unchanged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from mpi4py import MPI
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

from hpccoll.calls.call import Call, is_loaded
from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.calls.memory import any_staged, is_staged, stage_spec
from hpccoll.comm.base import Base, native_arguments
from hpccoll.comm.cache import MOST_SIGNATURES, Location, Signature
from hpccoll.comm.devices import on_registered_memory, run_by_nccl, run_registered
from hpccoll.comm.methods import (
    ALLGATHER,
    ALLGATHERV,
    ALLREDUCE,
    ALLTOALL,
    ALLTOALLV,
    ALLTOALLW,
    BARRIER,
    BCAST,
    EXSCAN,
    GATHER,
    GATHERV,
    REDUCE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_BLOCK,
    SCAN,
    SCATTER,
    SCATTERV,
    Method,
)
from hpccoll.comm.nonblocking import NonblockingMixin
from hpccoll.comm.preferences import check_preference
from hpccoll.comm.promise import is_queued_or_promised
from hpccoll.comm.recognition import note_any_size, recognise_calls
from hpccoll.comm.reproducible_sums import is_served, sum_call
from hpccoll.comm.staged_calls import is_small, run_new, run_staged
from hpccoll.config import ALWAYS, ANY_P, NAN, NATIVE, NONE, RESULTS
from hpccoll.guard.data_checks import check_equal, check_finite, result_of
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.events.logger import served_by
from hpccoll.runtime.execution.any_size import form_hash, native_at_any_size, plan_at_any_size
from hpccoll.runtime.execution.compiled import compiled_plan_for, run_plan
from hpccoll.runtime.execution.executor import drive
from hpccoll.runtime.planning.call_hash import describe_native
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.planner import longest_whole, plan_for, prepare, with_counts
from hpccoll.runtime.progress.waiting import progress_once
from hpccoll.tune.choose import range_of_choice, trial_of
from hpccoll.tune.online import Trial
from hpccoll.ir.methods import BLOCKING

#: Reasons of the choice of calls without set-up.
FIRST = "the first call of a communicator; the second one sets it up"
BARE = "the library has no communicator left for the set-up of this one"


class BlockingMixin(Base):
    """Implements the 17 blocking collectives.

    Each looks the call up in the cache of the compiled executor (:mod:`hpccoll.comm.recognition`),
    then in the Python cache (:meth:`Base._call`), and otherwise resolves it
    (:meth:`_serve_blocking`).
    """

    @recognise_calls
    def Barrier(self) -> None:
        """Wait until every rank has entered the barrier."""
        served = self._cache.get(BARRIER)
        if served is not None and type(served) is not Signature:
            served(self)
            return
        if served is None or not self._run_kept((served, None, None)):
            self._serve(BARRIER, ())
        progress_once()  # a compiled plan of a barrier ends with it, too

    @recognise_calls
    def Bcast(self, buf: BufSpec, root: int = 0) -> None:
        """Send the root's buffer to every rank."""
        self._call(BCAST, buf, root)

    @recognise_calls
    def Reduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: MPI.Op = MPI.SUM,
               root: int = 0) -> None:
        """Combine every rank's buffer at the root."""
        self._call(REDUCE, sendbuf, recvbuf, op, root)

    @recognise_calls
    def Allreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer on every rank."""
        self._call(ALLREDUCE, sendbuf, recvbuf, op)

    @recognise_calls
    def Scan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of ranks 0 to this one."""
        self._call(SCAN, sendbuf, recvbuf, op)

    @recognise_calls
    def Exscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> None:
        """Combine the buffers of the ranks before this one; rank 0 gets nothing."""
        self._call(EXSCAN, sendbuf, recvbuf, op)

    @recognise_calls
    def Reduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB,
                             op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give each rank one of p equal blocks."""
        self._call(REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op)

    @recognise_calls
    def Reduce_scatter(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec,
                       recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM) -> None:
        """Combine every rank's buffer and give rank i a block of ``recvcounts[i]`` elements."""
        self._call(REDUCE_SCATTER, sendbuf, recvbuf, recvcounts, op)

    @recognise_calls
    def Allgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> None:
        """Collect one equal block from every rank on every rank."""
        self._call(ALLGATHER, sendbuf, recvbuf)

    @recognise_calls
    def Allgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> None:
        """Collect one block of any size from every rank on every rank."""
        self._call(ALLGATHERV, sendbuf, recvbuf)

    @recognise_calls
    def Gather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> None:
        """Collect one equal block from every rank at the root."""
        self._call(GATHER, sendbuf, recvbuf, root)

    @recognise_calls
    def Gatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> None:
        """Collect one block of any size from every rank at the root."""
        self._call(GATHERV, sendbuf, recvbuf, root)

    @recognise_calls
    def Scatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Distribute the root's buffer in equal blocks."""
        self._call(SCATTER, sendbuf, recvbuf, root)

    @recognise_calls
    def Scatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Distribute the root's buffer in blocks of any size."""
        self._call(SCATTERV, sendbuf, recvbuf, root)

    @recognise_calls
    def Alltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> None:
        """Send one equal block from every rank to every rank."""
        self._call(ALLTOALL, sendbuf, recvbuf)

    @recognise_calls
    def Alltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> None:
        """Send one block of any size from every rank to every rank."""
        self._call(ALLTOALLV, sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> None:
        """Send one block of any size and type from every rank to every rank."""
        self._call(ALLTOALLW, sendbuf, recvbuf)

    # -- implementation ----------------------------------------------------------------------
    def _serve_blocking(self, method: Method, args: tuple[Any, ...]) -> None:
        """Run an uncached call; check its input for NaN, or its result for equality."""
        if self._cache.staged and run_staged(self, method, args):
            return
        checks = self._config.check
        if not checks:
            self._serve_unchecked(method, args)
            return
        call = self._resolve(method, args)
        if NAN in checks and call is not None and facts_of(call).rounds:
            check_finite(self._private(), call.source, method.name)
        self._serve_unchecked(method, args)
        if RESULTS in checks and (result := result_of(call)) is not None:
            check_equal(self._private(), result, f"the result of {method.name}")

    def _serve_unchecked(self, method: Method, args: tuple[Any, ...]) -> None:
        """Check the arguments, choose an algorithm, and run it or the native method."""
        if self._preference(method)[0] is None and (
                self._postpones or self._stays_without()) and self._run_first(method, args):
            return
        check_preference(self, method, args)
        tuned = self._measurements()
        barred, (preference, gives_way) = "", self._preference(method)
        if is_queued_or_promised(self, method, preference):
            barred = run_by_nccl(self, method, args, preference, gives_way)
            if not barred:
                return
        found, always = on_registered_memory(self, method, args), self._always
        call, registered = found or (self._resolve(method, args), None)
        if call is None:
            self._log_choice(method, None, None)
            if always:
                self._compare(describe_native(None, method.name))
            _call_native(self, method, args, self._guard_native(method, None))
            return
        if registered is None and is_small(call) and not (
                preference is not None and preference.is_queued):
            run_new(self, method, args, call)
            return
        if self._config.determinism == ANY_P and is_served(facts_of(call)):
            with self._outside():
                sum_call(self, call)
            return
        facts, choice = self._choose(method, call, barred)
        self._log_choice(method, call, choice)
        if always:
            self._compare(describe_native(call, method.name)._replace(algorithm=str(choice.name)))
        trial = None
        if choice.trial is not None and tuned is not None:
            trial = trial_of(facts, self._conditions(method), tuned)
        if trial is not None and tuned is not None and choice.trial is not None:
            self._try(tuned.trials.setdefault(choice.trial, trial), method, args)
        elif choice.is_native:
            native = self._guard_native(method, call)
            # With checksums hpccoll may run another call with the same signature.
            remembers = self._remembers and not self._config.checksums
            if remembers and self._note(method, args, native):
                self._note_any_size(method, args, facts, lambda nbytes: native_at_any_size(
                    call, native, self._form_hash(method, call), self.Get_rank(), self.Get_size(),
                    nbytes))
            elif remembers:
                self._cache.store(method, args, native)
            _call_native(self, method, native_arguments(call, args), native)
        elif registered is None:
            self._run(method, args, call, choice)
        else:
            context = self._private()
            plan = plan_for(context, with_counts(context, call, choice), choice)
            if not run_registered(context, registered, call, plan):
                self._run(method, args, self._resolve(method, args) or call, choice)

    @property
    def _postpones(self) -> bool:
        """Return True if the next blocking call may precede set-up; the same on all ranks.

        Set-up takes memory and time, and many communicators are used once. So the MPI library runs
        the first call, if nothing is requested that it cannot do. ``COMM_WORLD`` is set up by its
        first call: there is one, and its requests are monitored from then on.
        """
        lifetime = self._lifetime
        used = lifetime is not None and (lifetime.used or lifetime.freed)
        return not used and self != MPI.COMM_WORLD and self._needs_no_setup

    @property
    def _needs_no_setup(self) -> bool:
        """Return True if the communicator is not set up, and no option requires that."""
        config = self._config
        return (existing_context(self) is None and self.Get_size() > 1 and self._layout is None
                and config.determinism == NONE and not config.checksums
                and config.contract != ALWAYS and not config.check and not self._device)

    def _stays_without(self) -> bool:
        """Set the communicator up; return True if the MPI library has no communicator left for it.

        The library says so on all ranks.
        """
        lifetime = self._check_usable()
        if not lifetime.bare and self._needs_no_setup:
            try:
                self._private()
            except MPI.Exception as error:
                lifetime.bare = True
                warnings.warn("hpccoll: the MPI library runs the calls of a communicator that "
                              f"cannot be set up: {error.Get_error_string()}; free communicators "
                              "that are not needed", RuntimeWarning, stacklevel=6)
        return lifetime.bare

    def _run_first(self, method: Method, args: tuple[Any, ...]) -> bool:
        """Run the first call by the MPI library; return False if it cannot reduce the type."""
        call = self._resolve(method, args)
        if call is not None and not facts_of(call).has_mpi_type:
            return False
        self._check_alive().used = True
        self._log_choice(method, call, Choice(
            NATIVE, reason=BARE if self._check_alive().bare else FIRST))
        native = native_arguments(call, args)
        # Also without a contract: another rank may have one, or other settings.
        with self._setup(method.name, describe_native(call, method.name).without_moved_type()):
            _call_native(self, method, native, method.native)
        return True

    def _run(self, method: Method, args: tuple[Any, ...], call: Call, choice: Choice) -> None:
        """Run an algorithm; prepare it if the call repeats on the same memory."""
        context = self._private()
        call = with_counts(context, call, choice)
        plan = plan_for(context, call, choice)
        # Calls on temporary copies are not cached.
        plain = not is_loaded(call)
        compiled_plan = compiled_plan_for(context, call,
                                          plan) if plain and self._calls is not None else None
        # The Python cache is faster for calls that the compiled executor does not cache.
        if (compiled_plan is not None and not compiled_plan.should_fall_back()
                and self._note(method, args, compiled_plan, call)):
            self._served = f"{served_by(choice)}, compiled", call.nbytes
            self._note_any_size(method, args, facts_of(call), lambda nbytes: plan_at_any_size(
                context, call, plan, partial(plan_for, context, choice=choice), nbytes,
                longest_whole(context, call, choice)))
            run_plan(compiled_plan, call)
            return
        location: Location | None = None
        if plain and self._remembers:
            location = self._cache.store(method, args, Signature())
        known = location is not None and location in context.seen
        execution = prepare(context, call, plan, repeated=known)
        try:
            drive(execution, context.timeouts)
        except BaseException as error:
            context.abandon(execution, error)
            raise
        if known and execution.repeated:
            context.prepared.keep(location, execution)
        elif location is not None:
            context.seen.keep(location, True)
        if call.sink is not None and call.sink.store is not None:
            call.sink.store()

    def _note_any_size(self, method: Method, args: tuple[Any, ...], facts: CallFacts,
                       make: Callable[[tuple[int, int]], Any]) -> None:
        """Store a target for calls that differ from this one only in their sizes, if there are any.

        ``make`` returns it for a range of bytes, or ``None`` if there is no such target.
        """
        form, forms = (method, facts._replace(nbytes=0)), self._cache.forms
        if form not in forms:  # only programs with several sizes need it
            if len(forms) >= MOST_SIGNATURES:
                forms.clear()
            forms[form] = True
        elif forms[form] and self._record is None and method is not BARRIER:
            nbytes = range_of_choice(facts, self._conditions(method), self._known_place())
            target = make(nbytes) if nbytes is not None else None
            if target is not None:  # otherwise a block is empty, for example
                forms[form] = note_any_size(self._calls, method, args, target)

    def _form_hash(self, method: Method, call: Call) -> int:
        """Return the call hash of the form of a native call."""
        context = self._context
        return form_hash(context, describe_native(call, method.name)) if (
            context is not None and self._guards) else 0

    def _try(self, trial: Trial, method: Method, args: tuple[Any, ...]) -> None:
        """Run the call with the next candidate of a trial, as if the user had chosen it."""
        context, preferences = self._private(), self._preferences
        self._want({**preferences, method.name: Choice(trial.candidate.name)})
        try:
            trial.run(context.comm, context.timeouts, lambda: self._repeat(method, args))
        finally:
            self._want(preferences)

    def _repeat(self, method: Method, args: tuple[Any, ...]) -> Any:
        """Make a call that is part of the running one, or replaces it."""
        # Without a context manager: it is on the path of every small call on device memory.
        call_guard, promised = self._check_alive().call_guard, self._device
        outer, thread = call_guard.outer_thread, call_guard.owner_thread
        # In this order, so that the guard admits no other thread in between.
        call_guard.outer_thread, call_guard.owner_thread, self._device = thread, 0, ""
        try:
            owner = BlockingMixin if method.form == BLOCKING else NonblockingMixin
            return getattr(owner, method.title.capitalize())(self, *args)
        finally:
            call_guard.owner_thread, call_guard.outer_thread, self._device = (
                thread, outer, promised)

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Make the call guard admit calls of this thread that are part of this one."""
        call_guard = self._check_alive().call_guard
        outer, thread = call_guard.outer_thread, call_guard.owner_thread
        call_guard.outer_thread, call_guard.owner_thread = thread, 0
        try:
            yield
        finally:
            call_guard.owner_thread, call_guard.outer_thread = thread, outer


#: Index of the buffer that only the root uses.
AT_ROOT = {"reduce": 1, "gather": 1, "gatherv": 1, "scatter": 0, "scatterv": 0}


def _call_native(comm: MPI.Intracomm, method: Method, args: tuple[Any, ...],
                 native: Callable[..., Any]) -> None:
    """Call the native method, on host copies of device memory that it cannot reach."""
    if not any_staged(args):
        method.serve_native(comm, *args, native=native)
        return
    written, unused = 0 if method.name == "bcast" else 1, AT_ROOT.get(method.name)
    if unused is not None and comm.Get_rank() != args[-1]:
        args = *args[:unused], None, *args[unused + 1:]
    places = [stage_spec(arg, "buffer") if is_staged(arg) else (arg, None) for arg in args]
    method.serve_native(comm, *(arg for arg, _ in places), native=native)
    store = places[written][1]
    if store is not None and (written or comm.Get_rank() != args[-1]):
        store()
