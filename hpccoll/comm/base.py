"""What all collectives of a communicator share: its state, and the one way of a call.

    arguments --resolve--> Call --facts_of--> CallFacts --choose--> Choice --plan_for--> Plan
                                                                              --prepare--> Execution

Blocking, nonblocking and persistent methods are siblings: each serves a choice in a way of its
own, and what comes before is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.calls.call import Call, lacks_mpi_type
from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.calls.memory import is_staged
from hpccoll.calls.native import NativeOnly, native_form
from hpccoll.comm.cache import IN_PLACE, CallCache, Location, Signature, address, plain, usable
from hpccoll.comm.lifetime import Lifetime
from hpccoll.comm.methods import Method
from hpccoll.comm.recognition import note
from hpccoll.config import ALWAYS, Config
from hpccoll.errors import BufferArgumentError
from hpccoll.errors.mpi import DeadCommunicatorError
from hpccoll.guard.guard import Guard
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place
from hpccoll.runtime.choice import Choice
from hpccoll.runtime.context import Context, context_of
from hpccoll.runtime.description import Description
from hpccoll.runtime.executor import advance, finish_prepared, run_prepared
from hpccoll.runtime.progress import can_progress
from hpccoll.tune.choose import Conditions, choose, decide
from hpccoll.tune.determinism import check_served
from hpccoll.tune.loading import Tuned, load
from hpccoll.tune.rules import BLOCKING
from hpccoll.tune.table import Curves, Fingerprint

#: Sets of wishes whose calls are remembered.
MOST_WISHES = 128


class Base(MPI.Intracomm):
    """A communicator, and what it knows of its calls."""

    # ``Dup`` and ``Clone`` make instances without calling ``__init__``, hence class defaults.
    _config: Config
    _lifetime: Lifetime | None = None
    _context: Context | None = None
    _layout: Topology | None = None
    _wishes: dict[str, Choice] = {}
    #: What is known of calls under the present wishes, and under each set of wishes so far.
    _cache: CallCache
    _caches: dict[Hashable, CallCache]
    #: The part of it that the compiled executor looks into; ``None`` where that does not run.
    _calls: Any = None
    #: What combines numbers of Python in machine code, once that is known to be possible.
    _numbers: Any = None

    # -- calls like an earlier one -----------------------------------------------------------
    def _lookup(self, method: Method, sendbuf: Any, recvbuf: Any, extra: Hashable
                ) -> Callable[..., Any] | None:
        """Serve a call like an earlier one at once, or tell what is to serve it.

        Returns:
            ``None`` where the call has been served; else the MPI library's method, or
            ``method.serve``, to be called with this communicator and the arguments.
        """
        # The hot path: few helper functions, and nothing is looked at twice.
        cache, context = self._cache, self._context
        repeat = cache.repeats.get(id(recvbuf)) if cache.repeats else None
        if repeat is not None:
            known, others, same, execution = repeat
            if (known is method and others == extra and same(sendbuf, recvbuf)
                    and execution.program is not None and context is not None):
                try:
                    actions = iter(execution.program)
                    wait = advance(actions)
                    if wait is not None:
                        finish_prepared(execution, wait, actions, context.bounds)
                except BaseException as error:
                    context.abandon(execution, error)
                    raise
                return None
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
            ) and not usable(sendbuf, recvbuf):
                return method.serve
            return served
        try:
            # Only contiguous arrays have an address here.
            location = served, address(recvbuf), None if sendbuf is None else address(sendbuf)
        except BufferError:
            return method.serve
        # A read-only array is an error, unless it is this rank's input; the slow path tells.
        if recvbuf.flags.writeable and self._run_kept(location):
            return None
        return method.serve

    def _run_kept(self, location: Location) -> bool:
        """Run what was prepared for a signature at these addresses; tell whether there is such."""
        context = self._context
        execution = context.prepared.get(location) if context is not None else None
        if context is None or execution is None:
            return False
        try:
            run_prepared(execution, context.bounds)
        except BaseException as error:
            context.abandon(execution, error)
            raise
        return True

    # -- calls that are not ------------------------------------------------------------------
    def _serve(self, method: Method, args: tuple[Any, ...]) -> Any:
        """Serve a call that is not like an earlier one."""
        if method.form == BLOCKING:
            return self._serve_blocking(method, args)
        return self._begin(method, args)

    def _serve_blocking(self, method: Method, args: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def _begin(self, method: Method, args: tuple[Any, ...]) -> MPI.Request:
        raise NotImplementedError

    def _resolve(self, method: Method, args: tuple[Any, ...]) -> Call | None:
        """Check the arguments of a call; ``None`` when only mpi4py can serve it.

        Raises:
            HpccollError: an argument is wrong, or only the MPI library can serve the call and a
                promise excludes that.
        """
        self._check_usable()
        try:
            return method.resolve(self.Get_size(), self.Get_rank(), *args)
        except NativeOnly:
            check_served(None, method.title, args, self._config.determinism)
            return None

    def _choose(self, method: Method, call: Call) -> tuple[CallFacts, Choice]:
        """Choose for a call; may make the private communicator, on all ranks or on none."""
        facts, cache = facts_of(call), self._cache
        choice = cache.choices.get((method, facts))
        if choice is None:
            conditions = self._conditions(method)
            choice = (choose(facts, conditions, self._known_place())
                      or decide(facts, conditions, self._private().place))
            if choice.trial is None:
                cache.remember(method, facts, choice)
        return facts, choice

    def _note(self, method: Method, args: tuple[Any, ...], target: Any, call: Call | None = None
              ) -> bool:
        """Note who serves a call, for the compiled executor to recognise; tell whether it can."""
        return self._calls is not None and note(self._calls, method, args, target, call)

    def _known_place(self) -> Place | None:
        """Where the ranks are, if that has been found out."""
        return self._context.place if self._context is not None else None

    def _conditions(self, method: Method) -> Conditions:
        """What a choice for a method depends on beside the call."""
        wish, from_environment = self._wish(method)
        tuned = self._lifetime.tuned if self._lifetime else None
        return Conditions(self.Get_size(), wish, from_environment, tuned, self._config.determinism,
                          method.form,
                          method.form == BLOCKING or can_progress(self._config.progress))

    def _wish(self, method: Method) -> tuple[Choice | None, bool]:
        """What the user wants for a method, and whether the environment says so."""
        for name in method.names if self._wishes else ():
            if name in self._wishes:
                return _wish_by(name, method, self._wishes[name]), False
        asked = self._config.algorithm.get(method.collective)
        return _wish_by(method.collective, method, Choice(*asked)) if asked else None, True

    def _measurements(self) -> Tuned | None:
        """Measured times, if there are any; the first call of a communicator looks for them.

        Collective, so it comes before anything that only some ranks find wrong.
        """
        lifetime = self._check_usable()
        if lifetime.tuned is None and self.Get_size() > 1:
            lifetime.tuned = load(self, self._config.tuning, self._private, self._probe)
        return lifetime.tuned

    def _probe(self, context: Context, machine: Fingerprint, path: str
               ) -> tuple[Curves, str, list[str]]:
        """Measure a few candidates in this job."""
        raise NotImplementedError

    def _want(self, wishes: dict[str, Choice]) -> None:
        """Change the wishes; what was learnt under the same ones before is still known."""
        self._wishes = wishes
        if len(self._caches) > MOST_WISHES:
            self._caches.clear()
        self._cache = self._caches.setdefault(
            tuple((name, *choice.key) for name, choice in sorted(wishes.items())), CallCache())
        self._calls = self._cache.calls if self._calls is not None else None

    def _private(self) -> Context:
        """This communicator's private context; the first call is collective."""
        if self._context is None or self._context.freed:
            context = context_of(self, self._config, self._layout)
            if context.guard is None:
                guard = context.guard = context.service(Guard)
                guard.told = self._check_alive().end
            self._context = context
        return self._context

    def _check_alive(self) -> Lifetime:
        """The communicator's lifetime; raises a ``CommunicatorError`` unless it can be used."""
        lifetime = self._lifetime
        if lifetime is None and self != MPI.COMM_NULL:
            # Dup and its like make instances before they have a handle: this is the first look.
            lifetime = self._lifetime = Lifetime.of(self)
        if lifetime is None or lifetime.freed:
            raise DeadCommunicatorError("the communicator is null or was freed; "
                                        "make a new hpccoll.Comm")
        return lifetime

    def _check_usable(self) -> Lifetime:
        """The communicator's lifetime; raises unless a collective can run on it.

        Raises:
            CommunicatorError: it is null or freed, or an earlier call failed.
        """
        lifetime = self._check_alive()
        if lifetime.refuse is not None:
            lifetime.refuse()
        return lifetime

    @property
    def _always(self) -> bool:
        """Tell whether every call is compared between the ranks before it starts."""
        return self._config.contract == ALWAYS and self.Get_size() > 1

    def _compare(self, description: Description) -> None:
        """Raise a ``ContractError`` unless all ranks are about to make the same call."""
        guard = self._private().guard
        if guard is not None:
            guard.compare(description)

    def forget_calls(self) -> None:
        """Forget all calls, so that the next one looks whether the communicator still lives."""
        self._cache.clear()
        self._caches.clear()
        self._numbers = None


def _wish_by(name: str, method: Method, wish: Choice) -> Choice | None:
    """A wish under a name: 'auto' for all forms of a collective is none, for the method it is."""
    return None if wish.is_auto and name != method.title else wish


def native_arguments(call: Call | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as the MPI library wants them: one buffer given twice means in place."""
    if call is None:
        return args
    if call.in_place and args[0] is args[1]:
        args = MPI.IN_PLACE, *args[1:]
    return tuple(map(native_form, args)) if lacks_mpi_type(call) else args


def refuse_staged(method: Method, args: tuple[Any, ...]) -> None:
    """Raise for device memory that the MPI library would have to move and cannot.

    Raises:
        BufferArgumentError: the remedy is to let hpccoll run the collective.
    """
    if any(map(is_staged, args)):
        raise BufferArgumentError("buffer", "is device memory, and this MPI library cannot move it",
                                  f"choose an algorithm, as in comm.using({method.name}=...)")
