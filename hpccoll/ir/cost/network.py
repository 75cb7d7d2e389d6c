"""Positions of ranks in a layout, and shared resources of messages between them.

A rank's position is the path to it through the tree of groups: for rank 13 of ``4x2x8`` it is
(0, 1, 5). Two paths diverge at the first index in which they differ; the message between the ranks
leaves every group on the sender's path from there on, and enters every group on the receiver's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hpccoll.ir.topology import Group, Topology

#: Kinds of resources. A port has one second per second; a link or bus has bytes per second.
SEND_PORT, RECV_PORT, LINK_OUT, LINK_IN, BUS = "send", "recv", "out", "in", "bus"
#: A half-duplex port, a half-duplex link, and a link of the network's shape.
PORT, LINK, SHAPE_LINK = "port", "link", "hop"
PORTS = SEND_PORT, RECV_PORT, PORT
#: All kinds, in their order in reports.
KINDS = *PORTS, LINK_OUT, LINK_IN, LINK, BUS, SHAPE_LINK


class Resource(NamedTuple):
    """A resource shared by messages.

    Attributes:
        kind: a port of a rank, the link of a group out or in, a bus, or a link of the shape.
        level: name of the level it belongs to; empty for ports.
        path: of the rank or the group; the link for a shape.
        capacity: bytes per second; 1 for ports, whose messages need ``beta`` seconds per byte.
    """

    kind: str
    level: str
    path: tuple[int, ...]
    capacity: float


def divergence_depth(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the depth at which two paths diverge."""
    for depth, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return depth
    return min(len(one), len(other)) - 1


class NetworkPaths:
    """Paths of the ranks of a topology; costs O(depth) a rank, whatever the number of ranks."""

    def __init__(self, topology: Topology):
        self.topology, self.size = topology, topology.size
        self.starts: dict[int, list[int]] = {}
        self.sizes: dict[int, int] = {}
        self._measure(topology.tree)

    def _measure(self, tree: Group) -> int:
        """Return the number of ranks below a group; one object is measured once."""
        if isinstance(tree, int):
            return tree
        if id(tree) not in self.sizes:
            ends = list(accumulate(map(self._measure, tree), initial=0))
            self.starts[id(tree)], self.sizes[id(tree)] = ends, ends[-1]
        return self.sizes[id(tree)]

    def path(self, rank: int) -> tuple[int, ...]:
        """Return the index of a rank's group at every level, and of the rank in the last."""
        rank, tree, indices = self.topology.positions[rank], self.topology.tree, []
        while not isinstance(tree, int):
            starts = self.starts[id(tree)]
            index = bisect_right(starts, rank) - 1
            indices.append(index)
            rank -= starts[index]
            tree = tree[index]
        return (*indices, rank)

    def ranks(self, path: Sequence[int]) -> int:
        """Return the number of ranks in the group at a path; 1 for a rank's own path."""
        tree = self.topology.tree
        for index in path:
            if isinstance(tree, int):
                return 1
            tree = tree[index]
        return self._measure(tree)

    def index_in_group(self, path: Sequence[int], depth: int) -> int:
        """Return the index of a rank among all ranks of its group at a depth."""
        tree, index = self.topology.tree, 0
        for level, digit in enumerate(path):
            here = digit if isinstance(tree, int) else self.starts[id(tree)][digit]
            index += here if level >= depth else 0
            tree = tree if isinstance(tree, int) else tree[digit]
        return index

    @property
    def nodes(self) -> int:
        """Return the number of groups of the outermost level, or of ranks if there are none."""
        tree = self.topology.tree
        return tree if isinstance(tree, int) else len(tree)

    def radices(self) -> tuple[int, ...] | None:
        """Return the number of groups in a group, level by level.

        ``None`` if groups differ, or if ranks are not numbered by position.
        """
        if self.topology.order:
            return None
        tree, numbers = self.topology.tree, []
        while not isinstance(tree, int):
            first = tree[0]
            if any(other is not first and other != first for other in tree):
                return None
            numbers.append(len(tree))
            tree = first
        return (*numbers, tree)
