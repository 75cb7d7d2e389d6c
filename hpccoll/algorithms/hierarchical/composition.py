"""Hierarchy: what all composed algorithms share - levels of groups, and flat exchanges in them.

A topology of any depth, with groups of any sizes, is seen from one rank as its levels: the whole
of all ranks that splits into groups, the rank's group that splits into smaller ones, down to
single ranks. An algorithm is a sequence of flat exchanges, one or two a level, each between the
groups of a level, in which every group is played by one of its ranks: always the same one (a
leader), or another one for each block (an owner). The exchanges come from the flat algorithms
and are embedded by :mod:`hpccoll.ir.passes`; a flat topology gives one level of single ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hpccoll.algorithms.flat import circulant
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, TMP, slot_keys
from hpccoll.ir.passes import Piece, Place, allot, concatenate, embed, renamed, reverse, runs
from hpccoll.ir.schedule import SEND, Program, at, copy
from hpccoll.ir.topology import Group, Topology

#: A copy of the input that a rank works in where the output is missing or too small.
WORK = "work"


class GroupLevel(NamedTuple):
    """A group around a rank, as the smaller groups it consists of.

    Attributes:
        trees: the smaller groups' shapes.
        groups: the smaller groups' ranks.
        mine: index of the smaller group that holds the rank.
    """

    trees: tuple[Group, ...]
    groups: tuple[range, ...]
    mine: int

    @property
    def ranks(self) -> range:
        """All ranks of the group."""
        return range(self.groups[0].start, self.groups[-1].stop)

    def leaders(self, root: int | None = None) -> list[int]:
        """A rank for each smaller group: the root where it is, elsewhere the first."""
        return [root if root in group else group.start for group in self.groups]

    def index(self, root: int | None) -> int:
        """The smaller group that holds the root; the first if none does."""
        return next((i for i, group in enumerate(self.groups) if root in group), 0)


def levels(topology: Topology, rank: int) -> list[GroupLevel]:
    """List the levels around a rank, all ranks first.

    Groups of one smaller group are passed over, so at the last level every rank is on its own.
    A single rank has one level, of itself.
    """
    found: list[GroupLevel] = []
    tree, start = topology.tree, 0
    while tree != 1:
        trees = split(tree)
        groups = tuple(range(start + g.start, start + g.stop) for g in Topology(tree).groups())
        mine = next(i for i, group in enumerate(groups) if rank in group)
        if len(groups) > 1:
            found.append(GroupLevel(trees, groups, mine))
        tree, start = trees[mine], groups[mine].start
    return found or [GroupLevel((1,), (range(1),), 0)]


def split(tree: Group) -> tuple[Group, ...]:
    """The groups that a group consists of; single ranks at the lowest level."""
    return tree if isinstance(tree, tuple) else (1,) * tree


def exchange(collective: str, build: Callable[..., Program], level: GroupLevel,
             blocks: Sequence[Sequence[Piece]], place: Mapping[str, Place],
             root: int | None = None) -> Program:
    """Embed a flat algorithm in which the groups of a level are the ranks.

    Args:
        blocks: for every block of the flat algorithm, its pieces.
        root: the group that is the root of a rooted collective.
    """
    size, rooted = len(level.groups), () if root is None else (root,)
    keys = slot_keys(COLLECTIVES[collective], level.mine, size, *(rooted or (0,)), len(blocks))
    return embed(build(level.mine, size, *rooted), keys, blocks.__getitem__, place)


def among(collective: str, build: Callable[..., Program], level: GroupLevel, rank: int,
          blocks: Sequence[Sequence[int]], place: Mapping[str, Place],
          root: int | None = None) -> Program:
    """Run a flat algorithm among the leaders of a level's groups; other ranks do nothing.

    Args:
        blocks: for every block of the flat algorithm, the blocks it consists of.
        root: the rank that is the root of a rooted collective; where it is absent, the first
            leader is.
    """
    ranks = level.leaders(root)
    if rank not in ranks:
        return Program(())
    return exchange(collective, build, level, [[Piece(ranks, keys)] for keys in blocks], place,
                    level.index(root) if COLLECTIVES[collective].rooted else None)


def reduce_scatter(rank: int, size: int) -> Program:
    """Reduce-scatter in place: the circulant allgather backwards.

    Its slots are those of the allgather: contributions are in ``out``, and the rank's own block
    is written to ``in``.
    """
    return reverse(circulant.allgather(rank, size))


def inside(buffer: str) -> dict[str, Place]:
    """Keep all blocks of a flat program at home in one buffer, whose slots are the block keys."""
    home = partial(runs, buffer)
    return {IN: home, OUT: home, TMP: home}


def started(buffer: str, program: Program, nblocks: int) -> Program:
    """Put the input where the program expects it; a work buffer becomes scratch.

    A rank that only sends from the work buffer sends its input instead.
    """
    first = Program(((copy(at(buffer, 0, nblocks), at(IN, 0, nblocks)),),))
    if buffer != WORK:
        return concatenate(first, program)
    if all(step.kind == SEND or all(span.buffer != WORK for span in step.spans)
           for steps in program.rounds for step in steps):
        return renamed(program, {WORK: (IN, 0)})
    return allot(concatenate(first, program), WORK, range(nblocks))
