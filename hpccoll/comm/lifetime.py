"""Lifetime of a communicator, shared by all its wrappers.

Communicators end when they are freed, in MPI_Finalize, and in a process forked from a rank: such a
process must not change the memory that the rank shares with others.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, cast

from mpi4py import MPI

from hpccoll.comm.waitall import extend_mpi4py
from hpccoll.config import NONE, Config
from hpccoll.errors import ForkedError
from hpccoll.errors.mpi import DeadCommunicatorError
from hpccoll.guard.call_guard import new_call_guard
from hpccoll.guard.job_status import JOB
from hpccoll.runtime.attributes import stop_all_starts
from hpccoll.runtime.events.call_log import ENDED, LEFT
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.engine import PROGRESS

if TYPE_CHECKING:
    from hpccoll.tune.loading import JobTimes


class Lifetime:
    """State of a communicator in an MPI attribute, shared by all its wrappers.

    After it is freed, handles in other wrappers are stale and may refer to a new communicator.

    Attributes:
        freed: True if the communicator was freed.
        raise_failure: raises an error for every call after a failure; else ``None``.
        raise_setup_failure: the same for calls that create a communicator.
        bare: True if the MPI library has no communicator left for the set-up.
        first_calls: number of its blocking collectives before its set-up.
        setups: number of such calls that all ranks have made.
        duplicates: requests of ``Idup``; null if the program has completed them.
        tuned: measured times, once the ranks have loaded them.
        call guard: admits one call at a time.
        observed: its number in the ring of events, if the program is observed.
        logged: kinds of calls that have been logged.
        wrappers: the wrappers of the communicator, by ``id``.
    """

    _keyvals: list[int] = []
    _all: weakref.WeakSet[Lifetime] = weakref.WeakSet()
    _first = threading.RLock()

    def __init__(self) -> None:
        self.freed = False
        self.raise_failure: Callable[[], NoReturn] | None = (
            _reject_fork if PROGRESS.parent else None)
        self.raise_setup_failure = self.raise_failure
        self.first_calls, self.bare, self.setups = 0, False, 0
        self.duplicates: list[MPI.Request] = []
        self.tuned: JobTimes | None = None
        self.call_guard = new_call_guard()
        self.observed: int | None = None
        self.logged: set[Description] = set()
        self.wrappers: dict[int, weakref.ref[Wrapper]] = {}

    @classmethod
    def of(cls, comm: Wrapper) -> Lifetime:
        """Return the lifetime of a communicator and register the wrapper."""
        with cls._first:  # threads may wrap communicators at the same time
            return cls._find_or_create(comm)

    @classmethod
    def _find_or_create(cls, comm: Wrapper) -> Lifetime:
        if not cls._keyvals:
            cls._keyvals.append(MPI.Comm.Create_keyval(
                delete_fn=lambda comm, key, lifetime: lifetime.end()))
            # MPI_Finalize first deletes the attributes of this communicator.
            MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(
                delete_fn=lambda comm, key, _: cls.end_all()), True)
            atexit.register(PROGRESS.report)
            JOB.join()
            os.register_at_fork(after_in_child=cls.end_after_fork)
        if comm._config.algorithm or comm._config.determinism != NONE:
            extend_mpi4py()
        lifetime = cast("Lifetime | None", comm.Get_attr(cls._keyvals[0]))
        if lifetime is None:
            lifetime = cls()
            cls._all.add(lifetime)
            comm.Set_attr(cls._keyvals[0], lifetime)
        wrappers, number = lifetime.wrappers, id(comm)
        wrappers[number] = weakref.ref(comm, lambda _: wrappers.pop(number, None))
        return lifetime

    def end(self, raise_failure: Callable[[], NoReturn] | None = None) -> None:
        """Clear the caches of all wrappers, so that they check before the next call.

        ``raise_failure`` raises the error of later calls on a broken communicator; None if freed.
        """
        # A thread may find a failure of a communicator that has just been freed.
        self.freed, self.raise_failure = self.freed or raise_failure is None, raise_failure
        self.forget_calls()

    def end_setup(self, raise_failure: Callable[[], NoReturn]) -> None:
        """Do the same after a failed creation of a communicator, also for later creations."""
        self.raise_setup_failure = raise_failure
        self.end(raise_failure)

    def forget_calls(self) -> None:
        """Clear the caches of all wrappers."""
        for reference in list(self.wrappers.values()):
            comm = reference()
            if comm is not None:
                comm.forget_calls()

    @classmethod
    def end_all(cls) -> None:
        """End all communicators of this process in MPI_Finalize; see :meth:`end`."""
        JOB.mine.words[LEFT] = ENDED
        for lifetime in list(cls._all):
            lifetime.end()

    @classmethod
    def end_after_fork(cls) -> None:
        """End all communicators in a process forked from a rank, without MPI calls."""
        cls._first = threading.RLock()  # a thread that does not exist here may have held it
        PROGRESS.drop_after_fork()
        stop_all_starts()
        for lifetime in list(cls._all):
            lifetime.end_setup(_reject_fork)


class Wrapper(MPI.Intracomm):
    """One of the wrappers of a communicator, which share its lifetime."""

    # ``Dup`` and ``Clone`` create instances without ``__init__``, hence class defaults.
    _config: Config
    _lifetime: Lifetime | None = None

    def _check_alive(self) -> Lifetime:
        """Return the communicator's lifetime.

        Raises:
            CommunicatorError: the communicator is null or freed.
        """
        lifetime = self._lifetime
        if lifetime is None and not MPI.Is_finalized() and self != MPI.COMM_NULL:
            # Dup and similar create instances before they have a handle: this is the first check.
            lifetime = self._lifetime = Lifetime.of(self)
        if lifetime is None or lifetime.freed:
            raise DeadCommunicatorError("MPI has been finalised" if MPI.Is_finalized() else
                                        "the communicator is null or was freed; "
                                        "make a new hpccoll.Comm")
        return lifetime

    def _check_usable(self) -> Lifetime:
        """Return the communicator's lifetime, if a collective can run on it.

        Raises:
            CommunicatorError: it is null or freed, or an earlier call failed.
        """
        lifetime = self._check_alive()
        if lifetime.raise_failure is not None:
            lifetime.raise_failure()
        return lifetime

    def forget_calls(self) -> None:
        """Clear the cache of calls, so that the next call checks the communicator's lifetime."""
        raise NotImplementedError


def _reject_fork() -> NoReturn:
    raise ForkedError(PROGRESS.parent)
