"""Whether a communicator still lives, known to all the objects that wrap it.

Communicators end when they are freed, when MPI does, and in a process that is forked from a rank:
that has the rank's memory, and must not touch what the rank shares with others.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from mpi4py import MPI

from hpccoll.errors import ForkedError
from hpccoll.guard.entrance import new_entrance
from hpccoll.guard.job import JOB
from hpccoll.runtime.context import stop_all_starts
from hpccoll.runtime.events.log import ENDED, LEFT
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.engine import PROGRESS
from hpccoll.tune.loading import Tuned

if TYPE_CHECKING:
    from hpccoll.comm.base import Base


class Lifetime:
    """Whether a communicator was freed: an attribute of it, shared by all its wrappers.

    After it, the handles in other wrappers are stale, and may even name a new communicator.

    Attributes:
        freed: the communicator is gone.
        refuse: raises an error for every call, where one has failed.
        refuse_setup: the same for calls that make a communicator, where one has failed.
        setups: number of such calls that all ranks have met for.
        tuned: measured times, once the ranks have looked for them.
        entrance: lets one call go at a time.
        observed: the record of its calls, where a program is watched.
        told: kinds of calls of which the log says who serves them.
        wrappers: of the communicator, by ``id``.
    """

    _keyvals: list[int] = []
    _all: weakref.WeakSet[Lifetime] = weakref.WeakSet()

    def __init__(self) -> None:
        self.freed = False
        self.refuse: Callable[[], NoReturn] | None = _refuse_fork if PROGRESS.parent else None
        self.refuse_setup = self.refuse
        self.setups = 0
        self.tuned: Tuned | None = None
        self.entrance = new_entrance()
        self.observed: Any = None
        self.told: set[Description] = set()
        self.wrappers: dict[int, weakref.ref[Base]] = {}

    @classmethod
    def of(cls, comm: Base) -> Lifetime:
        """The lifetime of a communicator; the wrapper learns when it ends."""
        if not cls._keyvals:
            cls._keyvals.append(MPI.Comm.Create_keyval(
                delete_fn=lambda comm, key, lifetime: lifetime.end()))
            # MPI deletes the attributes of this communicator first when it ends.
            MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(
                delete_fn=lambda comm, key, _: cls.end_all()), True)
            atexit.register(PROGRESS.report)
            JOB.join()
            os.register_at_fork(after_in_child=cls.forked)
        lifetime = cast("Lifetime | None", comm.Get_attr(cls._keyvals[0]))
        if lifetime is None:
            lifetime = cls()
            cls._all.add(lifetime)
            comm.Set_attr(cls._keyvals[0], lifetime)
        wrappers, number = lifetime.wrappers, id(comm)
        wrappers[number] = weakref.ref(comm, lambda _: wrappers.pop(number, None))
        return lifetime

    def end(self, refuse: Callable[[], NoReturn] | None = None) -> None:
        """Make every wrapper forget its calls, so that it looks before its next one.

        ``refuse`` raises what it then gets, where the communicator is not gone but of no use.
        """
        self.freed, self.refuse = refuse is None, refuse
        self.forget_calls()

    def end_setup(self, refuse: Callable[[], NoReturn]) -> None:
        """The same, where a call that makes a communicator has failed, for such calls too."""
        self.refuse_setup = refuse
        self.end(refuse)

    def forget_calls(self) -> None:
        """Make every wrapper forget its calls."""
        for reference in list(self.wrappers.values()):
            comm = reference()
            if comm is not None:
                comm.forget_calls()

    @classmethod
    def end_all(cls) -> None:
        """End all communicators of this process, which is in MPI_Finalize; see :meth:`end`."""
        JOB.mine.words[LEFT] = ENDED
        for lifetime in list(cls._all):
            lifetime.end()

    @classmethod
    def forked(cls) -> None:
        """Called in a process that was forked from a rank; calls nothing of MPI."""
        PROGRESS.forked()
        stop_all_starts()
        for lifetime in list(cls._all):
            lifetime.end_setup(_refuse_fork)


def _refuse_fork() -> NoReturn:
    raise ForkedError(PROGRESS.parent)
