"""Compositions: what all hierarchical algorithms share - levels of groups, and where blocks are.

A topology of any depth, with groups of any sizes, is seen from one rank as its levels: the whole
of all ranks that splits into groups, the rank's group that splits into smaller ones, down to
single ranks. An algorithm is a sequence of flat exchanges, one or two a level, each between the
groups of a level, in which every group is played by one of its ranks: always the same one (a
leader), or another one for each block (an owner). :mod:`hpccoll.algorithms.hierarchical.exchanges`
has the exchanges; a flat topology gives one level of single ranks.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.passes import Place, allot, concatenate, renamed, runs
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
        return [group.start if root is None or root not in group else root
                for group in self.groups]

    def group_of(self, root: int | None) -> int:
        """The number of the smaller group that holds the root; 0 if none does."""
        return next((i for i, group in enumerate(self.groups) if root in group), 0)


def levels(topology: Topology, rank: int) -> list[GroupLevel]:
    """List the levels around a rank, all ranks first.

    Groups of one smaller group are passed over, so at the last level every rank is on its own.
    A single rank has one level, of itself.
    """
    around: list[GroupLevel] = []
    tree, start = topology.tree, 0
    while tree != 1:
        trees = split(tree)
        groups = tuple(range(start + group.start, start + group.stop)
                       for group in Topology(tree).ranges())
        mine = next(i for i, group in enumerate(groups) if rank in group)
        if len(groups) > 1:
            around.append(GroupLevel(trees, groups, mine))
        tree, start = trees[mine], groups[mine].start
    return around or [GroupLevel((1,), (range(1),), 0)]


def split(tree: Group) -> tuple[Group, ...]:
    """The groups that a group consists of; single ranks at the lowest level."""
    return tree if isinstance(tree, tuple) else (1,) * tree


def inside(buffer: str) -> dict[str, Place]:
    """Keep all blocks of a flat program in one buffer, whose slots are the block keys."""
    place = partial(runs, buffer)
    return {IN: place, OUT: place, TMP: place}


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
