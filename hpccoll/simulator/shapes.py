"""The shape of a network: which links a message takes from node to node.

A node is a group of a machine's outermost level. It sits at a *position* of the shape, 0, 1, ...;
what leaves it takes hops over links, and all messages on a link share it max-min fair. Where
several shortest ways lead to a node, ``routing`` says which one a message takes:

* ``static`` - always the same: dimension by dimension on a torus, up by the digits of the
  destination in a fat tree (D-mod-K), the cable of the destination's number in a dragonfly;
* ``spread`` - all of them at once, an equal part of every message on each;
* ``adaptive`` - the one whose fullest link has the least to carry when the message begins.

Kinds of shapes are in :mod:`~hpccoll.simulator.grids` and :mod:`~hpccoll.simulator.switched`;
:mod:`~hpccoll.simulator.shape_files` reads and writes them.
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
#: Nodes of a shape, and ways between two of them that are looked at.
MOST_NODES, MOST_WAYS = 1 << 24, 4096

#: A link: what it is, and where; the first number is the kind of link, for its rate.
Link = tuple[int, ...]
#: Links of a way, or parts of several ways: how much of each a byte needs.
Way = tuple[tuple[Link, float], ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What all shapes have.

    Attributes:
        extents: numbers that say how large it is; each kind of shape says of what.
        bytes_per_second: of a link, one way: one rate, or one for each kind of link. Empty stands
            for the rate of the machine's outermost level.
        hop_seconds: latency of a link, beside the level's.
        duplex: ``half`` if both ways over a link share its rate.
        routing: see the module.
        joules_per_byte: of a link.
        positions: where nodes sit: the position of node 0, of node 1, ...; in order if empty.
    """

    extents: tuple[int, ...]
    bytes_per_second: tuple[float, ...] = ()
    hop_seconds: float = 0.0
    duplex: str = "full"
    routing: str = "static"
    joules_per_byte: float = 0.0
    positions: tuple[int, ...] = ()

    kind: ClassVar[str]
    #: What the extents are, for messages.
    means: ClassVar[str]

    def __post_init__(self):
        where = f"shape.{{}} of {self.kind}".format
        object.__setattr__(self, "extents", tuple(
            fields.whole(where("extents"), n) for n in listed(self.extents)))
        object.__setattr__(self, "positions", tuple(
            fields.whole(where("positions"), n, 0) for n in listed(self.positions)))
        object.__setattr__(self, "bytes_per_second", tuple(listed(self.bytes_per_second)))
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
        """Nodes that it has room for."""
        return math.prod(self.extents)

    @property
    def kinds(self) -> int:
        """Kinds of links: each may have a rate."""
        return len(self.extents)

    @property
    def places(self) -> int:
        """Nodes that have a position."""
        return len(self.positions) or self.nodes

    def position(self, node: int) -> int:
        """Where a node sits."""
        return self.positions[node] if self.positions else node

    def routes(self, start: int, end: int) -> tuple[Way, ...]:
        """What a message between two positions may take: one of these, chosen when it begins."""
        if self.routing == "spread":
            return (self.spread(start, end),)
        if self.routing == "static":
            return (tuple((link, 1.0) for link in next(self.ways(start, end))),)
        return tuple(tuple((link, 1.0) for link in way) for way in self._listed(start, end))

    @abstractmethod
    def ways(self, start: int, end: int) -> Iterator[tuple[Link, ...]]:
        """The links of every shortest way, that of static routing first."""

    def spread(self, start: int, end: int) -> Way:
        """The links of all shortest ways, each with the part of a byte that goes over it."""
        ways = self._listed(start, end)
        parts: dict[Link, float] = {}
        for way in ways:
            for link in way:
                parts[link] = parts.get(link, 0.0) + 1 / len(ways)
        return tuple(parts.items())

    def hops(self, start: int, end: int) -> int:
        """Links of the longest way that a message may take."""
        if self.routing == "static":
            return len(next(self.ways(start, end)))
        return max(map(len, self._listed(start, end)))

    def _listed(self, start: int, end: int) -> list[tuple[Link, ...]]:
        ways = list(islice(self.ways(start, end), MOST_WAYS + 1))
        if len(ways) > MOST_WAYS:
            raise ArgumentError("machine", f"shape.routing of {self.kind}: {self.routing} routing "
                                           f"over more than {MOST_WAYS:,} "
                                           "paths", "static routing uses one path")
        return list(dict.fromkeys(ways))

    def capacity(self, link: Link, usual: float) -> float:
        """Bytes per second of a link; ``usual`` where the shape does not say."""
        rates = self.bytes_per_second or (usual,)
        return rates[link[0] if len(rates) > 1 else 0]

    def bundle(self, link: Link) -> int:
        """Links that one stands for."""
        return 1

    @property
    @abstractmethod
    def links(self) -> int:
        """How many there are."""

    @abstractmethod
    def name(self, link: Link) -> str:
        """A link, for people."""

    def describe(self) -> str:
        """The shape, for people."""
        return f"{self.kind} {'x'.join(map(str, self.extents))}, {self.routing} routes"


def listed(value: Any) -> list:
    """One value, or several."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
