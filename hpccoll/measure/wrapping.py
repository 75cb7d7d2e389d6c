"""Protocols of a measured class of communicators.

``measure`` is below ``comm``, so that a job can measure itself. Callers pass the class, which is
:class:`hpccoll.Comm` outside tests.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from mpi4py import MPI

from hpccoll.ir.topology import Topology
from hpccoll.tune.loading import JobTimes


class MeasuredComm(Protocol):
    """Communicator whose collectives are timed; it has all methods of ``MPI.Intracomm``."""

    @property
    def tuned(self) -> JobTimes | None:
        """Measured times that choices use; ``None`` before the first collective."""

    @property
    def layout(self) -> Topology:
        """Nodes and ranks; the first access is collective and sets the communicator up."""

    def Barrier(self) -> None:
        """Wait for all ranks."""

    def empty(self, shape: int, dtype: Any, *, xp: Any) -> Any:
        """Make an array in registered memory, of NumPy or CuPy; collective."""

    def using(self, *, segment_bytes: int = 0, **algorithms: Any) -> AbstractContextManager:
        """Choose algorithms inside a ``with`` block."""


class Wrap(Protocol):
    """Class of measured communicators, or function of a communicator and a layout."""

    def __call__(self, comm: MPI.Intracomm, layout: Topology | None = None, /, *,
                 determinism: str | None = None, tuning: str | None = None) -> MeasuredComm: ...
