"""``hpccoll.Comm``: an ``MPI.Intracomm`` whose collectives are hpccoll's.

It shares the handle of the communicator it wraps - nothing is duplicated until the first
collective that hpccoll serves itself - and passes everywhere an ``MPI.Intracomm`` does.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from mpi4py import MPI

from hpccoll import config
from hpccoll.blocking import Blocking
from hpccoll.errors import ArgumentError, ArgumentTypeError, CommunicatorError
from hpccoll.schedule import Schedule
from hpccoll.topology import Topology
from hpccoll.tune.choose import Choice


class Comm(Blocking, MPI.Intracomm):
    """A communicator with proved, chosen and explained collectives.

    Args:
        comm: an intracommunicator; the handle is shared, not duplicated.
        topology: pretend layout such as ``"2x4"``; discovered from the nodes if omitted.

    Raises:
        CommunicatorError: not an intracommunicator.
        ArgumentError: malformed topology or environment variable.
    """

    def __new__(cls, comm: MPI.Comm | None = None, topology: str | Topology | None = None):
        if comm is not None and not isinstance(comm, MPI.Intracomm):
            raise CommunicatorError(f"expected an MPI.Intracomm, got {type(comm).__name__}")
        self = super().__new__(cls, comm)
        self._config = config.load()
        self._shapes = {}
        if topology is not None:
            self._layout = Topology.parse(topology, self.Get_size())
        return self

    @property
    def topology(self) -> Topology:
        """Nodes and ranks of this communicator; the first look is collective."""
        self._check_alive()
        return self._private().layout()

    @contextmanager
    def using(self, *, segment_bytes: int = 0, **algorithms: Any) -> Iterator[Comm]:
        """Choose algorithms inside a ``with`` block, on every rank alike.

        Args:
            segment_bytes: bytes of one block that travel as one message.
            algorithms: a choice per collective: a name of ``hpccoll.algorithms()``,
                ``"native"``, ``"auto"``, ``(name, {"k": 4})``, a builder
                ``build(rank, size[, root]) -> Program`` or a finished ``Schedule``.

        Raises:
            ArgumentError: unknown collective or algorithm; the message lists the valid ones.
        """
        wishes = {name: _wish(name, choice, segment_bytes) for name, choice in algorithms.items()}
        before = self._wishes, self._shapes
        self._wishes = {**self._wishes, **wishes}
        self._shapes = {}
        try:
            yield self
        finally:
            self._wishes, self._shapes = before


def _wish(collective: str, choice: Any, segment_bytes: int) -> Choice:
    name, params = choice if isinstance(choice, tuple) else (choice, {})
    if isinstance(name, str):
        config.check_choice(collective, name)
    elif not callable(name) and not isinstance(name, Schedule):
        raise ArgumentTypeError(collective, f"expected an algorithm, got {choice!r}",
                                "pass a name, a builder or a Schedule")
    if isinstance(segment_bytes, bool) or not isinstance(segment_bytes, int) or segment_bytes < 0:
        raise ArgumentError("segment_bytes", f"expected a number of bytes, got {segment_bytes!r}")
    return Choice(name, params, segment_bytes, "comm.using")
