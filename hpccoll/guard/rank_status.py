"""Status of every rank, from its log and its process: :class:`RankStatus`.

A waiting rank records the ranks that it waits for, and the time of its last poll. Native calls are
recorded when they begin and end. So a rank that has not polled for some time, outside a native
call, runs the program. ``/proc`` shows whether its process exists. The status of a rank on another
machine is known only from its messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hpccoll.errors.contract import format_fields
from hpccoll.errors.waits import MOST_NAMED, RankStates, rank_list
from hpccoll.guard.call_offsets import count_calls
from hpccoll.machine.processes import ALIVE, STOPPED, TRACED, Process, state_of
from hpccoll.runtime.events.call_log import ASKED, ENDED, INSIDE, LEFT, NUMBER, Log
from hpccoll.runtime.planning.description import Description

#: States of a rank.
WAITING, NATIVE, IN_PROGRAM, HALTED = "waiting", "in the MPI library", "in no wait", "stopped"
DEBUGGED = "held by a debugger"
KILLED, GONE, FREE, UNKNOWN = "killed", "ended", "freed", "not heard of"
#: Seconds without a poll after which a rank counts as not waiting.
QUIET = 0.5
#: Seconds between two checks of the processes of other ranks.
BETWEEN = 0.25
#: Seconds in which messages of an exited rank arrive: MPI_Finalize completes them.
LAST_MESSAGES = 5.0
#: Seconds after a rank was found dead in which its last actions take effect; between the removal of
#: a process's memory and its exit; and after which the status of the other ranks is requested.
GRACE, DYING, CURIOUS = 0.5, 0.05, 1.0
#: Seconds after which an unanswered status request is reported.
SILENT = 1.0


class RankActivity(NamedTuple):
    """Status of a rank.

    Attributes:
        rank: the rank.
        state: ``WAITING`` in an algorithm of hpccoll; ``NATIVE`` in a call of the MPI library;
            ``IN_PROGRAM``: alive, in no such call or in a long step of one; ``HALTED`` by a signal;
            ``DEBUGGED``: stopped by a debugger; ``KILLED``: its process does not exist; ``GONE``:
            it has ended its program; ``FREE``: it has freed the communicator; ``UNKNOWN``.
        begun: number of the last blocking call that it has begun; -1 if unknown.
        completed: number of the last call that it has completed, if known.
        call: its current or last call, as text.
        site: file and line, if known.
        round, peers: of its wait.
        seconds: since its last poll; 0 if it does not wait.
        node: its machine, if that is another one, whose processes are not visible here.
        silent: seconds since an unanswered status request.
        failure: type of the error with which it has left a call; otherwise empty.
    """

    rank: int
    state: str
    begun: int = -1
    completed: int = -1
    call: str = ""
    site: str = ""
    round: int = 0
    peers: tuple[int, ...] = ()
    seconds: float = 0.0
    node: str = ""
    silent: float = 0.0
    failure: str = ""

    def __str__(self) -> str:
        call = ", ".join(filter(None, [f"call {self.begun}" if self.begun else "", self.call]))
        if self.state == WAITING:
            return (f"rank {self.rank} waits for {rank_list(self.peers)} in round {self.round} of "
                    f"{call}{self.at}")
        if self.state == NATIVE:
            return f"rank {self.rank} is in the MPI library in {call}{self.at}"
        if self.state == UNKNOWN:
            return self._condition
        silent = f" (no answer for {self.silent:.0f} s)" * (
            self.state == IN_PROGRAM and not self.site and self.silent >= SILENT)
        return f"{self._condition}{silent}; " + (
            f"its last call was {call}" if self.begun > 0 else
            "it has made no call" if not self.begun else "its calls are unknown")

    @property
    def inside(self) -> bool:
        """Return True if the rank is in a call."""
        return self.state in (WAITING, NATIVE)

    @property
    def at(self) -> str:
        """Return the position of the rank in the program as text; empty if unknown."""
        return f" at {self.site}" if self.site else ""

    @property
    def _condition(self) -> str:
        """Return its condition outside of calls, as text."""
        node = f", on {self.node}" if self.node else ""
        where = self.at or (" in code that holds the interpreter lock" if self.silent >= SILENT
                             else " in the program")
        died = (f"has ended after its {self.failure}" if self.failure else
                "was killed or exited unexpectedly" if self.state == KILLED else
                "has ended its program")
        return f"rank {self.rank} " + {
            IN_PROGRAM: f"is{where}" if self.begun >= 0 or self.site else "is alive",
            HALTED: "is stopped", DEBUGGED: "is held by a debugger", KILLED: died, GONE: died,
            FREE: "has freed the communicator", UNKNOWN: f"has not reported{node}"}[self.state]

    def brief(self, number: int) -> str:
        """Return a short text why others wait for it in a call of this number."""
        if self.inside:
            return f"rank {self.rank} is in call {self.begun}, {self.call}{self.at}"
        if 0 <= self.begun < number and self.state in (IN_PROGRAM, GONE, FREE):
            behind = count_calls(number - self.begun)
            return f"{self._condition}, not in call {number} ({behind} behind)"
        return self._condition


class RankStatus:
    """Status of the ranks of a communicator.

    Args:
        rank: this rank.
        logs: of the ranks that share memory with this one, itself included.
        processes: of all ranks.
        counts: True if calls are counted, and ranks answer status requests.
    """

    def __init__(self, rank: int, logs: Mapping[int, Log], processes: Sequence[Process],
                 counts: bool = True):
        self.rank, self.logs, self.counts = rank, logs, counts
        mine = processes[rank]
        self.local_processes = {other: process for other, process in enumerate(processes)
                                if mine.host and process.host == mine.host}
        self.remote_nodes = {other: process.node for other, process in enumerate(processes)
                             if other not in self.local_processes}
        self.size, self.looked = len(processes), 0.0
        #: Time at which each rank was found dead.
        self.gone: dict[int, float] = {}

    def look(self, at_once: bool = False) -> Mapping[int, float]:
        """Return the dead ranks with detection time; rescans at most every ``BETWEEN`` seconds."""
        now = time.monotonic()
        if at_once or now - self.looked >= BETWEEN:
            self.looked = now
            for rank in (*self.local_processes, *self.logs):
                if rank != self.rank and rank not in self.gone and self._state(rank) in (
                        KILLED, GONE, FREE):
                    self.gone[rank] = now
        return self.gone

    def failed_ranks(self, number: int, grace: float, at_once: bool = False,
                     peers: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the ranks that cannot complete a call.

        A dead rank may have completed its part before. A rank that exited normally has completed
        all calls that it has begun. For a killed rank this is known after some time.

        Args:
            number: of the call; 0 for requests, which have none.
            grace: seconds since a rank was found dead.
            at_once: rescan all processes now.
            peers: for a request, the ranks whose messages are missing. Those of an exited rank
                arrive within :data:`LAST_MESSAGES` seconds, or never.
        """
        gone, now = self.look(at_once), time.monotonic()
        found = []
        for rank, when in gone.items():
            log = self.logs.get(rank)
            begun = log.words[NUMBER] if log is not None else -1
            if 0 <= begun < number:
                found.append(rank)
            elif self._state(rank) == KILLED and now - when >= grace:
                found.append(rank)
            elif rank in peers and now - when >= LAST_MESSAGES:
                found.append(rank)
        return tuple(sorted(found))

    def activity(self, rank: int) -> RankActivity:
        """Return the status of a rank."""
        state, log = self._state(rank), self.logs.get(rank)
        if log is None:
            return RankActivity(rank, state, node=self.remote_nodes.get(rank, ""))
        begun = log.words[NUMBER] if self.counts else -1
        said, quiet = log.status(), log.quiet_for()
        here = said.get("number") == begun
        waits = here and bool(said.get("title"))
        if state == IN_PROGRAM and waits and quiet < QUIET:
            return RankActivity(rank, WAITING, begun, begun - 1, said["title"],
                                said.get("site", ""), said["round"], tuple(said["peers"]), quiet)
        inside = log.words[INSIDE]
        description = log.description(begun)
        call = format_call(description) if description is not None else ""
        if state == IN_PROGRAM and inside:
            state = NATIVE
        done = begun - 1 if inside or state != IN_PROGRAM and waits else begun
        site = said.get("site", "") if here and not (waits and state == IN_PROGRAM) else ""
        asked, report = log.words[ASKED], log.report()
        silent = (time.monotonic_ns() - asked) / 1e9 if asked and self.counts else 0.0
        return RankActivity(rank, state, begun, done, call, site, silent=silent,
                            failure=report["reason"].partition(":")[0] if report else "")

    def all(self) -> list[RankActivity]:
        """Return the status of every rank."""
        return [self.activity(rank) for rank in range(self.size)]

    def states(self, number: int, peers: Sequence[int] = (), failed_ranks: Sequence[int] = ()
               ) -> RankStates:
        """Return the status of the ranks, and the ranks that are missing in a call.

        Args:
            number: of the call.
            peers: the ranks that this one waits for.
            failed_ranks: the missing ranks, if known.
        """
        found = self.all()
        others = [one for one in found if one.rank != self.rank]
        missing = next(filter(None, (
            [one for one in others
             if (one.rank in failed_ranks if failed_ranks else lacks(one, number, peers))]
            for lacks in LACKS)), [])
        named = [one.rank for one in missing]
        shown = sorted(found, key=lambda one: (one.rank not in named, one.rank != self.rank,
                                               one.rank not in peers, one.rank))[:MOST_NAMED]
        lines = [str(one) for one in sorted(shown)]
        if len(found) > MOST_NAMED:
            lines.append(f"and {len(found) - MOST_NAMED} more ranks")
        first = sorted(missing, key=lambda one: one.rank not in peers)[:MOST_NAMED]
        text = ", ".join(one.brief(number) for one in sorted(first))
        more = f" and {len(missing) - MOST_NAMED} more ranks" * (len(missing) > MOST_NAMED)
        if 1 < len(others) == len(missing) and {one.begun for one in others} == {number - 1}:
            more += f", rank {self.rank} is {count_calls(1)} ahead of all others"
        return RankStates(
            text + more or (f"no message from {rank_list(peers)}" if peers else
                            f"all ranks are in call {number}"),
            tuple(lines), tuple(one.rank for one in missing if one.state == HALTED))

    def _state(self, rank: int) -> str:
        """Return the state as far as processes and logs show it; at least ``IN_PROGRAM``."""
        log, process = self.logs.get(rank), self.local_processes.get(rank)
        left = log.words[LEFT] if log is not None else 0
        if left:
            return GONE if left == ENDED else FREE
        if process is None:
            return UNKNOWN if log is None else IN_PROGRAM
        state = state_of(process) if rank != self.rank else ALIVE
        return {ALIVE: IN_PROGRAM, STOPPED: HALTED, TRACED: DEBUGGED}.get(state, KILLED)


#: Conditions for a missing rank, the most reliable first, on its status, the number of the call,
#: and the ranks that are waited for.
LACKS: tuple[Callable[[RankActivity, int, Sequence[int]], bool], ...] = (
    lambda one, number, peers: one.state == KILLED or (
        one.state in (GONE, FREE) and (one.begun < number or one.rank in peers)),
    lambda one, number, peers: one.state in (HALTED, DEBUGGED) and (
        one.completed < number or one.rank in peers),
    lambda one, number, peers: one.state == IN_PROGRAM and 0 <= one.begun < number,
    lambda one, number, peers: one.inside and one.begun < number,
    lambda one, number, peers: one.state == UNKNOWN,
    lambda one, number, peers: one.state == IN_PROGRAM and one.rank in peers,
)


def format_call(description: Description) -> str:
    """Return a call as text."""
    return format_fields(description._asdict())


def waiting_status(title: str, number: int, round: int, peers: Sequence[int], site: str
                   ) -> Mapping[str, Any]:
    """Return the status record of a waiting rank."""
    return {"title": title, "number": number, "round": round, "peers": peers[:MOST_NAMED],
            "site": site[-200:]}
