"""Exchange of failures and call records between ranks, by shared memory or by messages.

Both classes have the same methods. ``raise_alarm`` publishes a failure of this rank and wakes the
others; ``alarm_raised`` returns True if a rank has done so; ``records`` collects the records of all
ranks, with a bounded wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.guard.job_status import JOB
from hpccoll.machine.backoff import wait_until
from hpccoll.runtime.events.call_log import (
    ALARM,
    EARLY_BYTES,
    FAILED,
    LOG_BYTES,
    NUMBER,
    STORY,
    Log,
    LogRecord,
)
from hpccoll.runtime.ranks import ALARM_TAG, Ranks
from hpccoll.transport.call_hashes import agree
from hpccoll.transport.shm.mapping import share
from hpccoll.worker import Worker

#: Seconds of the bounded waits: for positions of other ranks in shared memory; for late ranks to
#: enter the call; for records by messages, which wait until their sender has its turn; for the
#: library to send these messages.
PATIENCE, LATE, LONGER, SENDING = 0.25, 0.75, 2.0, 0.5


class SharedLogs:
    """Logs of ranks that all share memory; ``fence`` orders accesses if the processor does not."""

    #: Key of the communicator in the table for ``hpccoll status``.
    listed = 0

    def __init__(self, logs: Mapping[int, Log], rank: int, fence: Callable[[], Any] | None):
        self.logs, self.mine, self.rank, self.fence = logs, logs[rank], rank, fence
        self.barrier = threading.Lock()
        self.others = [log for other, log in sorted(logs.items()) if other != rank]

    def alarm_raised(self, in_turn: bool = False) -> bool:
        """Return True if a rank has failed; with ``in_turn``, only in this rank's current call.

        This rank can complete an earlier call: the others have left it.
        """
        alarm = self.mine.words[ALARM]
        return bool(alarm) and not (in_turn and self.mine.words[NUMBER] < alarm - 1)

    def raise_alarm(self, report: Mapping[str, Any], gone: Container[int] = (),
                    suspects: Container[int] = ()) -> None:
        """Publish a failure, and the first call in which any rank has failed.

        Two ranks may do so concurrently, and the store of a later call may come last. So each rank
        first publishes its own failed call, and checks those of the others after each store. That
        suffices: the rank of the last store checked after it, and found no earlier call. A rank
        with an earlier failure published it after that check, finds that store, and stores again:
        so the store was not the last.
        """
        self.mine.write_report(report)
        self.mine.words[FAILED] = report["number"] + 1
        self._order()
        for log in self.logs.values():
            while not 0 < log.words[ALARM] <= self._first():
                log.words[ALARM] = self._first()
                self._order()

    def _first(self) -> int:
        """Return the alarm of the first call in which any rank has failed."""
        return min(number for log in self.logs.values() if (number := log.words[FAILED]))

    def _order(self) -> None:
        """Order earlier stores before later loads, as seen by other ranks."""
        # A processor on which nothing else needs a fence may move a load before an earlier store,
        # but not across the atomic instruction that takes a lock.
        with self.barrier:
            pass
        if self.fence is not None:
            self.fence()

    def disagree(self, settled: bool = False) -> bool:
        """Return True if another rank's call of the same number differs from this rank's last.

        With ``settled`` it ignores calls that their rank may still undo.
        """
        number = self.mine.words[NUMBER]
        call_hash = self.mine.call_hash(number)
        if not call_hash:
            return False
        for log in self.others:
            other = log.call_hash(number)
            if other and not (agree(other, call_hash) or settled and log.pickling(number, other)):
                return True
        return False

    def comparison(self, call_hash: int) -> Callable[[], bool | None]:
        """Return a callback: None until all ranks have recorded the call, then their agreement."""
        number, words = self.mine.words[NUMBER], [log.words for log in self.others]

        def is_met() -> bool | None:
            for others in words:
                if others[NUMBER] < number:
                    return None
            return not self.disagree()
        return is_met

    def records(self, gone: Container[int] = (), number: int = 0) -> dict[int, LogRecord]:
        """Return the records of all ranks, complete or as they are when the wait times out.

        The wait ignores the ranks in ``gone``, and is short for ranks that have left the call of
        that ``number``; it is longer for ranks that enter it.
        """
        others = [log for rank, log in self.logs.items() if rank != self.rank and rank not in gone]
        wait_until(lambda: all(log.words[STORY] for log in others), budget=PATIENCE)
        wait_until(lambda: all(log.words[STORY] or log.words[NUMBER] >= number for log in others),
                   budget=LATE - PATIENCE)
        return {rank: log.record() for rank, log in self.logs.items()}


class MessagedLogs:
    """Logs of ranks that do not all share memory: they send failures as messages.

    ``comm`` is the private communicator; ``logs`` are those of ranks that share memory.
    """

    listed = 0

    def __init__(self, comm: MPI.Intracomm, logs: Mapping[int, Log] | None = None):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.logs = logs or {self.rank: Log(numpy.zeros(LOG_BYTES, "u1"))}
        self.mine = self.logs[self.rank]
        self.sent: list[MPI.Request] = []
        self.arrived: dict[int, LogRecord] = {}
        #: Pending receives by sender: the request and its memory.
        self.arriving: dict[int, tuple[MPI.Request, bytearray]] = {}
        #: The thread of sends: a send to a lost machine may not return.
        self.sender: Worker | None = None

    def alarm_raised(self, in_turn: bool = False) -> bool:
        """Return True if a rank has failed, in any call."""
        return bool(self.mine.words[ALARM]) or self.comm.Iprobe(MPI.ANY_SOURCE, ALARM_TAG)

    def raise_alarm(self, report: Mapping[str, Any], gone: Container[int] = (),
                    suspects: Container[int] = ()) -> None:
        """Send a failure to the other ranks, except those that have exited.

        Missing ranks come last: MPICH does not return from a send to a machine whose connection is
        lost. A thread sends if threads are permitted, and is joined with a short timeout.
        """
        self.mine.write_report(report)
        self.mine.words[ALARM] = 1
        others = [other for other in range(self.size) if other != self.rank and other not in gone]
        for other in others:
            self._receive(other)  # later it may be too late
        others.sort(key=lambda other: (other in suspects, other not in self.arrived))
        data = self.mine.record().pack()

        def send() -> None:
            while others:
                try:
                    self.sent.append(self.comm.Isend([data, MPI.BYTE], others.pop(0), ALARM_TAG))
                except MPI.Exception:
                    pass  # the library has detected that it exited

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            send()
            return
        self.sender = Worker("hpccoll alarm", send)
        try:
            self.sender.wake()
        except RuntimeError:  # no thread can be started
            send()
        self.sender.stop(SENDING)

    def disagree(self, settled: bool = False) -> bool:
        """Return False: calls of ranks that have not failed are unknown."""
        return False

    def comparison(self, call_hash: int) -> Callable[[], bool | None]:
        """Return a callback: None until all ranks have begun the call, then their agreement."""
        mine, found = numpy.array([call_hash]), numpy.zeros(self.size, "q")
        request = self.comm.Iallgather(mine, found)
        return lambda: (all(not call_hash or not other or agree(call_hash, int(other))
                            for other in found) if request.Test() else None)

    def records(self, gone: Container[int] = (), number: int = 0) -> dict[int, LogRecord]:
        """Return the records of all failed ranks, with a bounded wait.

        Sends no request while the library is busy with a send.
        """
        stuck = self.sender is not None and self.sender.is_alive
        others = {other for other in range(self.size) if other != self.rank and other not in gone}

        def all_arrived() -> bool:
            for other in others - self.arrived.keys():
                self._receive(other)
            return others <= self.arrived.keys()

        if not stuck:
            wait_until(all_arrived, budget=LONGER)
        return {**{rank: log.record() for rank, log in self.logs.items()}, **self.arrived}

    def _receive(self, other: int) -> None:
        """Receive the record of a rank if it has arrived; never waits.

        Each rank has its own probe: after one has died, a library may refuse to probe any source.
        A message that has begun may never complete: the library sends a large one only while its
        sender is in MPI, or alive.
        """
        status = MPI.Status()
        try:
            if other not in self.arriving and self.comm.Iprobe(other, ALARM_TAG, status):
                data = bytearray(status.Get_count(MPI.BYTE))
                self.arriving[other] = self.comm.Irecv([data, MPI.BYTE], other, ALARM_TAG), data
            if other in self.arriving and other not in self.arrived:
                request, data = self.arriving[other]
                if request.Test():
                    self.arrived[other] = LogRecord.unpack(bytes(data))
        except MPI.Exception:
            # The library has detected the exit; its request would now report completion.
            self.arriving.pop(other, None)


def logs_of(ranks: Ranks) -> SharedLogs | MessagedLogs:
    """Return the logs of a communicator; collective."""
    node = ranks.node
    if node is not None and node.local:
        shared = share(node.comm, LOG_BYTES, EARLY_BYTES, keep=JOB.file is not None)
        if shared is not None:
            logs = {rank: Log(shared.parts[index]) for rank, index in node.local.items()}
            logs[ranks.rank] = Log(shared.parts[node.rank],
                                     partial(shared.populate, node.rank))
            found: SharedLogs | MessagedLogs = MessagedLogs(ranks.comm, logs)
            if ranks.place.one_node:
                found = SharedLogs(logs, ranks.rank, node.fence)
            found.listed = JOB.comms.add(shared.file, ranks.rank, ranks.size, node.rank,
                                       ranks.user.Get_name())
            return found
    return MessagedLogs(ranks.comm)
