"""Compositions: what all hierarchical algorithms share - levels of groups, and where blocks are.

A topology of any depth, with groups of any sizes, is seen from one rank as its levels: the whole
of all ranks that splits into groups, the rank's group that splits into smaller ones, down to
single ranks. An algorithm is a sequence of flat exchanges, one or two a level, each between the
groups of a level, in which every group is played by one of its ranks: always the same one (a
leader), or another one for each block (an owner). :mod:`hpccoll.algorithms.hierarchical.exchanges`
has the exchanges; a flat topology gives one level of single ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, overload

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.passes import Place, allot, concatenate, rename_buffers, runs
from hpccoll.ir.schedule import SEND, Program, at, copy
from hpccoll.ir.topology import Group, GroupBounds, Topology

T = TypeVar("T")
#: A copy of the input that a rank works in where the output is missing or too small.
WORK = "work"


class Groups(Sequence[range]):
    """The ranks of the groups of a level, each found when it is asked for.

    A rank talks to few of the groups, so its program must not cost the number of all.
    """

    def __init__(self, bounds: GroupBounds, start: int):
        self.bounds, self.start = bounds, start

    def __len__(self) -> int:
        return self.bounds.number

    @overload
    def __getitem__(self, index: int) -> range: ...
    @overload
    def __getitem__(self, index: slice) -> list[range]: ...

    def __getitem__(self, index: int | slice) -> range | list[range]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        group = self.bounds.group(range(len(self))[index])
        return range(self.start + group.start, self.start + group.stop)

    def index_of(self, rank: int) -> int:
        """The number of the group that holds a rank of them."""
        return self.bounds.index_of(rank - self.start)


class LazySequence(Sequence[T]):
    """Sequence of a given length whose items are made at access."""

    def __init__(self, number: int, make: Callable[[int], T]):
        self.number, self.make = number, make

    def __len__(self) -> int:
        return self.number

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        numbers = range(self.number)[index]
        return self.make(numbers) if isinstance(numbers, int) else list(map(self.make, numbers))


class GroupLevel(NamedTuple):
    """A group around a rank, as the smaller groups it consists of.

    Attributes:
        tree: the group's shape.
        groups: the smaller groups' ranks.
        mine: index of the smaller group that holds the rank.
    """

    tree: Group
    groups: Groups
    mine: int

    @property
    def ranks(self) -> range:
        """All ranks of the group."""
        return range(self.groups[0].start, self.groups[-1].stop)

    @property
    def shapes(self) -> tuple[Group, ...]:
        """The shapes of the smaller groups that differ."""
        return self.groups.bounds.shapes

    @property
    def least(self) -> int:
        """Ranks of the smallest of the smaller groups."""
        return self.groups.bounds.least

    def shape(self, number: int) -> Group:
        """The shape of a smaller group."""
        return self.tree[number] if isinstance(self.tree, tuple) else 1

    def leaders(self, root: int | None = None) -> Sequence[int]:
        """A rank for each smaller group: the root where it is, elsewhere the first."""
        groups = self.groups

        def leader(number: int) -> int:
            group = groups[number]
            return group.start if root is None or root not in group else root

        return LazySequence(len(groups), leader)

    def group_of(self, root: int | None) -> int:
        """The number of the smaller group that holds the root; 0 if none does."""
        return self.groups.index_of(root) if root is not None and root in self.ranks else 0


def levels(topology: Topology, rank: int) -> list[GroupLevel]:
    """List the levels around a rank, all ranks first.

    Groups of one smaller group are passed over, so at the last level every rank is on its own.
    A single rank has one level, of itself.
    """
    around: list[GroupLevel] = []
    tree, start = topology.tree, 0
    while tree != 1:
        groups = Groups(topology.bounds(tree), start)
        level = GroupLevel(tree, groups, groups.index_of(rank))
        if len(groups) > 1:
            around.append(level)
        tree, start = level.shape(level.mine), groups[level.mine].start
    return around or [GroupLevel(1, Groups(topology.bounds(1), 0), 0)]


def split(tree: Group) -> tuple[Group, ...]:
    """The groups that a group consists of; single ranks at the lowest level."""
    return tree if isinstance(tree, tuple) else (1,) * tree


def inside(buffer: str) -> dict[str, Place]:
    """Keep all blocks of a flat program in one buffer, whose slots are the block keys."""
    place = partial(runs, buffer)
    return {IN: place, OUT: place, TMP: place}


def place_input(buffer: str, program: Program, nblocks: int) -> Program:
    """Put the input where the program expects it; a work buffer becomes scratch.

    A rank that only sends from the work buffer sends its input instead.
    """
    first = Program(((copy(at(buffer, 0, nblocks), at(IN, 0, nblocks)),),))
    if buffer != WORK:
        return concatenate(first, program)
    if all(step.kind == SEND or all(span.buffer != WORK for span in step.spans)
           for steps in program.rounds for step in steps):
        return rename_buffers(program, {WORK: (IN, 0)})
    return allot(concatenate(first, program), WORK, range(nblocks))
