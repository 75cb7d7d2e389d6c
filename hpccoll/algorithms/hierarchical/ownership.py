"""Owners of the blocks of a vector in groups of any sizes.

A group splits the blocks evenly among its ranks, their owners. A column is a set of blocks with the
same owner in every group of a level. Its owners, one per group, exchange it and split it again. In
equal groups the columns are the ranks' shares; in unequal groups they are the intersections of
shares, and a rank has several columns. In each group the owners partition the blocks, so nothing is
sent twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from math import lcm
from typing import NamedTuple

from hpccoll.algorithms.hierarchical.composition import GroupLevel, LazySequence, split
from hpccoll.ir.passes import Piece
from hpccoll.ir.topology import Group, Topology


@lru_cache(maxsize=64)
def nblocks(topology: Topology, leaders: int | None = None) -> int:
    """Return the number of blocks for equal shares at all levels, or less if that is too many."""
    trees = _largest_groups(topology)
    return min(2 * topology.size,
               len(trees) * lcm(*(_even(tree, leaders or topology.size) for tree in set(trees))))


@lru_cache(maxsize=64)
def rooted_nblocks(topology: Topology) -> int:
    """Return the number of blocks if the largest groups do not split shares between them."""
    return min(2 * topology.size,
               lcm(*(_even(tree, topology.size) for tree in set(_largest_groups(topology)))))


def _largest_groups(topology: Topology) -> tuple[Group, ...]:
    trees = split(topology.tree)
    while len(trees) == 1 and trees[0] != 1:
        trees = split(trees[0])
    return trees


def _even(tree: Group, leaders: int) -> int:
    if tree == 1:
        return 1
    trees = split(tree)
    return min(leaders, len(trees)) * lcm(*(_even(t, leaders) for t in set(trees)))


def shares(level: GroupLevel, rank: int, n: int, leaders: int, parts: int) -> list[list[Piece]]:
    """Split each set of blocks that the rank owns among the groups of a level.

    Returns the pieces of every group; only the first ``parts`` groups get any.
    """
    count = len(level.groups)
    pieces: list[list[Piece]] = [[] for _ in range(min(parts, count))]
    first, shape = level.groups[level.mine].start, level.shape(level.mine)

    def player(owners: Mapping[Group, int], number: int) -> int:
        return level.groups[number].start + owners[level.shape(number)]

    for owners, keys, before in columns(level.shapes, n, leaders):
        if first + owners[shape] == rank:
            ranks = LazySequence(count, partial(player, owners))
            for mine, share in zip(pieces, cut(keys, len(pieces), before)):
                mine.append(Piece(ranks, share))
    # The empty lists are shared: no rank modifies them.
    return pieces + [[]] * (count - len(pieces))


class Column(NamedTuple):
    """Blocks with the same owner in every group of a level.

    Attributes:
        owners: index of the owner in its group, for every shape of group.
        keys: the blocks.
        before: number of blocks in earlier columns.
    """

    owners: Mapping[Group, int]
    keys: Sequence[int]
    before: int


@lru_cache(maxsize=64)
def columns(shapes: tuple[Group, ...], n: int, leaders: int) -> tuple[Column, ...]:
    """Intersect the shares of groups of these shapes."""
    sets: dict[tuple[int, ...], list[int]] = {}
    for key, owners in enumerate(zip(*(ownership(tree, n, leaders) for tree in shapes))):
        sets.setdefault(owners, []).append(key)
    before = accumulate(map(len, sets.values()), initial=0)
    return tuple(Column(dict(zip(shapes, owners)), keys, first)
                 for (owners, keys), first in zip(sets.items(), before))


@lru_cache(maxsize=64)
def ownership(tree: Group, n: int, leaders: int) -> tuple[int, ...]:
    """Return the owner of each reduced block, as an index in the group."""
    if tree == 1:
        return (0,) * n
    owned, trees, groups = [0] * n, split(tree), list(Topology(tree).ranges())
    for owners, keys, before in columns(tuple(dict.fromkeys(trees)), n, leaders):
        for i, share in enumerate(cut(keys, min(leaders, len(trees)), before)):
            for key in share:
                owned[key] = groups[i].start + owners[trees[i]]
    return tuple(owned)


def cut(keys: Sequence[int], parts: int, before: int) -> list[Sequence[int]]:
    """Split blocks into nearly equal shares.

    The larger shares rotate with ``before``, so that no part always gets more.
    """
    size, extra = divmod(len(keys), parts)
    ends = accumulate((size + ((part - before) % parts < extra) for part in range(parts)),
                      initial=0)
    return [_range(keys[a:b]) for a, b in pairwise(ends)]


def _range(keys: Sequence[int]) -> Sequence[int]:
    if keys and keys[-1] - keys[0] == len(keys) - 1:
        return range(keys[0], keys[-1] + 1)
    return keys
