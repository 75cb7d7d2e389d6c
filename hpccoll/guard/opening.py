"""Set-up of a communicator: its ranks, their guard, and the context of its calls.

    Ranks ---> Guard ---> LibraryCalls
      |          |             |
      +----------+---> Context +---> an attribute of the user's communicator
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn

from mpi4py import MPI

from hpccoll.config import Config
from hpccoll.errors import ArgumentError
from hpccoll.guard.flight_record import RECORDER
from hpccoll.guard.guard import Guard
from hpccoll.guard.library_calls import LibraryCalls
from hpccoll.ir.topology import Topology
from hpccoll.runtime.attributes import CONTEXTS, existing_context, keyval
from hpccoll.runtime.context import Context
from hpccoll.runtime.ranks import Ranks


def context_of(user: MPI.Intracomm, config: Config, topology: Topology | None,
               on_failure: Callable[[Callable[[], NoReturn]], None], call_guard: Any) -> Context:
    """Return the context of a communicator; the first call on it is collective.

    Args:
        user, config, topology: as for :class:`Ranks`.
        on_failure: called once, after a failure, with the function that rejects calls.
        call_guard: the lock that admits one thread at a time.

    Raises:
        ArgumentError: the layout has another number of ranks, or differs from the context's; a
            setting differs between ranks.
    """
    context = existing_context(user)
    if context is None:
        chosen = topology or config.topology
        if chosen is not None:
            chosen = Topology.parse(chosen, user.Get_size())
        ranks = Ranks(user, config, chosen)
        with ExitStack() as undo:
            undo.callback(ranks.free, keep_duplicate=False)
            guard = Guard(ranks, on_failure, RECORDER.write_record)
            if guard.compares_calls and ranks.size > 1:
                RECORDER.add(guard)
            context = Context(ranks, guard, LibraryCalls(guard), call_guard)
            CONTEXTS.add(context)
            user.Set_attr(keyval(), context)
            undo.pop_all()
    elif topology is not None and Topology.parse(topology, user.Get_size()) != context.topology:
        raise ArgumentError("layout", f"got {topology}, but this communicator already has "
                                      f"{context.topology}",
                            "pass it to the first hpccoll.Comm of a communicator, or use a Dup")
    return context
