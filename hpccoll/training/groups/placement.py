"""Placement of a mesh: assignment of groups to the nodes of a layout.

Groups of the inner axes communicate most, so they get the nearest ranks: ranks of a node are joined
to tensor-parallel groups first, these to sequence-parallel groups, and so on. Pipelines communicate
least and are outermost (Megatron-LM's order: Narayanan et al., SC 2021). If the ranks of a node are
not divisible, the remaining ranks of several nodes form a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from hpccoll import Topology
from hpccoll.errors import ArgumentError

#: Axes of a mesh, outermost first, with their descriptions.
AXES = {"pp": "pipeline stages", "dp": "data parallel", "ep": "experts", "sp": "sequence",
        "tp": "tensor parallel"}
#: Largest numbers of groups, and of ranks in a group, that are listed in full.
MOST_GROUPS, MOST_RANKS = 3, 6
#: Size to be derived from the other sizes.
INFERRED = -1


class _Part(NamedTuple):
    """Joined positions, and the indices of the layout groups that contain all of them."""

    path: tuple[int, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Placement of the groups of a mesh; a pure function of the layout and the sizes.

    Attributes:
        layout: nodes and ranks.
        axes: names of the axes, outermost first.
        shape: sizes of the axes.
        ranks: rank at each position of the mesh, last axis fastest.

    >>> print(place("2x4", tp=2))
    mesh of 8 ranks on 2x4: dp=4 tp=2
      dp (data parallel): 2 groups of 4, over 2 nodes each: 0,2,4,6; 1,3,5,7
      tp (tensor parallel): 4 groups of 2, inside nodes: 0,1; 2,3; 4,5; ...
    """

    layout: Topology
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    @cached_property
    def paths(self) -> list[tuple[int, ...]]:
        """Indices of the layout groups that contain each rank."""
        return paths_of(self.layout)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis."""
        return dict(zip(self.axes, self.shape))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on each axis."""
        numbers, rest = [], self.ranks.index(rank)
        for size in reversed(self.shape):
            rest, number = divmod(rest, size)
            numbers.append(number)
        return dict(zip(self.axes, reversed(numbers)))

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """Return the groups of ranks that differ on these axes only.

        Raises:
            ArgumentError: unknown axis.
        """
        unknown = set(axes) - set(self.axes)
        if unknown:
            raise ArgumentError("axes", f"axis {', '.join(sorted(unknown))} does not exist",
                                f"choose from {', '.join(self.axes)}")
        inside = [axis in axes for axis in self.axes]
        strides = [math.prod(self.shape[number + 1:]) for number in range(len(self.shape))]

        def offsets(wanted: bool) -> list[int]:
            ranges = [range(0, size * stride, stride)
                      for size, stride, one in zip(self.shape, strides, inside) if one == wanted]
            return [sum(numbers) for numbers in product(*ranges)]

        within = offsets(True)
        return [tuple(self.ranks[start + offset] for offset in within)
                for start in offsets(False)]

    def nodes(self, group: Sequence[int]) -> int:
        """Return the number of nodes of a group."""
        return len({self.paths[rank] for rank in group})

    def lines(self) -> Iterator[str]:
        """Yield a description of each axis."""
        sizes = " ".join(f"{axis}={size}" for axis, size in self.sizes.items() if size > 1)
        yield f"mesh of {_number(len(self.ranks), 'rank')} on {self.layout}: {sizes or 'no axes'}"
        for axis, size in self.sizes.items():
            if size > 1:
                groups = self.groups(axis)
                shown = [*map(_members, groups[:MOST_GROUPS]),
                         *["..."] * (len(groups) > MOST_GROUPS)]
                yield (f"  {axis} ({AXES[axis]}): {_number(len(groups), 'group')} of {size}, "
                       f"{self._describe_group(groups)}: {'; '.join(shown)}")

    def _describe_group(self, groups: Sequence[Sequence[int]]) -> str:
        nodes = sorted(map(self.nodes, groups))
        if nodes[-1] == 1:
            return "inside nodes"
        if nodes[0] == nodes[-1]:
            return f"over {nodes[0]} nodes each"
        inside = nodes.count(1)
        return (f"{inside} inside nodes, {len(nodes) - inside} over up to {nodes[-1]}" if inside
                else f"over {nodes[0]} to {nodes[-1]} nodes")

    def __str__(self) -> str:
        return "\n".join(self.lines())


def place(layout: str | int | Topology, order: Sequence[str] = tuple(AXES),
          **sizes: int | None) -> Placement:
    """Place a mesh on a layout.

    Args:
        layout: nodes and ranks, such as ``"2x4"``; the innermost groups are the nodes, and a flat
            layout is one node.
        order: the axes, outermost first.
        sizes: sizes of axes, by name; at most one is -1 and is derived from the others. If none is
            and ``dp`` is omitted, ``dp`` is derived. Other omitted sizes are 1.

    Raises:
        ArgumentError: unknown axes, or the product of sizes is not the number of ranks.
    """
    layout = Topology.parse(layout)
    if sorted(order) != sorted(AXES):
        raise ArgumentError("order", f"is {', '.join(order)}",
                            f"list each of {', '.join(AXES)} once, outermost first")
    known = _sizes(layout.size, {axis: sizes.pop(axis, None) for axis in order})
    if sizes:
        raise ArgumentError("mesh", f"axis {', '.join(sizes)} does not exist",
                            f"choose from {', '.join(AXES)}")
    paths = paths_of(layout)
    parts = [_Part(paths[rank], (position,)) for position, rank in enumerate(layout.ranks)]
    for axis in reversed(order):
        parts = _join_parts(parts, known[axis])
    return Placement(layout, tuple(order), tuple(known.values()),
                     tuple(layout.ranks[position] for position in parts[0].positions))


def _sizes(size: int, asked: Mapping[str, int | None]) -> dict[str, int]:
    for axis, number in asked.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)
                                   or number < 1 and number != INFERRED):
            raise ArgumentError(axis, f"expected a number of ranks or {INFERRED}, got {number!r}")
    known = {axis: number or 1 for axis, number in asked.items()}
    if asked["dp"] is None and INFERRED not in known.values():
        known["dp"] = INFERRED
    inferred = [axis for axis, number in known.items() if number == INFERRED]
    if len(inferred) > 1:
        raise ArgumentError("mesh", f"{' and '.join(inferred)} are both {INFERRED}",
                            "omit at most one size")
    given = {axis: number for axis, number in known.items() if number != INFERRED}
    stated = " x ".join(f"{axis}={number}" for axis, number in given.items()
                        if number > 1 or asked[axis])
    whole = math.prod(given.values())
    if size % whole or not inferred and whole != size:
        verb = "does not divide" if inferred else "is not"
        raise ArgumentError("mesh", f"{stated} = {whole} {verb} the {size} ranks of the "
                                    "communicator", "change a size, or omit one")
    return {axis: size // whole if number == INFERRED else number
            for axis, number in known.items()}


def _join_parts(parts: Sequence[_Part], size: int) -> list[_Part]:
    """Join ``size`` parts at a time: of one node, then of one switch, then any."""
    joined: list[_Part] = []
    for depth in range(max(len(part.path) for part in parts), -1, -1):
        near: dict[Any, list[_Part]] = {}
        for part in parts:
            # Parts on several nodes have a shorter path, and are joined at its level.
            near.setdefault(part.path[:depth] if len(part.path) >= depth else part.positions, []
                            ).append(part)
        left: list[_Part] = []
        for path, alike in near.items():
            whole = len(alike) // size * size if len(alike[0].path) >= depth else 0
            joined += [_Part(path, sum((one.positions for one in alike[start:start + size]), ()))
                       for start in range(0, whole, size)]
            left += alike[whole:]
        parts = left
    return sorted(joined, key=lambda part: part.positions)


def paths_of(layout: Topology) -> list[tuple[int, ...]]:
    """Return the indices of the groups that contain each rank, outermost first."""
    depth = max(layout.depth - 1, 1)

    def walk(tree: Any, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if isinstance(tree, int):
            yield from [(*path, *[0] * (depth - len(path)))] * tree
        else:
            for number, child in enumerate(tree):
                yield from walk(child, (*path, number))

    at = list(walk(layout.tree, ()))
    return [at[position] for position in layout.positions]


def _members(group: Sequence[int]) -> str:
    """Return a text of the ranks of a group; large groups are abbreviated."""
    shown = [*map(str, group)]
    return ",".join(shown if len(shown) <= MOST_RANKS else [*shown[:3], "...", shown[-1]])


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
