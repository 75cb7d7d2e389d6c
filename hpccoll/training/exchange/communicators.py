"""Communicators of an exchange: duplicates, separate from the user's messages."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

import hpccoll
from hpccoll.errors import ExchangeMismatch
from hpccoll.errors.agreement import NOTHING, compare
from hpccoll.training.arguments import private_copy
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.exchange.settings import ExchangeSettings


class ExchangeCommunicators:
    """One communicator for each purpose; creating and freeing them is collective.

    An MPI communicator becomes an ``hpccoll.Comm``. ``control``, ``gates`` and ``votes`` are for
    notices, step barriers and negotiation; ``settings`` have the defaults for the machine.
    """

    def __init__(self, comm: Any, settings: ExchangeSettings, specs: tuple[ArraySpec, ...]):
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        plain = MPI.Intracomm(comm) if isinstance(comm, MPI.Comm) else comm
        check_agreement(plain, settings, specs)
        node_comm = plain.Split_type(MPI.COMM_TYPE_SHARED)
        self.settings = settings.resolve_defaults(node_comm.Get_size() == self.size)
        node_comm.Free()
        self.control, self.gates, self.votes = (private_copy(plain) for _ in range(3))
        self.data_comms = [_data_comm(comm, plain) for _ in range(self.settings.lanes)]
        self._preferences: list[Any] = []
        self.choose(self.settings.algorithm)

    def choose(self, algorithm: str) -> None:
        """Set the algorithm of allreduces on all data communicators."""
        for preference in self._preferences:
            preference.__exit__(None, None, None)
        # Nonblocking transfers are native by default: hpccoll's algorithms progress only when the
        # sleeping thread polls, which is too seldom for many messages over a link.
        preferences = {} if algorithm == "auto" else {"allreduce": algorithm}
        self._preferences = [data.using(**preferences) for data in self.data_comms]
        for preference in self._preferences:
            preference.__enter__()

    def free(self) -> None:
        """Free all communicators; collective."""
        for comm in (*self.data_comms, self.votes, self.gates, self.control):
            comm.Free()


def _data_comm(comm: Any, plain: Any) -> Any:
    copy = private_copy(plain)
    if isinstance(comm, hpccoll.Comm):
        # No progress thread of its own: it would compete with the engine's thread.
        copy = hpccoll.Comm(copy, layout=comm.layout, determinism=comm.determinism,
                            progress="calls", timeout=comm.timeout)
    elif isinstance(comm, MPI.Comm):
        copy = hpccoll.Comm(copy, progress="calls")
    if isinstance(copy, hpccoll.Comm):
        # Detect the layout now: later, in the engine's thread, its communicators could be created
        # concurrently with those of other threads.
        copy.layout  # noqa: B018
    return copy


def check_agreement(comm: Any, settings: ExchangeSettings, specs: tuple[ArraySpec, ...]) -> None:
    """Raise an error on all ranks unless all have the same settings and arrays; collective."""
    difference = compare(comm, [settings.text(), *map(str, specs)])
    if difference is not None:
        name = next(value for value in difference.values if value != NOTHING).rpartition(" of ")[0]
        what, names = (f"array '{name}'", (name,)) if difference.place else ("settings", ())
        raise ExchangeMismatch(
            f"{what} differ{'s' * bool(names)} between ranks: {difference}; create the exchange "
            "with the same arrays and settings on all ranks", names, difference.ranks)
