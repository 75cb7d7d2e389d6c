"""Choice of an algorithm for an uncached call, and guards of the native method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.calls.call import Call, is_staged
from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.comm.cache import key_of
from hpccoll.comm.methods import Method
from hpccoll.comm.online import measure_after, probe, start
from hpccoll.comm.reproducible_sums import check_kept
from hpccoll.comm.staged_calls import with_copies
from hpccoll.comm.uncached.conditions import conditions_of
from hpccoll.config import ANY_P
from hpccoll.guard.pending_calls import keep_buffers
from hpccoll.ir.methods import BLOCKING, NONBLOCKING
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.events.logger import log_table
from hpccoll.runtime.planning.choice import Choice
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.tune.choose import before_setup, choose, decide, instead_of_native
from hpccoll.tune.loading import JobTimes, load

if TYPE_CHECKING:
    from hpccoll.comm.base import Base

#: Reason to run an hpccoll algorithm for a call that rules leave to the MPI library.
CHECKSUMS = "hpccoll's messages have checksums, the MPI library's do not"


def serve_arrays(comm: Base, method: Method, arrays: tuple[Any, ...]) -> Any:
    """Make a call on the arrays over its buffers: it may be in the cache."""
    result = comm._repeat(method, arrays)
    if comm._check_alive().observed is not None:  # it knows the buffers by type only
        key, known = (method, key_of(method, arrays)), comm._cache.observed
        comm._served = known[key] = comm._served or known.get(key)
    return result


def choose_algorithm(comm: Base, method: Method, call: Call, barred: str = ""
                     ) -> tuple[CallFacts, Choice]:
    """Choose the algorithm of a call; create the context if the choice needs it.

    All ranks create the context, or none. ``barred`` is the reason why NCCL does not run it.
    """
    facts, cache = facts_of(call), comm._cache
    if comm._config.determinism == ANY_P:
        check_kept(facts, method.form)
    choice = cache.choices.get((method, facts))
    if choice is None:
        conditions, size = conditions_of(comm, method)._replace(barred=barred), comm.Get_size()
        if method.form == NONBLOCKING and size > 1 and existing_context(comm) is None:
            return facts, with_copies(comm, method, call, facts, before_setup(
                facts, conditions, is_staged(call)))
        choice = (choose(facts, conditions, comm._known_place())
                  or decide(facts, conditions, comm._private().place))
        if (comm._config.checksums and choice.is_native and method.form == BLOCKING
                and comm.Get_size() > 1):
            choice = instead_of_native(facts, conditions, CHECKSUMS) or choice
        cache.remember(method, facts, choice)
    return facts, with_copies(comm, method, call, facts, choice)


def measurements_of(comm: Base) -> JobTimes | None:
    """Return the measured times, if any; the first call of a communicator loads them.

    Collective, so it precedes all checks that can fail on some ranks only.
    """
    lifetime = comm._check_usable()
    first = lifetime.tuned is None and comm.Get_size() > 1
    # On the first call at every log level: the level may differ between ranks.
    if first or comm._guards:
        comm._private()
    if first:
        find = comm._private().library.watch_blocking(load)
        # Native methods: this call has already entered.
        lifetime.tuned = find(PrivateComm(comm), comm._config.tuning, comm._private,
                              partial(probe, comm._unobserved_class()))
        tuned = lifetime.tuned
        log_table(comm, tuned.source, tuned.note, tuned.online)
        start(comm, comm._private(), tuned)
    return lifetime.tuned


def guarded_native(comm: Base, method: Method, call: Call | None) -> Callable[..., Any]:
    """Return the native method, with a guard if native calls are monitored."""
    return comm._private().library.method(
        method.native, method.name, call,
        partial(measure_after, method)) if comm._guards else method.native


def guarded_begin(comm: Base, method: Method, call: Call | None) -> Callable[..., MPI.Request]:
    """Return the native nonblocking method, with a guard if native calls are monitored."""
    library = comm._known_library()
    if library is None:
        return keep_buffers(method.native)
    return library.watch_nonblocking(method.native, method.name, call)
