"""Rates of memory: copies, and reads of another process's memory, as a machine has them now.

A virtual machine reads the memory of other processes at two speeds that alternate for minutes,
while copies keep theirs. So each record of times has both rates beside them.
"""

from __future__ import annotations

import numpy
from mpi4py import MPI

from hpccoll.measure.samples import sample
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.transport.shm.channels import LEAST_CELL_BYTES, SharedNode

#: Bytes of a transfer, more than the nearest caches hold; the fastest of some counts.
NBYTES, ROUNDS = 4 << 20, 7


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


