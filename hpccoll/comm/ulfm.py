"""Recovery from dead ranks, if the MPI library has ULFM.

    comm.revoke()    ends all pending operations on the communicator and rejects later calls
    comm.shrink()    does the same, then returns a communicator of the living ranks
    comm.agree(ok)   returns True if all ranks succeeded, also on revoked communicators

``Revoke``, ``Shrink``, ``Agree``, ``Get_failed`` and similar have mpi4py's meaning. Memory shared
with a dead rank is not reused: a new communicator gets new memory, and the old memory is freed with
the last array in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.errors import UnavailableError
from hpccoll.errors.waits import RankStates
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.progress.engine import PROGRESS


class Recovery(Base):
    """Communicator that survives the death of ranks."""

    def Revoke(self) -> None:
        """End all communication on this communicator, on all ranks; not collective."""
        self._check_alive()
        super().Revoke()
        context = existing_context(self)
        if context is not None and not context.freed:
            context.guard.revoke()
            context.ranks.revoke()

    def revoke(self) -> None:
        """Call ``Revoke``, if this MPI library can continue after the death of a rank.

        Raises:
            UnavailableError: this MPI library, or its launcher, cannot continue without a rank.
        """
        self._check_recovery("revoke")
        self.Revoke()

    def shrink(self) -> Any:
        """Return a communicator of the living ranks; collective over them, revokes this one.

        The new ranks are in the order of the old ones. Choices (``using``, determinism and so on)
        are not inherited. This communicator can then only be freed.

        Raises:
            UnavailableError: this MPI library, or its launcher, cannot continue without a rank.
        """
        self._check_recovery("shrink")
        self.Revoke()
        return self.Shrink()

    def agree(self, good: bool) -> bool:
        """Return True if ``good`` holds on all ranks and none has died; collective.

        Collective over the living ranks. Every rank gets the same result, also on a revoked
        communicator. Without ULFM the death of a rank ends the job, and the result depends on
        ``good`` alone.

        Raises:
            CollectiveTimeout, PeerLost: without ULFM, a rank does not make the call.
        """
        from hpccoll.machine.failures import ulfm_missing
        self._check_alive()
        # With ULFM the library itself ends the wait for a dead rank.
        with self._setup("agree") if ulfm_missing() else nullcontext():
            return self._agree(good)

    def _agree(self, good: bool) -> bool:
        from hpccoll.machine.failures import failed_ranks
        try:
            return bool(self.Agree(int(bool(good) and not failed_ranks(self))))
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_PROC_FAILED:
                return False
            raise

    @property
    def timeout(self) -> float:
        """Seconds without progress until a collective fails; infinity without a timeout."""
        return self._config.timeout

    @timeout.setter
    def timeout(self, seconds: float | str) -> None:
        """Set it for later calls, the same on every rank; ``"off"`` disables it."""
        self._config = self._config.override(timeout=seconds)
        context = existing_context(self)
        if context is not None:
            context.guard.use_timeout(self._config.timeout)

    def check_ranks(self, peers: Sequence[int] = ()) -> RankStates | None:
        """Return the states of the ranks without communication; for loops that wait for messages.

        Args:
            peers: the ranks that this one waits for.

        Returns:
            ``missing``, ``lines`` and ``stopped``, as known on this node; ``None`` before the first
            collective.

        Raises:
            PeerLost: a rank of this node has died or exited.
            BrokenCommunicatorError: a call has failed on a rank.
        """
        context = existing_context(self)
        return context.guard.check_ranks(peers) if context is not None else None

    def _check_recovery(self, method: str) -> None:
        from hpccoll.machine.failures import ulfm_missing
        missing = ulfm_missing()
        if missing:
            raise UnavailableError(f"comm.{method}() is not available: {missing}")

    def _let_go(self) -> None:
        """Drop the context of this communicator, if a rank of it has died or revoked it.

        Pending collectives have failed before, and their requests raise the errors.
        """
        from hpccoll.machine.failures import failed_ranks
        context = existing_context(self)
        if context is not None and not context.freed and (
                context.comm.Is_revoked() or failed_ranks(self)):
            PROGRESS.finish(context)
            context.free()
