"""Calls that create a communicator or memory before a guard exists: :class:`SetupCall`.

    ranks meet       a nonblocking allgather on the user's communicator, after its duplications,
                     polled: missing ranks are reported, an error ends the wait, and the calls of
                     all ranks are compared
    library's call   all ranks are in it, but one may die: the watchdog thread checks

Three calls use it: the set-up of a communicator, which creates the private one and its guard, and
before that its first collective, and ``Split`` and similar methods. The status of the other ranks
is in the logs of their processes.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property, partial
from types import TracebackType
from typing import Any, NoReturn

import numpy
from mpi4py import MPI

from hpccoll.config import Config, common_values
from hpccoll.errors import (
    ArgumentError,
    BrokenCommunicatorError,
    HpccollError,
    PeerLost,
    cause_of,
)
from hpccoll.errors.contract import ContractError, Party
from hpccoll.errors.waits import RankStates
from hpccoll.guard.call_sites import call_site, main_site
from hpccoll.guard.diagnosis import reported_error
from hpccoll.guard.failed_ranks import Losses, failure_report
from hpccoll.guard.job_status import JOB
from hpccoll.guard.rank_status import (
    CURIOUS,
    DYING,
    FREE,
    GONE,
    GRACE,
    IN_PROGRAM,
    KILLED,
    NATIVE,
    WAITING,
    RankActivity,
    RankStatus,
    waiting_status,
)
from hpccoll.guard.watchdog import WATCHDOG, LibraryTimer, Monitor, exit_text
from hpccoll.machine.backoff import wait_until
from hpccoll.machine.discovery import exchange_processes
from hpccoll.machine.groups import world_ranks
from hpccoll.machine.processes import Process
from hpccoll.runtime.events.call_log import FAILED, INSIDE, NUMBER, SOME_TIME
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.waiting import Meeting, PendingRun, WaitTimer
from hpccoll.transport.call_hashes import agree
from hpccoll.transport.private_comm import PrivateComm

#: Bytes of the text of a rank's call and position.
CALL_BYTES = 512
#: Ends of a call that has failed, and of one that was withdrawn because of wrong arguments.
GAVE_UP, WITHDRAWN = -1, -2
#: Memory of meetings that have failed: the library may still use it.
_abandoned: list[Any] = []
#: Threads may set communicators up at the same time, in one log.
_numbering = threading.Lock()


class SetupStatus(RankStatus):
    """Status of ranks of which only set-up calls are known."""

    def activity(self, rank: int) -> RankActivity:
        """Return the status of a rank; its last call is known only while it is in a set-up call."""
        one = super().activity(rank)
        if one.state in (WAITING, NATIVE) or not one.begun:
            return one
        return one._replace(begun=-1, call="", site=one.site if one.state == IN_PROGRAM else "")


class SetupCall(Meeting, Monitor):
    """A context in which all ranks of a communicator, or of a group, call the MPI library.

    Args:
        of: the communicator; or a group, whose ranks cannot meet on one.
        title: name of the call in messages.
        config: its bounds.
        turn: number of set-up calls on the communicator so far, the same on every rank.
        failed: callback, called with the function that rejects later calls after a failure.
        description: of the call, if it is a collective; the title if omitted.
        duplicates: requests of duplications of the communicator, which the program waits for.

    Attributes:
        number: of the call in the log of this process.
        met: the number that each rank's log has for the call; empty until they have met.
    """

    def __init__(self, of: MPI.Comm | MPI.Group, title: str, config: Config, turn: int = 0,
                 failed: Callable[[Callable[[], NoReturn]], None] = lambda raise_failure: None,
                 description: Description | None = None, duplicates: Sequence[MPI.Request] = ()):
        super().__init__(of, title)
        self.of, self.comm = of, of if isinstance(of, MPI.Intracomm) else None
        self.alone = self.size == 1 or self.rank < 0
        self.collective, self.description = bool(description), description or Description(title)
        self.config, self.turn, self.failed, self.duplicates = config, turn, failed, duplicates
        self.log, self.met = JOB.mine, tuple[int, ...]()
        self.inside = False
        self.asked = self.noticed = 0.0
        #: True if all ranks have come, with different calls.
        self.disagrees = False
        self._status: SetupStatus | None = None

    # -- in the thread that calls ---------------------------------------------------------------
    def __enter__(self) -> SetupCall:
        if not self.alone:
            call_hash = self.begin()
            if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
                _ = self.world  # the watchdog must not call MPI
            if self.comm is not None:
                self._meet(self.comm, call_hash)
            self.log.words[INSIDE], self.inside = self.number, True
            self.asked = time.monotonic()
            WATCHDOG.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.alone:
            return
        self.inside = False
        WATCHDOG.discard(self)
        if self.collective and isinstance(error, ArgumentError):
            # Maybe on all ranks; to a rank without the error, this one has not come.
            self.end(WITHDRAWN)
            return
        self.end()
        if error is not None:
            self._raise_failure(error, always=False)

    def _meet(self, comm: MPI.Intracomm, call_hash: int) -> None:
        """Wait until all ranks have entered the call.

        Raises:
            CollectiveTimeout: some ranks are missing.
            PeerLost: some ranks have exited.
            ContractError: some ranks have entered another call.
        """
        mine, found = numpy.array([call_hash, self.number]), numpy.empty((self.size, 2), int)
        try:
            # Open MPI begins a nonblocking collective on a revoked communicator and never ends it.
            with suppress(NotImplementedError):  # of a library without ULFM
                if MPI.Intracomm.Is_revoked(comm):
                    raise MPI.Exception(MPI.ERR_REVOKED)
            # Open MPI numbers the messages of a duplication when they are due, at other times on
            # other ranks: it mixes them up with those of nonblocking collectives. All ranks have
            # begun the same duplications, so none of them waits for this call of another rank.
            for request in self.duplicates:
                self._complete(partial(MPI.Request.Get_status, request))
            self._allgather(comm, mine, found)
            call_hashes, numbers = zip(*found.tolist())
            self.meet(numbers)
            if not all(agree(call_hash, other) for other in call_hashes):
                self._disagree(comm)
            if JOB.failure:
                for error in self.failures().values():
                    raise error
        except BaseException as error:
            self._raise_failure(error, always=not isinstance(error, ArgumentError))
            raise

    def _raise_failure(self, error: BaseException, always: bool) -> None:
        """Publish a failure and raise its cause, if that is another error.

        Args:
            error: that of the call.
            always: reject later calls also after an error that has no other cause.
        """
        diagnosis = self._explain(error)
        self.fail(diagnosis)
        if always or diagnosis is not error:
            self._refuse(diagnosis)
        if diagnosis is not error:
            raise diagnosis from cause_of(error)

    def _allgather(self, comm: MPI.Intracomm, mine: numpy.ndarray, found: numpy.ndarray) -> None:
        request = MPI.Intracomm.Iallgather(comm, mine, found)
        try:
            self._complete(request.Test)
        except BaseException:
            _abandoned.append((request, mine, found))
            raise

    def _complete(self, test: Callable[[], bool]) -> None:
        wait_until(test, WaitTimer(self, self.config.timeout, self.config.report, self.listen,
                                   self.collect_states))

    def _disagree(self, comm: MPI.Intracomm) -> NoReturn:
        """Raise the error that lists the call of every rank.

        Raises:
            ArgumentError: a setting differs, so that only some ranks set the communicator up.
            ContractError: it does not.
        """
        import json
        self.disagrees = True
        exchange_processes(PrivateComm(comm), common_values(self.config))
        text = json.dumps([self.description, call_site()[-200:]]).encode()
        mine = numpy.frombuffer(text[:CALL_BYTES].ljust(CALL_BYTES, b"\0"), "u1")
        found = numpy.empty((self.size, CALL_BYTES), "u1")
        self._allgather(comm, mine, found)
        calls: dict[Description, dict[int, str]] = {}
        for rank, row in enumerate(found):
            fields, site = json.loads(row.tobytes().rstrip(b"\0"))
            calls.setdefault(Description(*fields), {})[rank] = site
        raise ContractError(f"call {self.turn} of a communicator", [
            Party(tuple(sites), description._asdict(), tuple(sorted(set(sites.values()))))
            for description, sites in calls.items()])

    def _explain(self, error: BaseException) -> BaseException:
        """Return the error for a failure inside the MPI library, by its cause."""
        if not isinstance(error, MPI.Exception):
            return error
        if self.comm is not None:
            error = Losses(self.comm).explain(error, self.title)
        if isinstance(error, HpccollError):
            return error
        time.sleep(DYING)
        gone = self.rank_status.look(at_once=True)
        return self._peer_lost_error(gone) if gone else error

    def _refuse(self, error: BaseException) -> None:
        """Reject later calls."""
        failure = error if isinstance(error, BrokenCommunicatorError) else (
            BrokenCommunicatorError.from_report(
                self.rank, failure_report(error, self.title, 0)))

        def raise_failure() -> NoReturn:
            raise copy(failure)
        self.failed(raise_failure)

    # -- in both threads ------------------------------------------------------------------------
    def listen(self, awaited: PendingRun) -> None:
        """Raise if the wait cannot complete; publish the ranks that this rank waits for.

        Raises:
            PeerLost: a rank has exited.
            BrokenCommunicatorError: a rank has failed.
        """
        now = time.monotonic()
        failures = self.failures() if not self.disagrees else {}  # then all ranks raise that error
        self.noticed = (self.noticed or now) if failures else 0.0
        # First: a rank that exited may have published the cause. In the library, the call of this
        # rank may be about to fail as well.
        if failures and (not self.inside or now - self.noticed >= GRACE):
            raise next(iter(failures.values()))
        # Ranks that have met may leave once their part is complete.
        ends = (KILLED,) if self.met else (KILLED, GONE, FREE)
        lost = [rank for rank, when in self.rank_status.look().items()
                if now - when >= GRACE and self.rank_status.activity(rank).state in ends]
        if lost:
            raise self._peer_lost_error(lost)
        if not self.inside:
            self.log.look()
        if now - self.asked > CURIOUS:
            if not self.asked:
                self.publish_status()
            self.asked = now
            JOB.ask()

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return no round, and the ranks that are not known to have entered the call."""
        return 0, tuple(rank for rank in range(len(self.world))
                        if rank != self.rank and not self._has_come(rank))

    def collect_states(self, peers: Sequence[int] = ()) -> RankStates:
        """Return the status of the ranks, and the ranks that have not entered."""
        return self.rank_status.states(0, peers)

    # -- in the watchdog's thread ----------------------------------------------------------------
    def pending_timer(self) -> LibraryTimer | None:
        """See :class:`Monitor`."""
        return self.timer or LibraryTimer(self, self.config.timeout, self.config.report,
                                          self.listen, self.collect_states)

    def give_up(self, call: Meeting, error: HpccollError) -> str:
        """See :class:`Monitor`."""
        if self.has_returned():
            return ""
        self.fail(error)
        return exit_text(error, self.rank, self.title, main_site())

    def has_returned(self) -> bool:
        """See :class:`Monitor`."""
        return not self.inside

    # -- the logs of the ranks ------------------------------------------------------------------
    @cached_property
    def world(self) -> tuple[int, ...]:
        """Return the ranks in ``COMM_WORLD``."""
        return world_ranks(self.of)

    @property
    def rank_status(self) -> SetupStatus:
        """Return the status of the ranks whose logs are known."""
        if JOB.look() or self._status is None:
            logs = {rank: JOB.logs[one] for rank, one in enumerate(self.world) if one in JOB.logs}
            logs[self.rank] = self.log
            gone = self._status.gone if self._status is not None else {}
            self._status = SetupStatus(self.rank, logs, [
                JOB.processes.get(one, Process("", 0, 0)) for one in self.world])
            self._status.gone.update(gone)
        return self._status

    @property
    def key(self) -> list[Any]:
        """Return the key of this call, the same on all its ranks."""
        return [self.title, zlib.crc32(repr(self.world).encode()), self.turn]

    def begin(self) -> int:
        """Record the start of the call; return its call hash."""
        words, call_hash = self.log.words, self.description.call_hash()
        with _numbering:
            self.number = words[NUMBER] + 1
            self.log.write_start(self.number, call_hash)
            self.log.describe(call_hash, self.description)
            words[NUMBER] = self.number
        return call_hash

    def end(self, how: int = SOME_TIME) -> None:
        """Record the end of the call on this rank."""
        self.log.words[INSIDE] = 0
        self.log.write_end(self.number, how)

    def publish_status(self) -> None:
        """Publish the ranks that this rank waits for; the others match the call by its key."""
        self.log.publish_status({
            **waiting_status(self.title, self.number, *self.pending_peers(), call_site()),
            "call": self.key})

    def meet(self, numbers: Sequence[int]) -> None:
        """Record the number that each rank's log has for the call: all ranks have entered it."""
        self.met = tuple(numbers)
        JOB.met.update(zip(self.world, numbers, strict=True))

    def _has_come(self, rank: int) -> bool:
        log = self.rank_status.logs.get(rank)
        if log is None:
            return False
        said, number = log.status(), log.words[NUMBER]
        if self.met:
            return bool(log.words[INSIDE] == self.met[rank]
                        or log.end_of(self.met[rank]) not in (0, WITHDRAWN))
        if self._is_earlier(rank, number):
            return False
        if said.get("number") == number and said.get("call") == self.key:
            return True
        return log.words[INSIDE] == number and log.call_hash(number) == self.description.call_hash()

    def _is_earlier(self, rank: int, number: int) -> bool:
        """Return True if a rank's call is an earlier one, in which the two ranks have met."""
        return number <= JOB.met.get(self.world[rank], 0)

    def fail(self, error: BaseException) -> None:
        """Record that the call has failed on this rank."""
        self.log.write_report(failure_report(
            error, self.title, self.number, call=self.key,
            lost=error.ranks if isinstance(error, PeerLost) else ()))
        self.log.words[FAILED] = self.number + 1
        self.end(GAVE_UP)
        JOB.fail()

    def failures(self) -> dict[int, BrokenCommunicatorError]:
        """Return the errors for the call, by the rank that has failed.

        Until the ranks have met, a rank's last call may be the same one on another communicator,
        whose ranks and turn are the same: it counts as this one, unless this rank was in it too.
        """
        found = {}
        for rank, log in self.rank_status.logs.items():
            if rank == self.rank:
                continue
            report = log.report() if log.words[FAILED] else None
            if self.met:
                if log.end_of(self.met[rank]) == GAVE_UP:
                    here = report is not None and report["number"] == self.met[rank]
                    found[rank] = self._reported_error(rank, report if here else None)
            elif report is not None and log.words[FAILED] == log.words[NUMBER] + 1 and (
                    report["call"] == self.key) and not self._is_earlier(rank, report["number"]):
                found[rank] = self._reported_error(rank, report)
        return found

    def _reported_error(self, rank: int,
                        report: Mapping[str, Any] | None) -> BrokenCommunicatorError:
        if report is None:
            return BrokenCommunicatorError(
                f"hpccoll: communicator is broken: rank {rank} failed in {self.title} before this "
                "rank joined; call Dup on a working communicator, or end the job")
        return reported_error(rank, {**report, "number": 0}, self.title)

    def _peer_lost_error(self, ranks: Iterable[int]) -> PeerLost:
        lost = tuple(sorted(ranks))
        return PeerLost(lost, self.rank_status.states(0, lost), self.title)
