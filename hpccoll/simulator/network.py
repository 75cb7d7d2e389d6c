"""Where ranks are in a layout, what lies between two of them, and what they share on the way.

A rank's place is the path to it through the tree of groups: for rank 13 of ``4x2x8`` it is
(0, 1, 5). Two ranks part at the first index in which their paths differ; the message between them
leaves every group on the sender's path from there on, and enters every group on the receiver's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hpccoll.ir.topology import Group, Topology
from hpccoll.simulator.machine_model import Machine

#: Kinds of resources. A port has one second per second; a link or bus has bytes per second.
SEND_PORT, RECV_PORT, LINK_OUT, LINK_IN, BUS = "send", "recv", "out", "in", "bus"


class Resource(NamedTuple):
    """Something that messages share.

    Attributes:
        kind: a port of a rank, the link of a group out or in, or a bus.
        level: name of the level it belongs to; empty for ports.
        path: the rank's or the group's.
        capacity: bytes per second; 1 for ports, whose messages need ``beta`` seconds per byte.
    """

    kind: str
    level: str
    path: tuple[int, ...]
    capacity: float


class NetworkPaths:
    """Paths of the ranks of a topology; costs O(depth) a rank, whatever the number of ranks."""

    def __init__(self, topology: Topology):
        self.topology, self.size = topology, topology.size
        self.starts: dict[int, list[int]] = {}
        self.sizes: dict[int, int] = {}
        self._measure(topology.tree)

    def _measure(self, tree: Group) -> int:
        """Number of ranks below a group; groups that are one object are measured once."""
        if isinstance(tree, int):
            return tree
        if id(tree) not in self.sizes:
            ends = list(accumulate(map(self._measure, tree), initial=0))
            self.starts[id(tree)], self.sizes[id(tree)] = ends, ends[-1]
        return self.sizes[id(tree)]

    def path(self, rank: int) -> tuple[int, ...]:
        """Index of the rank's group at every level, and of the rank in the innermost group."""
        rank, tree, indices = self.topology.positions[rank], self.topology.tree, []
        while not isinstance(tree, int):
            starts = self.starts[id(tree)]
            index = bisect_right(starts, rank) - 1
            indices.append(index)
            rank -= starts[index]
            tree = tree[index]
        return (*indices, rank)

    def ranks(self, path: Sequence[int]) -> int:
        """Number of ranks in the group at a path; 1 for a rank's own path."""
        tree = self.topology.tree
        for index in path:
            if isinstance(tree, int):
                return 1
            tree = tree[index]
        return self._measure(tree)

    def radices(self) -> tuple[int, ...] | None:
        """Number of groups in a group, level by level.

        ``None`` where groups differ, and where a rank's number does not tell its place.
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


#: Resources that a message needs, and how much of each one byte takes: seconds of ports, bytes of
#: links and buses.
Uses = list[tuple[Resource, float]]


def parting(one: Sequence[int], other: Sequence[int]) -> int:
    """The depth at which two paths part."""
    for depth, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return depth
    return min(len(one), len(other)) - 1


def leaving(machine: Machine, sender: tuple[int, ...], depth: int) -> Uses:
    """What a message that leaves the group of a depth needs on its sender's side."""
    level = machine.level(depth)
    uses = [(Resource(SEND_PORT, "", sender, 1.0), level.beta),
            *_links(machine, LINK_OUT, sender, depth)]
    if math.isfinite(level.bus):
        # Below the machine's levels, all messages are of its innermost, and on the bus of that.
        around = sender[:min(depth, len(machine.levels) - 1)]
        uses.append((Resource(BUS, level.name, around, level.bus), 1.0))
    return uses


def entering(machine: Machine, receiver: tuple[int, ...], depth: int) -> Uses:
    """What a message from outside the group of a depth needs on its receiver's side."""
    return [(Resource(RECV_PORT, "", receiver, 1.0), machine.level(depth).beta),
            *_links(machine, LINK_IN, receiver, depth)]


def _links(machine: Machine, kind: str, path: tuple[int, ...], depth: int) -> Uses:
    return [(Resource(kind, machine.levels[d].name, path[:d + 1], machine.levels[d].link), 1.0)
            for d in range(depth, min(len(path), len(machine.levels)))
            if math.isfinite(machine.levels[d].link)]


def binding(machine: Machine, layout: NetworkPaths, resource: Resource) -> bool:
    """Tell whether a resource can hold messages up: ports always, links unless wide enough.

    The ports of the ranks in a group bound what can go through its link.
    """
    if resource.kind not in (LINK_OUT, LINK_IN):
        return True
    fastest = min(machine.level(d).beta for d in range(len(resource.path)))
    return not fastest or layout.ranks(resource.path) / fastest > resource.capacity * (1 + 1e-12)
