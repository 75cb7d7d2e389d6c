"""Waits for several requests with a timeout: the class methods of ``hpccoll.Request``.

mpi4py's ``MPI.Request.Waitall`` and similar wait inside the MPI library and cannot be interrupted.
These methods test until enough requests are complete. Meanwhile they monitor each collective like
its own ``Wait``: they report missing ranks, and raise an error if it cannot complete. Messages and
files have no timeout; once only these are left, the library waits.

mpi4py's methods do the same for lists with a request that hpccoll runs (:func:`extend_mpi4py`).
MPICH 5.0 aborts in ``MPI_Waitall`` for a null request beside a pending generalized one, and the
library progresses no request of ``progress="calls"``.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from functools import cache, wraps
from operator import itemgetter
from typing import Any, Literal

from mpi4py import MPI

from hpccoll.machine.backoff import Backoff
from hpccoll.runtime.progress.engine import PROGRESS

#: mpi4py's own class methods, by name.
NATIVE = {name: getattr(MPI.Request, name) for name in (
    "Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome",
    "waitall", "waitany", "waitsome", "testall", "testany", "testsome")}


class Several:
    """Class methods that wait for several requests of any kind."""

    def poll_rarely(self) -> bool:
        """Look after the collective of this request from time to time; return True if it did."""
        return False

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
                ) -> Literal[True]:
        """Wait until all are complete, like ``MPI.Request.Waitall``.

        Raises:
            CollectiveTimeout: a collective among them made no progress for ``HPCCOLL_TIMEOUT``, or
                a rank has not entered it.
            PeerLost, BrokenCommunicatorError, ContractError: one cannot complete.
        """
        _wait_until(requests, NATIVE["Waitall"], _all, bool, statuses)
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait until one is complete, and return its index; see :meth:`Waitall`.

        ``MPI.UNDEFINED`` if none is active.
        """
        found: tuple[int, bool] | int = _wait_until(requests, NATIVE["Waitany"], NATIVE["Testany"],
                                                    lambda found: found[1], status)
        return found[0] if isinstance(found, tuple) else found

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
                 ) -> list[int] | None:
        """Wait until some are complete, and return their indices; see :meth:`Waitall`.

        ``None`` if none is active.
        """
        found: list[int] | None = _wait_until(requests, NATIVE["Waitsome"], NATIVE["Testsome"],
                                              lambda found: found is None or bool(found), statuses)
        return found


class _Monitors(Backoff):
    """Wait for several requests: it looks after the collectives among them.

    It sleeps only if hpccoll runs them all: the library moves messages in its tests.
    """

    def __init__(self, requests: Sequence[MPI.Request]):
        super().__init__()
        active = [one for one in requests if MPI.Request.__bool__(one)]
        self.left = [one.poll_callback() for one in active if hasattr(one, "poll_callback")]
        self.sleeps = None not in [getattr(one, "_operation", None) for one in active]

    def look(self) -> None:
        """Look after the collectives that are left."""
        self.left = [look for look in self.left if look()]


def _wait_until(requests: Sequence[MPI.Request], wait: Callable[..., Any], test: Callable[..., Any],
                enough: Callable[[Any], bool], statuses: Any) -> Any:
    """Test requests until enough are complete; wait natively once no collective is left."""
    PROGRESS.check_process()
    monitors, slow_path = _Monitors(requests), object()
    try:
        if monitors.left:
            PROGRESS.waiters.add(slow_path)
        while monitors.left:
            if PROGRESS.step():
                monitors.reset()
            found = _quietly(test, requests, enough, statuses)
            if enough(found):
                return found
            monitors.pause()
    finally:
        PROGRESS.waiters.discard(slow_path)
    return wait(requests, statuses)


def _all(requests: Sequence[MPI.Request], statuses: Any, name: str = "Waitall") -> Any:
    """Replace ``MPI.Request.Testall``, which fails in MPICH 5.0 for completed persistent ones."""
    if not all(MPI.Request.Get_status(one) for one in requests if MPI.Request.__bool__(one)):
        return False
    return NATIVE[name](requests, statuses)


def _wait_for_objects(requests: Sequence[MPI.Request], statuses: Any) -> Any:
    """Wait like ``MPI.Request.waitall``."""
    return _wait_until(requests, NATIVE["waitall"],
                       lambda requests, statuses: _all(requests, statuses, "waitall"),
                       lambda found: found is not False, statuses)


def _wait_for_any_object(requests: Sequence[MPI.Request], status: Any) -> Any:
    """Wait like ``MPI.Request.waitany``."""
    index, *_, message = _wait_until(requests, NATIVE["waitany"], NATIVE["testany"],
                                     lambda found: found[1], status)
    return index, message


def _wait_for_some_objects(requests: Sequence[MPI.Request], statuses: Any) -> Any:
    """Wait like ``MPI.Request.waitsome``."""
    return _wait_until(requests, NATIVE["waitsome"], NATIVE["testsome"],
                       lambda found: found[0] is None or bool(found[0]), statuses)


def _test_of(name: str, enough: Callable[[Any], bool], test: Callable[..., Any] | None = None
             ) -> Callable[[Sequence[MPI.Request], Any], Any]:
    """Return a test for lists with a request that hpccoll runs; it looks after these now and then.

    So a loop of tests ends where a rank is lost.
    """
    def method(requests: Sequence[MPI.Request], statuses: Any) -> Any:
        found = _quietly(test or NATIVE[name], requests, enough, statuses)
        for one in requests:
            if isinstance(one, Several):
                one.poll_rarely()
        return found
    return method


#: Waits and tests for lists with a request that hpccoll runs.
_MIXED: dict[str, Callable[[Sequence[MPI.Request], Any], Any]] = {
    "Waitall": Several.Waitall, "Waitany": Several.Waitany, "Waitsome": Several.Waitsome,
    "waitall": _wait_for_objects, "waitany": _wait_for_any_object,
    "waitsome": _wait_for_some_objects,
    "Testall": _test_of("Testall", bool, _all), "Testany": _test_of("Testany", itemgetter(1)),
    "Testsome": _test_of("Testsome", lambda found: found is None or bool(found)),
    "testall": _test_of("testall", itemgetter(0)), "testany": _test_of("testany", itemgetter(1)),
    "testsome": _test_of("testsome", lambda found: found[0] is None or bool(found[0]))}


@cache
def extend_mpi4py() -> None:
    """Make mpi4py's class methods take requests that hpccoll runs, in any mix.

    The class forbids new attributes, so this changes its namespace. It is called when algorithms
    are chosen, and with the first such request: programs without one call mpi4py's own methods.
    ``MPI.Request.Waitall([comm.Iallreduce(x, y)])`` looks up the method before its request exists.
    """
    attributes: dict[str, Any] = gc.get_referents(vars(MPI.Request))[0]
    attributes.update({name: classmethod(_mixed_method(name)) for name in NATIVE})
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(MPI.Request))


def _mixed_method(name: str) -> Callable[..., Any]:
    native, mixed = NATIVE[name], _MIXED[name]

    @wraps(native)
    def method(cls: type[MPI.Request], requests: Sequence[MPI.Request], *statuses: Any,
               **named: Any) -> Any:
        if not any(isinstance(one, Several) for one in requests):
            return native(requests, *statuses, **named)
        PROGRESS.step()
        return mixed(requests, *statuses or (named.popitem()[1] if named else None,))
    return method


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
