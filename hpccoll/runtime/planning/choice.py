"""Choice: the selected algorithm of a call, and the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hpccoll.algorithms import Algorithm, find
from hpccoll.algorithms.table import is_ours
from hpccoll.config import AUTO, NATIVE, QUEUED
from hpccoll.ir.schedule import Program, Schedule


class Choice(NamedTuple):
    """Algorithm with its parameters, and the reason for its selection.

    Attributes:
        algorithm: a name of the table, ``native``, ``auto``, ``nccl`` or similar, the name of or a
            reference to an external algorithm, an ``Algorithm``, a builder, or a finished schedule.
        params: parameters of the algorithm.
        segment_bytes: bytes of a block per message; 0 for the value of the configuration.
        reason: text for the user.
    """

    algorithm: str | Schedule | Algorithm | Callable[..., Program]
    params: Mapping[str, int] = {}
    segment_bytes: int = 0
    reason: str = ""

    @property
    def name(self) -> str:
        """Name of or reference to the algorithm; empty for an object of the user."""
        return self.algorithm if isinstance(self.algorithm, str) else ""

    def entry(self, collective: str) -> Algorithm | None:
        """Return the algorithm's table entry.

        ``None`` for a bare builder, for a schedule, and for other libraries.
        """
        if isinstance(self.algorithm, str) and self.algorithm not in (
                NATIVE, AUTO, *QUEUED):
            return find(collective, self.algorithm)
        return self.algorithm if isinstance(self.algorithm, Algorithm) else None

    def is_brought(self, collective: str) -> bool:
        """Return True if the algorithm is not in the table, so that no test has proved it."""
        return not is_ours(collective, self.name)

    @property
    def is_native(self) -> bool:
        """True if the MPI library runs the call."""
        return self.name == NATIVE

    @property
    def is_queued(self) -> bool:
        """True if NCCL runs the call, or a part of it."""
        return self.name in QUEUED

    @property
    def is_auto(self) -> bool:
        """True if no algorithm is requested."""
        return self.name == AUTO

    def in_segments(self, nbytes: int) -> Choice:
        """Return the choice with ``nbytes`` as segment size, unless it has one or that is 0."""
        return self._replace(segment_bytes=self.segment_bytes or nbytes) if nbytes else self

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable key of the choice, without the reason."""
        return self.algorithm, tuple(self.params.items()), self.segment_bytes
