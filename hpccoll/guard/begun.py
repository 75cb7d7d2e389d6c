"""Requests of collectives that the MPI library runs: :class:`NativeRequest`.

``Wait`` and ``Test`` of such a request are bounded as those of hpccoll's own are: they say who is
missing, and end with an error where a rank is gone or has given up. The library's own ``Wait`` can
be left by nobody, so it is not called: the request is tested until it is complete.

The class methods of mpi4py (``MPI.Request.Waitall`` and so on) wait inside the MPI library; so
do the lower-case ``waitall``, ``waitany`` and ``waitsome``, of either class. ``Waitall``,
``Waitany`` and ``Waitsome`` of ``hpccoll.Request`` are bounded, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from mpi4py import MPI

from hpccoll.errors import CollectiveTimeout, HpccollError, cause_of
from hpccoll.runtime.events.log import NUMBER
from hpccoll.runtime.execution.executor import TRIES
from hpccoll.runtime.progress.waiting import Meeting, Watch

if TYPE_CHECKING:
    from hpccoll.guard.guard import Guard
    _Methods = MPI.Request
else:
    _Methods = object  # whatever it is mixed into has them

#: Seconds between two times that who tests hears of the others.
BETWEEN = 0.1


class BegunCall(Meeting):
    """A collective of the MPI library's that this rank has begun.

    Attributes:
        number: of the call; 0 for a persistent one, which ranks may start in any order.
    """

    def __init__(self, guard: Guard, title: str, number: int):
        super().__init__(guard.context.comm, title)
        self.guard, self.number = guard, number

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """No round, and the ranks that are not known to have begun it."""
        return 0, tuple(one.rank for one in self.guard.doing() if one.rank != self.rank
                        and not (self.number and one.begun >= self.number))


class Bounded(_Methods):
    """Completion methods of a request whose waits are bounded.

    Attributes:
        watched: the guard, and what the call is to be called.
        number: of the call; see :class:`BegunCall`.
    """

    watched: tuple[Guard, str]
    number = 0
    _heard, _failed = 0.0, False

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the end.

        Raises:
            CollectiveTimeout: a rank has not come for ``HPCCOLL_TIMEOUT`` seconds.
            PeerLost, BrokenCommunicatorError, ContractError: it cannot end any more.
        """
        test = super().Test
        for _ in range(TRIES):
            if test(status):
                return True
        begun = self._begun()
        return self._judged(begun, self._wait, begun, test, status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Tell whether the collective is over.

        Raises:
            PeerLost, BrokenCommunicatorError, ContractError: it cannot end any more.
        """
        if super().Test(status):
            return True
        now = time.monotonic()
        if now - self._heard > BETWEEN:
            self._heard = now
            begun = self._begun()
            self._judged(begun, begun.guard.listen, begun)
        return False

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait for the end; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Tell whether the collective is over."""
        return self.Test(status), None

    def _begun(self) -> BegunCall:
        return BegunCall(*self.watched, self.number)

    def _wait(self, begun: BegunCall, test: Callable[..., bool], status: MPI.Status | None
              ) -> Literal[True]:
        """Wait until the request is complete; where all ranks have come, for as long as it takes.

        Raises:
            CollectiveTimeout: some have not.
        """
        context = begun.guard.context
        watch = Watch(begun, *context.bounds, context.limits.spins)
        while not test(status):
            try:
                watch.idle()
            except CollectiveTimeout as error:
                if error.peers:
                    raise
                watch.moved()
        return True

    def looking(self) -> Callable[[], bool]:
        """What is to be called between two tests of several requests, of which this one is one.

        It tells whether it is to be called again: not where this request is complete.

        Raises:
            CollectiveTimeout, PeerLost, BrokenCommunicatorError, ContractError: as ``Wait``, unless
                this request is complete.
        """
        begun = self._begun()
        context = begun.guard.context
        watch = Watch(begun, *context.bounds, context.limits.spins)
        over = super().Get_status

        def look() -> bool:
            if over():
                return False
            try:
                watch.idle()
            except HpccollError as error:
                late = isinstance(error, CollectiveTimeout) and not error.peers
                if not late and not over():
                    self._judged(begun, raise_, error)
                watch.moved()
            return True
        return look

    def _judged(self, begun: BegunCall, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function; tell the others if that fails.

        Ctrl-C leaves a wait, and the request as it is: it may be waited for again.
        """
        try:
            return function(*args)
        except Exception as error:
            if not self._failed:
                self._failed = True
                begun.guard.context.abandoned.append(self)  # the library may still use its memory
            verdict = begun.guard.fail(error, begun.title, None, 0, number=begun.number)
            if verdict is not error:
                raise verdict from cause_of(error)
            raise


def raise_(error: Exception) -> NoReturn:
    """Raise an error."""
    raise error


class NativeRequest(Bounded, MPI.Request):
    """A nonblocking collective that the MPI library runs."""


class NativePrequest(Bounded, MPI.Prequest):
    """A persistent collective that the MPI library runs."""


def bounded(begin: Callable[..., MPI.Request], guard: Guard, title: str
            ) -> Callable[..., NativeRequest]:
    """What begins a nonblocking collective; waits for its request are bounded."""
    new, words, watched = MPI.Request.__new__, guard.logs.mine.words, (guard, title)

    def begun(*args: Any, **options: Any) -> NativeRequest:
        request = new(NativeRequest, begin(*args, **options))
        request.watched, request.number = watched, words[NUMBER]
        return request
    return begun


def lasting(request: MPI.Prequest, guard: Guard, title: str) -> NativePrequest:
    """A persistent request whose waits are bounded."""
    found = NativePrequest.__new__(NativePrequest, request)
    found.watched = guard, title
    return found
