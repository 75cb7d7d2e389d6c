"""Probes that find the messages that were sent before a collective.

The collectives inside a node do not call the MPI library. Messages that were sent before one may
then still be outside the library's queues, and a library looks into its queues before it progresses
them: one probe would miss the messages, and a program that receives until a probe finds nothing
would lose them. Each failed probe progresses one piece of a message, so a probe is repeated.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from hpccoll.runtime.progress.waiting import ROUNDS

native = MPI.Intracomm


class Probes(MPI.Intracomm):
    """Communicator whose nonblocking probes are repeated before they report no message."""

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
               status: MPI.Status | None = None) -> bool:
        """Return True if a message can be received."""
        return any(native.Iprobe(self, source, tag, status) for _ in range(ROUNDS))

    def iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
               status: MPI.Status | None = None) -> bool:
        """Return True if a message can be received."""
        return self.Iprobe(source, tag, status)

    def Improbe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
                status: MPI.Status | None = None) -> Any:
        """Return a message that can be received, or ``None``."""
        found = (native.Improbe(self, source, tag, status) for _ in range(ROUNDS))
        return next((message for message in found if message is not None), None)

    def improbe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
                status: MPI.Status | None = None) -> Any:
        """Return a message with an object that can be received, or ``None``."""
        found = (native.improbe(self, source, tag, status) for _ in range(ROUNDS))
        return next((message for message in found if message is not None), None)
