"""Flight records: what every rank did last, written down when something goes wrong.

    logs in shared memory --dump--> FOLDER/flight-JOB-rankR.json --> hpccoll trace diagnose FOLDER

The logs are always kept (``runtime/events/log.py``). With ``HPCCOLL_TRACE`` each rank writes them
down when a long wait is reported, when a call fails, and on SIGUSR1 and SIGTERM; ``comm.dump()``
does it at any time. A rank that was killed or stopped cannot: the others on its node write for it.
A thread writes on signals, because the main one may be in the MPI library's hands.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.atomic_file import replacing
from hpccoll.guard.board import AWAY, NATIVE, WAITING
from hpccoll.guard.sites import main_site
from hpccoll.runtime.events.log import SOME_TIME, Log
from hpccoll.runtime.progress.engine import PROGRESS

if TYPE_CHECKING:
    from hpccoll.guard.guard import Guard

FORMAT = "hpccoll flight 1"
#: Where records go that nobody has named a folder for.
FOLDER = "hpccoll-trace"
#: States of ranks that write for themselves.
ABLE = (WAITING, NATIVE, AWAY)
#: Signals that make a rank write; the second ends it then.
SIGNALS = signal.SIGUSR1, signal.SIGTERM


class FlightRecorder:
    """Writes down what this process knows of all its communicators.

    Attributes:
        folder: where to, when something goes wrong; empty where nobody asked for it.
        job: what all ranks of the job call it.
        failed: what was known when the first call failed is written, and stays.
        guards: of communicators.
    """

    def __init__(self) -> None:
        self.folder, self.job, self.count = "", "", 0
        self.failed = False
        self.guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self.lock = threading.Lock()
        self.listening = 0

    def add(self, guard: Guard) -> None:
        """Write down what a communicator does from now on; collective over it."""
        comm, self.count = guard.context.comm, self.count + 1
        mine = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self.count}"
        guard.name = MPI.Intracomm.bcast(comm, mine, 0)
        world, group = MPI.Intracomm(MPI.COMM_WORLD).Get_group(), comm.Get_group()
        guard.world_ranks = tuple(group.Translate_ranks(None, world))
        if not self.job and guard.context.size == world.Get_size():
            self.job = guard.name
        group.Free()
        world.Free()
        self.guards.add(guard)
        if guard.context.config.trace:
            self.folder = guard.context.config.trace
            if self.listening != os.getpid():
                self.listening = os.getpid()
                listen(self)

    def noticed(self, why: str, failed: bool = False) -> None:
        """Write, where that was asked for, that something goes wrong, until a call has failed."""
        if self.folder and not self.failed:
            self.failed = failed
            self.dump(why, self.folder)

    def dump(self, why: str, folder: str | os.PathLike[str] = "") -> str:
        """Write down what is known; the file's path, or nothing where it cannot be written.

        Any thread may call it; it communicates with nobody.

        Args:
            why: in words.
            folder: where to; what ``HPCCOLL_TRACE`` says, else :data:`FOLDER`, if omitted.
        """
        place = Path(folder or self.folder or FOLDER)
        rank = MPI.COMM_WORLD.Get_rank()
        path = place / f"flight-{self.job or 'job'}-rank{rank:05}.json"
        with self.lock:
            try:
                place.mkdir(parents=True, exist_ok=True)
                with replacing(path) as file:
                    json.dump(self.snapshot(why), file)
            except (OSError, ValueError) as error:  # what went wrong matters more
                print(f"hpccoll: cannot write the flight record of rank {rank}: "
                      f"{error}", file=sys.stderr)
                return ""
        return str(path)

    def snapshot(self, why: str) -> dict[str, Any]:
        """What this process knows, as plain data; times in seconds since 1970."""
        since = time.time_ns() - time.monotonic_ns()
        return {"format": FORMAT, "why": why, "when": time.time(), "job": self.job,
                "rank": MPI.COMM_WORLD.Get_rank(), "ranks": MPI.COMM_WORLD.Get_size(),
                "host": platform.node(), "pid": os.getpid(), "site": main_site(),
                "communicators": [_communicator(guard, since) for guard in list(self.guards)]}


def _communicator(guard: Guard, since: int) -> dict[str, Any]:
    doing = guard.doing()
    logs = guard.logs.logs
    told = [one.rank for one in doing if one.rank == guard.rank or one.state not in ABLE]
    return {"id": guard.name, "name": guard.context.comm.Get_name().removeprefix(
                "hpccoll private of "),
            "rank": guard.rank, "world_ranks": guard.world_ranks,
            "doing": [one._asdict() for one in doing],
            "records": {str(rank): _record(logs[rank], since) for rank in told if rank in logs},
            "requests": _requests(guard)}


def _record(log: Log, since: int) -> dict[str, Any]:
    """The last calls of a rank, and what failed there."""
    meanings = log.descriptions()
    calls = []
    for number, stamp, start, end in log.calls():
        known = meanings.get(stamp)
        calls.append({"number": number, **({key: value for key, value in known._asdict().items()
                                            if value} if known is not None else {}),
                      "start": _seconds(start, since), "end": _seconds(end, since)})
    return {"calls": calls, "story": log.story()}


def _seconds(when: int, since: int) -> float | str | None:
    """A time of a log in seconds; whether it is only known that something has ended."""
    return "yes" if when == SOME_TIME else (when + since) / 1e9 if when else None


def _requests(guard: Guard) -> list[dict[str, Any]]:
    """Nonblocking and persistent calls of ours that are under way."""
    found = []
    for operation in list(PROGRESS.operations):
        if operation.context is guard.context and not operation.over:
            round, peers = operation.awaited.pending()
            found.append({"title": operation.awaited.title, "round": round, "peers": peers})
    return found


# -- signals -----------------------------------------------------------------------------------
def listen(recorder: FlightRecorder) -> None:
    """Write on signals, unless the program has handlers of its own for them."""
    if threading.current_thread() is not threading.main_thread():
        return  # only there may handlers be set
    ours = [one for one in SIGNALS if signal.getsignal(one) == signal.SIG_DFL]
    if not ours:
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    if before != -1:  # the program waits for signals in this way
        signal.set_wakeup_fd(before)
        return
    for one in ours:
        # The thread is woken up before this is called, which waits until Python runs again.
        signal.signal(one, lambda number, frame: None)
    threading.Thread(target=_work, args=(recorder, reading, writing, ours), daemon=True,
                     name="hpccoll flight recorder").start()


def _work(recorder: FlightRecorder, reading: socket.socket, writing: socket.socket,
          ours: list[signal.Signals]) -> None:
    with reading, writing:
        while numbers := reading.recv(64):
            for number in numbers:
                if number == signal.SIGUSR1 and number in ours:
                    recorder.dump("SIGUSR1")
                elif number in ours:
                    recorder.noticed("SIGTERM")
                if number in ours and number == signal.SIGTERM:
                    # Only the main thread may ask Python for it, and it may never come to that.
                    ctypes.CDLL(None).signal(int(number), None)
                    os.kill(os.getpid(), number)


RECORDER = FlightRecorder()
