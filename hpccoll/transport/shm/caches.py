"""Test if two ranks share a cache: measure how fast one reads data that the other has written.

``/sys`` is not reliable: a virtual machine may report one cache for processors that the host has
placed behind two. The result is valid as long as the ranks stay on these processors.
"""

from __future__ import annotations

from time import perf_counter

import numpy
from mpi4py import MPI

from hpccoll.transport.shm.mapping import share

#: Bytes per transfer: they fit into the first two cache levels of any processor.
NBYTES = 64 << 10
#: Number of reads; the fastest counts, because other programs disturb the others.
ROUNDS = 8
#: Minimum bytes per second of a shared cache. Measured: 2 GB/s between caches, 45 to 55 GB/s in a
#: shared cache; by another method, 10 and more.
LEAST_RATE = 5e9


def share_a_cache(pair: MPI.Intracomm) -> bool:
    """Return True if two ranks share a cache; collective over ``pair``, which has two ranks.

    Takes a third of a millisecond. Both ranks get the same result: False without shared memory, or
    if other processes disturbed the measurement.
    """
    shared = share(pair, NBYTES)
    if shared is None:
        return False
    rank = pair.Get_rank()
    mine, theirs = shared.parts[rank], shared.parts[1 - rank]
    private, fastest = numpy.empty(NBYTES, numpy.uint8), float("inf")
    for turn in range(ROUNDS):
        mine[:] = turn
        pair.Barrier()
        start = perf_counter()
        private[:] = theirs
        fastest = min(fastest, perf_counter() - start)
        pair.Barrier()
    slowest: float = max(pair.allgather(fastest))
    return slowest < NBYTES / LEAST_RATE
