"""Failed ranks as reported by the MPI library, for libraries with ULFM.

Without ULFM (:mod:`hpccoll.machine.failures`) no failed ranks are known here.
"""

from __future__ import annotations

import time
from typing import Any

from mpi4py import MPI

from hpccoll.errors import BrokenCommunicatorError, PeerLost
from hpccoll.errors.mpi import RevokedError
from hpccoll.errors.waits import RankStates, rank_list, summary
from hpccoll.guard.diagnosis import states_fields
from hpccoll.machine.failures import failed_ranks, may_be_rank_failure, ulfm_missing
from hpccoll.machine.identity import library_name


def failure_report(error: BaseException, title: str, number: int, **more: Any) -> dict[str, Any]:
    """Return the record of a failed call, for the other ranks and later calls."""
    return {"number": number, "title": title, "when": time.strftime("%H:%M:%S"),
            "reason": summary(error), **states_fields(error), **more}


class Losses:
    """Failed ranks of a communicator, and its revocation.

    Args:
        comm: the communicator, or its private duplicate.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.comm, self.known = comm, not ulfm_missing()

    def check(self, title: str) -> None:
        """Raise if a rank has failed; ``title`` is the running call.

        Raises:
            PeerLost: names the failed ranks.
        """
        if self.known:
            ranks = failed_ranks(self.comm)
            if ranks:
                states = RankStates(f"{rank_list(ranks)} died; reported by {library_name()}")
                raise PeerLost(ranks, states, title)

    def explain(self, error: BaseException, title: str) -> BaseException:
        """Return PeerLost or RevokedError if that is the cause of ``error``, else ``error``."""
        heard = isinstance(error, BrokenCommunicatorError) and not isinstance(error, PeerLost)
        if not (self.known and (heard or may_be_rank_failure(error))):
            return error
        try:
            self.check(title)
        except PeerLost as lost:
            return lost
        if not heard and self.comm.Is_revoked():
            return RevokedError("a rank has revoked the communicator; call comm.shrink() on all "
                                "remaining ranks")
        return error
