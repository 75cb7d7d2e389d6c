"""Arrivals: how far the ranks of one node are with the calls of their group.

A collective takes a processor from the moment when a rank enters it, and autograd needs the
processor until the others have come. So a lane enters a call only when all ranks of its node have
reached it, or after some seconds, and sleeps until then. Every rank writes the number of its
latest call into a word of shared memory; nobody has to answer. Ranks of other nodes are taken to be
there.
"""

from __future__ import annotations

import mmap
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

#: Seconds between two looks: first, and at most.
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 250e-6
#: Seconds until the call is entered all the same. It finds ranks that have ended, and reports.
LONGEST_WAIT = 2.0
#: Where memory is shared, and bytes from one rank's word to the next: a cache line.
DIRECTORY, STEP = Path("/dev/shm"), 64


class Arrivals:
    """The latest calls of a group's ranks on this node; making it is collective.

    Attributes:
        mine: this rank's word, which whoever reaches a call writes.
    """

    def __init__(self, comm: MPI.Intracomm):
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.mine = memoryview(bytearray(8)).cast("q")
        self.others: list[memoryview] = []
        shared = _shared(node, node.size * STEP) if node.size > 1 else None
        if shared is not None:
            words = [shared[STEP * rank:STEP * rank + 8].cast("q") for rank in range(node.size)]
            self.mine = words.pop(node.rank)
            self.others = words
        node.Free()

    def wait(self, number: int, needless: Callable[[], bool]) -> None:
        """Sleep until all have reached a call, nobody wants it any more, or it takes too long."""
        pause, until = SHORTEST_PAUSE, time.monotonic() + LONGEST_WAIT
        while (any(word[0] < number for word in self.others) and not needless()
               and time.monotonic() < until):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _shared(node: MPI.Comm, nbytes: int) -> memoryview | None:
    """Zeros that all ranks of a node see; ``None`` where there is no room."""
    file = memory = None
    try:
        if node.rank == 0:
            file = tempfile.NamedTemporaryFile(prefix="hpccoll-", dir=DIRECTORY)
            file.truncate(nbytes)
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
        file.close()  # its name is gone; the memory stays while it is mapped
    return memory if everywhere else None
