"""Calls that create a communicator or memory before a guard exists: :class:`SetupCall`.

    ranks meet       a nonblocking allgather on the user's communicator, after its duplications,
                     polled: missing ranks are reported, an error ends the wait, and the calls of
                     all ranks are compared
    library's call   all ranks are in it, but one may die: the watchdog thread checks

Three calls use it: the set-up of a communicator, which creates the private one and its guard, and
before that its first collective, and ``Split`` and similar methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import numpy
from mpi4py import MPI

from hpccoll.config import Config, common_values
from hpccoll.errors import (
    ArgumentError,
    BrokenCommunicatorError,
    CollectiveTimeout,
    HpccollError,
    cause_of,
)
from hpccoll.errors.contract import ContractError, Party
from hpccoll.errors.waits import RankStates, Reports, report_text, summary
from hpccoll.guard.call_sites import call_site, main_site
from hpccoll.guard.diagnosis import states_fields
from hpccoll.guard.failed_ranks import Losses
from hpccoll.guard.job_status import JOB
from hpccoll.guard.library_calls import CURIOUS, GRACE
from hpccoll.guard.rank_status import GONE, KILLED
from hpccoll.guard.setup_ranks import WITHDRAWN, SetupRanks
from hpccoll.guard.watchdog import STATUS
from hpccoll.machine.backoff import wait_until
from hpccoll.machine.discovery import exchange_processes
from hpccoll.runtime.events.call_log import INSIDE
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.progress.waiting import Meeting, PendingRun, WaitTimer
from hpccoll.transport.call_hashes import agree
from hpccoll.transport.private_comm import PrivateComm

#: Consecutive polls that must find a rank dead before the library's call counts as failed.
LOOKS = 5
#: Seconds between the removal of a process's memory and its exit.
DYING = 0.05
#: Bytes of the text of a rank's call and position.
CALL_BYTES = 512
#: Memory of meetings that have failed: the library may still use it.
_abandoned: list[Any] = []


class SetupCall(Meeting):
    """A context in which all ranks of a communicator, or of a group, call the MPI library.

    Args:
        of: the communicator; or a group, whose ranks cannot meet on one.
        title: name of the call in messages.
        config: its bounds.
        turn: number of set-up calls on the communicator so far, the same on every rank.
        failed: callback, called with the function that rejects later calls after a failure.
        description: of the call, if it is a collective; the title if omitted.
        duplicates: requests of duplications of the communicator, which the program waits for.
    """

    def __init__(self, of: MPI.Comm | MPI.Group, title: str, config: Config, turn: int = 0,
                 failed: Callable[[Callable[[], NoReturn]], None] = lambda raise_failure: None,
                 description: Description | None = None, duplicates: Sequence[MPI.Request] = ()):
        super().__init__(of, title)
        self.comm = of if isinstance(of, MPI.Intracomm) else None
        self.alone = self.size == 1 or self.rank < 0
        self.collective = description is not None
        self.ranks, self.failed = SetupRanks(self.rank, of, title, turn, description), failed
        self.config, self.timeout, self.report = config, config.timeout, config.report
        self.duplicates = duplicates
        self.since = self.asked = 0.0
        #: True if all ranks have come, with different calls.
        self.disagrees = False
        self.reports = Reports(config.report)
        #: By rank, consecutive polls that found it lost or failed.
        self.lost: dict[int, int] = {}
        self.gave_up: dict[int, int] = {}

    # -- in the thread that calls ---------------------------------------------------------------
    def __enter__(self) -> SetupCall:
        if not self.alone:
            call_hash = self.ranks.begin()
            if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
                _ = self.ranks.world  # the watchdog must not call MPI
            if self.comm is not None:
                self._meet(self.comm, call_hash)
            self.since = time.monotonic()
            self.ranks.log.words[INSIDE] = self.ranks.number
            JOB.calls.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.alone:
            return
        JOB.calls.discard(self)
        if self.collective and isinstance(error, ArgumentError):
            # Maybe on all ranks; to a rank without the error, this one has not come.
            self.ranks.end(WITHDRAWN)
            return
        self.ranks.end()
        if error is not None:
            diagnosis = self._explain(error)
            self.ranks.fail(diagnosis)
            if diagnosis is not error:
                self._refuse(diagnosis)
                raise diagnosis from cause_of(error)

    def _meet(self, comm: MPI.Intracomm, call_hash: int) -> None:
        """Wait until all ranks have entered the call.

        Raises:
            CollectiveTimeout: some ranks are missing.
            PeerLost: some ranks have exited.
            ContractError: some ranks have entered another call.
        """
        mine, found = numpy.array([call_hash, self.ranks.number]), numpy.empty((self.size, 2), int)
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
            self.ranks.meet(numbers)
            if not all(agree(call_hash, other) for other in call_hashes):
                self._disagree(comm)
            if JOB.failure:
                self._check_alarm()
        except BaseException as error:
            diagnosis = self._explain(error)
            self.ranks.fail(diagnosis)
            if not isinstance(diagnosis, ArgumentError):  # raised by all ranks, before any call
                self._refuse(diagnosis)
            if diagnosis is not error:
                raise diagnosis from cause_of(error)
            raise

    def _allgather(self, comm: MPI.Intracomm, mine: numpy.ndarray, found: numpy.ndarray) -> None:
        request = MPI.Intracomm.Iallgather(comm, mine, found)
        try:
            self._complete(request.Test)
        except BaseException:
            _abandoned.append((request, mine, found))
            raise

    def _complete(self, test: Callable[[], bool]) -> None:
        wait_until(test, WaitTimer(self, self.timeout, self.report, self.listen,
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
        text = json.dumps([self.ranks.description, call_site()[-200:]]).encode()
        mine = numpy.frombuffer(text[:CALL_BYTES].ljust(CALL_BYTES, b"\0"), "u1")
        found = numpy.empty((self.size, CALL_BYTES), "u1")
        self._allgather(comm, mine, found)
        calls: dict[Description, dict[int, str]] = {}
        for rank, row in enumerate(found):
            fields, site = json.loads(row.tobytes().rstrip(b"\0"))
            calls.setdefault(Description(*fields), {})[rank] = site
        raise ContractError(f"call {self.ranks.turn} of a communicator", [
            Party(tuple(sites), description._asdict(), tuple(sorted(set(sites.values()))))
            for description, sites in calls.items()])

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return no round, and the ranks that are not known to have entered."""
        return 0, self.ranks.missing_ranks()

    def listen(self, awaited: PendingRun) -> None:
        """Raise if the wait cannot complete; publish the ranks that this rank waits for.

        Raises:
            PeerLost: a rank has exited.
            BrokenCommunicatorError: a rank has failed.
        """
        if not self.disagrees:  # then all ranks raise the error, and some may have done so already
            self._check_alarm()  # first: a rank that exited may have published the cause
        now = time.monotonic()
        lost = tuple(rank for rank, when in self.ranks.rank_status.look().items()
                     if now - when >= GRACE)
        if lost:
            raise self.ranks.peer_lost_error(lost)
        self.ranks.log.look()
        if now - self.asked > CURIOUS:
            if not self.asked:
                self.ranks.publish_status()
            self.asked = now
            JOB.ask()

    def _check_alarm(self) -> None:
        """Raise if a rank has failed in this call."""
        for error in self.ranks.failures().values():
            raise error

    def collect_states(self, peers: Sequence[int] = ()) -> RankStates:
        """Return the status of the ranks, and the ranks that have not entered."""
        return self.ranks.rank_status.states(0, peers or self.ranks.missing_ranks())

    def _explain(self, error: BaseException) -> BaseException:
        """Return the error for a failure inside the MPI library, by its cause."""
        if not isinstance(error, MPI.Exception):
            return error
        if self.comm is not None:
            error = Losses(self.comm).explain(error, self.title)
        if isinstance(error, HpccollError):
            return error
        time.sleep(DYING)
        gone = self.ranks.rank_status.look(at_once=True)
        return self.ranks.peer_lost_error(tuple(sorted(gone))) if gone else error

    def _refuse(self, error: BaseException) -> None:
        """Reject later calls."""
        failure = error if isinstance(error, BrokenCommunicatorError) else (
            BrokenCommunicatorError.from_report(self.rank, {
                "number": 0, "title": self.title, "when": time.strftime("%H:%M:%S"),
                "reason": summary(error), **states_fields(error)}))

        def raise_failure() -> NoReturn:
            raise copy(failure)
        self.failed(raise_failure)

    # -- in the watchdog's thread ----------------------------------------------------------------
    def check(self) -> str:
        """Check the library's call; return the message to print if it cannot complete, or ''."""
        error, elapsed = self._hopeless(), time.monotonic() - self.since
        if error is None and elapsed >= self.reports.due:
            states = self.collect_states()
            if not self.reports.add(elapsed, states, f"{self.title} on rank {self.rank}"):
                error = CollectiveTimeout(self.title, self.rank, 0, self.ranks.missing_ranks(),
                                          round(elapsed, 1), states)
        if error is not None:
            self.ranks.fail(error)
            return (f"{report_text(error)}\n  rank {self.rank} exits with status {STATUS} in "
                    f"{self.title} at {main_site()}")
        if elapsed > CURIOUS:
            JOB.ask()
        return ""

    def _hopeless(self) -> HpccollError | None:
        """Return the reason why the call cannot complete; ``None`` if it can."""
        ranks, rank_status = self.ranks, self.ranks.rank_status
        failures, gone = ranks.failures(), rank_status.look()
        for rank in _count_polls(self.gave_up, failures):
            return failures[rank]
        # Ranks that have met may leave once their part is complete; others are not known.
        ends = (KILLED,) if self.comm is not None else (KILLED, GONE)
        lost = _count_polls(self.lost,
                            [one for one in gone if rank_status.activity(one).state in ends])
        if lost:
            return ranks.peer_lost_error(lost)
        if time.monotonic() - self.since < self.timeout:
            return None
        missing = ranks.missing_ranks()
        return CollectiveTimeout(self.title, self.rank, 0, missing, self.timeout,
                                 self.collect_states()) if missing else None


def _count_polls(looks: dict[int, int], found: Any) -> tuple[int, ...]:
    """Count the consecutive polls that found a rank; return the ranks with :data:`LOOKS`."""
    for rank in set(looks) - set(found):
        del looks[rank]
    for rank in found:
        looks[rank] = looks.get(rank, 0) + 1
    return tuple(sorted(rank for rank, times in looks.items() if times >= LOOKS))
