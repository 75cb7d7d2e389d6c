"""Guard of the calls of a communicator: :class:`Guard`.

    before a call    compare: at the highest level, raise unless all ranks make the same call
    a plan is made   call hash: its messages carry it, so messages of different calls never match
    a call starts    opening: record it in this rank's log; raise if another rank has failed
    a rank waits     listen: raise if a rank has failed, is in another call, or has died
    a long wait      collect_states: the status of the other ranks for the report
    a call fails     fail: send the failure to all ranks, collect their records, judge
    a later call     raise_failure: raise again

A watchdog thread monitors native MPI calls (``library_calls.py``, ``watchdog.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NoReturn

from mpi4py import MPI

from hpccoll.config import ALWAYS, OFF
from hpccoll.errors import (
    BrokenCommunicatorError,
    ForeignMessage,
    HpccollError,
    PeerLost,
    cause_of,
)
from hpccoll.errors.waits import RankStates
from hpccoll.guard.alarm import MessagedLogs, logs_of
from hpccoll.guard.call_offsets import describe_offset
from hpccoll.guard.call_sites import call_site
from hpccoll.guard.diagnosis import judge, reported_error, unexpected_message_error
from hpccoll.guard.failed_ranks import Losses, failure_report
from hpccoll.guard.job_status import JOB
from hpccoll.guard.rank_status import (
    CURIOUS,
    DEBUGGED,
    DYING,
    GONE,
    GRACE,
    HALTED,
    KILLED,
    LAST_MESSAGES,
    QUIET,
    RankActivity,
    RankStatus,
    waiting_status,
)
from hpccoll.guard.watchdog import LibraryTimer
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import ALARM, FREED, LEFT, NUMBER
from hpccoll.runtime.events.call_records import begins, ends
from hpccoll.runtime.execution.executor import Execution, Timeouts
from hpccoll.runtime.execution.slow_path import SlowPath
from hpccoll.runtime.planning.binding import Action
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.waiting import Meeting, PendingRun, WaitTimer
from hpccoll.runtime.ranks import Ranks
from hpccoll.transport import Batch
from hpccoll.transport.call_hashes import split
from hpccoll.transport.checked import CheckedBatch
from hpccoll.transport.mpi import FIRST_TAG, PersistentBatch, SingleBatch
from hpccoll.transport.shm.channels import CHANNELS
from hpccoll.transport.shm.endpoint import BothBatch

#: Consecutive polls that must find a message of another call first.
CERTAIN = 3


def _missing_ranks(batch: Batch) -> Sequence[int]:
    """Return the ranks of a batch whose messages MPI has not delivered."""
    if isinstance(batch, CheckedBatch):
        batch = batch.inner
    if isinstance(batch, BothBatch):
        batch = batch.remote
    return batch.missing_ranks() if isinstance(batch, (SingleBatch, PersistentBatch)) else ()


class PendingCall(Meeting):
    """A pending native collective of this rank.

    Attributes:
        number: of the call; 0 for a persistent one, which ranks may start in any order.
    """

    def __init__(self, guard: Guard, title: str, number: int):
        super().__init__(guard.ranks.comm, title)
        self.guard, self.number, self.began = guard, number, time.monotonic()

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return round 0, and the ranks that are not known to be in the call or beyond it."""
        return 0, tuple(one.rank for one in self.guard.activities() if one.rank != self.rank
                        and not (self.number and one.begun >= self.number
                                 and one.state not in (HALTED, DEBUGGED)))


class Guard:
    """Guard of one communicator; the constructor is collective.

    Args:
        ranks: of the communicator.
        on_failure: called once, after a failure, with the function that rejects calls.
        write_record: writes a flight record, for a reason.

    Attributes:
        timeouts: limits of all waits on the communicator.
        abandoned: memory and requests of failed calls, which the library may still use.
    """

    def __init__(self, ranks: Ranks, on_failure: Callable[[Callable[[], NoReturn]], None],
                 write_record: Callable[[str, bool], None]):
        self.ranks, self.rank, config = ranks, ranks.rank, ranks.config
        self.on_failure, self.write_record = on_failure, write_record
        self.compares_calls = config.contract != OFF
        self.always = config.contract == ALWAYS
        self.logs, self.losses = logs_of(ranks), Losses(ranks.comm)
        self.rank_status = RankStatus(
            self.rank, self.logs.logs, ranks.processes, self.compares_calls)
        self.timeouts = Timeouts(config.timeout, config.report, self.listen, self.collect_states)
        self.abandoned: list[Any] = []
        self.log = self.logs.mine.address if self.compares_calls else 0
        self.alarm = self.logs.mine.address + 8 * ALARM
        self.lock = threading.RLock()
        self.failure: BrokenCommunicatorError | None = None
        #: Error found by a thread; the next call raises it.
        self.unraised: BaseException | None = None
        self.suspect: tuple[int, int, int] = (0, 0, 0)
        #: Tags whose messages all use shared memory, as the logs do.
        self.channels = ranks.node.tags if ranks.node is not None else {}
        #: The wait that this rank has reported, and the time of its last status request.
        self.said: tuple[str, int, int] = ("", 0, 0)
        self.asked = 0.0

    def use_timeout(self, seconds: float) -> None:
        """Set the time-out of later waits."""
        self.timeouts = self.timeouts._replace(timeout=seconds)

    # -- before and while a call runs ---------------------------------------------------------
    @property
    def number(self) -> int:
        """Return the number of this rank's last blocking call."""
        return self.logs.mine.words[NUMBER]

    def call_hash(self, description: Description) -> int:
        """Return the call hash of a call's messages; publish the call under this call hash."""
        if not self.compares_calls:
            return 0
        description = self._fields_to_compare(description)
        call_hash = description.call_hash()
        self.logs.mine.describe(call_hash, description)
        return call_hash

    def _fields_to_compare(self, description: Description) -> Description:
        """Return the fields that are compared: the type of moved data only before each call."""
        return description if self.always else description.without_moved_type()

    def opening(self, call_hash: int, tag: int) -> Action | None:
        """Return a callback for the start of a plan: record the call, check for failures."""
        if not call_hash or self.ranks.size == 1:
            return None
        if tag or self.always:
            # Requests start in any order, so no log has them. Or the call is recorded already.
            return self.on_alarm, ()
        return self._log_callback(call_hash), ()

    def end_callback(self, call_hash: int, tag: int) -> Action | None:
        """Return a callback for the end of a plan: it records the end of the call."""
        if not call_hash or self.ranks.size == 1 or tag or self.always:
            return None
        return ends(self.logs.mine), ()

    def _log_callback(self, call_hash: int) -> Callable[[], None]:
        """Return a callback that records a call in the log and checks for failures."""
        return begins(self.logs.mine, call_hash, self.on_alarm, isinstance(self.logs, MessagedLogs))

    def compare(self, description: Description | None, title: str = "") -> None:
        """Raise unless all ranks make the same call; collective.

        A call that only mpi4py can describe has no description and equals any other.
        """
        call_hash = self.call_hash(description) if description else 0
        title = f"comparison before {title or (description and description.collective)}"
        try:
            self._log_callback(call_hash)()
            met = self.logs.comparison(call_hash)
            watch = WaitTimer(PendingCall(self, title, self.logs.mine.words[NUMBER]),
                              *self.timeouts, self.ranks.limits.spins)
            wait_until(lambda: met() is not None, watch)
            if not met():
                raise ForeignMessage(-1, self.rank)
            if not self.always:
                ends(self.logs.mine)()
        except BaseException as error:
            diagnosis = self.fail(error, title, description, 0)
            if diagnosis is not error:
                raise diagnosis from cause_of(error)
            raise

    def on_alarm(self, in_turn: bool = False) -> None:
        """Raise if a rank has failed; with ``in_turn``, only in a call that it has entered."""
        if self.logs.alarm_raised(in_turn):
            raise copy(self.failure or BrokenCommunicatorError())

    def listen(self, awaited: PendingRun) -> None:
        """Raise if the wait cannot complete; publish the ranks that this rank waits for."""
        self.losses.check(awaited.title)
        tag = split(getattr(awaited, "tag", FIRST_TAG))[0]
        self.on_alarm(in_turn=tag < CHANNELS)
        if isinstance(awaited, PendingCall):
            self._check_others(awaited.title, awaited.number)
        elif tag < CHANNELS or isinstance(awaited, Meeting):
            self._check_others(awaited.title, self.number)
        else:
            self._check_others(awaited.title, 0, awaited.pending_peers()[1])
        # By the last call that has begun: a wait for an earlier request happens inside it.
        self._say(awaited, self.number)
        if isinstance(awaited, (Execution, SlowPath)) and (
                isinstance(self.logs, MessagedLogs) or tag not in self.channels):
            self._look_at_messages(awaited)

    def _check_others(self, title: str, number: int, peers: Sequence[int] = ()) -> None:
        """Raise if another rank is in another call, or cannot complete this one."""
        if self.logs.disagree(settled=True):
            raise ForeignMessage(-1, self.rank)
        failed_ranks = self.rank_status.failed_ranks(number, GRACE, peers=peers)
        if failed_ranks:
            raise self.peer_lost_error(failed_ranks, title)

    # -- called by the watchdog ---------------------------------------------------------------
    def library_timer(self, call: PendingCall) -> LibraryTimer:
        """Return the timer of a call that the MPI library, or a device, runs."""
        return LibraryTimer(call, *self.timeouts._replace(listen=lambda _: self.watch(call)))

    def watch(self, call: PendingCall) -> None:
        """Do the same as :meth:`listen` for a native call; calls MPI only if a thread may."""
        if self.has_failed:
            raise copy(self.failure or BrokenCommunicatorError())
        self._check_others(call.title, call.number)
        if time.monotonic() - call.began > CURIOUS:
            self.ask()

    @property
    def has_failed(self) -> bool:
        """Return True if a call of this rank, or of one whose failure is known, has failed."""
        return self.failure is not None or (
            self.logs.alarm_raised(True) if self.speaks else self.alarm_raised)

    @property
    def speaks(self) -> bool:
        """Return True if a thread may publish failures: by memory, or if MPI permits threads."""
        return (not isinstance(self.logs, MessagedLogs)
                or MPI.Query_thread() == MPI.THREAD_MULTIPLE)

    def _say(self, awaited: PendingRun, number: int) -> None:
        """Publish what this rank waits for; request the status of the other ranks periodically."""
        round, peers = awaited.pending_peers()
        now, mine = time.monotonic(), self.logs.mine
        if self.said != (awaited.title, number, round):
            if mine.quiet_for() > QUIET:  # a new wait; otherwise one of several that take turns
                self.asked = now
            self.said = awaited.title, number, round
            mine.publish_status(waiting_status(awaited.title, number, round, peers, call_site()))
        mine.look()
        if now - self.asked > min(CURIOUS, self.timeouts.timeout / 2):
            self.asked = now
            self.ask()

    def ask(self) -> None:
        """Request the status of the other ranks."""
        for rank, log in self.logs.logs.items():
            if rank != self.rank:
                log.ask()

    def activities(self) -> list[RankActivity]:
        """Return the status of each rank as far as it is known without messages; thread-safe."""
        return self.rank_status.all()

    def collect_states(self, peers: Sequence[int] = ()) -> RankStates:
        """Return the status of the ranks, and the ranks that this rank's call waits for."""
        self.write_record("a long wait", False)
        return self.rank_status.states(self.logs.mine.words[NUMBER], peers)

    def check_ranks(self, peers: Sequence[int]) -> RankStates:
        """Return the status of the ranks, for a wait for user messages; never communicates.

        Raises:
            PeerLost: a rank has died or has ended its program.
            BrokenCommunicatorError: a rank has failed.
        """
        self.on_alarm()
        found, now = self.rank_status.look(), time.monotonic()
        killed, ended = ([rank for rank in found if self.rank_status.activity(rank).state == state]
                         for state in (KILLED, GONE))
        if killed:  # another rank may have exited for this reason; its waiter gets the error later
            ended = [rank for rank in ended
                     if rank in peers and now - found[rank] >= LAST_MESSAGES]
        if killed or ended:
            raise self.peer_lost_error(tuple(sorted(killed + ended)), "a wait for messages", False)
        self.ask()
        return self.rank_status.states(self.logs.mine.words[NUMBER], peers)

    def peer_lost_error(self, failed_ranks: tuple[int, ...], title: str, numbered: bool = True
             ) -> BrokenCommunicatorError:
        """Return the error of a call with lost ranks, and the cause if one left after an error."""
        number, logs = self.logs.mine.words[NUMBER], self.logs.logs
        reports = {rank: logs[rank].report() for rank in failed_ranks if rank in logs}
        failed = [(rank, report) for rank, report in reports.items() if report]
        if len(failed) == len(failed_ranks):
            return reported_error(*min(failed, key=lambda one: one[1]["heard"]), title)
        return PeerLost(failed_ranks, self.rank_status.states(number, failed_ranks=failed_ranks),
                        f"call {number}, {title}," if number and numbered else title)

    def _look_at_messages(self, awaited: Execution | SlowPath) -> None:
        """Check whether a missing rank has sent a message of another call instead.

        Such a rank cannot complete this call: messages arrive in order. A message that is being
        received may be incomplete.
        """
        comm, status, tags = self.ranks.comm, MPI.Status(), self.ranks.tags
        for peer in {peer for batch in awaited.batches for peer in _missing_ranks(batch)}:
            if comm.Iprobe(peer, MPI.ANY_TAG, status):
                found = status.Get_tag()
                if tags.foreign(found, awaited.tag):
                    known, before, times = self.suspect
                    again = (known, before) == (peer, found)
                    self.suspect = peer, found, times + 1 if again else 1
                    if self.suspect[2] >= CERTAIN:
                        raise ForeignMessage(peer, self.rank)

    # -- when a call has failed ---------------------------------------------------------------
    def fail(self, error: BaseException, title: str, description: Description | None, tag: int,
             site: str = "", number: int | None = None, in_thread: bool = False,
             own: bool = False) -> BaseException:
        """Record a failed call, and return the error for the caller.

        Args:
            error: the error of the call.
            title: name of the call.
            description: of the call, if there is one.
            tag: of its messages; 0 for blocking calls.
            site: file and line of the call; those of the caller if omitted.
            number: of the call; that of the last one begun, if omitted.
            in_thread: True in the watchdog thread: the next call raises the error.
            own: True if the call failed on this rank, whatever the error's type.
        """
        with self.lock:
            if self.failure is not None:
                if in_thread:
                    return self.unraised or self.failure
                return self._repeat_error() if self.unraised or self.failure is not error else error
            error = self.losses.explain(error, title)
            interrupted = not isinstance(error, Exception)
            if number is None:
                number = 0 if tag else self.logs.mine.words[NUMBER]
            failed_ranks = self.rank_status.failed_ranks(number, 0, at_once=True)
            if not failed_ranks and isinstance(error, (ProcessLookupError, MPI.Exception)):
                time.sleep(DYING)
                failed_ranks = self.rank_status.failed_ranks(number, 0, at_once=True)
            if failed_ranks and not isinstance(error, PeerLost) and isinstance(
                    error, (HpccollError, MPI.Exception, OSError)):
                error = self.peer_lost_error(failed_ranks, title)
            heard = isinstance(error, BrokenCommunicatorError) and not isinstance(error, PeerLost)
            self.logs.raise_alarm(failure_report(
                error, title, number, tag=tag, site=site or call_site(), heard=heard and not own,
                fields=description and self._fields_to_compare(description),
                lost=() if heard else failed_ranks or getattr(error, "ranks", ())),
                self.rank_status.gone, getattr(error, "peers", ())
                or self.logs.mine.status().get("peers", ()))
            diagnosis = error
            if isinstance(error, PeerLost) and self.losses.known:
                self.ranks.revoke()  # ends every pending wait
            elif not interrupted:
                late = isinstance(error, (ForeignMessage, BrokenCommunicatorError)) and not (
                    isinstance(error, PeerLost))
                diagnosis = self._diagnose(error, title, tag, number * late)
            self.failure = diagnosis if isinstance(diagnosis, BrokenCommunicatorError) else (
                BrokenCommunicatorError.from_report(
                    self.rank, failure_report(diagnosis, title, number)))
            if in_thread:  # before another call can check it
                self.unraised = diagnosis
        self.on_failure(self.raise_failure)
        self.write_record(f"{type(diagnosis).__name__}: {diagnosis}", True)
        return diagnosis

    def revoke(self) -> None:
        """End the calls of all ranks that wait in shared memory; reject later calls here."""
        with self.lock:
            if self.failure is None:
                report = failure_report(
                    BrokenCommunicatorError(), "revoke", 0, tag=0, site=call_site(), fields=None,
                    reason="it was revoked", heard=False, lost=())
                self.logs.raise_alarm(report, self.rank_status.gone)
                self.failure = BrokenCommunicatorError.from_report(self.rank, report)
        self.on_failure(self.raise_failure)

    def _diagnose(self, error: BaseException, title: str, tag: int, number: int) -> BaseException:
        """Return the error for the caller, from the records of all ranks, late ranks included."""
        records = self.logs.records(self.rank_status.gone, number)
        contract = judge(records, self.ranks.size)
        if contract is None and isinstance(error, ForeignMessage) and error.peer >= 0 and not tag:
            contract = unexpected_message_error(records[self.rank], self.rank, error.peer,
                                                self.ranks.size)
        if contract is not None:
            contract.add(describe_offset(records, contract.ranks))
            return contract
        # After a rank failed, the library may not be able to read that rank's memory.
        if isinstance(error, PeerLost) or not isinstance(
                error, (BrokenCommunicatorError, MPI.Exception)):
            return error
        origins = [(rank, record.report) for rank, record in sorted(records.items())
                   if record.report and not record.report["heard"] and rank != self.rank]
        # An error that names a dead rank is more precise than a timeout.
        origins.sort(key=lambda origin: not origin[1]["lost"])
        if not origins:
            return error
        return reported_error(*origins[0], title)

    @property
    def alarm_raised(self) -> bool:
        """Return True if a failure of another rank is known without communication."""
        return bool(self.logs.mine.words[ALARM])

    def raise_broken(self) -> NoReturn:
        """Raise the error of a call that starts after another rank has failed."""
        raise self.fail(BrokenCommunicatorError(), "a native collective", None, 0)

    def _repeat_error(self) -> BaseException:
        unraised, self.unraised = self.unraised, None
        if unraised is not None:
            return unraised
        return copy(self.failure or BrokenCommunicatorError())  # with a traceback of its own

    def raise_failure(self) -> NoReturn:
        """Raise the error of every call that follows a failed one."""
        raise self._repeat_error()

    def leave(self, how: int) -> None:
        """Publish that this rank has freed the communicator, or exits."""
        self.logs.mine.words[LEFT] = self.logs.mine.words[LEFT] or how
        if how == FREED:
            JOB.comms.remove(self.logs.listed)
