"""Levels of groups and places of blocks, for all hierarchical algorithms.

The levels of a rank are: all ranks, split into groups; the rank's group, split into smaller ones;
and so on down to single ranks. An algorithm is a sequence of flat exchanges between the groups of a
level, one or two per level (:mod:`hpccoll.algorithms.hierarchical.exchanges`). One rank acts for a
group: always the same one (a leader), or one per block (an owner). A flat topology has one level.
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
#: Buffer for a copy of the input, if the output is missing or too small.
WORK = "work"


class Groups(Sequence[range]):
    """The ranks of the groups of a level, computed at access.

    A rank communicates with few groups, so its program must not take time for all of them.
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
        """Return the index of the group of a rank."""
        return self.bounds.index_of(rank - self.start)


class LazySequence(Sequence[T]):
    """Sequence of a given length whose items are computed at access."""

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
    """Group of a rank, split into smaller groups.

    Attributes:
        tree: shape of the group.
        groups: ranks of the smaller groups.
        mine: index of the smaller group of this rank.
    """

    tree: Group
    groups: Groups
    mine: int

    @property
    def ranks(self) -> range:
        """Return all ranks of the group."""
        return range(self.groups[0].start, self.groups[-1].stop)

    @property
    def shapes(self) -> tuple[Group, ...]:
        """Return the different shapes of the smaller groups."""
        return self.groups.bounds.shapes

    @property
    def least(self) -> int:
        """Return the number of ranks of the smallest of the groups."""
        return self.groups.bounds.least

    def shape(self, number: int) -> Group:
        """Return the shape of a smaller group."""
        return self.tree[number] if isinstance(self.tree, tuple) else 1

    def leaders(self, root: int | None = None) -> Sequence[int]:
        """Return the leader of each smaller group: the root in its group, else the first rank."""
        groups = self.groups

        def leader(number: int) -> int:
            group = groups[number]
            return group.start if root is None or root not in group else root

        return LazySequence(len(groups), leader)

    def group_of(self, root: int | None) -> int:
        """Return the index of the root's smaller group; 0 if it is in none."""
        return self.groups.index_of(root) if root is not None and root in self.ranks else 0


def levels(topology: Topology, rank: int) -> list[GroupLevel]:
    """List the levels of a rank, outermost first.

    Groups of one smaller group are skipped, so the last level has single ranks. A single rank has
    one level.
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
    """Return the smaller groups of a group; single ranks at the lowest level."""
    return tree if isinstance(tree, tuple) else (1,) * tree


def inside(buffer: str) -> dict[str, Place]:
    """Map all buffers of a flat program to one buffer, whose slots are the block keys."""
    place = partial(runs, buffer)
    return {IN: place, OUT: place, TMP: place}


def place_input(buffer: str, program: Program, nblocks: int) -> Program:
    """Copy the input to the program's buffer; the work buffer becomes scratch.

    A rank that only sends from the work buffer sends from its input instead.
    """
    first = Program(((copy(at(buffer, 0, nblocks), at(IN, 0, nblocks)),),))
    if buffer != WORK:
        return concatenate(first, program)
    if all(step.kind == SEND or all(span.buffer != WORK for span in step.spans)
           for steps in program.rounds for step in steps):
        return rename_buffers(program, {WORK: (IN, 0)})
    return allot(concatenate(first, program), WORK, range(nblocks))
