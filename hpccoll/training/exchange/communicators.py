"""Communicators of an exchange: duplicates, separate from the user's messages."""

from __future__ import annotations

import zlib
from dataclasses import astuple
from typing import Any

import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ExchangeMismatch
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.exchange.settings import ExchangeSettings


class ExchangeCommunicators:
    """One communicator for each purpose; creating and freeing them is collective.

    Args:
        comm: any communicator; an MPI communicator becomes an ``hpccoll.Comm``.
        settings: settings; compared between all ranks, like the specifications.
        specs: the declared arrays.

    Attributes:
        settings: settings with defaults for the machine.
        data_comms: communicators for data.
        control, gates, votes: communicators for notices, step barriers and negotiation.

    Raises:
        ExchangeMismatch: settings or arrays differ; the message names them and the ranks.
    """

    def __init__(self, comm: Any, settings: ExchangeSettings, specs: tuple[ArraySpec, ...]):
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        plain = MPI.Intracomm(comm) if isinstance(comm, MPI.Comm) else comm
        compare(plain, settings, specs)
        node_comm = plain.Split_type(MPI.COMM_TYPE_SHARED)
        self.settings = settings.resolve_defaults(node_comm.Get_size() == self.size)
        node_comm.Free()
        self.control, self.gates, self.votes = (_private_copy(plain) for _ in range(3))
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


def _private_copy(comm: Any) -> Any:
    # Unlike Dup, Split copies no attributes, which would call functions of the user.
    return comm.Split(0, comm.Get_rank())


def _data_comm(comm: Any, plain: Any) -> Any:
    copy = _private_copy(plain)
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


def compare(comm: Any, settings: ExchangeSettings, specs: tuple[ArraySpec, ...]) -> None:
    """Check that all ranks have the same settings and arrays; collective.

    Raises:
        ExchangeMismatch: the message names the first array and ranks that differ from rank 0.
    """
    mine = [settings.text(), *map(astuple, specs)]
    # Unlike hash(), a checksum is equal on all ranks; if they agree, one small call is enough.
    text = repr(mine).encode()
    number = zlib.crc32(text) << 31 ^ zlib.adler32(text)
    spread = numpy.array([number, -number], numpy.int64)
    both = numpy.empty(2, numpy.int64)
    comm.Allreduce(spread, both, MPI.MAX)
    if both[0] == -both[1]:
        return
    everyone = comm.allgather(mine)
    for place in range(max(map(len, everyone))):
        values: list[Any] = [each[place] if place < len(each) else None for each in everyone]
        odd = tuple(rank for rank, value in enumerate(values) if value != values[0])
        if odd:
            name = "" if not place else (values[0] or values[odd[0]])[0]
            what = f"array '{name}'" if place else "settings"
            raise ExchangeMismatch(
                f"{what} differ{'s' * bool(place)} between ranks: {_describe(values[0])} on "
                f"rank 0, {_describe(values[odd[0]])} on rank {odd[0]} "
                f"(ranks {', '.join(map(str, odd))} differ from rank 0); create the exchange with "
                "the same arrays and settings on all ranks",
                (name,) if place else (), odd)


def _describe(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return f"shape {value[1]} of {value[2]} as '{value[0]}'"
