"""Memory limit: the shortest time in which a node can move the bytes of a collective.

Whatever the algorithm, every byte of input that a result depends on is read once, and every byte of
every rank's result is written once. A reducing rank can read all inputs in place and write the
result to all outputs, so intermediate values need no memory traffic. With p ranks and n bytes in
the larger buffer of a rank:

    allreduce, alltoall, scan   p n read, p n written        allgather       n read, p n written
    reduce                      p n read,   n written        bcast           n read, (p-1) n written
    reduce_scatter              p n read,   n written        gather, scatter n read, n written

In place, data that is already in its final position is neither read nor written (see
:func:`memory_bytes`). The time limit is these bytes over the rate of plain copies, measured on all
ranks concurrently; a copied byte counts as one read and one write.

It is a limit of memory, or of GPU memory for device buffers: below ``SHOWN`` bytes all data fits
into caches and latency dominates, and between nodes links are the tighter limit.

:func:`memory_rates` is beside each record of times: a virtual machine reads the memory of other
processes at two speeds that alternate for minutes, while copies keep theirs.
"""

from __future__ import annotations

import numpy
from mpi4py import MPI

from hpccoll.cuda import device_namespace, synchronize
from hpccoll.measure.cases import Case
from hpccoll.measure.samples import median_of_slowest, sample
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.transport.shm.channels import LEAST_CELL_BYTES, SharedNode

#: Minimum bytes of a rank's larger buffer for which the limit is meaningful.
SHOWN = 1 << 20
#: Bytes of the copied arrays, on the host and on GPUs, too large for the caches; repetitions.
COPIED, ON_GPUS, TURNS = 32 << 20, 256 << 20, 9
#: Bytes of a transfer, more than the nearest caches hold; the fastest of some counts.
NBYTES, ROUNDS = 4 << 20, 7


def memory_bytes(case: Case) -> int:
    """Return the bytes that all ranks together must read and write with any algorithm."""
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
    # A rank's own block is already in place: not written, and read only for other ranks.
    if base in ("allgather", "scan"):
        own = total
    elif base == "alltoall":
        own = 2 * sum(case.extent(rank * p + rank) for rank in range(p))
    elif base in ("gather", "scatter"):
        own = 2 * case.extent(case.root)
    return (both - own) * bytes_of


def copy_rate(comm: MPI.Intracomm, on_device: bool = False) -> float:
    """Measure the bytes per second, read and written, of all ranks copying; collective.

    The median over repetitions, each as long as its slowest rank's copy; the same on all ranks.
    Ranks that share a GPU share its rate.
    """
    nbytes = ON_GPUS if on_device else COPIED
    namespace = device_namespace() if on_device else numpy
    source, target = namespace.empty(nbytes, "u1"), namespace.empty(nbytes, "u1")
    source[...], target[...] = 1, 0  # untouched memory is copied faster

    def copy() -> None:
        namespace.copyto(target, source)
        if on_device:
            synchronize()

    seconds = median_of_slowest(comm, sample(copy, TURNS, comm.Barrier))
    return comm.bcast(2 * nbytes * comm.Get_size() / seconds)


def min_seconds(case: Case, rate: float) -> float | None:
    """Return the minimum seconds of a case; ``None`` if memory is not its limit."""
    if case.nbytes < SHOWN or not rate:
        return None
    return memory_bytes(case) / rate or None


def memory_rates(comm: MPI.Intracomm) -> dict[str, float]:
    """Return bytes per second of ``copy`` and of ``read``, on rank 0; collective.

    ``read`` is missing if rank 1 is on another node, or may not be read.
    """
    node_comm = PrivateComm(comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank()))
    node = SharedNode(comm, node_comm, LEAST_CELL_BYTES)
    memory, into = numpy.ones(NBYTES, numpy.uint8), numpy.zeros(NBYTES, numpy.uint8)
    addresses = node_comm.allgather(memory.__array_interface__["data"][0])
    rates = {}
    if comm.Get_rank() == 0:
        rates["copy"] = NBYTES / min(sample(lambda: numpy.copyto(into, memory), ROUNDS))
        if 1 in node.local and node.readv is not None:
            address = addresses[node.local[1]]
            rates["read"] = NBYTES / min(sample(
                lambda: node.read_private(1, address, into), ROUNDS))
    node_comm.Barrier()  # rank 1 keeps its memory until then
    node.free()
    return rates
