"""A choice: which algorithm is to serve a call, and why."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from hpccoll.algorithms import Algorithm, find
from hpccoll.algorithms.table import is_ours
from hpccoll.config import AUTO, NATIVE, QUEUED
from hpccoll.ir.schedule import Program, Schedule


class Choice(NamedTuple):
    """An algorithm with its parameters, and the reason it was chosen.

    Attributes:
        algorithm: a name of the table, ``native``, ``auto``, ``nccl`` or its like, a name or
            reference of what a user or another package brings, an ``Algorithm``, a builder, or a
            finished schedule.
        params: parameters of the algorithm.
        segment_bytes: bytes of a block that travel as one message; 0 where the configuration
            decides.
        reason: in words.
        trial: signature of the calls among which candidates are being tried, where this is one's
            turn.
    """

    algorithm: str | Schedule | Algorithm | Callable[..., Program]
    params: Mapping[str, int] = {}
    segment_bytes: int = 0
    reason: str = ""
    trial: tuple[Hashable, ...] | None = None

    @property
    def name(self) -> str:
        """The algorithm's name or reference; empty for an object that a user brought along."""
        return self.algorithm if isinstance(self.algorithm, str) else ""

    def entry(self, collective: str) -> Algorithm | None:
        """What is said about the algorithm; ``None`` for a bare builder or a schedule, and for
        what is none of hpccoll's."""
        if isinstance(self.algorithm, str) and self.algorithm not in (
                NATIVE, AUTO, *QUEUED):
            return find(collective, self.algorithm)
        return self.algorithm if isinstance(self.algorithm, Algorithm) else None

    def is_brought(self, collective: str) -> bool:
        """Tell whether it comes from outside the table, so that no test has proved it."""
        return not is_ours(collective, self.name)

    @property
    def is_native(self) -> bool:
        """Tell whether the MPI library serves the call."""
        return self.name == NATIVE

    @property
    def is_queued(self) -> bool:
        """Tell whether NCCL serves the call, or has a part in it."""
        return self.name in QUEUED

    @property
    def is_auto(self) -> bool:
        """Tell whether this asks for no algorithm."""
        return self.name == AUTO

    def in_segments(self, nbytes: int) -> Choice:
        """The same with messages of so many bytes, unless it says how many, or this is 0."""
        return self._replace(segment_bytes=self.segment_bytes or nbytes) if nbytes else self

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells choices apart, hashable; the reason does not count."""
        return self.algorithm, tuple(self.params.items()), self.segment_bytes
