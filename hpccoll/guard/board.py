"""What every rank is doing, from its log and its process: :class:`Board`.

A rank that waits writes whom for, and when it looked last; the MPI library's calls are noted when
they begin and end. So a rank that has not looked for a while, and is in no call of the library's,
is in the program. ``/proc`` says whether its process is there at all. A rank on another machine is
known by what it has told, and else not heard of.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpccoll.errors import MOST_NAMED
from hpccoll.errors.contract import in_words
from hpccoll.machine.processes import ALIVE, STOPPED, Process, state_of
from hpccoll.runtime.description import Description
from hpccoll.runtime.log import ENDED, INSIDE, LEFT, NUMBER, Log

#: What a rank may be found to do.
WAITING, NATIVE, AWAY, HALTED = "waiting", "in the MPI library", "in no wait", "stopped"
KILLED, GONE, FREE, UNKNOWN = "killed", "ended", "freed", "not heard of"
#: Seconds without a look until a rank is taken not to wait any more.
QUIET = 0.5
#: Seconds between two looks at the processes of the others.
BETWEEN = 0.25


class Doing(NamedTuple):
    """What a rank is doing.

    Attributes:
        rank: which one.
        state: ``WAITING`` in a call of ours, ``NATIVE`` in one of the MPI library's, ``AWAY``:
            alive, and in no such call or in the midst of a long step of one; ``HALTED`` by a
            signal or a debugger; ``KILLED``: its process is gone; ``GONE``: it has ended its
            program; ``FREE``: it has freed the communicator; ``UNKNOWN``.
        begun: number of the last blocking call that it has begun; -1 where that is not known.
        completed: of the last that it has completed, as far as can be told.
        call: what it is in, or was in last, in words.
        site: file and line, where it has told.
        round, peers: of its wait.
        seconds: since it looked last; 0 where it does not wait.
        node: the machine that it is on, where that is another one, which nobody can look at.
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

    def __str__(self) -> str:
        where, far = f" at {self.site}" * bool(self.site), f", on {self.node}" * bool(self.node)
        told = {WAITING: f"waits for rank(s) {', '.join(map(str, self.peers)) or 'nobody'} in "
                         f"round {self.round} of ",
                NATIVE: "is in the MPI library's hands in ",
                AWAY: f"is in no wait{where and ' but'}{where}; ", HALTED: "is stopped; ",
                KILLED: "was killed, or ended without a word; ", GONE: "has ended its program; ",
                FREE: "has freed the communicator; ", UNKNOWN: f"is not heard of{far}"}[self.state]
        call = f"call {self.begun}, {self.call}" if self.call else f"call {self.begun}"
        if self.state not in (WAITING, NATIVE, UNKNOWN):
            told += ("it has made no call" if not self.begun else "its calls are not known"
                     if self.begun < 0 else f"its last call was {call}")
        elif self.state != UNKNOWN:
            told += call
        return f"rank {self.rank} {told}{where if self.state != AWAY else ''}"


class Board:
    """What the ranks of a communicator are doing.

    Args:
        rank: this one.
        logs: of the ranks that share memory with this one, itself included.
        processes: of all ranks.
    """

    def __init__(self, rank: int, logs: Mapping[int, Log], processes: Sequence[Process]):
        self.rank, self.logs = rank, logs
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

    def lost(self, number: int, patience: float, at_once: bool = False) -> tuple[int, ...]:
        """The ranks that will not do their part in a call any more.

        A rank that is gone may have done it before. One that has left in good order has, in all
        calls that it has begun. One that was killed may have, which shows after some patience.

        Args:
            number: of the call; 0 for requests, which have none.
            patience: seconds from when a rank was found to be gone.
            at_once: look at all processes now.
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
        return tuple(sorted(found))

    def doing(self, rank: int) -> Doing:
        """What a rank is doing."""
        state, log = self._state(rank), self.logs.get(rank)
        if log is None:
            return Doing(rank, state, node=self.far.get(rank, ""))
        begun, said, quiet = log.words[NUMBER], log.doing(), log.quiet_for()
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
        return Doing(rank, state, begun, done, call, site)

    def all(self) -> list[Doing]:
        """What every rank is doing."""
        return [self.doing(rank) for rank in range(self.size)]

    def tell(self, mine: int) -> str:
        """What the other ranks are doing, those first that are not where this rank is."""
        found = [self.doing(rank) for rank in range(self.size) if rank != self.rank]
        found.sort(key=lambda one: (one.state in (WAITING, NATIVE) and one.begun >= mine,
                                    one.begun, one.rank))
        more = len(found) - MOST_NAMED
        return "; ".join(map(str, found[:MOST_NAMED])) + f"; and {more} more" * (more > 0)

    def _state(self, rank: int) -> str:
        """``KILLED``, ``GONE``, ``FREE``, ``HALTED``, ``UNKNOWN``; ``AWAY`` where none of these."""
        log, process = self.logs.get(rank), self.near.get(rank)
        left = log.words[LEFT] if log is not None else 0
        if left:
            return GONE if left == ENDED else FREE
        if process is None:
            return UNKNOWN if log is None else AWAY
        state = state_of(process) if rank != self.rank else ALIVE
        return {ALIVE: AWAY, STOPPED: HALTED}.get(state, KILLED)


def called(description: Description) -> str:
    """A call in words."""
    return in_words(description._asdict())


def saying(title: str, number: int, round: int, peers: Sequence[int], site: str
           ) -> Mapping[str, Any]:
    """What a rank that waits says of itself."""
    return {"title": title, "number": number, "round": round, "peers": peers[:MOST_NAMED],
            "site": site[-200:]}
