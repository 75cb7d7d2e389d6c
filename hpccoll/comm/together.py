"""Waiting for several requests with bounds: the class methods of ``hpccoll.Request``.

mpi4py's ``MPI.Request.Waitall`` and its kin wait inside the MPI library, which nobody can leave.
These test until enough is complete. Meanwhile each collective among the requests is looked after as
its own ``Wait`` would: who is missing is reported, and where it cannot end there is an error. What
is no collective - a message, a file - has no bounds; where nothing else is waited for any more, the
library waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from mpi4py import MPI

from hpccoll.runtime.progress.engine import PROGRESS


class Several:
    """Class methods of requests that wait for several of them, of whatever kind."""

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
                ) -> Literal[True]:
        """Wait until all are complete, like ``MPI.Request.Waitall``.

        Raises:
            CollectiveTimeout: a collective among them has not moved for ``HPCCOLL_TIMEOUT``, or a
                rank has not come to it.
            PeerLost, BrokenCommunicatorError, ContractError: one cannot end any more.
        """
        _until(requests, MPI.Request.Waitall, _all, bool, statuses)
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait until one is complete, and return its place; see :meth:`Waitall`.

        ``MPI.UNDEFINED`` where none is active.
        """
        found: tuple[int, bool] | int = _until(requests, MPI.Request.Waitany, MPI.Request.Testany,
                                               lambda found: found[1], status)
        return found[0] if isinstance(found, tuple) else found

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
                 ) -> list[int] | None:
        """Wait until some are complete, and return their places; see :meth:`Waitall`.

        ``None`` where none is active.
        """
        found: list[int] | None = _until(requests, MPI.Request.Waitsome, MPI.Request.Testsome,
                                         lambda found: found is None or bool(found), statuses)
        return found


def _until(requests: Sequence[MPI.Request], wait: Callable[..., Any], test: Callable[..., Any],
           enough: Callable[[Any], bool], told: Any) -> Any:
    """Test requests until what that gives is enough; once no collective is left, wait for them."""
    PROGRESS.check_process()
    looks = [one.looking() for one in requests
             if hasattr(one, "looking") and MPI.Request.__bool__(one)]
    attendant = object()
    try:
        if looks:
            PROGRESS.attendants.add(attendant)
        while looks:
            PROGRESS.once()
            found = _quietly(test, requests, enough, told)
            if enough(found):
                return found
            looks = [look for look in looks if look()]
    finally:
        PROGRESS.attendants.discard(attendant)
    return wait(requests, told)


def _all(requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None) -> bool:
    """``MPI.Request.Testall``, which fails in MPICH 5.0 where a persistent collective is over."""
    if not all(MPI.Request.Get_status(one) for one in requests if MPI.Request.__bool__(one)):
        return False
    return MPI.Request.Waitall(requests, statuses)


def _quietly(test: Callable[..., Any], requests: Sequence[MPI.Request],
             enough: Callable[[Any], bool], told: Any) -> Any:
    """Test, and raise what went wrong with a collective of ours that is over now.

    Where other requests are found complete, which is known but once, an error waits for its turn.
    """
    underway = [(one, operation) for one in requests if MPI.Request.__bool__(one)
                and (operation := getattr(one, "_operation", None)) is not None]
    for _, operation in underway:
        operation.quiet = True  # else MPI's callback raises it, and its caller cannot
    try:
        found = test(requests, told)
    finally:
        for _, operation in underway:
            operation.quiet = False
    for one, operation in underway:
        among = not MPI.Request.__bool__(one)
        if operation.error is not None and (among or not enough(found)):
            raise operation.error
    return found
