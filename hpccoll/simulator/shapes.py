"""Shape of a network: the links of a message from node to node.

A node is a group of a machine's outermost level. It has a *position* in the shape, 0, 1, ...; its
messages take hops over links, and all messages on a link share it max-min fair. If there are
several shortest routes to a node, ``routing`` selects one:

* ``static`` - always the same: dimension by dimension on a torus, up by the digits of the
  destination in a fat tree (D-mod-K), the cable of the destination's number in a dragonfly;
* ``spread`` - all routes, an equal part of every message on each;
* ``adaptive`` - the route whose fullest link has the least load when the message begins.

Kinds of shapes are in :mod:`~hpccoll.simulator.grids` and :mod:`~hpccoll.simulator.switched`;
:mod:`~hpccoll.simulator.shape_files` parses and writes them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from hpccoll.errors import ArgumentError
from hpccoll.simulator import fields

__all__ = ["Shape"]

ROUTINGS, DUPLEX = ("static", "spread", "adaptive"), ("full", "half")
#: Maximum nodes of a shape, and maximum routes considered between two of them.
MOST_NODES, MOST_WAYS = 1 << 24, 4096

#: A link: kind and position; the first number is the kind, which has a rate.
Link = tuple[int, ...]
#: Links of a route, or of several in part: the use of each per byte.
Way = tuple[tuple[Link, float], ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Base class of shapes.

    Attributes:
        extents: size of the shape; the meaning depends on the kind of shape.
        bytes_per_second: rate of a link per direction: one, or one for each kind of link. Empty
            for the rate of the machine's outermost level.
        hop_seconds: latency of a link, in addition to the level's.
        duplex: ``half`` if both directions of a link share its rate.
        routing: ``static``, ``spread`` or ``adaptive``; see the module.
        joules_per_byte: energy of a link.
        positions: the position of node 0, of node 1, ...; in order if empty.
    """

    extents: tuple[int, ...]
    bytes_per_second: tuple[float, ...] = ()
    hop_seconds: float = 0.0
    duplex: str = "full"
    routing: str = "static"
    joules_per_byte: float = 0.0
    positions: tuple[int, ...] = ()

    kind: ClassVar[str]
    #: Meaning of the extents, in messages.
    means: ClassVar[str]

    def __post_init__(self):
        where = f"shape.{{}} of {self.kind}".format
        object.__setattr__(self, "extents", tuple(
            fields.as_integer(where("extents"), n) for n in as_list(self.extents)))
        object.__setattr__(self, "positions", tuple(
            fields.as_integer(where("positions"), n, 0) for n in as_list(self.positions)))
        object.__setattr__(self, "bytes_per_second", tuple(as_list(self.bytes_per_second)))
        if not self.extents or math.prod(self.extents) > MOST_NODES:
            raise ArgumentError("machine", f"{where('extents')}: expected {self.means}, of at most "
                                f"{MOST_NODES:,} nodes in all, got {self.extents!r}")
        for value in self.bytes_per_second:
            fields.rate(where("bytes_per_second"), value)
        if len(self.bytes_per_second) not in (0, 1, self.kinds):
            raise ArgumentError("machine", f"{where('bytes_per_second')}: expected one rate, or "
                                f"{self.kinds}, got {len(self.bytes_per_second)}")
        fields.cost(where("hop_seconds"), self.hop_seconds)
        fields.cost(where("joules_per_byte"), self.joules_per_byte, "joules")
        fields.choice(where("duplex"), self.duplex, DUPLEX)
        fields.choice(where("routing"), self.routing, ROUTINGS)
        if self.positions and (len(set(self.positions)) < len(self.positions)
                               or max(self.positions) >= self.nodes):
            raise ArgumentError("machine", f"{where('positions')}: expected different numbers "
                                f"below {self.nodes}")

    @property
    def nodes(self) -> int:
        """Return the maximum number of nodes."""
        return math.prod(self.extents)

    @property
    def kinds(self) -> int:
        """Return the number of kinds of links: each may have a rate."""
        return len(self.extents)

    @property
    def places(self) -> int:
        """Return the number of nodes with a position."""
        return len(self.positions) or self.nodes

    def position(self, node: int) -> int:
        """Return the position of a node."""
        return self.positions[node] if self.positions else node

    def routes(self, start: int, end: int) -> tuple[Way, ...]:
        """Return the routes between two positions; a message takes one, chosen when it begins."""
        if self.routing == "spread":
            return (self.all_shortest(start, end),)
        if self.routing == "static":
            return (tuple((link, 1.0) for link in next(self.ways(start, end))),)
        return tuple(tuple((link, 1.0) for link in way) for way in self._list_routes(start, end))

    @abstractmethod
    def ways(self, start: int, end: int) -> Iterator[tuple[Link, ...]]:
        """Yield the links of every shortest route, that of static routing first."""

    def all_shortest(self, start: int, end: int) -> Way:
        """Return the links of all shortest routes, each with its part of a byte."""
        ways = self._list_routes(start, end)
        parts: dict[Link, float] = {}
        for way in ways:
            for link in way:
                parts[link] = parts.get(link, 0.0) + 1 / len(ways)
        return tuple(parts.items())

    def hops(self, start: int, end: int) -> int:
        """Return the number of links of the longest possible route."""
        if self.routing == "static":
            return len(next(self.ways(start, end)))
        return max(map(len, self._list_routes(start, end)))

    def _list_routes(self, start: int, end: int) -> list[tuple[Link, ...]]:
        ways = list(islice(self.ways(start, end), MOST_WAYS + 1))
        if len(ways) > MOST_WAYS:
            raise ArgumentError("machine", f"shape.routing of {self.kind}: {self.routing} routing "
                                           f"over more than {MOST_WAYS:,} "
                                           "paths", "static routing uses one path")
        return list(dict.fromkeys(ways))

    def capacity(self, link: Link, usual: float) -> float:
        """Return the bytes per second of a link; ``usual`` if the shape has no rates."""
        rates = self.bytes_per_second or (usual,)
        return rates[link[0] if len(rates) > 1 else 0]

    def bundle(self, link: Link) -> int:
        """Return the number of physical links that ``link`` represents."""
        return 1

    @property
    @abstractmethod
    def links(self) -> int:
        """Return the number of links."""

    @abstractmethod
    def name(self, link: Link) -> str:
        """Return the name of a link."""

    def describe(self) -> str:
        """Return a text description of the shape."""
        return f"{self.kind} {'x'.join(map(str, self.extents))}, {self.routing} routes"


def as_list(value: Any) -> list:
    """Return one value or several as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
