"""The memory limit: the shortest time in which a node can move what a collective must move.

Whatever the algorithm, every byte of input that a result depends on is read once, and every
byte of every rank's result is written once. More is not demanded: a rank that reduces can read
all inputs where they lie and write the result to all outputs, so reduced and passed-on values
need no memory of their own. With p ranks and n bytes in the larger buffer of a rank:

    allreduce, alltoall, scan   p n read, p n written        allgather       n read, p n written
    reduce                      p n read,   n written        bcast           n read, (p-1) n written
    reduce_scatter              p n read,   n written        gather, scatter n read, n written

In place, what lies where it belongs already is neither read nor written (:func:`moved` has the
details). The time limit is these bytes over the rate of plain copies, measured on all ranks at
once, where a copied byte counts as one read and one written.

It is a limit of memory, of GPUs' where the buffers are there: below ``SHOWN`` bytes caches hold
everything and latency decides, and between nodes links are the tighter limit.
"""

from __future__ import annotations

from time import perf_counter

import numpy
from mpi4py import MPI

from hpccoll.cuda import device_namespace, synchronize
from hpccoll.measure.cases import Case

#: Bytes of a rank's larger buffer from which on the limit says something.
SHOWN = 1 << 20
#: Bytes of the arrays that are copied, on the host and on GPUs: too large for the caches; and how
#: often.
COPIED, ON_GPUS, TURNS = 32 << 20, 256 << 20, 9


def moved(case: Case) -> int:
    """Bytes that all ranks together must read and write, whatever the algorithm."""
    p, base = case.size, case.rule.name
    total, own = case.count, 0
    if base == "barrier" or p == 1 and (case.in_place or base in ("bcast", "exscan")):
        return 0
    read, written = {
        "allreduce": (p, p), "alltoall": (p, p), "scan": (p, p), "exscan": (p - 1, p - 1),
        "reduce": (p, 1), "reduce_scatter": (p, 1), "allgather": (1, p), "bcast": (1, p - 1),
        "gather": (1, 1), "scatter": (1, 1)}[base]
    bytes_of = case.dtype.itemsize
    both = (read + written) * total
    if not case.in_place:
        return both * bytes_of
    # What a rank keeps for itself is in its place: never written, and read only for the others.
    if base in ("allgather", "scan"):
        own = total
    elif base == "alltoall":
        own = 2 * sum(case.extent(rank * p + rank) for rank in range(p))
    elif base in ("gather", "scatter"):
        own = 2 * case.extent(case.root)
    return (both - own) * bytes_of


def copy_rate(comm: MPI.Intracomm, on_device: bool = False) -> float:
    """Bytes per second, read and written, of all ranks copying at once; collective.

    The median over repetitions, each as long as its slowest rank's copy; the same on all ranks.
    Ranks that share a GPU share its rate.
    """
    nbytes = ON_GPUS if on_device else COPIED
    namespace = device_namespace() if on_device else numpy
    source, target = namespace.empty(nbytes, "u1"), namespace.empty(nbytes, "u1")
    source[...], target[...] = 1, 0  # memory that nobody has touched is copied faster
    seconds = []
    for _ in range(TURNS):
        comm.Barrier()
        start = perf_counter()
        namespace.copyto(target, source)
        if on_device:
            synchronize()
        seconds.append(comm.allreduce(perf_counter() - start, MPI.MAX))
    return comm.bcast(2 * nbytes * comm.Get_size() / float(numpy.median(seconds)))


def shortest(case: Case, rate: float) -> float | None:
    """Seconds that a case takes at least; ``None`` where memory is not what limits it."""
    if case.nbytes < SHOWN or not rate:
        return None
    return moved(case) / rate or None
