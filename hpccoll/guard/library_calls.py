"""Native MPI calls: recorded in this rank's log, and monitored by a thread.

At the level ``tags`` the library's own blocking call runs between two log entries that cost some
nanoseconds. So ranks that wait in an algorithm of hpccoll can report another rank's native call,
and :class:`LibraryCalls` checks the other ranks from the watchdog thread. At the level ``always``
the call runs in its nonblocking form, polled like hpccoll's own calls: it ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from hpccoll.calls.call import Call
from hpccoll.calls.native import ARGUMENT_ERRORS
from hpccoll.errors import BrokenCommunicatorError, ForeignMessage, HpccollError, cause_of
from hpccoll.errors.waits import print_report
from hpccoll.guard.call_sites import main_site
from hpccoll.guard.diagnosis import judge
from hpccoll.guard.flight_record import RECORDER
from hpccoll.guard.guard import Guard, PendingCall
from hpccoll.guard.pending_calls import watch_nonblocking, watch_persistent
from hpccoll.guard.rank_status import format_call
from hpccoll.guard.watchdog import WATCHDOG, LibraryTimer, Monitor, answer, exit_text
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import (
    CHECK,
    FREED,
    INSIDE,
    LEFT,
    NUMBER,
)
from hpccoll.runtime.events.call_records import log_calls
from hpccoll.runtime.planning.call_hash import describe_native
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.waiting import Meeting

#: Maximum number of cached wrappers.
MOST_KINDS = 2048


class LibraryCalls(Monitor):
    """Native calls of one communicator."""

    def __init__(self, guard: Guard):
        self.guard, self.log = guard, guard.logs.mine
        self.kinds: dict[tuple[Any, int], Callable[..., Any]] = {}
        #: Log of the next rank on this node, and its call that differed at the last poll.
        near = sorted(guard.logs.logs)
        self.next = guard.logs.logs[near[(near.index(guard.rank) + 1) % len(near)]]
        self.odd, self.said = 0, False
        if guard.compares_calls and guard.ranks.size > 1:
            WATCHDOG.add(self)

    # -- how they are called -------------------------------------------------------------------
    def method(self, native: Callable[..., Any], name: str, call: Call | None,
               check: Callable[..., None] | None = None) -> Callable[..., Any]:
        """Return a native blocking method with the log entries of the level around it.

        Args:
            native: the method.
            name: of the method, in lower case.
            call: the resolved call; ``None`` if only mpi4py can parse it, or if the wrapper
                is for calls that differ.
            check: called with the arguments of a call that has ended, if its number has reached
                :attr:`check`.
        """
        if self.guard.always and self.guard.ranks.size > 1:
            return partial(self._run_with_timeout, getattr(MPI.Intracomm, f"I{name}"), name)
        known = call is not None and self.guard.compares_calls
        call_hash = self.guard.call_hash(describe_native(call, name)) if known else 0
        return self._cached_wrapper(
            native, call_hash, lambda: self.watch_blocking(native, name, call_hash, check=check))

    @property
    def check(self) -> int:
        """Return the number of the next call that is followed by a check; 0 for none."""
        return self.log.words[CHECK]

    def check_after(self, number: int) -> None:
        """Follow the next call from a number on by a check."""
        self.log.words[CHECK] = number

    def watch_nonblocking(self, native: Callable[..., MPI.Request], name: str, call: Call | None
                          ) -> Callable[..., MPI.Request]:
        """Return a native nonblocking method with log entries; arguments as of :meth:`method`.

        Its calls are numbered with the blocking ones: all ranks begin both in one order. A wait
        for its request reports the missing ranks, and raises if it cannot complete.
        """
        call_hash = self.guard.call_hash(describe_native(call, name)) if call is not None else 0
        return self._cached_wrapper(native, call_hash, lambda: watch_nonblocking(
            self.watch_blocking(native, name, call_hash), self.guard, f"native {name}"))

    def _cached_wrapper(self, native: Callable[..., Any], call_hash: int,
                        make: Callable[[], Callable[..., Any]]
                        ) -> Callable[..., Any]:
        """Return the cached wrapper of a method for one call hash; make it if there is none."""
        served = self.kinds.get((native, call_hash))
        if served is None:
            if len(self.kinds) >= MOST_KINDS:
                self.kinds.clear()
            served = self.kinds[native, call_hash] = make()
        return served

    def watch_queued(self, function: Callable[..., Any], description: Description
                     ) -> Callable[..., Any]:
        """Return a function that queues a call on a device, with a log entry.

        NCCL connects in its first calls, where the host waits for the peers. At the level
        ``always`` the comparison has recorded the call; this entry has no call hash.
        """
        call_hash = 0 if self.guard.always else self.guard.call_hash(description)
        return self._cached_wrapper(function, call_hash,
                                    lambda: self.watch_blocking(function, description.collective,
                                                                call_hash))

    def watch_persistent(self, request: MPI.Prequest, buffers: object, name: str) -> MPI.Prequest:
        """Return a native persistent request whose waits are bounded; it keeps the buffers.

        It has no number: ranks may start such requests in any order.
        """
        return watch_persistent(request, buffers, self.guard, f"native {name}")

    def objects(self, native: Callable[..., Any], description: Description) -> Callable[..., Any]:
        """Return a lower-case method of mpi4py, numbered and monitored like a blocking one.

        If it raises before it has sent anything, the caller calls :meth:`unsent`.
        """
        return self.watch_blocking(native, description.collective,
                                   self.guard.call_hash(description), True)

    def unsent(self) -> None:
        """Undo the record of an object call that sent nothing: it has no match on other ranks."""
        if self.counts:
            self.log.words[NUMBER] -= 1

    @property
    def counts(self) -> bool:
        """Return True if calls are numbered."""
        return self.guard.compares_calls and self.guard.ranks.size > 1

    def watch_blocking(self, function: Callable[..., Any], name: str = "set-up", call_hash: int = 0,
                       pickles: bool = False, check: Callable[..., None] | None = None
                       ) -> Callable[..., Any]:
        """Return a wrapper of a function in which all ranks call the MPI library.

        Args:
            function, name, call_hash: of the call.
            pickles: True if it may fail after the library has completed its part.
            check: as for :meth:`method`.
        """
        if not self.counts:
            return function
        return log_calls(function, self.log, call_hash, self.guard.raise_broken,
                         partial(self._failed_before_sending, name, pickles), check)

    def run_after_meeting(self, function: Callable[..., Any], description: Description
                          ) -> Callable[..., Any]:
        """Return a wrapper that runs a collective function once all ranks have entered it."""
        def call(*args: Any) -> Any:
            if self.guard.ranks.size > 1:
                self.guard.compare(description)
            return self.watch_blocking(function, description.collective,
                                       self.guard.call_hash(description))(*args)
        return call

    def begin_duplicate(self, begin: Callable[..., tuple[Any, MPI.Request]], *args: Any
                        ) -> tuple[Any, MPI.Request]:
        """Begin to duplicate the communicator; waits for the request are bounded."""
        made: list[Any] = []

        def begin_request() -> MPI.Request:
            comm, request = begin(*args)
            made.append(comm)
            return request

        call_hash = self.guard.call_hash(Description("idup"))
        request = watch_nonblocking(self.watch_blocking(begin_request, "idup", call_hash),
                                    self.guard, "native idup")()
        return made[0], request

    def stream_monitor(self, check: Callable[[], None], abort: Callable[[], None], device: Any,
                       happened: Callable[[Any], bool]) -> Any:
        """Return the monitor of calls that a library queues on a device."""
        from hpccoll.guard.stream_calls import StreamMonitor  # only device calls need it
        return StreamMonitor(self.guard, check, abort, device, happened)

    def _run_with_timeout(self, begin: Callable[..., MPI.Request], name: str, comm: MPI.Intracomm,
                          *args: Any) -> None:
        """Run a call in its nonblocking form, with a bounded wait as for hpccoll's own calls."""
        self.wait(begin(comm, *args), f"native {name}", args)

    def wait(self, request: MPI.Request, title: str, held: tuple[Any, ...] = (),
             timeout: float | None = None) -> None:
        """Wait with bounds for a request of all ranks.

        Args:
            request, title: the request, and its name in errors.
            held: its memory; the library may still use it after an error.
            timeout: in seconds; the communicator's if omitted.
        """
        try:
            timeouts = self.guard.timeouts
            if timeout is not None:
                timeouts = timeouts._replace(timeout=timeout)
            wait_until(request.Test,
                       LibraryTimer(Meeting(self.guard.ranks.comm, title), *timeouts))
        except BaseException as error:
            self.guard.abandoned.append((request, held))
            diagnosis = self.guard.fail(error, title, None, 0)
            if diagnosis is not error:
                raise diagnosis from cause_of(error)
            raise

    def _failed_before_sending(self, name: str, pickles: bool, error: BaseException) -> bool:
        """Return True if a call is known to have failed before it sent anything."""
        if isinstance(error, HpccollError) or not isinstance(error, Exception):
            return False
        if not isinstance(error, MPI.Exception):
            return not pickles
        if error.Get_error_class() in ARGUMENT_ERRORS:
            return True
        diagnosis = self.guard.fail(error, f"native {name}", None, 0)
        if diagnosis is not error:
            raise diagnosis from cause_of(error)
        return False

    # -- called by the watchdog ------------------------------------------------------------------
    def poll(self) -> str:
        """Answer status requests, compare calls that have ended, and check the pending one."""
        answer(self.log)
        if not self.log.words[LEFT]:
            self._look_back()
        return super().poll()

    def pending_timer(self) -> LibraryTimer | None:
        """See :class:`Monitor`."""
        inside, timer = self.log.words[INSIDE], self.timer
        if not inside or timer is not None and timer.awaited.number == inside:
            return timer if inside else None
        description = self.log.description(inside)
        title = f"native {format_call(description)}" if description else "a native collective"
        return self.guard.library_timer(PendingCall(self.guard, title, inside))

    def _look_back(self) -> None:
        """Mark the communicator as broken if ranks made different calls without an error.

        The MPI library compares nothing. hpccoll's messages never match another call, but if ranks
        make calls in another order, every message may still find its call by chance. Each rank
        compares its log with the next one: if not all agree, some neighbours differ. The check
        needs two polls, because a call of the other rank that fails immediately is not counted. The
        two polls see different calls: in a fast loop, the log drops the call of the last poll.
        """
        number, before = self.log.differs(self.next), self.odd
        self.odd = number if self.log.end_of(number) else 0
        if not self.odd or not before or self.alarm_raised:
            return
        error: BaseException | None = None
        if self.guard.speaks:
            error = self.guard.fail(
                ForeignMessage(-1, self.guard.rank), "a call that has ended",
                self.log.description(number), 0, number=number, in_thread=True)
        if not isinstance(error, BrokenCommunicatorError):  # otherwise another thread was first
            self._tell_late(error)

    @property
    def alarm_raised(self) -> bool:
        """Return True if any rank has reported a failure."""
        return self.said or self.guard.failure is not None or self.guard.alarm_raised

    def last_look(self) -> None:
        """Report at exit calls that differed between ranks, unless they were reported before."""
        if not self.log.words[LEFT] and not self.alarm_raised and self.log.differs(self.next):
            self._tell_late(None)

    def _tell_late(self, error: BaseException | None) -> None:
        """Report differing calls once; return nothing if the logs no longer show them."""
        records = {rank: log.record() for rank, log in self.guard.logs.logs.items()}
        error = error or judge(records, self.guard.ranks.size)
        if error is None:
            return
        self.said = True
        print_report(f"hpccoll: result may be wrong on rank {self.guard.rank}: {error}")

    def give_up(self, call: Meeting, error: HpccollError) -> str:
        """See :class:`Monitor`."""
        diagnosis: BaseException = error
        site = main_site()
        if self.guard.speaks:
            diagnosis = self.guard.fail(error, call.title, self.log.description(call.number), 0,
                                        site, in_thread=True)
        return "" if self.has_returned() else exit_text(
            diagnosis, self.guard.rank, f"call {call.number}, {call.title}", site)

    def has_returned(self) -> bool:
        """See :class:`Monitor`."""
        return self.timer is None or self.log.words[INSIDE] != self.timer.awaited.number

    def leave(self, how: int) -> None:
        """Publish that this rank exits."""
        self.last_look()
        self.guard.leave(how)

    def free(self) -> None:
        """Check the last calls, and publish that this rank has freed the communicator."""
        RECORDER.guards.pop(self.guard, None)
        self.leave(FREED)
