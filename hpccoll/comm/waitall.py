"""Waits for several requests with a timeout: the class methods of ``hpccoll.Request``.

mpi4py's ``MPI.Request.Waitall`` and similar wait inside the MPI library and cannot be interrupted.
These methods test until enough requests are complete. Meanwhile they monitor each collective like
its own ``Wait``: they report missing ranks, and raise an error if it cannot complete. Messages and
files have no timeout; once only these are left, the library waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from mpi4py import MPI

from hpccoll.runtime.progress.engine import PROGRESS


class Several:
    """Class methods that wait for several requests of any kind."""

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
                ) -> Literal[True]:
        """Wait until all are complete, like ``MPI.Request.Waitall``.

        Raises:
            CollectiveTimeout: a collective among them made no progress for ``HPCCOLL_TIMEOUT``, or
                a rank has not entered it.
            PeerLost, BrokenCommunicatorError, ContractError: one cannot complete.
        """
        _wait_until(requests, MPI.Request.Waitall, _all, bool, statuses)
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait until one is complete, and return its index; see :meth:`Waitall`.

        ``MPI.UNDEFINED`` if none is active.
        """
        found: tuple[int, bool] | int = _wait_until(requests, MPI.Request.Waitany,
                                                    MPI.Request.Testany,
                                                    lambda found: found[1], status)
        return found[0] if isinstance(found, tuple) else found

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
                 ) -> list[int] | None:
        """Wait until some are complete, and return their indices; see :meth:`Waitall`.

        ``None`` if none is active.
        """
        found: list[int] | None = _wait_until(requests, MPI.Request.Waitsome, MPI.Request.Testsome,
                                              lambda found: found is None or bool(found), statuses)
        return found


def _wait_until(requests: Sequence[MPI.Request], wait: Callable[..., Any], test: Callable[..., Any],
                enough: Callable[[Any], bool], statuses: Any) -> Any:
    """Test requests until enough are complete; wait natively once no collective is left."""
    PROGRESS.check_process()
    looks = [one.poll_callback() for one in requests
             if hasattr(one, "poll_callback") and MPI.Request.__bool__(one)]
    slow_path = object()
    try:
        if looks:
            PROGRESS.waiters.add(slow_path)
        while looks:
            PROGRESS.step()
            found = _quietly(test, requests, enough, statuses)
            if enough(found):
                return found
            looks = [look for look in looks if look()]
    finally:
        PROGRESS.waiters.discard(slow_path)
    return wait(requests, statuses)


def _all(requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None) -> bool:
    """Replace ``MPI.Request.Testall``, which fails in MPICH 5.0 for completed persistent ones."""
    if not all(MPI.Request.Get_status(one) for one in requests if MPI.Request.__bool__(one)):
        return False
    return MPI.Request.Waitall(requests, statuses)


def _quietly(test: Callable[..., Any], requests: Sequence[MPI.Request],
             enough: Callable[[Any], bool], statuses: Any) -> Any:
    """Test, and raise the error of an hpccoll collective that has just completed.

    MPI reports a completion only once. So an error is postponed if other requests completed.
    """
    underway = [(one, operation) for one in requests if MPI.Request.__bool__(one)
                and (operation := getattr(one, "_operation", None)) is not None]
    for _, operation in underway:
        operation.quiet = True  # otherwise MPI's callback would raise the error and lose it
    try:
        found = test(requests, statuses)
    finally:
        for _, operation in underway:
            operation.quiet = False
    for one, operation in underway:
        among = not MPI.Request.__bool__(one)
        if operation.error is not None and (among or not enough(found)):
            raise operation.error
    return found
