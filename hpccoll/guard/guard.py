"""What watches over the calls of a communicator: :class:`Guard`.

    before a call    compare: at the highest level, have all ranks the same one?
    a plan is made   stamp: its messages carry it, so those of calls that disagree never pair up
    a call starts    opening: it is noted in this rank's log; refused where a rank has given up
    a rank waits     listen: has a rank given up, or is it in another call?
    a call fails     fail: tell the others, collect what all know, and judge
    a later call     refuse
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NoReturn

from mpi4py import MPI

from hpccoll.config import ALWAYS, OFF
from hpccoll.errors import MOST_NAMED, ArgumentError, BrokenCommunicatorError, ForeignMessage
from hpccoll.guard.exchange import MessagedLogs, logs_of
from hpccoll.guard.sites import call_site
from hpccoll.guard.verdict import judge, met
from hpccoll.runtime.binding import Action
from hpccoll.runtime.context import Context
from hpccoll.runtime.description import Description
from hpccoll.runtime.executor import Bounds, Execution, PreparedRun
from hpccoll.runtime.log import ALARM, LAST, NUMBER, STAMPS
from hpccoll.runtime.waiting import Awaited, Meeting, Watch
from hpccoll.transport.mpi import FIRST_TAG
from hpccoll.transport.shm.channels import CHANNELS
from hpccoll.transport.stamps import split

#: Looks at which the first message of a rank that is waited for must be of another call.
CERTAIN = 3


def _check_same(context: Context) -> None:
    """Raise, on every rank, unless all compare calls in the same way.

    Raises:
        ArgumentError: says which ranks have which level.
    """
    levels: dict[str, list[int]] = {}
    for rank, level in enumerate(context.comm.allgather(context.config.contract)):
        levels.setdefault(level, []).append(rank)
    if len(levels) > 1:
        told = "; ".join(f"{level!r} on rank(s) {', '.join(map(str, ranks[:MOST_NAMED]))}"
                         f"{' ...' * (len(ranks) > MOST_NAMED)}" for level, ranks in levels.items())
        raise ArgumentError("HPCCOLL_CONTRACT", f"is {told}", "give all ranks the same")


class Guard:
    """The guard of one communicator's context; making it is collective.

    Attributes:
        told: called once with what refuses calls, when one has failed.
    """

    def __init__(self, context: Context):
        self.context, self.rank = context, context.rank
        self.stamps = context.config.contract != OFF
        self.always = context.config.contract == ALWAYS
        _check_same(context)
        self.logs = logs_of(context)
        self.log = self.logs.mine.address if self.stamps else 0
        self.alarm = self.logs.mine.address + 8 * ALARM
        self.lock = threading.RLock()
        self.failure: BrokenCommunicatorError | None = None
        self.told: Callable[[Callable[[], NoReturn]], None] = lambda refuse: None
        self.suspect: tuple[int, int, int] = (0, 0, 0)
        #: Tags whose messages all go through shared memory, where the logs do.
        self.channels = context.node.tags if context.node is not None else {}
        context.bounds = Bounds(context.config.timeout, context.config.report, self.listen)
        context.remote.heard = self.heard
        if context.endpoint is not context.remote:
            context.endpoint.heard = self.heard  # type: ignore[attr-defined]

    # -- before and while a call runs ---------------------------------------------------------
    def stamp(self, description: Description) -> int:
        """The stamp of a call's messages, which the others can look up from now on."""
        if not self.stamps:
            return 0
        stamp = description.stamp()
        self.logs.mine.describe(stamp, description)
        return stamp

    def opening(self, stamp: int, tag: int) -> Action | None:
        """What is to be called when a plan starts: note it, hear whether a rank has given up."""
        if not stamp or self.context.size == 1:
            return None
        if tag or self.always:
            # Ranks may start requests in any order: no log has them. Or it was noted before.
            return self.heard, ()
        return self._noting(stamp), ()

    def _noting(self, stamp: int) -> Callable[[], None]:
        """Notes a call in the log, and hears whether a rank has given up."""
        words, asks = self.logs.mine.words, isinstance(self.logs, MessagedLogs)

        def note() -> None:
            number = words[NUMBER] + 1
            words[STAMPS + (number & LAST)] = stamp
            words[NUMBER] = number
            if asks or words[ALARM]:
                self.heard(True)
        return note

    def compare(self, description: Description) -> None:
        """Raise unless all ranks are about to make the same call; collective.

        Raises:
            ContractError: they are not.
            CollectiveTimeout: some make none.
        """
        comm, stamp = self.context.comm, self.stamp(description)
        title = f"comparison before {description.collective}"
        try:
            self._noting(stamp)()
            met = self.logs.comparison(stamp)
            watch = Watch(Meeting(comm, title), *self.context.bounds, self.context.limits.spins)
            while (same := met()) is None:
                watch.idle()
            if not same:
                raise ForeignMessage(-1, self.rank)
        except BaseException as error:
            verdict = self.fail(error, title, description, 0)
            if verdict is not error:
                raise verdict from error
            raise

    def heard(self, in_turn: bool = False) -> None:
        """Raise if a rank has given up; ``in_turn`` if in a call that this one has come to.

        Raises:
            BrokenCommunicatorError: one has.
        """
        if self.logs.rung(in_turn):
            raise self.failure or BrokenCommunicatorError("another rank has given up")

    def listen(self, awaited: Awaited) -> None:
        """Raise if waiting is pointless.

        Raises:
            BrokenCommunicatorError: a rank has given up.
            ForeignMessage: a rank is in another call.
        """
        tag = split(getattr(awaited, "tag", FIRST_TAG))[0]
        self.heard(in_turn=tag < CHANNELS)
        if self.logs.disagree():
            raise ForeignMessage(-1, self.rank)
        if isinstance(awaited, (Execution, PreparedRun)) and (
                isinstance(self.logs, MessagedLogs) or tag not in self.channels):
            self._look_at_messages(awaited)

    def _look_at_messages(self, awaited: Execution | PreparedRun) -> None:
        """Look whether a rank that is waited for has sent a message of another call instead.

        Such a rank cannot have gone on: its message of this call would have come before. But one
        that is just being received may not be complete yet.
        """
        comm, status, remote = self.context.comm, MPI.Status(), self.context.remote
        for peer in awaited.pending()[1]:
            if comm.Iprobe(peer, MPI.ANY_TAG, status):
                found = status.Get_tag()
                if remote.tags.foreign(found, awaited.tag):
                    known, tag, times = self.suspect
                    again = (known, tag) == (peer, found)
                    self.suspect = peer, found, times + 1 if again else 1
                    if self.suspect[2] >= CERTAIN:
                        raise ForeignMessage(peer, self.rank)

    # -- when a call has failed ---------------------------------------------------------------
    def fail(self, error: BaseException, title: str, description: Description | None, tag: int
             ) -> BaseException:
        """Take note that a call failed here; return what the caller is to get.

        Args:
            error: how it failed.
            title: what it was.
            description: of the call, where there is one.
            tag: of its messages; 0 for blocking calls.
        """
        with self.lock:
            if self.failure is not None:
                return error if self.failure is error else self._again()
            interrupted = not isinstance(error, Exception)
            number = 0 if tag else self.logs.mine.words[NUMBER]
            self.logs.ring({
                "number": number, "tag": tag, "title": title, "site": call_site(),
                "when": time.strftime("%H:%M:%S"), "reason": f"{type(error).__name__}: {error}",
                "fields": description, "heard": isinstance(error, BrokenCommunicatorError)})
            verdict = error
            if not interrupted:
                records = self.logs.records()
                contract = judge(records, self.context.size)
                if contract is None and isinstance(error, ForeignMessage) and error.peer >= 0 and (
                        not tag):
                    contract = met(records[self.rank], self.rank, error.peer, self.context.size)
                if contract is not None:
                    verdict = contract
                elif isinstance(error, BrokenCommunicatorError):
                    origins = [(rank, record.story) for rank, record in sorted(records.items())
                               if record.story and not record.story["heard"]]
                    if origins:
                        rank, story = origins[0]
                        verdict = BrokenCommunicatorError.told(
                            f"rank {rank}", story["number"], story["title"], story["when"],
                            story["reason"])
            self.failure = BrokenCommunicatorError.told(
                "this rank", number, title, time.strftime("%H:%M:%S"),
                f"{type(verdict).__name__}: {verdict}")
            if isinstance(verdict, BrokenCommunicatorError):
                self.failure = verdict
        self.told(self.refuse)
        return verdict

    def _again(self) -> BrokenCommunicatorError:
        return BrokenCommunicatorError(*(self.failure.args if self.failure else ()))

    def refuse(self) -> NoReturn:
        """Raise what every call gets after one has failed.

        Raises:
            BrokenCommunicatorError: says which one, when, and why.
        """
        raise self._again()

    def free(self) -> None:
        """Let the context go."""
        self.told = lambda refuse: None
