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
    """Do the same with at most so many owners in a group; the largest groups share out evenly."""
    (top, *inner), home = levels(topology, rank), inside(OUT)
    n = nblocks(topology, leaders)
    parts = [(top, shares(top, rank, n, leaders, len(top.groups)))]
    parts += [(level, shares(level, rank, n, leaders, leaders)) for level in inner]
    return started(OUT, concatenate(
        *(exchange("allgather", reduce_scatter, level, blocks, home)
          for level, blocks in reversed(parts)),
        *(exchange("allgather", circulant.allgather, level, blocks, home)
          for level, blocks in parts)), n)


def bcast(rank: int, topology: Topology, root: int) -> Program:
    """Scatter inside the root's group, broadcast every share across, allgather inside."""
    (top, *inner), home = levels(topology, rank), inside(OUT)
    n, everyone = rooted_nblocks(topology), topology.size
    parts = [(level, shares(level, rank, n, everyone, everyone)) for level in inner]
    return concatenate(
        *(exchange("scatter", knomial.scatter, level, blocks, home, level.index(root))
          for level, blocks in reversed(parts) if root in level.ranks),
        exchange("bcast", knomial.bcast, top, shares(top, rank, n, everyone, 1)[:1], home,
                 top.index(root)),
        *(exchange("allgather", circulant.allgather, level, blocks, home)
          for level, blocks in parts))


def reduce(rank: int, topology: Topology, root: int) -> Program:
    """Reduce-scatter inside, reduce every share to the root's group, gather there."""
    buffer = OUT if rank == root else WORK
    (top, *inner), home = levels(topology, rank), inside(buffer)
    n, everyone = rooted_nblocks(topology), topology.size
    parts = [(level, shares(level, rank, n, everyone, everyone)) for level in inner]
    return started(buffer, concatenate(
        *(exchange("allgather", reduce_scatter, level, blocks, home)
          for level, blocks in reversed(parts)),
        exchange("reduce", knomial.reduce, top, shares(top, rank, n, everyone, 1)[:1], home,
                 top.index(root)),
        *(exchange("gather", knomial.gather, level, blocks, home, level.index(root))
          for level, blocks in parts if root in level.ranks)), n)


def nblocks(topology: Topology, leaders: int | None = None) -> int:
    """Blocks for which all owners at all levels have equal shares, unless that takes too many."""
    return min(2 * topology.size, len(_trees(topology.tree))
               * lcm(*(_even(tree, leaders or topology.size) for tree in _trees(topology.tree))))


def rooted_nblocks(topology: Topology) -> int:
    """The same where the largest groups do not split shares between them."""
    return min(2 * topology.size,
               lcm(*(_even(tree, topology.size) for tree in _trees(topology.tree))))


def _even(tree: Group, leaders: int) -> int:
    if tree == 1:
        return 1
    trees = _trees(tree)
    return min(leaders, len(trees)) * lcm(*(_even(t, leaders) for t in set(trees)))


def _trees(tree: Group) -> tuple[Group, ...]:
    return tree if isinstance(tree, tuple) else (1,) * tree


def shares(level: Level, rank: int, n: int, leaders: int, parts: int) -> list[list[Piece]]:
    """Cut each set of blocks that the rank owns for its group between the groups of a level.

    Gives, for every group, the pieces it gets; only the first ``parts`` groups get any.
    """
    found: list[list[Piece]] = [[] for _ in level.groups]
    first = level.groups[level.mine].start
    for owners, keys, before in columns(level.trees, n, leaders):
        if first + owners[level.trees[level.mine]] == rank:
            ranks = [group.start + owners[tree]
                     for group, tree in zip(level.groups, level.trees)]
            for pieces, share in zip(found, cut(keys, min(parts, len(found)), before)):
                pieces.append(Piece(ranks, share))
    return found


class Column(NamedTuple):
    """Blocks that have the same owner in every group of a level.

    Attributes:
        owners: index in the group of the owner, for every shape of group.
        keys: the blocks.
        before: number of blocks in the columns before.
    """

    owners: dict[Group, int]
    keys: Sequence[int]
    before: int


@lru_cache(maxsize=64)
def columns(trees: tuple[Group, ...], n: int, leaders: int) -> list[Column]:
    """Intersect the groups' ownerships."""
    shapes = list(dict.fromkeys(trees))
    sets: dict[tuple[int, ...], list[int]] = {}
    for key, who in enumerate(zip(*(ownership(tree, n, leaders) for tree in shapes))):
        sets.setdefault(who, []).append(key)
    before = accumulate(map(len, sets.values()), initial=0)
    return [Column(dict(zip(shapes, who)), keys, b)
            for (who, keys), b in zip(sets.items(), before)]


@lru_cache(maxsize=64)
def ownership(tree: Group, n: int, leaders: int) -> Sequence[int]:
    """The owner of each block once a group has reduced it, as an index in the group."""
    found, trees = [0] * n, _trees(tree)
    if tree == 1:
        return found
    groups = Topology(tree).groups()
    for owners, keys, before in columns(trees, n, leaders):
        for group, child, share in zip(groups, trees,
                                       cut(keys, min(leaders, len(trees)), before)):
            for key in share:
                found[key] = group.start + owners[child]
    return found


def cut(keys: Sequence[int], parts: int, before: int) -> list[Sequence[int]]:
    """Cut blocks into near-equal shares.

    The larger shares start after those of the blocks before, so that no part always gets more.
    """
    size, extra = divmod(len(keys), parts)
    ends = accumulate((size + ((part - before) % parts < extra) for part in range(parts)),
                      initial=0)
    return [_range(keys[a:b]) for a, b in pairwise(ends)]


def _range(keys: Sequence[int]) -> Sequence[int]:
    if keys and keys[-1] - keys[0] == len(keys) - 1:
        return range(keys[0], keys[-1] + 1)
    return keys
