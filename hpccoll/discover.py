"""The layout of a communicator, from communicator splits."""

from __future__ import annotations

import os

from mpi4py import MPI

from hpccoll.topology import Topology


def discover(comm: MPI.Intracomm) -> Topology:
    """Nodes and their ranks, by ``Split_type(COMM_TYPE_SHARED)``; collective over ``comm``.

    Ranks that are not numbered node by node have no representation as nested consecutive
    groups; their communicator counts as flat.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank())
    try:
        first = node.bcast(comm.Get_rank())
    finally:
        node.Free()
    firsts = comm.allgather(first)
    sizes: list[int] = []
    for rank, first in enumerate(firsts):
        if first == rank:
            sizes.append(0)
        elif first != firsts[rank - 1]:
            return Topology(len(firsts))
        sizes[-1] += 1
    return Topology(sizes[0] if len(sizes) == 1 else tuple(sizes))


def crowded(comm: MPI.Intracomm) -> bool:
    """Tell whether some node has more ranks than processors for them; collective over ``comm``.

    Processors are counted over the affinity masks of a node's ranks, so ranks bound to a core
    each are not crowded. The answer is the same on every rank.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank())
    try:
        masks = node.allgather(sorted(os.sched_getaffinity(0)))
    finally:
        node.Free()
    return bool(comm.allreduce(len(masks) > len(set().union(*masks)), MPI.LOR))
