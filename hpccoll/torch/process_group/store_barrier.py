"""Arrivals: the latest call that each rank of a node has reached.

A rank inside a collective occupies a processor, which autograd needs until the other ranks arrive.
Therefore the queue's thread sleeps until all ranks of its node have reached a call, or for some
seconds, and then enters the call. Each rank writes the number of its latest call to a word of
shared memory, without messages. Ranks of other nodes are assumed to have arrived.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

#: Seconds between two polls: initial and maximum.
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 250e-6
#: Seconds after which the call is entered anyway: the call detects and reports exited ranks.
LONGEST_WAIT = 2.0
#: Folder of shared memory, and distance of the ranks' words in bytes: a cache line.
DIRECTORY, STEP = Path("/dev/shm"), 64


class Arrivals:
    """Latest calls of a group's ranks on this node; creation is collective.

    Attributes:
        mine: this rank's word; written when this rank reaches a call.
    """

    def __init__(self, comm: MPI.Intracomm):
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.mine = memoryview(bytearray(8)).cast("q")
        self.others: list[memoryview] = []
        shared = _map_shared(node, node.size * STEP) if node.size > 1 else None
        if shared is not None:
            words = [shared[STEP * rank:STEP * rank + 8].cast("q") for rank in range(node.size)]
            self.mine = words.pop(node.rank)
            self.others = words
        node.Free()

    def wait(self, number: int, needless: Callable[[], bool]) -> None:
        """Sleep until all ranks reach a call, ``needless()`` is true, or LONGEST_WAIT is over."""
        pause, until = SHORTEST_PAUSE, time.monotonic() + LONGEST_WAIT
        while (any(word[0] < number for word in self.others) and not needless()
               and time.monotonic() < until):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _map_shared(node: MPI.Comm, nbytes: int) -> memoryview | None:
    """Return zeroed memory shared by all ranks of a node; ``None`` without space."""
    file = memory = None
    try:
        if node.rank == 0:
            file = tempfile.NamedTemporaryFile(prefix="hpccoll-", dir=DIRECTORY)
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a full file system is an OSError here
        name = node.bcast(file and file.name)
    except OSError:
        name = node.bcast(None)
    if name is not None:
        try:
            with open(name, "r+b") as opened:
                memory = memoryview(mmap.mmap(opened.fileno(), nbytes))
        except OSError:
            pass
    everywhere = node.allreduce(memory is not None, MPI.LAND)
    if file is not None:
        file.close()  # the file is unlinked; the memory exists while it is mapped
    return memory if everywhere else None
