"""Requests of collectives that the MPI library runs: :class:`NativeRequest`.

``Wait`` and ``Test`` of such a request have reports and time-outs: they report missing ranks, and
raise if a rank is dead or has failed. They do not call the library's ``Wait``, which cannot be
interrupted, but test the request until it is complete.

The class methods of mpi4py (``MPI.Request.Waitall`` and so on) wait inside the MPI library; so
do the lower-case ``waitall``, ``waitany`` and ``waitsome`` of both classes. ``Waitall``,
``Waitany`` and ``Waitsome`` of ``hpccoll.Request`` have reports and time-outs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from mpi4py import MPI

from hpccoll.errors import HpccollError, cause_of
from hpccoll.guard.guard import Guard, PendingCall
from hpccoll.guard.watchdog import LibraryTimer
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import NUMBER
from hpccoll.runtime.execution.executor import TRIES

if TYPE_CHECKING:
    _Methods = MPI.Request
else:
    _Methods = object  # the class that it is mixed into has them

#: Seconds between two checks of other ranks during tests.
BETWEEN = 0.1


class WatchedRequest(_Methods):
    """Completion methods of a request, with reports and time-outs.

    Attributes:
        watched: the guard, and the name of the call.
        buffers: arguments of the call; see :class:`KeepingRequest`.
        number: of the call; see :class:`PendingCall`.
    """

    watched: tuple[Guard, str]
    buffers: object
    number = 0
    _heard, _failed = 0.0, False

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until the request is complete.

        Raises:
            CollectiveTimeout: a rank is missing for ``HPCCOLL_TIMEOUT`` seconds.
            PeerLost, BrokenCommunicatorError, ContractError: it cannot complete.
        """
        test = super().Test
        try:
            for _ in range(TRIES):
                if test(status):
                    return True
            wait_until(partial(test, status), self._timer())
            return True
        except Exception as error:
            self._raise_failure(error)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return True if the collective is complete.

        Raises:
            PeerLost, BrokenCommunicatorError, ContractError: it cannot complete.
        """
        try:
            if super().Test(status):
                return True
            now = time.monotonic()
            if now - self._heard > BETWEEN:
                self._heard = now
                self.watched[0].listen(self._call())
        except Exception as error:
            self._raise_failure(error)
        return False

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the request is complete; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Return True if the collective is complete."""
        return self.Test(status), None

    def _call(self) -> PendingCall:
        return PendingCall(*self.watched, self.number)

    def _timer(self) -> LibraryTimer:
        guard = self.watched[0]
        return LibraryTimer(self._call(), *guard.timeouts, guard.ranks.limits.spins)

    def poll_callback(self) -> Callable[[], bool]:
        """Return a callback for waits on several requests, to call between two tests.

        It returns True until this request is complete.

        Raises:
            CollectiveTimeout, PeerLost, BrokenCommunicatorError, ContractError: as ``Wait``, unless
                this request is complete.
        """
        watch, over = self._timer(), super().Get_status

        def look() -> bool:
            try:
                if over():
                    return False
                watch.look()
            except Exception as error:
                if not isinstance(error, HpccollError) or not over():
                    self._raise_failure(error)
                watch.reset()
            return True
        return look

    def _raise_failure(self, error: Exception) -> NoReturn:
        """Publish a failure to the other ranks, and raise its cause.

        After Ctrl-C the request is unchanged, and the program may wait for it again.
        """
        guard, title = self.watched
        if not self._failed:
            self._failed = True
            guard.abandoned.append(self)  # the library may still use its memory
        diagnosis = guard.fail(error, title, None, 0, number=self.number)
        raise diagnosis from cause_of(error) if diagnosis is not error else error.__cause__


class NativeRequest(WatchedRequest, MPI.Request):
    """A nonblocking collective that the MPI library runs."""


class NativePrequest(WatchedRequest, MPI.Prequest):
    """A persistent collective that the MPI library runs."""


class KeepingRequest(MPI.Request):
    """A nonblocking collective that keeps its arguments.

    The requests of mpi4py 4.1 do so for most collectives, but not for ``Iallreduce``, ``Ireduce``,
    ``Iallgatherv`` and others: the library would use the memory of arrays that the program dropped.
    """

    buffers: object


class KeepingPrequest(MPI.Prequest):
    """A persistent collective that keeps its arguments."""

    buffers: object


@cache
def keep_buffers(begin: Callable[..., MPI.Request]) -> Callable[..., KeepingRequest]:
    """Wrap a nonblocking collective: its request keeps the arguments."""
    def begin_kept(*args: Any, **options: Any) -> KeepingRequest:
        request = MPI.Request.__new__(KeepingRequest, begin(*args, **options))
        request.buffers = args, options
        return request
    return begin_kept


def keep_prepared(request: MPI.Prequest, buffers: object) -> KeepingPrequest:
    """Return the persistent request as one that keeps its buffers."""
    kept = KeepingPrequest.__new__(KeepingPrequest, request)
    kept.buffers = buffers
    return kept


def watch_nonblocking(begin: Callable[..., MPI.Request], guard: Guard, title: str
                      ) -> Callable[..., NativeRequest]:
    """Wrap a nonblocking collective: waits for its request have reports and time-outs."""
    new, words, watched = MPI.Request.__new__, guard.logs.mine.words, (guard, title)

    def begin_watched(*args: Any, **options: Any) -> NativeRequest:
        request = new(NativeRequest, begin(*args, **options))
        request.watched, request.number = watched, words[NUMBER]
        request.buffers = args, options
        return request
    return begin_watched


def watch_persistent(request: MPI.Prequest, buffers: object, guard: Guard, title: str
                     ) -> NativePrequest:
    """Wrap a persistent request: its waits have reports and time-outs."""
    found = NativePrequest.__new__(NativePrequest, request)
    found.watched, found.buffers = (guard, title), buffers
    return found
