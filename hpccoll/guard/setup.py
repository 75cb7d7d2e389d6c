"""Calls that make a communicator or memory, where no guard watches yet: :class:`SetupCall`.

    ranks meet       a nonblocking allreduce on the user's communicator, polled: who is missing is
                     reported, and an error ends the wait; do all make the same call?
    library's call   no rank is missing any more, but one may die: the watcher's thread checks

Two calls come here: the first collective of a communicator, which makes the private one and its
guard, and ``Split`` and its like before that. Ranks find each other's logs in the job's.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable
from copy import copy
from types import TracebackType
from typing import Any, NoReturn, cast

import numpy
from mpi4py import MPI

from hpccoll.config import Config
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout, HpccollError, PeerLost
from hpccoll.errors.contract import ContractError, Party
from hpccoll.guard.board import AWAY, GONE, KILLED, NATIVE, WAITING, Board, Doing, saying
from hpccoll.guard.job import FAILURE, JOB
from hpccoll.guard.losses import Losses
from hpccoll.guard.natives import CURIOUS, GRACE
from hpccoll.guard.sites import call_site, main_site
from hpccoll.machine.limits import OVERSUBSCRIBED
from hpccoll.machine.processes import Process
from hpccoll.runtime.description import Description
from hpccoll.runtime.log import FAILED, INSIDE, LAST, NUMBER, STAMPS
from hpccoll.runtime.waiting import Awaited, Meeting, Watch

#: Looks at which a rank must be gone, until the library's call is taken not to end any more.
LOOKS = 5
#: Seconds from when a process's memory is gone until the process is.
DYING = 0.05
#: Tests before a wait is watched, and bytes that tell what a rank calls, and where.
TRIES, STORY_BYTES = 100, 512
#: Memory of meetings that have failed: the library may still use it.
_abandoned: list[Any] = []


def setup_of_group(group: MPI.Group, title: str, config: Config) -> SetupCall:
    """A context for a call of the ranks of a group, which have no communicator to meet on."""
    return SetupCall(MPI.COMM_NULL, title, config, -1, lambda refuse: None, group)


class SetupBoard(Board):
    """What ranks do, of whose calls nothing is known but set-up calls."""

    def doing(self, rank: int) -> Doing:
        """What a rank does; its last call is known only while it is in a set-up call."""
        one = super().doing(rank)
        if one.state in (WAITING, NATIVE) or not one.begun:
            return one
        return one._replace(begun=-1, call="", site=one.site if one.state == AWAY else "")


class SetupCall(Meeting):
    """A context in which all ranks of a communicator call the MPI library.

    Args:
        comm: the communicator; of ``group``, if that is given, whose ranks do not meet.
        title: what the call is, for messages to people.
        config: its bounds.
        turn: number of set-up calls on the communicator so far, the same on every rank.
        failed: called with what refuses later calls, when the communicator cannot be used any more.
        group: ranks that call, where they have no communicator to meet on.
    """

    def __init__(self, comm: MPI.Comm, title: str, config: Config, turn: int,
                 failed: Callable[[Callable[[], NoReturn]], None],
                 group: MPI.Group | None = None):
        super().__init__(comm if group is None else group, title)
        self.comm, self.group, self.config, self.failed = comm, group, config, failed
        self.alone = self.size == 1 or self.rank < 0
        self.log, self.number, self.turn = JOB.mine, 0, turn
        self.bounds = config.timeout, config.report
        self.said, self.since, self.report, self.asked = False, 0.0, config.report, 0.0
        self._ranks: tuple[int, ...] | None = None
        self._board: SetupBoard | None = None
        #: Looks at which a rank was found to be lost, or to have given up.
        self.looks: dict[int, int] = {}

    # -- in the thread that calls ---------------------------------------------------------------
    def __enter__(self) -> SetupCall:
        if self.alone:
            return self
        words, stamp = self.log.words, Description(self.title).stamp()
        self.number = words[NUMBER] + 1
        words[STAMPS + (self.number & LAST)] = stamp
        self.log.describe(stamp, Description(self.title))
        words[NUMBER] = self.number
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            self.world_ranks()  # the watcher must not call MPI
        if self.group is None:
            self._meet(stamp)
        self.since = time.monotonic()
        words[INSIDE] = self.number
        JOB.calls.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.alone:
            return
        JOB.calls.discard(self)
        self.log.words[INSIDE] = 0
        if error is not None:
            verdict = self._explained(error)
            self._give_up(verdict, broken=verdict is not error)
            if verdict is not error:
                raise verdict from error

    def _meet(self, stamp: int) -> None:
        """Wait until all ranks have come.

        Raises:
            CollectiveTimeout: some have not.
            PeerLost: some are gone.
            ContractError: some have come to another call.
        """
        mine, found = numpy.array([stamp, -stamp], "i8"), numpy.empty(2, "i8")
        request = MPI.REQUEST_NULL
        try:
            request = MPI.Intracomm.Iallreduce(self.comm, mine, found, MPI.MAX)
            self._complete(request)
            if JOB.head[FAILURE]:
                self._hear()
            if found[0] != -found[1]:
                self._disagree()
        except BaseException as error:
            _abandoned.append((request, mine, found))
            verdict = self._explained(error)
            self._give_up(verdict, broken=True)
            if verdict is not error:
                raise verdict from error
            raise

    def _complete(self, request: MPI.Request) -> None:
        for _ in range(TRIES):
            if request.Test():
                return
        watch = Watch(self, *self.bounds, self.listen, self.tell, OVERSUBSCRIBED.spins)
        while not request.Test():
            watch.idle()

    def _disagree(self) -> NoReturn:
        """Raise what every rank calls."""
        text = json.dumps([self.title, call_site()[-200:]]).encode()
        mine = numpy.frombuffer(text[:STORY_BYTES].ljust(STORY_BYTES, b"\0"), "u1")
        found = numpy.empty((self.size, STORY_BYTES), "u1")
        request = MPI.Intracomm.Iallgather(self.comm, mine, found)
        try:
            self._complete(request)
        except BaseException:
            _abandoned.append((request, mine, found))
            raise
        calls: dict[str, dict[int, str]] = {}
        for rank, row in enumerate(found):
            title, site = json.loads(row.tobytes().rstrip(b"\0"))
            calls.setdefault(title, {})[rank] = site
        raise ContractError("a call that makes a communicator", [
            Party(tuple(sites), Description(title)._asdict(), tuple(sorted(set(sites.values()))))
            for title, sites in calls.items()])

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """No round, and the ranks that are not known to have come."""
        return 0, tuple(rank for rank in range(self.size)
                        if rank != self.rank and not self._has_come(rank))

    def listen(self, awaited: Awaited) -> None:
        """Raise if waiting is pointless; write for whom this rank waits.

        Raises:
            PeerLost: a rank is gone.
            BrokenCommunicatorError: a rank has given up.
        """
        board, now = self.board(), time.monotonic()
        lost = tuple(rank for rank, when in board.look().items() if now - when >= GRACE)
        if lost:
            raise self._loss(lost)
        self._hear()
        if not self.said:
            self.said = True
            self._say()
        self.log.look()
        if now - self.asked > CURIOUS:
            self.asked = now
            JOB.ask()

    def _hear(self) -> None:
        """Raise if a rank has given up in this call."""
        for rank in self.board().logs:
            if rank != self.rank and self._has_given_up(rank):
                raise self._told(rank)

    def tell(self) -> str:
        """What the other ranks are doing, in words."""
        return self.board().tell(0)

    def _say(self) -> None:
        """Write for whom this rank waits; other ranks recognise the call by group and turn."""
        self.log.say({**saying(self.title, self.number, *self.pending(), call_site()),
                      "call": self._key()})

    # -- what is known of the other ranks -------------------------------------------------------
    def world_ranks(self) -> tuple[int, ...]:
        """The ranks of the communicator in ``COMM_WORLD``."""
        if self._ranks is None:
            world = MPI.COMM_WORLD.Get_group()
            group = self.comm.Get_group() if self.group is None else self.group
            self._ranks = tuple(group.Translate_ranks(None, world))
            world.Free()
            if self.group is None:
                group.Free()
        return self._ranks

    def board(self) -> SetupBoard:
        """What the ranks do, as far as their logs are known."""
        if JOB.look() or self._board is None:
            ranks = self.world_ranks()
            logs = {rank: JOB.logs[one] for rank, one in enumerate(ranks) if one in JOB.logs}
            logs[self.rank] = self.log
            gone = self._board.gone if self._board is not None else {}
            self._board = SetupBoard(self.rank, logs, [
                JOB.processes.get(one, Process("", 0, 0)) for one in ranks])
            self._board.gone.update(gone)
        return self._board

    def _key(self) -> list[Any]:
        """What tells this call from others, the same on all its ranks."""
        return [self.title, zlib.crc32(repr(self.world_ranks()).encode()), self.turn]

    def _has_come(self, rank: int) -> bool:
        log = self.board().logs.get(rank)
        if log is None:
            return False
        said, number = log.doing(), log.words[NUMBER]
        if said.get("number") == number and said.get("call") == self._key():
            return True
        return log.words[INSIDE] == number and log.stamp(number) == Description(self.title).stamp()

    def _has_given_up(self, rank: int) -> bool:
        log = self.board().logs[rank]
        if log.words[FAILED] != log.words[NUMBER] + 1:
            return False
        story = log.story()
        return story is not None and story.get("call") == self._key()

    def _loss(self, lost: tuple[int, ...]) -> PeerLost:
        board = self.board()
        return PeerLost(lost, "; ".join(str(board.doing(rank)) for rank in lost), self.title)

    def _told(self, rank: int) -> BrokenCommunicatorError:
        story = self.board().logs[rank].story() or {}
        if story.get("lost"):
            reason = story["reason"].partition("; so ")[0]
            return PeerLost(tuple(story["lost"]), f"{reason} (told by rank {rank})", self.title)
        return BrokenCommunicatorError.told(f"rank {rank}", 0, self.title, story.get("when", ""),
                                            f"{story.get('type')}: {story.get('reason')}")

    # -- when it has failed ---------------------------------------------------------------------
    def _explained(self, error: BaseException) -> BaseException:
        """An error of the MPI library, by its cause."""
        if not isinstance(error, MPI.Exception):
            return error
        if self.group is None:
            error = Losses(cast(MPI.Intracomm, self.comm)).explain(error, self.title)
        if isinstance(error, HpccollError):
            return error
        time.sleep(DYING)
        gone = self.board().look(at_once=True)
        return self._loss(tuple(sorted(gone))) if gone else error

    def _give_up(self, error: BaseException, broken: bool) -> None:
        """Tell the others that this call has failed here."""
        when, kind = time.strftime("%H:%M:%S"), type(error).__name__
        self.log.tell({"call": self._key(), "when": when, "type": kind, "reason": str(error),
                       "lost": error.ranks if isinstance(error, PeerLost) else ()})
        self.log.words[FAILED], JOB.head[FAILURE] = self.number + 1, 1
        if broken:
            failure = error if isinstance(error, BrokenCommunicatorError) else (
                BrokenCommunicatorError.told("this rank", 0, self.title, when, f"{kind}: {error}"))

            def refuse() -> NoReturn:
                raise copy(failure)
            self.failed(refuse)

    # -- what the watcher asks ------------------------------------------------------------------
    def check(self) -> str:
        """Check the library's call; return what to print where it cannot end any more, else ''."""
        error = self._hopeless()
        elapsed = time.monotonic() - self.since
        if error is not None:
            site = main_site()
            self._give_up(error, broken=True)
            return (f"hpccoll: rank {self.rank} ends, in {self.title} at {site}: "
                    f"{type(error).__name__}: {error}")
        if elapsed > CURIOUS:
            JOB.ask()
        if elapsed >= self.report:
            self.report += self.bounds[1]
            print(f"hpccoll: rank {self.rank} has waited {elapsed:.0f} s in the MPI library's "
                  f"{self.title} at {main_site()}; {self.tell()}", file=sys.stderr, flush=True)
        return ""

    def _hopeless(self) -> HpccollError | None:
        """Why the call cannot end any more; ``None`` where it may."""
        board = self.board()
        board.look()
        for rank in board.logs:
            if rank != self.rank and self._lasts(-rank - 1, self._has_given_up(rank)):
                return self._told(rank)
        # Who has met may leave as soon as its part is done; of others nobody knows.
        ends = (KILLED,) if self.group is None else (KILLED, GONE)
        lost = tuple(rank for rank in board.gone if self._lasts(
            rank, board.doing(rank).state in ends))
        if lost:
            return self._loss(lost)
        if self.group is None or time.monotonic() - self.since < self.bounds[0]:
            return None
        missing = self.pending()[1]
        return CollectiveTimeout(self.title, self.rank, 0, missing, self.bounds[0], self.tell()
                                 ) if missing else None

    def _lasts(self, key: int, found: bool) -> bool:
        """Tell whether something was found at several looks in a row."""
        self.looks[key] = self.looks.get(key, 0) + 1 if found else 0
        return self.looks[key] >= LOOKS
