"""Rails: all ranks of a group carry a share of the vector, so every network port is used.

Inside the smallest groups a reduce-scatter leaves each rank the owner of a share. Owners of the
same blocks in the next larger groups reduce-scatter their shares between them, and so on to the
largest; allgathers in the opposite order hand the result out. What crosses between groups falls
by the size of the group, and the bytes sent are those of one flat ring, in far fewer rounds.
Multi-leader lets only some ranks of a group own a share: fewer and longer messages across, at
the bandwidth of as many ports. Crossing doubles recursively between the largest groups: half the
rounds there, for log2 as many bytes. Who owns what:
:mod:`~hpccoll.algorithms.hierarchical.ownership`.
Source: Cho, Finkler, Kung and Hunter, "BlueConnect", MLSys 2019; Traeff and Hunold, CLUSTER 2020
(multi-lane); multi-leader: MPICH (delta).
Rounds, for p = m0 x m1 x ... ranks, m0 the number of the largest groups, C = ceil(log2) and
L = floor(log2): allreduce 2 sum of C(m), crossing L(m0) for the first of them, and 2 more unless m0
is a power of two; bcast and reduce L(m0) + sum of C(m) + L(m) over the
others. Sent: allreduce 2n(p-1)/p, of which 2(n/g)(m0-1)/m0 between the largest groups of g = p/m0
ranks, where bcast and reduce send n/g per message; crossing 2n(g-1)/g, and n/g for every doubling.
"""

from __future__ import annotations

from hpccoll.algorithms.hierarchical.composition import WORK, inside, levels, place_input
from hpccoll.algorithms.hierarchical.exchanges import (
    ALLGATHER,
    ALLREDUCE,
    BCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    exchange,
)
from hpccoll.algorithms.hierarchical.ownership import nblocks, rooted_nblocks, shares
from hpccoll.ir.collectives import OUT
from hpccoll.ir.passes import concatenate
from hpccoll.ir.schedule import Program
from hpccoll.ir.topology import Topology


def allreduce(rank: int, topology: Topology) -> Program:
    """Reduce-scatter at every level from the smallest groups up, then allgather back down."""
    return multi_leader(rank, topology, topology.size)


def multi_leader(rank: int, topology: Topology, leaders: int) -> Program:
    """Rails with at most ``leaders`` owners in a group; the largest groups share out evenly."""
    (top, *inner), place = levels(topology, rank), inside(OUT)
    n = nblocks(topology, leaders)
    parts = [(top, shares(top, rank, n, leaders, len(top.groups)))]
    parts += [(level, shares(level, rank, n, leaders, leaders)) for level in inner]
    return place_input(OUT, concatenate(
        *(exchange(REDUCE_SCATTER, level, blocks, place)
          for level, blocks in reversed(parts)),
        *(exchange(ALLGATHER, level, blocks, place)
          for level, blocks in parts)), n)


def doubling_across(rank: int, topology: Topology) -> Program:
    """Reduce-scatter inside, recursive doubling of every share across, allgather inside."""
    (top, *inner), place = levels(topology, rank), inside(OUT)
    n, everyone = rooted_nblocks(topology), topology.size
    parts = [(level, shares(level, rank, n, everyone, everyone)) for level in inner]
    across = shares(top, rank, n, everyone, 1)[:1]
    return place_input(OUT, concatenate(
        *(exchange(REDUCE_SCATTER, level, blocks, place)
          for level, blocks in reversed(parts)),
        exchange(ALLREDUCE, top, across, place),
        *(exchange(ALLGATHER, level, blocks, place)
          for level, blocks in parts)), n)


def bcast(rank: int, topology: Topology, root: int) -> Program:
    """Scatter inside the root's group, broadcast every share across, allgather inside."""
    (top, *inner), place = levels(topology, rank), inside(OUT)
    n, everyone = rooted_nblocks(topology), topology.size
    parts = [(level, shares(level, rank, n, everyone, everyone)) for level in inner]
    across = shares(top, rank, n, everyone, 1)[:1]
    return concatenate(
        *(exchange(SCATTER, level, blocks, place, level.group_of(root))
          for level, blocks in reversed(parts) if root in level.ranks),
        exchange(BCAST, top, across, place, top.group_of(root)),
        *(exchange(ALLGATHER, level, blocks, place)
          for level, blocks in parts))


def reduce(rank: int, topology: Topology, root: int) -> Program:
    """Reduce-scatter inside, reduce every share to the root's group, gather there."""
    buffer = OUT if rank == root else WORK
    (top, *inner), place = levels(topology, rank), inside(buffer)
    n, everyone = rooted_nblocks(topology), topology.size
    parts = [(level, shares(level, rank, n, everyone, everyone)) for level in inner]
    across = shares(top, rank, n, everyone, 1)[:1]
    return place_input(buffer, concatenate(
        *(exchange(REDUCE_SCATTER, level, blocks, place)
          for level, blocks in reversed(parts)),
        exchange(REDUCE, top, across, place, top.group_of(root)),
        *(exchange(GATHER, level, blocks, place, level.group_of(root))
          for level, blocks in parts if root in level.ranks)), n)
