"""Where the ranks of a communicator are: nodes and processors, agreed on by all of them."""

from __future__ import annotations

import os
from typing import NamedTuple, Sequence

from mpi4py import MPI

from hpccoll.topology import Topology


class Place(NamedTuple):
    """What a communicator's ranks know about their machine; the same on every rank.

    Attributes:
        topology: nodes and their ranks.
        crowded: some node has more ranks than processors for them. Processors are counted over
            the affinity masks of a node's ranks, so ranks bound to a core each are not crowded.
    """

    topology: Topology
    crowded: bool


def discover(comm: MPI.Intracomm, node: MPI.Intracomm) -> Place:
    """Ask every rank once for its node; collective over ``comm``.

    Args:
        comm: the ranks to place.
        node: this rank's part of ``comm.Split_type(COMM_TYPE_SHARED)``.
    """
    told = node.allgather((comm.Get_rank(), sorted(os.sched_getaffinity(0))))
    processors = set().union(*(mask for _, mask in told))
    answers = comm.allgather((told[0][0], len(told) > len(processors)))
    return Place(nested([first for first, _ in answers]), any(crowd for _, crowd in answers))


def nested(firsts: Sequence[int]) -> Topology:
    """The topology of ranks whose nodes begin at these ranks.

    Ranks that are not numbered node by node have no representation as nested consecutive
    groups; their communicator counts as flat.

    >>> print(nested([0, 0, 2, 2]), nested([0, 0, 0, 3]), nested([0, 1, 0, 1]))
    2x2 3,1 4
    """
    sizes: list[int] = []
    for rank, first in enumerate(firsts):
        if first == rank:
            sizes.append(0)
        elif first != firsts[rank - 1]:
            return Topology(len(firsts))
        sizes[-1] += 1
    return Topology(sizes[0] if len(sizes) == 1 else tuple(sizes))
