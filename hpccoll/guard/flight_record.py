"""Flight records: the last calls of every rank, written to a file after a failure.

    logs in shared memory --dump--> FOLDER/flight-JOB-rankR.json --> hpccoll trace diagnose FOLDER

The logs are always kept (``runtime/events/call_log.py``). With ``HPCCOLL_TRACE`` each rank writes a
record when a long wait is reported, when a call fails, and on SIGUSR1 and SIGTERM; ``comm.dump()``
does so at any time. A killed or stopped rank cannot: the others on its node write for it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, NamedTuple

from mpi4py import MPI

from hpccoll import record_file
from hpccoll.errors.waits import print_report
from hpccoll.guard.call_sites import main_site
from hpccoll.guard.guard import Guard
from hpccoll.guard.rank_status import IN_PROGRAM, NATIVE, WAITING
from hpccoll.machine.groups import world_ranks
from hpccoll.runtime.events.call_log import SOME_TIME, Log
from hpccoll.runtime.progress.engine import PROGRESS

#: Default folder of records.
FOLDER = "hpccoll-trace"
#: States of ranks that can write their own record.
ABLE = (WAITING, NATIVE, IN_PROGRAM)


class CommunicatorName(NamedTuple):
    """Name of a communicator, the same on all ranks, and its ranks in ``COMM_WORLD``."""

    name: str
    world_ranks: tuple[int, ...]


class FlightRecorder:
    """Writes records of all communicators of this process.

    Attributes:
        folder: of records written on failures; empty if not configured.
        job: name of the job, the same on all ranks.
        failed: True once the record of the first failed call is written; it is never replaced.
        guards: of communicators, with their names.
    """

    def __init__(self) -> None:
        self.folder, self.job, self.count = "", "", 0
        self.failed = False
        self.guards = weakref.WeakKeyDictionary[Guard, CommunicatorName]()
        self.lock = threading.Lock()
        self.listening = 0

    def add(self, guard: Guard) -> None:
        """Record a communicator from now on; collective over it."""
        comm, self.count = guard.ranks.comm, self.count + 1
        mine = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self.count}"
        named = self.guards[guard] = CommunicatorName(comm.bcast(mine, 0), world_ranks(comm))
        if not self.job and guard.ranks.size == MPI.COMM_WORLD.Get_size():
            self.job = named.name
        if guard.ranks.config.trace:
            self.folder = guard.ranks.config.trace
            if self.listening != os.getpid():
                self.listening = os.getpid()
                from hpccoll.guard.flight_signals import listen
                listen(self)

    def write_record(self, why: str, failed: bool = False) -> None:
        """Write a record if configured; until a call has failed."""
        if self.folder and not self.failed:
            self.failed = failed
            self.dump(why, self.folder)

    def dump(self, why: str, folder: str | os.PathLike[str] = "") -> str:
        """Write a record; return the file's path, or an empty string if it cannot be written.

        Thread-safe; does not communicate.

        Args:
            why: reason, as text.
            folder: the destination; that of ``HPCCOLL_TRACE``, else :data:`FOLDER`, if omitted.
        """
        rank = MPI.COMM_WORLD.Get_rank()
        with self.lock:
            try:
                path = record_file.path_of(folder or self.folder or FOLDER, record_file.FLIGHT,
                                           self.job, rank)
                record_file.write(path, record_file.FLIGHT, self.snapshot(why))
            except (OSError, ValueError) as error:  # the failure itself matters more
                print_report(f"hpccoll: cannot write the flight record of rank {rank}: {error}")
                return ""
        return str(path)

    def snapshot(self, why: str) -> dict[str, Any]:
        """Return the state of this process as plain data; times in seconds since 1970."""
        since = time.time_ns() - time.monotonic_ns()
        return {"job": self.job, "rank": MPI.COMM_WORLD.Get_rank(),
                "ranks": MPI.COMM_WORLD.Get_size(), "why": why, "site": main_site(),
                "communicators": [_communicator(guard, named, since)
                                  for guard, named in list(self.guards.items())]}


def _communicator(guard: Guard, named: CommunicatorName, since: int) -> dict[str, Any]:
    doing = guard.activities()
    logs = guard.logs.logs
    shown = [one.rank for one in doing if one.rank == guard.rank or one.state not in ABLE]
    return {"id": named.name, "name": guard.ranks.comm.Get_name().removeprefix(
                "hpccoll private of "),
            "rank": guard.rank, "world_ranks": named.world_ranks,
            "doing": [one._asdict() for one in doing],
            "records": {str(rank): _record(logs[rank], since) for rank in shown if rank in logs},
            "requests": _requests(guard)}


def _record(log: Log, since: int) -> dict[str, Any]:
    """Return the last calls of a rank, and its failure."""
    meanings = log.descriptions()
    calls = []
    for number, call_hash, start, end in log.calls():
        known = meanings.get(call_hash)
        calls.append({"number": number, **({key: value for key, value in known._asdict().items()
                                            if value} if known is not None else {}),
                      "start": _seconds(start, since), "end": _seconds(end, since)})
    return {"calls": calls, "story": log.report()}


def _seconds(when: int, since: int) -> float | str | None:
    """Return a time of a log in seconds, or "yes" for an end at an unknown time."""
    return "yes" if when == SOME_TIME else (when + since) / 1e9 if when else None


def _requests(guard: Guard) -> list[dict[str, Any]]:
    """Return the pending nonblocking and persistent calls of hpccoll."""
    found = []
    for operation in list(PROGRESS.operations):
        if operation.context.guard is guard and not operation.over:
            round, peers = operation.pending_run.pending_peers()
            found.append({"title": operation.pending_run.title, "round": round, "peers": peers})
    return found


RECORDER = FlightRecorder()
