"""Base of all collectives of a communicator: its state, and the dispatch of calls.

    arguments --resolve--> Call --facts_of--> CallFacts --choose--> Choice --plan_for--> Plan
                                                                              --prepare--> Execution

Blocking, nonblocking and persistent methods share these steps and differ in how they run the
choice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Any, cast

from mpi4py import MPI
from numpy import ndarray

from hpccoll.calls.call import Call, is_staged, lacks_mpi_type
from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.calls.memory import any_staged, as_host_arrays
from hpccoll.calls.native import NativeOnly, native_form
from hpccoll.comm.cache import (
    IN_PLACE,
    CallCache,
    Location,
    Signature,
    address,
    is_usable,
    key_of,
    parts_of,
    plain,
)
from hpccoll.comm.lifetime import Lifetime
from hpccoll.comm.methods import Method
from hpccoll.comm.promise import check_promise
from hpccoll.comm.recognition import note
from hpccoll.comm.reproducible_sums import check_kept
from hpccoll.comm.staged_calls import with_copies
from hpccoll.comm.waitall import extend_mpi4py
from hpccoll.config import ALWAYS, ANY_P, OFF, Config
from hpccoll.errors import BufferArgumentError
from hpccoll.errors.mpi import DeadCommunicatorError, error_handler_of
from hpccoll.guard.guard import Guard
from hpccoll.guard.pending_calls import keep_buffers
from hpccoll.guard.setup import SetupCall
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place
from hpccoll.machine.identity import library_name
from hpccoll.runtime.context import Context, GuardProtocol, context_of
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.events.logger import log_choice, log_communicator, log_table, served_by
from hpccoll.runtime.execution.executor import run_prepared
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.progress.engine import can_progress
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.tune.choose import Conditions, before_setup, choose, decide, instead_of_native
from hpccoll.tune.determinism import check_served
from hpccoll.tune.device_rules import DevicePlace
from hpccoll.tune.loading import JobTimes, load
from hpccoll.ir.methods import BLOCKING, NONBLOCKING
from hpccoll.tune.table import Curves, Fingerprint

#: Largest number of sets of user choices with cached calls.
MOST_WISHES = 128
#: Reason to run an hpccoll algorithm for a call that rules leave to the MPI library.
CHECKSUMS = "hpccoll's messages have checksums, the MPI library's do not"


class Base(MPI.Intracomm):
    """Communicator with its cache of calls."""

    # ``Dup`` and ``Clone`` create instances without ``__init__``, hence class defaults.
    _config: Config
    _lifetime: Lifetime | None = None
    _context: Context | None = None
    _layout: Topology | None = None
    #: Promised memory of all ranks, ``cuda`` or empty for any; its data paths after the exchange.
    _device, _device_place = "", cast("DevicePlace | None", None)
    _preferences: dict[str, Choice] = {}
    #: Cache of calls for the current user choices, and the caches of all sets of choices.
    _cache: CallCache
    _caches: dict[Hashable, CallCache]
    #: Its part in the compiled executor; ``None`` without that executor.
    _calls: Any = None
    #: Algorithm of the last uncached call, and its bytes; the observer of calls removes it.
    _served: tuple[str, int | None] | None = None
    #: Record of its calls and the lookup of their kinds, if the program is observed.
    _record: Any = None
    _seen: Any = None
    #: Compiled reduction of Python numbers, once it is known to be available.
    _numbers: Any = None

    def __repr__(self) -> str:
        """Return the class, the name, this rank, the layout and the MPI library; sends nothing."""
        kind = f"hpccoll.{type(self).__name__}"
        if self == MPI.COMM_NULL or self._lifetime is None or self._lifetime.freed:
            return f"<{kind}: null, or freed>"
        context, name = existing_context(self), self.Get_name()
        layout = context.topology if context else self._layout
        return (f"<{kind}{f' {name!r}' if name else ''}: rank {self.Get_rank()} of "
                f"{self.Get_size()}, layout {layout or 'not looked at yet'}, {library_name()}>")

    # -- cached calls ------------------------------------------------------------------------
    def _call(self, method: Method, *args: Any) -> Any:
        """Run a call from the cache, or resolve it."""
        try:
            parts = parts_of(method, args)
        except (TypeError, ValueError):
            return self._serve(method, args)  # which checks the arguments
        serve = self._lookup(method, *parts)
        return None if serve is None else serve(self, *args)

    def _lookup(self, method: Method, sendbuf: Any, recvbuf: Any, extra: Hashable
                ) -> Callable[..., Any] | None:
        """Run a call from the cache, or return the function that can run it.

        Returns:
            ``None`` if the call has completed. Otherwise the native method or ``method.serve``, for
            the caller to call with this communicator and the arguments.
        """
        # Hot path: extra function calls and lookups would dominate small messages.
        cache = self._cache
        if type(sendbuf) is ndarray and type(recvbuf) is ndarray:
            served = cache.get((method, extra, recvbuf.nbytes, recvbuf.dtype,
                                sendbuf.nbytes, sendbuf.dtype))
        elif type(recvbuf) is ndarray and (sendbuf is IN_PLACE or sendbuf is None):
            sendbuf = None
            served = cache.get((method, extra, recvbuf.nbytes, recvbuf.dtype))
        else:
            recvbuf, sendbuf, extra = plain(sendbuf, recvbuf, extra)
            if recvbuf is None:
                return method.serve
            served = cache.get(
                (method, extra, recvbuf.nbytes, recvbuf.dtype) if sendbuf is None else
                (method, extra, recvbuf.nbytes, recvbuf.dtype, sendbuf.nbytes, sendbuf.dtype))
        if served is None:
            return method.serve
        if type(served) is not Signature:
            if sendbuf is not None and (
                    sendbuf is recvbuf or sendbuf.base is not None or recvbuf.base is not None
            ) and not is_usable(sendbuf, recvbuf):
                return method.serve
            return served
        try:
            # Arrays that are not contiguous raise here.
            location = served, address(recvbuf), None if sendbuf is None else address(sendbuf)
        except BufferError:
            return method.serve
        # A read-only array is an error unless it is this rank's input; the uncached path checks.
        if recvbuf.flags.writeable and self._run_kept(location):
            return None
        return method.serve

    def _run_kept(self, location: Location) -> bool:
        """Run the cached execution of a location; return True if there is one."""
        context = self._context
        execution = context.prepared.get(location) if context is not None else None
        if context is None or execution is None:
            return False
        with context.call_guard:
            try:
                run_prepared(execution, context.timeouts)
            except BaseException as error:
                context.abandon(execution, error)
                raise
        return True

    # -- uncached calls ----------------------------------------------------------------------
    def _serve(self, method: Method, args: tuple[Any, ...]) -> Any:
        """Run an uncached call."""
        with self._check_alive().call_guard:
            check_promise(method, args, self._device)
            arrays = as_host_arrays(args, method.buffers)
            if arrays:
                return self._serve_arrays(method, arrays)
            serve = self._serve_blocking if method.form == BLOCKING else self._begin
            return serve(method, args)

    def _serve_arrays(self, method: Method, arrays: tuple[Any, ...]) -> Any:
        """Make a call on the arrays over its buffers: it may be in the cache."""
        result = self._repeat(method, arrays)
        if self._seen is not None:  # it knows the buffers by their addresses, which are used again
            key, known = (method, key_of(method, arrays)[0]), self._cache.observed
            self._served = known[key] = self._served or known.get(key)
            self._seen.reported = True
        return result

    def _serve_blocking(self, method: Method, args: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def _begin(self, method: Method, args: tuple[Any, ...]) -> MPI.Request:
        raise NotImplementedError

    def _repeat(self, method: Method, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def _resolve(self, method: Method, args: tuple[Any, ...]) -> Call | None:
        """Check the arguments of a call; return ``None`` if only mpi4py supports it.

        Raises:
            HpccollError: an argument is wrong, or only the MPI library supports the call and a
                guarantee excludes it.
        """
        self._check_usable()
        try:
            with error_handler_of(self):
                return method.resolve(self.Get_size(), self.Get_rank(), *args)
        except NativeOnly:
            check_served(None, method.title, args, self._config.determinism)
            return None

    def _choose(self, method: Method, call: Call, barred: str = "") -> tuple[CallFacts, Choice]:
        """Choose the algorithm of a call; create the context if the choice needs it.

        All ranks create the context, or none. ``barred`` is the reason why NCCL does not run it.
        """
        facts, cache = facts_of(call), self._cache
        if self._config.determinism == ANY_P:
            check_kept(facts, method.form)
        choice = cache.choices.get((method, facts))
        if choice is None:
            conditions, size = self._conditions(method)._replace(barred=barred), self.Get_size()
            if method.form == NONBLOCKING and size > 1 and existing_context(self) is None:
                return facts, with_copies(self, method, call, facts, before_setup(
                    facts, conditions, is_staged(call)))
            choice = (choose(facts, conditions, self._known_place())
                      or decide(facts, conditions, self._private().place))
            if (self._config.checksums and choice.is_native and method.form == BLOCKING
                    and self.Get_size() > 1):
                choice = instead_of_native(facts, conditions, CHECKSUMS) or choice
            if choice.trial is None:
                cache.remember(method, facts, choice)
        return facts, with_copies(self, method, call, facts, choice)

    def _note(self, method: Method, args: tuple[Any, ...], target: Any, call: Call | None = None
              ) -> bool:
        """Store a call in the cache of the compiled executor; return True if it can be stored."""
        if self._calls is None:
            return False
        self._calls.guard(self._check_alive().call_guard)
        return note(self._calls, method, args, target, call)

    def _log_choice(self, method: Method, call: Call | None, choice: Choice | None) -> None:
        """Log the algorithm of an uncached call; ``None`` is the MPI library."""
        self._served = served_by(choice), call.nbytes if call is not None else None
        if self._seen is not None:
            self._seen.reported = True
        if self._lifetime is not None:
            log_choice(self, self._lifetime.logged, method.title, call, choice)

    def _known_place(self) -> Place | None:
        """Return the layout of the ranks, if it has been discovered."""
        return self._context.place if self._context is not None else None

    def _conditions(self, method: Method) -> Conditions:
        """Return the inputs of a choice for a method, except the call."""
        tuned, form = self._lifetime.tuned if self._lifetime else None, method.form
        return Conditions(self.Get_size(), *self._preference(method), tuned,
                          self._config.determinism, form,
                          form == BLOCKING or can_progress(self._config.progress),
                          device=self._device_place)

    def _preference(self, method: Method) -> tuple[Choice | None, bool]:
        """Return the user's choice for a method, and whether it comes from the environment."""
        for name in method.names if self._preferences else ():
            if name in self._preferences:
                return _wish_by(name, method, self._preferences[name]), False
        asked = self._config.algorithm.get(method.collective)
        return _wish_by(method.collective, method, Choice(
            *asked, reason="HPCCOLL_ALGORITHM")) if asked else None, True

    def _measurements(self) -> JobTimes | None:
        """Return the measured times, if any; the first call of a communicator loads them.

        Collective, so it precedes all checks that can fail on some ranks only.
        """
        lifetime = self._check_usable()
        first = lifetime.tuned is None and self.Get_size() > 1
        # On the first call at every log level: the level may differ between ranks.
        guard = self._private().guard if first or self._guards else None
        if first:
            find = guard.watch_blocking(load) if guard is not None else load
            # Native methods: this call has already entered.
            lifetime.tuned = find(PrivateComm(self), self._config.tuning, self._private,
                                  self._probe)
            tuned = lifetime.tuned
            log_table(self, tuned.source, tuned.note, tuned.online)
        return lifetime.tuned

    def _probe(self, context: Context, machine: Fingerprint, path: str
               ) -> tuple[Curves, str, list[str]]:
        """Measure some candidates in this job."""
        raise NotImplementedError

    def _for_part(self, comm: MPI.Intracomm) -> Any:
        """Return a communicator for parts of this one's calls, with named algorithms."""
        raise NotImplementedError

    def _want(self, preferences: dict[str, Choice]) -> None:
        """Set the user's choices; each set of choices has its own cache of calls."""
        self._preferences = preferences
        if preferences:
            extend_mpi4py()
        if len(self._caches) > MOST_WISHES:
            self._caches.clear()
        self._cache = self._caches.setdefault(
            tuple((name, *choice.key) for name, choice in sorted(preferences.items())), CallCache())
        self._calls = self._cache.calls if self._calls is not None else None
        self._seen = None

    def _private(self) -> Context:
        """Return this communicator's private context; the first call is collective."""
        if self._context is None or self._context.freed:
            known = existing_context(self)
            with self._setup("set-up") if known is None or known.guard is None else nullcontext():
                context = context_of(self, self._config, self._layout)
                if context.guard is None:
                    guard = context.guard = context.service(Guard)
                    guard.on_failure = self._check_alive().end
                    context.call_guard = self._check_alive().call_guard
                    # From now on native calls are monitored.
                    self._check_alive().forget_calls()
                    log_communicator(self, context)
            self._context = context
        return self._context

    def _setup(self, title: str, description: Description | None = None) -> SetupCall:
        """Return a monitor for a collective call without a guard, such as a creation.

        All ranks must have the same description, which has the title only if omitted.

        Raises:
            BrokenCommunicatorError: such a call has failed before.
        """
        lifetime = self._check_alive()
        if lifetime.raise_setup_failure is not None:
            lifetime.raise_setup_failure()
        lifetime.setups += 1
        return SetupCall(self, title, self._config, lifetime.setups, lifetime.end_setup,
                         description, lifetime.duplicates)

    def _check_alive(self) -> Lifetime:
        """Return the communicator's lifetime.

        Raises:
            CommunicatorError: the communicator is null or freed.
        """
        lifetime = self._lifetime
        if lifetime is None and not MPI.Is_finalized() and self != MPI.COMM_NULL:
            # Dup and similar create instances before they have a handle: this is the first check.
            lifetime = self._lifetime = Lifetime.of(self)
        if lifetime is None or lifetime.freed:
            raise DeadCommunicatorError("MPI has been finalised" if MPI.Is_finalized() else
                                        "the communicator is null or was freed; "
                                        "make a new hpccoll.Comm")
        return lifetime

    def _check_usable(self) -> Lifetime:
        """Return the communicator's lifetime, if a collective can run on it.

        Raises:
            CommunicatorError: it is null or freed, or an earlier call failed.
        """
        lifetime = self._check_alive()
        if lifetime.raise_failure is not None:
            lifetime.raise_failure()
        return lifetime

    def _guard_native(self, method: Method, call: Call | None) -> Callable[..., Any]:
        """Return the native method, with a guard if native calls are monitored."""
        guard = self._private().guard if self._guards else None
        return guard.native(method.native, method.name, call) if guard else method.native

    def _begun_by(self, method: Method, call: Call | None) -> Callable[..., MPI.Request]:
        """Return the native nonblocking method, with a guard if native calls are monitored."""
        guard = self._known_guard()
        if guard is None:
            return keep_buffers(method.native)
        return guard.watch_nonblocking(method.native, method.name, call)

    def _known_guard(self) -> GuardProtocol | None:
        """Return the guard of native requests; ``None`` before a call has created it.

        A nonblocking call must not wait for other ranks, but creating the guard would.
        """
        context = self._context or existing_context(self)
        return context.guard if context is not None and self._guards else None

    @property
    def _guards(self) -> bool:
        """Return True if native calls are monitored."""
        return self._config.contract != OFF and self.Get_size() > 1

    @property
    def _always(self) -> bool:
        """Return True if every call is compared between the ranks before it starts."""
        # ``Dup`` and similar create instances before they have a handle.
        return self._config.contract == ALWAYS and (self == MPI.COMM_NULL or self.Get_size() > 1)

    @property
    def _remembers(self) -> bool:
        """Return True if the cache of calls may be used."""
        return not self._always and not self._config.check

    def _compare(self, description: Description | None, title: str = "") -> None:
        """Raise a ``ContractError`` unless all ranks are about to make the same call.

        Args:
            description: the call; ``None`` if only mpi4py can interpret its arguments.
            title: name of the call, for messages; the collective if omitted.
        """
        guard = self._private().guard
        if guard is not None:
            guard.compare(description, title)

    def forget_calls(self) -> None:
        """Clear the cache of calls, so that the next call checks the communicator's lifetime."""
        self._cache.clear()
        self._caches.clear()
        self._numbers = None


def _wish_by(name: str, method: Method, preference: Choice) -> Choice | None:
    """Return the user's choice under a name, or None.

    ``auto`` counts for the method itself, but not for all forms of a collective.
    """
    return None if preference.is_auto and name != method.title else preference


def native_arguments(call: Call | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments in the form of the MPI library."""
    return args if call is None or not lacks_mpi_type(call) else tuple(map(native_form, args))


def reject_staged(method: Method, args: tuple[Any, ...]) -> None:
    """Raise an error for device memory that the MPI library cannot move.

    Raises:
        BufferArgumentError: device memory; the message advises to let hpccoll run the collective.
    """
    if any_staged(args):
        raise BufferArgumentError("buffer", "is device memory, which this MPI library does not "
                                            "support",
                                  f"choose an algorithm, as in comm.using({method.name}=...)")
