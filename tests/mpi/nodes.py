"""Ranks of one machine as if they were on two nodes: layouts, and memory of the own node only."""

import random

from mpi4py import MPI

import hpccoll
from hpccoll.ir.topology import Topology
from hpccoll.runtime import ranks
from hpccoll.transport.shm.channels import SharedNode

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
#: The node of every rank: the upper half, and every second one, on another.
NODES = {"in order": [int(rank >= SIZE // 2) for rank in range(SIZE)],
         "dealt out": [rank % 2 for rank in range(SIZE)]}


def dealt():
    """Ranks dealt out to two nodes in turn."""
    order = (*range(0, SIZE, 2), *range(1, SIZE, 2))
    return Topology((SIZE - SIZE // 2, SIZE // 2) if SIZE > 1 else 1, order)


def shuffled():
    """Ranks anywhere on two nodes, of three groups each where there are so many."""
    order = list(range(SIZE))
    random.Random(SIZE).shuffle(order)
    groups = tuple(filter(None, (SIZE // 3, SIZE // 4)))
    return Topology((groups, SIZE - sum(groups)) if groups else SIZE, tuple(order))


def layout_of(nodes):
    """The layout of such nodes, as a communicator takes it."""
    groups = [[rank for rank in range(SIZE) if nodes[rank] == node] for node in (0, 1)]
    order = ",".join(str(rank) for group in groups for rank in group)
    return f"{','.join(str(len(group)) for group in groups)}@{order}"


def on_nodes(monkeypatch, placed="in order"):
    """A communicator whose ranks are placed on two nodes."""
    nodes = NODES[placed]

    def node(comm, near, *more):
        part = near.Split(nodes[comm.Get_rank()], near.Get_rank())
        if near is not comm:
            near.Free()
        return SharedNode(comm, MPI.Intracomm(part), *more)

    monkeypatch.setattr(ranks, "SharedNode", node)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup(), layout=layout_of(nodes))
    assert not comm._private().place.one_node  # which is made now
    return comm


def near(placed="in order"):
    """Other ranks of this one's node."""
    nodes = NODES[placed]
    return [rank for rank in range(SIZE) if nodes[rank] == nodes[RANK] and rank != RANK]


def remote_plans(comm):
    """Compiled plans of a communicator that have messages to other nodes."""
    found = [bound.compiled_plan for bound in comm._private().compiled_plans.entries.values()]
    return [compiled_plan for compiled_plan in found if compiled_plan is not None
            and compiled_plan.owners[0].remote_messages is not None]
