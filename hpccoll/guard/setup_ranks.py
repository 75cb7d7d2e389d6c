"""Status of the ranks of a set-up call, from the logs of their processes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.errors import BrokenCommunicatorError, PeerLost
from hpccoll.errors.waits import summary
from hpccoll.guard.call_sites import call_site
from hpccoll.guard.diagnosis import reported_error, states_fields
from hpccoll.guard.job_status import JOB
from hpccoll.guard.rank_status import (
    IN_PROGRAM,
    NATIVE,
    WAITING,
    RankActivity,
    RankStatus,
    waiting_status,
)
from hpccoll.machine.groups import world_ranks
from hpccoll.machine.processes import Process
from hpccoll.runtime.events.call_log import (
    FAILED,
    INSIDE,
    NUMBER,
    SOME_TIME,
)
from hpccoll.runtime.planning.description import Description

#: Ends of a call that has failed, and of one that was withdrawn because of wrong arguments.
GAVE_UP, WITHDRAWN = -1, -2


class SetupStatus(RankStatus):
    """Status of ranks of which only set-up calls are known."""

    def activity(self, rank: int) -> RankActivity:
        """Return the status of a rank; its last call is known only while it is in a set-up call."""
        one = super().activity(rank)
        if one.state in (WAITING, NATIVE) or not one.begun:
            return one
        return one._replace(begun=-1, call="", site=one.site if one.state == IN_PROGRAM else "")


class SetupRanks:
    """The ranks of one set-up call.

    Args:
        rank: this one.
        of: the communicator or group of the call.
        title: of the call.
        turn: number of set-up calls on the communicator so far, the same on every rank.
        description: of the call; its title only, if omitted.

    Attributes:
        met: the number that each rank's log has for the call; empty until they have met.
    """

    def __init__(self, rank: int, of: MPI.Comm | MPI.Group, title: str, turn: int,
                 description: Description | None = None):
        self.rank, self.of, self.title, self.turn = rank, of, title, turn
        self.description = description or Description(title)
        self.log, self.number = JOB.mine, 0
        self.met: Sequence[int] = ()
        self._world: tuple[int, ...] | None = None
        self._board: SetupStatus | None = None

    @property
    def world(self) -> tuple[int, ...]:
        """Return the ranks in ``COMM_WORLD``."""
        if self._world is None:
            self._world = world_ranks(self.of)
        return self._world

    @property
    def rank_status(self) -> SetupStatus:
        """Return the status rank status of the ranks whose logs are known."""
        if JOB.look() or self._board is None:
            logs = {rank: JOB.logs[one] for rank, one in enumerate(self.world) if one in JOB.logs}
            logs[self.rank] = self.log
            gone = self._board.gone if self._board is not None else {}
            self._board = SetupStatus(self.rank, logs, [
                JOB.processes.get(one, Process("", 0, 0)) for one in self.world])
            self._board.gone.update(gone)
        return self._board

    @property
    def key(self) -> list[Any]:
        """Return the key of this call, the same on all its ranks."""
        return [self.title, zlib.crc32(repr(self.world).encode()), self.turn]

    def begin(self) -> int:
        """Record the start of the call; return its call hash."""
        words, call_hash = self.log.words, self.description.call_hash()
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
            **waiting_status(self.title, self.number, 0, self.missing_ranks(), call_site()),
            "call": self.key})

    def missing_ranks(self) -> tuple[int, ...]:
        """Return the ranks that are not known to have entered the call."""
        return tuple(rank for rank in range(len(self.world))
                     if rank != self.rank and not self._has_come(rank))

    def meet(self, numbers: Sequence[int]) -> None:
        """Record the number that each rank's log has for the call: all ranks have entered it."""
        self.met = numbers
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
        self.log.write_report({
            "call": self.key, "number": self.number, "when": time.strftime("%H:%M:%S"),
            "reason": summary(error), "title": self.title, **states_fields(error),
            "lost": error.ranks if isinstance(error, PeerLost) else ()})
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

    def peer_lost_error(self, failed_ranks: tuple[int, ...]) -> PeerLost:
        """Return the error of a call with lost ranks."""
        return PeerLost(failed_ranks, self.rank_status.states(0, failed_ranks), self.title)
