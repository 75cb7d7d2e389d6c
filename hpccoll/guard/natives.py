"""Calls that the MPI library runs: noted in this rank's log, and looked after by a thread.

At the level ``tags`` such a call is the library's own, between two notes in the log that cost some
nanoseconds. So ranks that wait in a call of ours see who is in which of the library's, and
:class:`Natives` sees, from the watcher's thread, what has become of the others. At the level
``always`` the call is made in its nonblocking form, and waited for as one of ours: it ends with an
error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from hpccoll.calls.call import Call
from hpccoll.calls.native import ARGUMENT_ERRORS
from hpccoll.errors import (
    BrokenCommunicatorError,
    CollectiveTimeout,
    ForeignMessage,
    HpccollError,
    cause_of,
)
from hpccoll.errors.waits import RankStates, Reports, stated
from hpccoll.guard.begun import bounded, lasting
from hpccoll.guard.board import AWAY, NATIVE, QUIET, called
from hpccoll.guard.exchange import MessagedLogs
from hpccoll.guard.sites import main_site
from hpccoll.guard.verdict import judge
from hpccoll.guard.watcher import STATUS
from hpccoll.runtime.events.log import ASKED, ENDS, INSIDE, LAST, LEFT, NUMBER, Log
from hpccoll.runtime.events.noted import noted
from hpccoll.runtime.planning.description import Description, describe_native
from hpccoll.runtime.progress.waiting import STANDSTILL, Meeting

if TYPE_CHECKING:
    from hpccoll.guard.guard import Guard

#: Kinds of calls that are kept.
MOST_KINDS = 2048
#: Seconds from when a rank was found to be killed, for what it did before to take effect, and from
#: which on the others are asked what they are doing.
GRACE, CURIOUS = 0.5, 1.0


class Stay(NamedTuple):
    """A call that this rank has been found in.

    Attributes:
        number: of the call; 0 for none.
        since: when it was found there first.
        looked: when the watcher looked last.
        reports: of it.
    """

    number: int
    since: float
    looked: float
    reports: Reports


def answer(log: Log) -> None:
    """Write where the program is, if another rank has asked for it; called by the watcher."""
    if log.words[ASKED]:
        log.words[ASKED] = 0
        if log.quiet_for() > QUIET:
            log.say({"number": log.words[NUMBER], "site": main_site()[-200:]}, looks=False)


class Natives:
    """The calls that the MPI library runs on one communicator."""

    def __init__(self, guard: Guard):
        self.guard, self.log = guard, guard.logs.mine
        self.kinds: dict[tuple[Any, int], Callable[..., Any]] = {}
        self.stay = Stay(0, 0.0, 0.0, Reports(0.0))
        #: The log of the next rank here, and the call that was not like its own at the last look.
        near = sorted(guard.logs.logs)
        self.next = guard.logs.logs[near[(near.index(guard.rank) + 1) % len(near)]]
        self.odd, self.said = 0, False

    # -- how they are called -------------------------------------------------------------------
    def method(self, native: Callable[..., Any], name: str, call: Call | None
               ) -> Callable[..., Any]:
        """A blocking method of the MPI library's as it is to be called.

        Args:
            native: the method.
            name: what it is called in lower case.
            call: what it is called for; ``None`` where only mpi4py understands it, or it serves
                calls that are not all alike.
        """
        if self.guard.always and self.guard.context.size > 1:
            return partial(self._bounded, getattr(MPI.Intracomm, f"I{name}"), name)
        known = call is not None and self.guard.stamps
        stamp = self.guard.stamp(describe_native(call, name)) if known else 0
        return self._kept(native, stamp, lambda: self.attended(native, name, stamp))

    def beginning(self, native: Callable[..., MPI.Request], name: str, call: Call | None
                  ) -> Callable[..., MPI.Request]:
        """A nonblocking method of the MPI library's as it is to be called; as :meth:`method`.

        Its calls are counted with the blocking ones: all ranks begin both in one order. Who waits
        for its request is told who has not come, and gets an error where it cannot end.
        """
        stamp = self.guard.stamp(describe_native(call, name)) if call is not None else 0
        return self._kept(native, stamp, lambda: bounded(
            self.attended(native, name, stamp), self.guard, f"native {name}"))

    def _kept(self, native: Callable[..., Any], stamp: int, make: Callable[[], Callable[..., Any]]
              ) -> Callable[..., Any]:
        """What serves calls of one method with one stamp; made where it is not known."""
        served = self.kinds.get((native, stamp))
        if served is None:
            if len(self.kinds) >= MOST_KINDS:
                self.kinds.clear()
            served = self.kinds[native, stamp] = make()
        return served

    def queueing(self, function: Callable[..., Any], description: Description
                 ) -> Callable[..., Any]:
        """A function that queues a call on a device, as it is to be called: noted in the log.

        NCCL connects in its first calls, where the host waits until the peers come. At the level
        ``always`` the call was noted when it was compared; this is one without a stamp.
        """
        stamp = 0 if self.guard.always else self.guard.stamp(description)
        return self._kept(function, stamp,
                          lambda: self.attended(function, description.collective, stamp))

    def lasting(self, request: MPI.Prequest, name: str) -> MPI.Prequest:
        """A persistent request of the MPI library's, whose waits are bounded.

        It has no number: ranks may start such requests in any order.
        """
        return lasting(request, self.guard, f"native {name}")

    def objects(self, native: Callable[..., Any], description: Description) -> Callable[..., Any]:
        """A lower-case method of mpi4py's, counted and looked after like a blocking one.

        Of what it raises, only the caller can tell whether it was before anything was sent: see
        :meth:`unsent`.
        """
        return self.attended(native, description.collective, self.guard.stamp(description), True)

    def unsent(self) -> None:
        """Take a call of objects back, which sent nothing: other ranks have not come to it."""
        if self.counts:
            self.log.words[NUMBER] -= 1

    @property
    def counts(self) -> bool:
        """Tell whether calls are counted here."""
        return self.guard.stamps and self.guard.context.size > 1

    def attended(self, function: Callable[..., Any], name: str = "set-up", stamp: int = 0,
                 pickles: bool = False) -> Callable[..., Any]:
        """A function in which all ranks call the MPI library, as it is to be called.

        Args:
            function, name, stamp: what it is.
            pickles: it may fail after the library has done its part.
        """
        if not self.counts:
            return function
        return noted(function, self.log, stamp, self.guard.refused,
                     partial(self._failed, name, pickles))

    def together(self, function: Callable[..., Any], description: Description
                 ) -> Callable[..., Any]:
        """A function in which all ranks make something, to be called once all have come to it."""
        def call(*args: Any) -> Any:
            if self.guard.context.size > 1:
                self.guard.compare(description)
            return self.attended(function, description.collective,
                                 self.guard.stamp(description))(*args)
        return call

    def begin_duplicate(self, begin: Callable[..., tuple[Any, MPI.Request]], *args: Any
                        ) -> tuple[Any, MPI.Request]:
        """Begin to duplicate the communicator; who waits for the request has bounds."""
        made: list[Any] = []

        def begin_request() -> MPI.Request:
            comm, request = begin(*args)
            made.append(comm)
            return request

        stamp = self.guard.stamp(Description("idup"))
        request = bounded(self.attended(begin_request, "idup", stamp), self.guard, "native idup")()
        return made[0], request

    def _bounded(self, begin: Callable[..., MPI.Request], name: str, comm: MPI.Intracomm,
                 *args: Any) -> None:
        """Make a call in its nonblocking form, and wait for it as for ours.

        Raises:
            CollectiveTimeout, BrokenCommunicatorError: it has not ended.
        """
        self.waited(begin(comm, *args), f"native {name}", args)

    def waited(self, request: MPI.Request, title: str, held: tuple[Any, ...] = (),
               timeout: float | None = None) -> None:
        """Wait, with bounds, for a request that all ranks take part in.

        Args:
            request, title: what it is.
            held: its memory, which the library may use for longer.
            timeout: in seconds; the communicator's if omitted.

        Raises:
            CollectiveTimeout, BrokenCommunicatorError: it has not ended.
        """
        context = self.guard.context
        try:
            Meeting(context.comm, title).wait(request, *(
                context.bounds if timeout is None else context.bounds._replace(timeout=timeout)))
        except BaseException as error:
            context.abandoned.append((request, held))
            verdict = self.guard.fail(error, title, None, 0)
            if verdict is not error:
                raise verdict from cause_of(error)
            raise

    def _failed(self, name: str, pickles: bool, error: BaseException) -> bool:
        """Tell whether a call failed before anything was sent, as far as that is known here.

        Raises:
            PeerLost: it failed because a rank is gone.
        """
        if isinstance(error, HpccollError) or not isinstance(error, Exception):
            return False
        if not isinstance(error, MPI.Exception):
            return not pickles
        if error.Get_error_class() in ARGUMENT_ERRORS:
            return True
        verdict = self.guard.fail(error, f"native {name}", None, 0)
        if verdict is not error:
            raise verdict from cause_of(error)
        return False

    # -- what the watcher asks -----------------------------------------------------------------
    def watched(self) -> str:
        """Answer who asks what this rank is doing; look after a call.

        Returns:
            What to say where that call cannot end any more; else nothing.
        """
        words, now = self.log.words, time.monotonic()
        answer(self.log)
        if not words[LEFT]:
            self._look_back()
        inside = words[INSIDE]
        if not inside or inside != self.stay.number:
            self.stay = Stay(inside, now, now, Reports(self.guard.context.bounds.report))
            return ""
        # As in a wait of ours: time for which this process stood still is no wait.
        still = max(now - self.stay.looked - STANDSTILL, 0.0)
        self.stay = self.stay._replace(since=self.stay.since + still, looked=now)
        elapsed = now - self.stay.since
        hopeless = self._hopeless(inside, elapsed)
        if hopeless is not None:
            return self._given_up(inside, hopeless)
        if elapsed >= self.stay.reports.due:
            states = self.guard.tell()
            wait = f"{self._title(inside)} on rank {self.guard.rank}"
            if not self.stay.reports.add(elapsed, states, wait):
                return self._given_up(inside, self._late(inside, elapsed, states))
        elif elapsed > CURIOUS:
            self.guard.ask()
        return ""

    def _look_back(self) -> None:
        """Break the communicator where ranks have made different calls, and nothing told them.

        The library compares nothing. Of ours no message is used by another call, but where ranks
        come in another order, by chance each message may wait for its call. Each rank compares with
        the next one: where not all have done the same, some neighbours have not. At two looks, for
        a call of the other one's that fails at once is not counted. Not of the same call: in a fast
        loop, the one of the last look is forgotten.
        """
        number, before = self.log.differs(self.next), self.odd
        self.odd = number if self.log.words[ENDS + (number & LAST)] else 0
        if not self.odd or not before or self.told:
            return
        error: BaseException | None = None
        if self.speaks:
            error = self.guard.fail(
                ForeignMessage(-1, self.guard.rank), "a call that has ended",
                self.log.description(number), 0, number=number, in_thread=True)
        if not isinstance(error, BrokenCommunicatorError):  # else another thread was first
            self._tell_late(error)

    @property
    def told(self) -> bool:
        """Tell whether somebody has said that something is wrong."""
        return self.said or self.guard.failure is not None or self.guard.alarmed

    def last_look(self) -> None:
        """Say, at the end, what nobody has said of calls that ranks have made differently."""
        if not self.log.words[LEFT] and not self.told and self.log.differs(self.next):
            self._tell_late(None)

    def _tell_late(self, error: BaseException | None) -> None:
        """Say once that calls were not the same; nothing where the logs show it no more."""
        records = {rank: log.record() for rank, log in self.guard.logs.logs.items()}
        error = error or judge(records, self.guard.context.size)
        if error is None:
            return
        self.said = True
        print(f"hpccoll: result may be wrong on rank {self.guard.rank}: "
              f"{error}", file=sys.stderr, flush=True)

    def _hopeless(self, number: int, elapsed: float) -> BaseException | None:
        """Why a call cannot end any more; ``None`` where it may."""
        guard, timeout = self.guard, self.guard.context.bounds.timeout
        if guard.logs.rung(True) if self.speaks else guard.alarmed:
            return guard.failure or BrokenCommunicatorError()
        if guard.logs.disagree(settled=True):
            return ForeignMessage(-1, guard.rank)
        lost = guard.board.lost(number, GRACE)
        if lost:
            return guard.loss(lost, self._title(number))
        if elapsed < timeout:
            return None
        missing = self._missing(number)
        if not missing:
            return None  # all have come: it is the library that takes so long
        return self._late(number, timeout, guard.tell(missing))

    def _missing(self, number: int) -> tuple[int, ...]:
        """The ranks that are not known to have come to a call."""
        return tuple(one.rank for one in self.guard.doing() if one.rank != self.guard.rank and not (
            one.state in (NATIVE, AWAY) and one.begun >= number))

    def _late(self, number: int, seconds: float, states: RankStates) -> CollectiveTimeout:
        """The error of a call that takes too long."""
        return CollectiveTimeout(self._title(number), self.guard.rank, 0, self._missing(number),
                                 round(seconds, 1), states)

    def _title(self, number: int) -> str:
        """What a call is called in messages."""
        description = self.log.description(number)
        return f"native {called(description)}" if description else "a native collective"

    def _given_up(self, number: int, error: BaseException) -> str:
        """Tell the others that a call cannot end; return what to say, if it still has not."""
        description, site, title = self.log.description(number), main_site(), self._title(number)
        verdict = error
        if self.speaks:
            verdict = self.guard.fail(error, title, description, 0, site, in_thread=True)
        if self.escaped():
            return ""
        return (f"{stated(verdict)}\n  rank {self.guard.rank} exits with status {STATUS} in call "
                f"{number}, {title} at {site}")

    @property
    def speaks(self) -> bool:
        """Tell whether a thread may tell the others: by memory, or where MPI allows it to."""
        return (not isinstance(self.guard.logs, MessagedLogs)
                or MPI.Query_thread() == MPI.THREAD_MULTIPLE)

    def busy(self) -> bool:
        """Tell whether this rank was in the MPI library's hands at the last look."""
        return bool(self.stay.number)

    def escaped(self) -> bool:
        """Tell whether the call that was looked after has ended."""
        return self.log.words[INSIDE] != self.stay.number

    def leave(self, how: int) -> None:
        """Tell the others that this rank ends its program."""
        self.last_look()
        self.guard.leave(how)
