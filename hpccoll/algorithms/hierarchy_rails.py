"""Rails: all ranks of a group carry a share of the vector, so every network port is used.

Inside the smallest groups a reduce-scatter leaves each rank the owner of a share. Owners of the
same blocks in the next larger groups reduce-scatter their share between them, and so on to the
largest; allgathers in the opposite order hand the result out. What crosses between groups falls
by the group size, and the bytes sent are those of one flat ring, in far fewer rounds.

Groups may differ: each splits the blocks among its own ranks as evenly as it can, and the sets of
blocks that have the same owner in every group form the pieces that are exchanged, all at
once. ``leaders`` limits how many of a group own anything, which trades the bandwidth
of ports for fewer and longer messages (multi-leader).
Source: Cho, Finkler, Kung and Hunter, "BlueConnect", MLSys 2019; Traeff and Hunold, CLUSTER 2020
(multi-lane); multi-leader: MPICH (delta). Ragged groups by intersection are our own.
Rounds, for p = m0 x m1 x ...: allreduce 2 sum of ceil(log2 m). Sent: 2n(p-1)/p.
Between the largest groups a rank sends 2(n/m)(m0-1)/m0, with m = p/m0 ranks to a group.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from math import lcm
from typing import NamedTuple, Sequence

from hpccoll.algorithms import circulant, knomial
from hpccoll.algorithms.hierarchy import (
    WORK, Level, exchange, inside, levels, reduce_scatter, started)
from hpccoll.collective import OUT
from hpccoll.passes import Piece, concatenate
from hpccoll.schedule import Program
from hpccoll.topology import Group, Topology


def allreduce(rank: int, topology: Topology) -> Program:
    """Reduce-scatter at every level from the smallest groups up, then allgather back down."""
    return multi_leader(rank, topology, topology.size)


def multi_leader(rank: int, topology: Topology, leaders: int) -> Program:
    """Do the same with at most so many owners to a group."""
    around, home = levels(topology, rank), inside(OUT)
    most, n = min(leaders, topology.size), vector_blocks(topology, leaders)
    parts = [(level, shared(level, rank, n, most if level is not around[0] else topology.size))
             for level in around]
    return started(OUT, concatenate(
        *(exchange("allgather", reduce_scatter, level, blocks, home)
          for level, blocks in reversed(parts)),
        *(exchange("allgather", circulant.allgather, level, blocks, home)
          for level, blocks in parts)), n)


def bcast(rank: int, topology: Topology, root: int) -> Program:
    """Scatter inside the root's group, broadcast every share across, allgather inside."""
    (top, *inner), home = levels(topology, rank), inside(OUT)
    n = rooted_blocks(topology)
    parts = [(level, shared(level, rank, n, topology.size)) for level in inner]
    return concatenate(
        *(exchange("scatter", knomial.scatter, level, blocks, home, level.index(root))
          for level, blocks in reversed(parts) if root in level.ranks),
        exchange("bcast", knomial.bcast, top, whole(top, rank, n), home, top.index(root)),
        *(exchange("allgather", circulant.allgather, level, blocks, home)
          for level, blocks in parts))


def reduce(rank: int, topology: Topology, root: int) -> Program:
    """Reduce-scatter inside, reduce every share to the root's group, gather there."""
    buffer = OUT if rank == root else WORK
    (top, *inner), home = levels(topology, rank), inside(buffer)
    n = rooted_blocks(topology)
    parts = [(level, shared(level, rank, n, topology.size)) for level in inner]
    return started(buffer, concatenate(
        *(exchange("allgather", reduce_scatter, level, blocks, home)
          for level, blocks in reversed(parts)),
        exchange("reduce", knomial.reduce, top, whole(top, rank, n), home, top.index(root)),
        *(exchange("gather", knomial.gather, level, blocks, home, level.index(root))
          for level, blocks in parts if root in level.ranks)), n)


def vector_blocks(topology: Topology, leaders: int | None = None) -> int:
    """Blocks that let all owners at all levels have equal shares, if that takes few enough."""
    return _few(_even(topology.tree, min(leaders or topology.size, topology.size), True), topology)


def rooted_blocks(topology: Topology) -> int:
    """The same where shares are not split between the largest groups."""
    return _few(_even(topology.tree, topology.size, False), topology)
