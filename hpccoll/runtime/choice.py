"""A choice: which algorithm is to serve a call, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpccoll.config import NATIVE


class Choice(NamedTuple):
    """An algorithm with its parameters, and the reason it was chosen.

    ``algorithm`` is a name of the table, ``native``, a builder, or a finished schedule;
    ``segment_bytes`` is 0 where the configuration decides; ``trial`` is the trial that this is a
    part of, where candidates are tried in the job itself.
    """

    algorithm: Any
    params: Mapping[str, int] = {}
    segment_bytes: int = 0
    reason: str = ""
    trial: Any = None

    @property
    def is_native(self) -> bool:
        """Tell whether the MPI library serves the call."""
        return isinstance(self.algorithm, str) and self.algorithm == NATIVE
