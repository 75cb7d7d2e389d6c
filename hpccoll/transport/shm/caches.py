"""Whether the processors of two ranks share a cache: how fast one reads what the other has written.

What ``/sys`` says of caches is of no use here: a virtual machine tells of one cache where the host
has put its processors behind two. So it is timed, and holds as long as the ranks stay there.
"""

from __future__ import annotations

from time import perf_counter

import numpy
from mpi4py import MPI

from hpccoll.transport.shm.mapping import share

#: Bytes that are written and read: they fit into the first two caches of any processor.
NBYTES = 64 << 10
#: Readings, of which the fastest counts: nothing has disturbed it.
ROUNDS = 8
#: Bytes per second from which a cache must be shared. Measured were 2 GB/s between caches, and
#: 45 to 55 GB/s through one that is shared; earlier, by other means, 10 and more.
LEAST_RATE = 5e9


def share_a_cache(pair: MPI.Intracomm) -> bool:
    """Tell whether two ranks share a cache; collective over ``pair``, which has no others.

    Takes a third of a millisecond. Both ranks get one answer, ``False`` where they share no memory
    and where other processes kept them from being fast.
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
