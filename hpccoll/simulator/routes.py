"""Resources between two ranks: ports, links of groups, buses, and the links of the shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple, TypeAlias

from hpccoll.errors import ArgumentError
from hpccoll.ir.cost.network import (
    BUS,
    LINK,
    LINK_IN,
    LINK_OUT,
    PORT,
    RECV_PORT,
    SEND_PORT,
    SHAPE_LINK,
    NetworkPaths,
    Resource,
)
from hpccoll.simulator.machine_model import Machine

#: Resources of a message, and its use of each per byte: seconds of ports, bytes of
#: links and buses.
Uses: TypeAlias = Sequence[tuple[Resource, float]]


class NodeRoutes(NamedTuple):
    """Routes between two nodes of a shape.

    Attributes:
        ways: possible routes; a message takes one of them. Each has links, and the use of each link
            per byte.
    """

    seconds: float
    ways: tuple[Uses, ...]


NOTHING = NodeRoutes(0.0, ((),))


class Routes:
    """Routes on a machine between the ranks of a layout."""

    def __init__(self, machine: Machine, layout: NetworkPaths):
        self.machine, self.layout = machine, layout
        shape = machine.shape
        if shape is not None and layout.nodes > shape.places:
            raise ArgumentError("machine", f"{layout.nodes:,} nodes exceed the {shape.places:,} "
                                           f"positions of {machine.name}, a "
                                           f"{shape.describe()}",
                                "set larger extents, or fewer nodes")
        radices = layout.radices() or ()
        #: By depth, the depth of the groups with a rail each; ``None`` without rails.
        self.rails = {depth: _groups(level.rails, depth, radices)
                      for depth, level in enumerate(machine.levels) if level.rails > 1}
        self.half = {level.name for level in machine.levels if level.duplex == "half"}

    @property
    def by_groups(self) -> bool:
        """Return True if all shared resources belong to ranks and groups, as folding requires."""
        return self.machine.shape is None and None not in self.rails.values()

    def sender_use(self, sender: tuple[int, ...], depth: int) -> Uses:
        """Return the use of a message that leaves the group of a depth, on the sender's side."""
        level = self.machine.level(depth)
        uses = [(Resource(SEND_PORT, "", sender, 1.0), level.beta),
                *self._links(LINK_OUT, sender, depth)]
        if math.isfinite(level.bus):
            # Below the machine's levels, all messages use its innermost level and that bus.
            around = sender[:min(depth, len(self.machine.levels) - 1)]
            uses.append((Resource(BUS, level.name, around, level.bus), 1.0))
        return uses

    def receiver_use(self, receiver: tuple[int, ...], depth: int) -> Uses:
        """Return the use of a message from outside the group of a depth, on the receiver's side."""
        return [(Resource(RECV_PORT, "", receiver, 1.0), self.machine.level(depth).beta),
                *self._links(LINK_IN, receiver, depth)]

    def node_routes(self, sender: tuple[int, ...], receiver: tuple[int, ...]) -> NodeRoutes:
        """Return the routes of a message on the machine's shape, from the paths of its ends."""
        shape = self.machine.shape
        if shape is None or sender[0] == receiver[0]:
            return NOTHING
        ends = shape.position(sender[0]), shape.position(receiver[0])
        beta = self.machine.levels[0].beta
        usual = 1 / beta if beta else math.inf
        return NodeRoutes(shape.hop_seconds * shape.hops(*ends), tuple(
            [(Resource(SHAPE_LINK, shape.kind, link, shape.capacity(link, usual)), part)
             for link, part in way] for way in shape.routes(*ends)))

    def _links(self, kind: str, path: tuple[int, ...], depth: int) -> Uses:
        return [(self._link(kind, d, path), 1.0)
                for d in range(depth, min(len(path), len(self.machine.levels)))
                if math.isfinite(self.machine.levels[d].link)]

    def _link(self, kind: str, depth: int, path: tuple[int, ...]) -> Resource:
        """Return the link of the group around a rank, or its rail that the rank uses."""
        level = self.machine.levels[depth]
        around = path[:depth + 1]
        if level.rails > 1:
            below = self.rails[depth]
            around = path[:below] if below is not None else (
                *around, self.layout.index_in_group(path, depth + 1) * level.rails
                // self.layout.ranks(around))
        return Resource(kind, level.name, around, level.link)

    def actual_resource(self, resource: Resource) -> Resource:
        """Return the actual resource of a route: one for both directions if they share it."""
        if resource.kind in (SEND_PORT, RECV_PORT):
            return resource._replace(kind=PORT) if self.machine.duplex == "half" else resource
        if resource.kind in (LINK_OUT, LINK_IN) and resource.level in self.half:
            return resource._replace(kind=LINK)
        return resource

    def binding(self, resource: Resource) -> bool:
        """Return True if a resource can limit messages: ports always, links unless wide enough.

        The ports of the ranks in a group bound the rate through its link.
        """
        if resource.kind not in (LINK_OUT, LINK_IN) or None in self.rails.values():
            return True
        fastest = min(self.machine.level(d).beta for d in range(len(resource.path)))
        return not fastest or (self.layout.ranks(resource.path) / fastest
                               > resource.capacity * (1 + 1e-12))


def _groups(rails: int, depth: int, radices: tuple[int, ...]) -> int | None:
    """Return the depth at which a group has as many subgroups as rails, if there is one."""
    inner = list(accumulate(radices[depth + 1:], mul, initial=1))
    return depth + 1 + inner.index(rails) if rails in inner else None
