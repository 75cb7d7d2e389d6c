"""Going on without ranks that have died, where the MPI library has ULFM.

    comm.revoke()    ends what any rank waits for on the communicator; every later call is refused
    comm.shrink()    the same, and then a communicator of the ranks that live
    comm.agree(ok)   have all ranks come to the same good end? Works on revoked communicators too

``Revoke``, ``Shrink``, ``Agree``, ``Get_failed`` and their kin are mpi4py's, with its meaning. What
a dead rank shared memory in is not used again: a new communicator gets memory of its own, and the
old one's goes with the last array in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.errors import UnavailableError
from hpccoll.errors.waits import RankStates
from hpccoll.machine.failures import failed_ranks, ulfm_missing
from hpccoll.runtime.context import existing
from hpccoll.runtime.progress.engine import PROGRESS


class Recovery(Base):
    """Communicators that outlive their ranks."""

    def Revoke(self) -> None:
        """End all communication on this communicator, of all ranks; any rank may ask alone."""
        self._check_alive()
        super().Revoke()
        context = existing(self)
        if context is not None and not context.freed:
            if context.guard is not None:
                context.guard.revoke()
            context.revoke()

    def revoke(self) -> None:
        """The same as ``Revoke``, where it has an effect on ranks that have not died.

        Raises:
            UnavailableError: this MPI library, or its launcher, does not go on without a rank.
        """
        self._check_recovery("revoke")
        self.Revoke()

    def shrink(self) -> Any:
        """A communicator of the ranks that live; collective over them, and revokes this one.

        The new ranks are in the order of the old ones. Choices (``using``, determinism and so on)
        are not inherited. This communicator is of no more use but to be freed.

        Raises:
            UnavailableError: this MPI library, or its launcher, does not go on without a rank.
        """
        self._check_recovery("shrink")
        self.Revoke()
        return self.Shrink()

    def agree(self, good: bool) -> bool:
        """Tell whether all ranks say so and none has died; collective over those that live.

        Every rank gets the same answer, on a revoked communicator too. Without ULFM no rank dies
        alone, and the answer is what all say.

        Raises:
            CollectiveTimeout, PeerLost: without ULFM, a rank does not come.
        """
        self._check_alive()
        # With ULFM the library itself ends the wait for a rank that has died.
        with self._setup("agree") if ulfm_missing() else nullcontext():
            return self._agree(good)

    def _agree(self, good: bool) -> bool:
        try:
            return bool(self.Agree(int(bool(good) and not failed_ranks(self))))
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_PROC_FAILED:
                return False
            raise

    @property
    def timeout(self) -> float:
        """Seconds without progress until a collective fails; infinity without a time-out."""
        return self._config.timeout

    @timeout.setter
    def timeout(self, seconds: float | str) -> None:
        """Change it for the calls from here on, on every rank alike; ``"off"`` ends it."""
        self._config = self._config.override(timeout=seconds)
        context = existing(self)
        if context is not None:
            context.bounds = context.bounds._replace(timeout=self._config.timeout)

    def check_ranks(self, peers: Sequence[int] = ()) -> RankStates | None:
        """Return where the ranks are, without communication; for loops that wait for messages.

        Args:
            peers: the ranks that this one waits for.

        Returns:
            ``missing``, ``lines`` and ``stopped``, as far as this node knows; ``None`` before the
            first collective.

        Raises:
            PeerLost: a rank of this node has died, or has ended its program.
            BrokenCommunicatorError: a call has failed on a rank.
        """
        context = existing(self)
        guard = context.guard if context is not None else None
        return guard.check_ranks(peers) if guard is not None else None

    def _check_recovery(self, method: str) -> None:
        missing = ulfm_missing()
        if missing:
            raise UnavailableError(f"comm.{method}() is not available: {missing}")

    def _let_go(self) -> None:
        """Give up what was made for this communicator, if a rank of it has died or revoked it.

        Collectives under way have ended before, with the errors that their requests raise.
        """
        context = existing(self)
        if context is not None and not context.freed and (
                context.comm.Is_revoked() or failed_ranks(self)):
            PROGRESS.finish(context)
            context.free()
