"""Base of all collectives of a communicator: its state, and the dispatch of calls.

    arguments --resolve--> Call --facts_of--> CallFacts --choose--> Choice --plan_for--> Plan
                                                                              --prepare--> Execution

Blocking, nonblocking and persistent methods share these steps, which :mod:`hpccoll.comm.uncached`
has, and differ in how they run the choice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI
from numpy import ndarray

from hpccoll.comm.cache import IN_PLACE, CallCache, is_usable, parts_of, plain
from hpccoll.comm.lifetime import Wrapper
from hpccoll.comm.methods import Method
from hpccoll.comm.recognition import note
from hpccoll.comm.waitall import extend_mpi4py
from hpccoll.config import ALWAYS, OFF
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from hpccoll.calls.call import Call
    from hpccoll.guard.setup import SetupCall
    from hpccoll.ir.topology import Topology
    from hpccoll.machine.discovery import Place
    from hpccoll.runtime.context import Context, LibraryProtocol
    from hpccoll.runtime.planning.choice import Choice
    from hpccoll.tune.device_rules import DevicePlace

#: Largest number of sets of user choices with cached calls.
MOST_WISHES = 128


class Base(Wrapper):
    """Communicator with its cache of calls."""

    # ``Dup`` and ``Clone`` create instances without ``__init__``, hence class defaults.
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
    #: Compiled reduction of Python numbers, once it is known to be available.
    _numbers: Any = None

    def __repr__(self) -> str:
        """Return the class, the name, this rank, the layout and the MPI library; sends nothing."""
        from hpccoll.machine.identity import library_name
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
        # Hot path: extra function calls and lookups would dominate small messages.
        try:
            sendbuf, recvbuf, extra = parts_of(method, args)
        except (TypeError, ValueError):
            return self._serve(method, args)  # which checks the arguments
        cache = self._cache
        if type(sendbuf) is ndarray and type(recvbuf) is ndarray:
            native = cache.get((method, extra, recvbuf.nbytes, recvbuf.dtype,
                                sendbuf.nbytes, sendbuf.dtype))
        elif type(recvbuf) is ndarray and (sendbuf is IN_PLACE or sendbuf is None):
            sendbuf = None
            native = cache.get((method, extra, recvbuf.nbytes, recvbuf.dtype))
        else:
            recvbuf, sendbuf, extra = plain(sendbuf, recvbuf, extra)
            if recvbuf is None:
                return self._serve(method, args)
            native = cache.get(
                (method, extra, recvbuf.nbytes, recvbuf.dtype) if sendbuf is None else
                (method, extra, recvbuf.nbytes, recvbuf.dtype, sendbuf.nbytes, sendbuf.dtype))
        if native is None or sendbuf is not None and (
                sendbuf is recvbuf or sendbuf.base is not None or recvbuf.base is not None
                ) and not is_usable(sendbuf, recvbuf):
            return self._serve(method, args)
        return native(self, *args)

    # -- uncached calls ----------------------------------------------------------------------
    def _serve(self, method: Method, args: tuple[Any, ...]) -> Any:
        """Run an uncached call."""
        raise NotImplementedError

    def _repeat(self, method: Method, args: tuple[Any, ...]) -> Any:
        """Make a call that is part of the running one, or replaces it; it is not observed."""
        # Without a context manager: it is on the path of every small call on device memory.
        call_guard, promised = self._check_alive().call_guard, self._device
        outer, thread = call_guard.outer_thread, call_guard.owner_thread
        # In this order, so that the guard admits no other thread in between.
        call_guard.outer_thread, call_guard.owner_thread, self._device = thread, 0, ""
        try:
            return getattr(self._unobserved_class(), method.title.capitalize())(self, *args)
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

    def _note(self, method: Method, args: tuple[Any, ...], target: Any, call: Call | None = None
              ) -> bool:
        """Store a call in the cache of the compiled executor; return True if it can be stored."""
        if self._calls is None:
            return False
        self._calls.guard(self._check_alive().call_guard)
        return note(self._calls, method, args, target, call)

    def _known_place(self) -> Place | None:
        """Return the layout of the ranks, if it has been discovered."""
        return self._context.place if self._context is not None else None

    def _unobserved_class(self) -> Any:
        """Return ``Comm``, whose calls no profile records."""
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

    def _private(self) -> Context:
        """Return this communicator's private context; the first call is collective."""
        if self._context is None or self._context.freed:
            from hpccoll.guard.opening import context_of
            from hpccoll.runtime.events.logger import log_communicator
            known, lifetime = existing_context(self), self._check_alive()
            with self._setup("set-up") if known is None else nullcontext():
                context = context_of(self, self._config, self._layout, lifetime.end,
                                     lifetime.call_guard)
                if known is None:
                    lifetime.forget_calls()  # from now on native calls are monitored
                    log_communicator(self, context.ranks)
            self._context = context
        return self._context

    def _setup(self, title: str, description: Description | None = None) -> SetupCall:
        """Return a monitor for a collective call without a guard, such as a creation.

        All ranks must have the same description, which has the title only if omitted.

        Raises:
            BrokenCommunicatorError: such a call has failed before.
        """
        from hpccoll.guard.setup import SetupCall
        lifetime = self._check_alive()
        if lifetime.raise_setup_failure is not None:
            lifetime.raise_setup_failure()
        lifetime.setups += 1
        return SetupCall(self, title, self._config, lifetime.setups, lifetime.end_setup,
                         description, lifetime.duplicates)

    def _known_library(self) -> LibraryProtocol | None:
        """Return the monitor of native requests; ``None`` before a call has created it.

        A nonblocking call must not wait for other ranks, but its creation would.
        """
        context = self._context or existing_context(self)
        return context.library if context is not None and self._guards else None

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
        self._private().guard.compare(description, title)

    def forget_calls(self) -> None:
        """Clear the cache of calls, so that the next call checks the communicator's lifetime."""
        self._cache.clear()
        self._caches.clear()
        self._numbers = None
