"""What the ranks of a communicator know of each other's calls: by shared memory, or by messages.

Both ways have the same verbs. ``ring`` publishes what failed here and wakes the others; ``rung``
tells whether somebody has done so; ``records`` collects what all say, with bounded patience.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.runtime.context import ALARM_TAG, Context
from hpccoll.runtime.events.log import (
    ALARM,
    EARLY_BYTES,
    FAILED,
    LOG_BYTES,
    NUMBER,
    STORY,
    Log,
    LogRecord,
)
from hpccoll.transport.shm.mapping import share
from hpccoll.transport.stamps import agree

#: Seconds that a rank waits for the others to tell where they are, in shared memory; to come to the
#: call, where they are late; to tell by messages, which wait until their sender has its turn; for
#: the library to take messages that tell them; and between two looks.
PATIENCE, LATE, LONGER, SENDING, PAUSE = 0.25, 0.75, 2.0, 0.5, 2e-4


class SharedLogs:
    """Logs of ranks that all share memory.

    Args:
        logs: of all ranks.
        rank: this one.
        fence: orders memory accesses, where the processor does not.
    """

    def __init__(self, logs: Mapping[int, Log], rank: int, fence: Callable[[], Any] | None):
        self.logs, self.mine, self.rank, self.fence = logs, logs[rank], rank, fence
        self.barrier = threading.Lock()
        self.others = [log for other, log in sorted(logs.items()) if other != rank]

    def rung(self, in_turn: bool = False) -> bool:
        """Tell whether a rank has given up; ``in_turn`` whether in a call that this one is at.

        In an earlier one this rank can go on: the others have left it.
        """
        alarm = self.mine.words[ALARM]
        return bool(alarm) and not (in_turn and self.mine.words[NUMBER] < alarm - 1)

    def ring(self, story: Mapping[str, Any], gone: Container[int] = (),
             suspects: Container[int] = ()) -> None:
        """Say what failed here, and tell the others the first call in which anybody has given up.

        Two ranks may do so at once, and the store of a later call may come last. So each says first
        where it has given up itself, and looks, after each store, where the others have. That
        suffices: who made the last store looked after it, and found no earlier call. Whoever gave
        up in one said so after that look, finds that store, and makes another: it was not the last.
        """
        self.mine.tell(story)
        self.mine.words[FAILED] = story["number"] + 1
        self._order()
        for log in self.logs.values():
            while not 0 < log.words[ALARM] <= self._first():
                log.words[ALARM] = self._first()
                self._order()

    def _first(self) -> int:
        """The alarm for the first call in which anybody has said that it has given up."""
        return min(number for log in self.logs.values() if (number := log.words[FAILED]))

    def _order(self) -> None:
        """Let others see what was stored before anything is loaded."""
        # A processor on which nothing else needs a fence may move a load before an earlier store,
        # but not across the atomic instruction that takes a lock.
        with self.barrier:
            pass
        if self.fence is not None:
            self.fence()

    def disagree(self, settled: bool = False) -> bool:
        """Tell whether another rank has made another call where this one made its last.

        Args:
            settled: count no call that its rank may yet take back.
        """
        number = self.mine.words[NUMBER]
        stamp = self.mine.stamp(number)
        if not stamp:
            return False
        for log in self.others:
            found = log.stamp(number)
            if found and not agree(found, stamp) and not (settled and log.pickling(number, found)):
                return True
        return False

    def comparison(self, stamp: int) -> Callable[[], bool | None]:
        """Tells, once all ranks have noted the call that this one has, whether it is the same."""
        number, words = self.mine.words[NUMBER], [log.words for log in self.others]

        def met() -> bool | None:
            for others in words:
                if others[NUMBER] < number:
                    return None
            return not self.disagree()
        return met

    def records(self, gone: Container[int] = (), number: int = 0) -> dict[int, LogRecord]:
        """What all ranks say, once all have told where they are, or patience is at its end.

        Nobody waits for what those will say that are ``gone``, nor for long for those that have
        left the call of that ``number``; with ranks that come to it, there is more patience.
        """
        others = [log for rank, log in self.logs.items() if rank != self.rank and rank not in gone]
        start = time.monotonic()
        while (left := [log for log in others if not log.words[STORY]]) and (
                waited := time.monotonic() - start) < LATE:
            if waited >= PATIENCE and all(log.words[NUMBER] >= number for log in left):
                break
            time.sleep(PAUSE)
        return {rank: log.record() for rank, log in self.logs.items()}


class MessagedLogs:
    """Logs of ranks that do not all share memory: they tell each other what failed by messages.

    Args:
        comm: the private communicator.
        logs: of the ranks that share memory with this one, if any do.
    """

    def __init__(self, comm: MPI.Intracomm, logs: Mapping[int, Log] | None = None):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.logs = logs or {self.rank: Log(numpy.zeros(LOG_BYTES, "u1"))}
        self.mine = self.logs[self.rank]
        self.sent: list[MPI.Request] = []
        self.arrived: dict[int, LogRecord] = {}
        #: What is just being received, by its sender: the request and its memory.
        self.arriving: dict[int, tuple[MPI.Request, bytearray]] = {}
        #: Sends are made here: one to a machine that is gone may not return.
        self.sender: threading.Thread | None = None

    def rung(self, in_turn: bool = False) -> bool:
        """Tell whether a rank has given up, in whichever call."""
        return bool(self.mine.words[ALARM]) or self.comm.Iprobe(MPI.ANY_SOURCE, ALARM_TAG)

    def ring(self, story: Mapping[str, Any], gone: Container[int] = (),
             suspects: Container[int] = ()) -> None:
        """Say what failed here, and tell the others, but for those that are gone.

        Those that are waited for come last: MPICH does not return from a send to a machine whose
        connection is lost. A thread sends, where there may be one, and is not waited for for long.
        """
        self.mine.tell(story)
        self.mine.words[ALARM] = 1
        others = [other for other in range(self.size) if other != self.rank and other not in gone]
        for other in others:
            self._receive(other)  # later it may be too late
        others.sort(key=lambda other: (other in suspects, other not in self.arrived))
        data = self.mine.record().packed()

        def send() -> None:
            for other in others:
                try:
                    self.sent.append(self.comm.Isend([data, MPI.BYTE], other, ALARM_TAG))
                except MPI.Exception:
                    pass  # the library knows that it is gone

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            send()
            return
        sender = threading.Thread(target=send, name="hpccoll alarm", daemon=True)
        try:
            sender.start()
        except RuntimeError:  # there is no thread to be had
            send()
            return
        self.sender = sender
        sender.join(SENDING)

    def disagree(self, settled: bool = False) -> bool:
        """Nothing is known of ranks that have not failed."""
        return False

    def comparison(self, stamp: int) -> Callable[[], bool | None]:
        """Tells, once all ranks have begun it, whether their stamps are the same."""
        mine, found = numpy.array([stamp]), numpy.zeros(self.size, "q")
        request = self.comm.Iallgather(mine, found)
        return lambda: (all(not stamp or not other or agree(stamp, int(other)) for other in found)
                        if request.Test() else None)

    def records(self, gone: Container[int] = (), number: int = 0) -> dict[int, LogRecord]:
        """What all ranks say that have given up, waited for as above.

        Nobody is asked where the library is still busy with a send.
        """
        stuck = self.sender is not None and self.sender.is_alive()
        end, others = time.monotonic() + LONGER, {
            other for other in range(self.size) if other != self.rank and other not in gone}
        while not stuck and time.monotonic() < end and not others <= self.arrived.keys():
            for other in others - self.arrived.keys():
                self._receive(other)
            time.sleep(PAUSE)
        return {**{rank: log.record() for rank, log in self.logs.items()}, **self.arrived}

    def _receive(self, other: int) -> None:
        """Take what a rank has told, if it is there; never wait for it.

        Each is asked for by itself: where one is gone, a library may refuse to look for any. That
        a message has begun says nothing of its end: one that the library does not send at once
        comes only while its sender is in MPI, or lives.
        """
        status = MPI.Status()
        try:
            if other not in self.arriving and self.comm.Iprobe(other, ALARM_TAG, status):
                data = bytearray(status.Get_count(MPI.BYTE))
                self.arriving[other] = self.comm.Irecv([data, MPI.BYTE], other, ALARM_TAG), data
            if other in self.arriving and other not in self.arrived:
                request, data = self.arriving[other]
                if request.Test():
                    self.arrived[other] = LogRecord.unpacked(bytes(data))
        except MPI.Exception:
            # The library knows that it is gone; its request would say now that all has come.
            self.arriving.pop(other, None)


def logs_of(context: Context) -> SharedLogs | MessagedLogs:
    """The logs of a communicator; collective."""
    node = context.node
    if node is not None and node.local:
        shared = share(node.comm, LOG_BYTES, EARLY_BYTES)
        if shared is not None:
            logs = {rank: Log(shared.parts[index]) for rank, index in node.local.items()}
            logs[context.rank] = Log(shared.parts[node.rank],
                                     partial(shared.populate, node.rank))
            if context.place.one_node:
                return SharedLogs(logs, context.rank, node.fence)
            return MessagedLogs(context.comm, logs)
    return MessagedLogs(context.comm)
