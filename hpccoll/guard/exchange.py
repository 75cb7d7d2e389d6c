"""What the ranks of a communicator know of each other's calls: by shared memory, or by messages.

Both ways have the same verbs. ``ring`` publishes what failed here and wakes the others; ``rung``
tells whether somebody has done so; ``records`` collects what all say, with bounded patience.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.runtime.context import ALARM_TAG, Context
from hpccoll.runtime.log import ALARM, LOG_BYTES, NUMBER, STORY, Log, LogRecord
from hpccoll.transport.shm.mapping import share
from hpccoll.transport.stamps import agree

#: Seconds that a rank waits for the others to tell where they are, in shared memory and by
#: messages, which wait until their sender has its turn; and between two looks.
PATIENCE, LONGER, PAUSE = 0.25, 2.0, 2e-4


class SharedLogs:
    """Logs of ranks that all share memory.

    Args:
        logs: of all ranks.
        rank: this one.
        fence: orders memory accesses, where the processor does not.
    """

    def __init__(self, logs: Mapping[int, Log], rank: int, fence: Callable[[], Any] | None):
        self.logs, self.mine, self.rank, self.fence = logs, logs[rank], rank, fence
        self.others = [log for other, log in sorted(logs.items()) if other != rank]

    def rung(self, in_turn: bool = False) -> bool:
        """Tell whether a rank has given up; ``in_turn`` whether in a call that this one is at.

        In an earlier one this rank can go on: the others have left it.
        """
        alarm = self.mine.words[ALARM]
        return bool(alarm) and not (in_turn and self.mine.words[NUMBER] < alarm - 1)

    def ring(self, story: Mapping[str, Any]) -> None:
        """Say what failed here, and tell the others."""
        self.mine.tell(story)
        if self.fence is not None:
            self.fence()
        for log in self.logs.values():
            if not 0 < log.words[ALARM] <= story["number"] + 1:
                log.words[ALARM] = story["number"] + 1

    def disagree(self) -> bool:
        """Tell whether another rank has made another call where this one made its last."""
        number = self.mine.words[NUMBER]
        stamp = self.mine.stamp(number)
        if not stamp:
            return False
        return any(found and not agree(found, stamp)
                   for found in (log.stamp(number) for log in self.others))

    def comparison(self, stamp: int) -> Callable[[], bool | None]:
        """Tells, once all ranks have noted the call that this one has, whether it is the same."""
        number, words = self.mine.words[NUMBER], [log.words for log in self.others]

        def met() -> bool | None:
            for others in words:
                if others[NUMBER] < number:
                    return None
            return not self.disagree()
        return met

    def records(self) -> dict[int, LogRecord]:
        """What all ranks say, once all have told where they are, or patience is at its end."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not all(log.words[STORY] for log in self.others):
            time.sleep(PAUSE)
        return {rank: log.record() for rank, log in self.logs.items()}


class MessagedLogs:
    """Logs of ranks that tell each other by messages, and only what failed.

    Args:
        comm: the private communicator.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.mine = Log(numpy.zeros(LOG_BYTES, "u1"))
        self.sent: list[MPI.Request] = []
        self.arrived: dict[int, LogRecord] = {}

    def rung(self, in_turn: bool = False) -> bool:
        """Tell whether a rank has given up, in whichever call."""
        return bool(self.mine.words[ALARM]) or self.comm.Iprobe(MPI.ANY_SOURCE, ALARM_TAG)

    def ring(self, story: Mapping[str, Any]) -> None:
        """Say what failed here, and tell the others."""
        self.mine.tell(story)
        self.mine.words[ALARM] = 1
        data = self.mine.record().packed()
        self.sent += [self.comm.Isend([data, MPI.BYTE], other, ALARM_TAG)
                      for other in range(self.size) if other != self.rank]

    def disagree(self) -> bool:
        """Nothing is known of ranks that have not failed."""
        return False

    def comparison(self, stamp: int) -> Callable[[], bool | None]:
        """Tells, once all ranks have begun it, whether their stamps are the same."""
        mine, found = numpy.array([stamp]), numpy.zeros(self.size, "q")
        request = self.comm.Iallgather(mine, found)
        return lambda: (all(agree(stamp, int(other)) for other in found) if request.Test()
                        else None)

    def records(self) -> dict[int, LogRecord]:
        """What all ranks say that have given up, waited for as above."""
        end, status = time.monotonic() + LONGER, MPI.Status()
        while time.monotonic() < end and len(self.arrived) < self.size - 1:
            if not self.comm.Iprobe(MPI.ANY_SOURCE, ALARM_TAG, status):
                time.sleep(PAUSE)
                continue
            data, source = bytearray(status.Get_count(MPI.BYTE)), status.Get_source()
            self.comm.Recv([data, MPI.BYTE], source, ALARM_TAG)
            self.arrived[source] = LogRecord.unpacked(bytes(data))
        return {self.rank: self.mine.record(), **self.arrived}


def logs_of(context: Context) -> SharedLogs | MessagedLogs:
    """The logs of a communicator; collective."""
    node = context.node
    if node is not None and context.place.one_node and context.size > 1:
        shared = share(node.comm, LOG_BYTES)
        if shared is not None:
            indices = {**node.local, context.rank: node.rank}
            return SharedLogs({rank: Log(shared.parts[index]) for rank, index in indices.items()},
                              context.rank, node.fence)
    return MessagedLogs(context.comm)
