"""What every rank is doing, from its log and its process: :class:`Board`.

A rank that waits writes whom for, and when it looked last; the MPI library's calls are noted when
they begin and end. So a rank that has not looked for a while, and is in no call of the library's,
is in the program. ``/proc`` says whether its process is there at all. A rank on another machine is
known by what it has told, and else not heard of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hpccoll.errors.contract import in_words
from hpccoll.errors.waits import MOST_NAMED, RankStates, rank_list
from hpccoll.machine.processes import ALIVE, STOPPED, TRACED, Process, state_of
from hpccoll.runtime.events.log import ASKED, ENDED, INSIDE, LEFT, NUMBER, Log
from hpccoll.runtime.planning.description import Description

#: What a rank may be found to do.
WAITING, NATIVE, AWAY, HALTED = "waiting", "in the MPI library", "in no wait", "stopped"
DEBUGGED = "held by a debugger"
KILLED, GONE, FREE, UNKNOWN = "killed", "ended", "freed", "not heard of"
#: Seconds without a look until a rank is taken not to wait any more.
QUIET = 0.5
#: Seconds between two looks at the processes of the others.
BETWEEN = 0.25
#: Seconds in which the messages of a rank that has ended arrive: MPI_Finalize completes them.
LAST_MESSAGES = 5.0
#: Seconds from which on a question that a rank has not answered is reported.
SILENT = 1.0


class Doing(NamedTuple):
    """What a rank is doing.

    Attributes:
        rank: which one.
        state: ``WAITING`` in a call of ours, ``NATIVE`` in one of the MPI library's, ``AWAY``:
            alive, and in no such call or in the midst of a long step of one; ``HALTED`` by a
            signal; ``DEBUGGED``: held by a debugger; ``KILLED``: its process is gone; ``GONE``: it
            has ended its program; ``FREE``: it has freed the communicator; ``UNKNOWN``.
        begun: number of the last blocking call that it has begun; -1 where that is not known.
        completed: of the last that it has completed, as far as can be told.
        call: what it is in, or was in last, in words.
        site: file and line, where it has told.
        round, peers: of its wait.
        seconds: since it looked last; 0 where it does not wait.
        node: the machine that it is on, where that is another one, which nobody can look at.
        silent: seconds for which it has not answered where it is.
        failure: the type of the error with which it has left a call; else empty.
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
                    f"{call}{self._at}")
        if self.state == NATIVE:
            return f"rank {self.rank} is in the MPI library in {call}{self._at}"
        if self.state == UNKNOWN:
            return self._condition
        silent = f" (no answer for {self.silent:.0f} s)" * (
            self.state == AWAY and not self.site and self.silent >= SILENT)
        return f"{self._condition}{silent}; " + (
            f"its last call was {call}" if self.begun > 0 else
            "it has made no call" if not self.begun else "its calls are unknown")

    @property
    def _at(self) -> str:
        return f" at {self.site}" if self.site else ""

    @property
    def _condition(self) -> str:
        """What has become of it, outside of calls."""
        far = f", on {self.node}" if self.node else ""
        where = self._at or (" in code that holds the interpreter lock" if self.silent >= SILENT
                             else " in the program")
        died = (f"has ended after its {self.failure}" if self.failure else
                "was killed or exited unexpectedly" if self.state == KILLED else
                "has ended its program")
        return f"rank {self.rank} " + {
            AWAY: f"is{where}" if self.begun >= 0 or self.site else "is alive",
            HALTED: "is stopped", DEBUGGED: "is held by a debugger", KILLED: died, GONE: died,
            FREE: "has freed the communicator", UNKNOWN: f"has not reported{far}"}[self.state]

    def brief(self, number: int) -> str:
        """Why the others wait for it in a call of that number, in a few words."""
        if self.state in (WAITING, NATIVE):
            return f"rank {self.rank} is in call {self.begun}, {self.call}{self._at}"
        behind = self.state == AWAY and 0 <= self.begun < number
        return self._condition + f", not in call {number}" * behind


class Board:
    """What the ranks of a communicator are doing.

    Args:
        rank: this one.
        logs: of the ranks that share memory with this one, itself included.
        processes: of all ranks.
        counts: calls are counted, and ranks answer where they are.
    """

    def __init__(self, rank: int, logs: Mapping[int, Log], processes: Sequence[Process],
                 counts: bool = True):
        self.rank, self.logs, self.counts = rank, logs, counts
        mine = processes[rank]
        self.near = {other: process for other, process in enumerate(processes)
                     if mine.host and process.host == mine.host}
        self.far = {other: process.node for other, process in enumerate(processes)
                    if other not in self.near}
        self.size, self.looked = len(processes), 0.0
        #: When each rank was found to be gone.
        self.gone: dict[int, float] = {}

    def look(self, at_once: bool = False) -> Mapping[int, float]:
        """The ranks that are gone, by when that was found; looked for now and then."""
        now = time.monotonic()
        if at_once or now - self.looked >= BETWEEN:
            self.looked = now
            for rank in (*self.near, *self.logs):
                if rank != self.rank and rank not in self.gone and self._state(rank) in (
                        KILLED, GONE, FREE):
                    self.gone[rank] = now
        return self.gone

    def lost(self, number: int, patience: float, at_once: bool = False,
             peers: Sequence[int] = ()) -> tuple[int, ...]:
        """The ranks that will not do their part in a call any more.

        A rank that is gone may have done it before. One that has left in good order has, in all
        calls that it has begun. One that was killed may have, which shows after some patience.

        Args:
            number: of the call; 0 for requests, which have none.
            patience: seconds from when a rank was found to be gone.
            at_once: look at all processes now.
            peers: for a request, the ranks whose messages are missing. Those of a rank that has
                ended come within :data:`LAST_MESSAGES` seconds, or never.
        """
        gone, now = self.look(at_once), time.monotonic()
        found = []
        for rank, when in gone.items():
            log = self.logs.get(rank)
            begun = log.words[NUMBER] if log is not None else -1
            if 0 <= begun < number:
                found.append(rank)
            elif self._state(rank) == KILLED and now - when >= patience:
                found.append(rank)
            elif rank in peers and now - when >= LAST_MESSAGES:
                found.append(rank)
        return tuple(sorted(found))

    def doing(self, rank: int) -> Doing:
        """What a rank is doing."""
        state, log = self._state(rank), self.logs.get(rank)
        if log is None:
            return Doing(rank, state, node=self.far.get(rank, ""))
        begun = log.words[NUMBER] if self.counts else -1
        said, quiet = log.doing(), log.quiet_for()
        here = said.get("number") == begun
        if state == AWAY and here and said.get("title") and quiet < QUIET:
            return Doing(rank, WAITING, begun, begun - 1, said["title"], said.get("site", ""),
                         said["round"], tuple(said["peers"]), quiet)
        inside = log.words[INSIDE]
        description = log.description(begun)
        call = called(description) if description is not None else ""
        if state == AWAY and inside:
            state = NATIVE
        done = begun - 1 if inside or state != AWAY and here and said.get("title") else begun
        site = said.get("site", "") if here and (state != AWAY or not said.get("title")) else ""
        asked, story = log.words[ASKED], log.story()
        silent = (time.monotonic_ns() - asked) / 1e9 if asked and self.counts else 0.0
        return Doing(rank, state, begun, done, call, site, silent=silent,
                     failure=story["reason"].partition(":")[0] if story else "")

    def all(self) -> list[Doing]:
        """What every rank is doing."""
        return [self.doing(rank) for rank in range(self.size)]

    def states(self, number: int, peers: Sequence[int] = (), lost: Sequence[int] = ()
               ) -> RankStates:
        """Where the ranks are, and which of them a wait in a call lacks.

        Args:
            number: of the call.
            peers: the ranks that this one waits for.
            lost: the ranks that it lacks, where that is known.
        """
        found = self.all()
        others = [one for one in found if one.rank != self.rank]
        missing = next(filter(None, (
            [one for one in others if (one.rank in lost if lost else lacks(one, number, peers))]
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
        return RankStates(
            text + more or (f"no message from {rank_list(peers)}" if peers else
                            f"all ranks are in call {number}"),
            tuple(lines), tuple(one.rank for one in missing if one.state == HALTED))

    def _state(self, rank: int) -> str:
        """``KILLED``, ``GONE``, ``FREE``, ``HALTED``, ``UNKNOWN``; ``AWAY`` where none of these."""
        log, process = self.logs.get(rank), self.near.get(rank)
        left = log.words[LEFT] if log is not None else 0
        if left:
            return GONE if left == ENDED else FREE
        if process is None:
            return UNKNOWN if log is None else AWAY
        state = state_of(process) if rank != self.rank else ALIVE
        return {ALIVE: AWAY, STOPPED: HALTED, TRACED: DEBUGGED}.get(state, KILLED)


#: Of which ranks a wait in a call lacks something, the surest first: given a rank, the number of
#: the call, and the ranks that are waited for.
LACKS: tuple[Callable[[Doing, int, Sequence[int]], bool], ...] = (
    lambda one, number, peers: one.state == KILLED or (
        one.state in (GONE, FREE) and (one.begun < number or one.rank in peers)),
    lambda one, number, peers: one.state in (HALTED, DEBUGGED) and (
        one.completed < number or one.rank in peers),
    lambda one, number, peers: one.state == AWAY and 0 <= one.begun < number,
    lambda one, number, peers: one.state in (WAITING, NATIVE) and one.begun < number,
    lambda one, number, peers: one.state == UNKNOWN,
    lambda one, number, peers: one.state == AWAY and one.rank in peers,
)


def called(description: Description) -> str:
    """A call in words."""
    return in_words(description._asdict())


def saying(title: str, number: int, round: int, peers: Sequence[int], site: str
           ) -> Mapping[str, Any]:
    """What a rank that waits says of itself."""
    return {"title": title, "number": number, "round": round, "peers": peers[:MOST_NAMED],
            "site": site[-200:]}
