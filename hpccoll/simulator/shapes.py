"""The shape of a network: which links a message takes from node to node.

A node is a group of a machine's outermost level. It sits at a *position* of the shape, 0, 1, ...;
what leaves it takes hops over links, and all messages on a link share it max-min fair. Where
several shortest ways lead to a node, ``routing`` says which one a message takes:

* ``static`` - always the same: dimension by dimension on a torus, up by the digits of the
  destination in a fat tree (D-mod-K), the cable of the destination's number in a dragonfly;
* ``spread`` - all of them at once, an equal part of every message on each;
* ``adaptive`` - the one whose fullest link has the least to carry when the message begins.

Sources: Dally and Towles, "Principles and Practices of Interconnection Networks", 2004 (tori,
dimension order); Zahavi, "D-Mod-K routing", 2010, and Petrini and Vanneschi, "k-ary n-trees", 1997
(fat trees); Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology",
ISCA 2008, with the palm-tree arrangement of Camarero et al., 2014.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from itertools import product
from typing import Any, ClassVar

from hpccoll.errors import ArgumentError
from hpccoll.simulator import fields

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
            fields.whole(where("extents"), n) for n in _listed(self.extents)))
        object.__setattr__(self, "positions", tuple(
            fields.whole(where("positions"), n, 0) for n in _listed(self.positions)))
        object.__setattr__(self, "bytes_per_second", tuple(_listed(self.bytes_per_second)))
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
        ways = self.ways(start, end)
        if self.routing == "static":
            return (tuple((link, 1.0) for link in next(ways)),)
        return tuple(tuple((link, 1.0) for link in way) for way in dict.fromkeys(ways))

    @abstractmethod
    def ways(self, start: int, end: int) -> Iterator[tuple[Link, ...]]:
        """The links of every shortest way, that of static routing first."""

    def spread(self, start: int, end: int) -> Way:
        """The links of all shortest ways, each with the part of a byte that goes over it."""
        ways = list(dict.fromkeys(self.ways(start, end)))
        parts: dict[Link, float] = {}
        for way in ways:
            for link in way:
                parts[link] = parts.get(link, 0.0) + 1 / len(ways)
        return tuple(parts.items())

    def hops(self, start: int, end: int) -> int:
        """Links of the longest way that a message may take."""
        if self.routing == "static":
            return len(next(self.ways(start, end)))
        return max(map(len, self.ways(start, end)))

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


@dataclass(frozen=True, kw_only=True)
class Torus(Shape):
    """Nodes at the crossings of a grid; position = i + extents[0] * (j + extents[1] * (k ...)).

    Every dimension has a rate of its own. Where it wraps round, its last node has a link to the
    first; two nodes have two cables then. Shortest ways go round the nearer way, both where they
    are equal (``static``: upwards), and take the dimensions in order, beginning with any of them
    (``static``: with the first).

    Attributes:
        wrap: whether dimensions wrap round, all of them or one by one.
    """

    wrap: tuple[bool, ...] = (True,)

    kind = "torus"
    means = "nodes per dimension"

    def __post_init__(self):
        object.__setattr__(self, "wrap", tuple(_listed(self.wrap)))
        super().__post_init__()
        if len(self.wrap) not in (1, len(self.extents)) or not all(
                isinstance(w, bool) for w in self.wrap):
            raise ArgumentError("machine", f"shape.wrap of {self.kind}: expected true or false, "
                                f"one or {len(self.extents)}, got {list(self.wrap)!r}")

    def digits(self, position: int) -> list[int]:
        """The coordinates of a position."""
        found = []
        for extent in self.extents:
            position, digit = divmod(position, extent)
            found.append(digit)
        return found

    def wraps(self, dimension: int) -> bool:
        """Whether a dimension wraps round."""
        return self.wrap[dimension if len(self.wrap) > 1 else 0]

    def ways(self, start: int, end: int) -> Iterator[tuple[Link, ...]]:
        moves: list[tuple[tuple[int, int, int], ...]] = []
        for dimension, (a, b) in enumerate(zip(self.digits(start), self.digits(end))):
            extent = self.extents[dimension]
            up = (b - a) % extent if self.wraps(dimension) else b - a
            down = (a - b) % extent if self.wraps(dimension) else a - b
            either = ((dimension, 1, up), (dimension, -1, down))
            if a != b:
                moves.append(tuple(m for m in either if m[2] > 0 and m[2] == min(
                    abs(up), abs(down))))
        for chosen in product(*moves):
            for first in range(max(1, len(chosen))):
                yield self._links(start, chosen[first:] + chosen[:first])

    def _links(self, position: int, moves: Sequence[tuple[int, int, int]]) -> tuple[Link, ...]:
        links = []
        for dimension, step, count in moves:
            for _ in range(count):
                after = self.neighbour(position, dimension, step)
                links.append((dimension, 0, position) if step > 0 else
                             (dimension, 0, after) if self.duplex == "half" else
                             (dimension, 1, position))
                position = after
        return tuple(links)

    def neighbour(self, position: int, dimension: int, step: int) -> int:
        """The position one step up or down a dimension, round it at the ends."""
        stride, extent = math.prod(self.extents[:dimension]), self.extents[dimension]
        digit = position // stride % extent
        return position + ((digit + step) % extent - digit) * stride

    @property
    def links(self) -> int:
        cables = sum(self.nodes if self.wraps(d) else self.nodes // n * (n - 1)
                     for d, n in enumerate(self.extents) if n > 1)
        return cables * (2 if self.duplex == "full" else 1)

    def name(self, link: Link) -> str:
        dimension, down, position = link
        where = ",".join(map(str, self.digits(position)))
        return f"link {'+-'[down]}{dimension} of node {where}"


@dataclass(frozen=True, kw_only=True)
class MeshShape(Torus):
    """A torus that does not wrap round."""

    wrap: tuple[bool, ...] = (False,)

    kind = "mesh"


@dataclass(frozen=True, kw_only=True)
class FatTree(Shape):
    """An extended generalised fat tree: ``extents[0]`` nodes below a switch, and so on upwards.

    Every level has a rate, from the nodes' cables upwards. A shortest way goes up to the first
    level where both nodes are below one switch, and down again.

    Attributes:
        up: cables upwards from a node, from a switch of the first level, ...: with fewer than
            there are downwards, the tree tapers. By default a node has one, and a switch as many
            as downwards.
    """

    up: tuple[int, ...] = ()

    kind = "fat_tree"
    means = "nodes per switch, switches of that level per group, ..."

    def __post_init__(self):
        up = tuple(_listed(self.up)) or (1, *_listed(self.extents)[:-1])
        object.__setattr__(self, "up", tuple(
            fields.whole("shape.up of fat_tree", n) for n in up))
        super().__post_init__()
        if len(self.up) != len(self.extents):
            raise ArgumentError("machine", f"shape.up of fat_tree: expected {len(self.extents)} "
                                f"numbers, one for each of the extents, got {list(self.up)!r}")

    def _climb(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Levels on the way up, and the groups of each that are left and entered."""
        found = []
        for level, extent in enumerate(self.extents):
            if start == end:
                break
            found.append((level, start, end))
            start, end = start // extent, end // extent
        return found

    def ways(self, start: int, end: int) -> Iterator[tuple[Link, ...]]:
        climb = self._climb(start, end)
        cables = self.up[:len(climb)]
        if math.prod(cables) > MOST_WAYS and self.routing == "adaptive":
            raise ArgumentError("machine", f"shape.routing of fat_tree: adaptive among "
                                f"{math.prod(cables):,} ways, more than {MOST_WAYS:,}",
                                "spread takes all of them")
        # D-mod-K: the cable upwards is a digit of the destination.
        first = [end // math.prod(cables[:level]) % count for level, count in enumerate(cables)]
        for shift in product(*map(range, cables)):
            taken = tuple((a + b) % n for a, b, n in zip(first, shift, cables))
            upwards = [self._link(level, 0, group, taken[:level + 1])
                       for level, group, _ in climb]
            down = [self._link(level, 1, group, taken[:level + 1]) for level, _, group in climb]
            yield (*upwards, *reversed(down))

    def _link(self, level: int, down: int, group: int, taken: Sequence[int]) -> Link:
        return (level, 0 if self.duplex == "half" else down, group, *taken)

    def spread(self, start: int, end: int) -> Way:
        # All that leaves a group is spread over all its cables, so they are always alike: as one.
        climb = self._climb(start, end)
        return tuple((self._link(level, down, group, ()), 1.0) for down in (0, 1)
                     for level, group in ((c[0], c[1 + down]) for c in climb))

    def hops(self, start: int, end: int) -> int:
        return 2 * len(self._climb(start, end))

    def capacity(self, link: Link, usual: float) -> float:
        return super().capacity(link, usual) * self.bundle(link)

    def bundle(self, link: Link) -> int:
        return math.prod(self.up[:link[0] + 1]) if len(link) == 3 else 1

    @property
    def links(self) -> int:
        cables = sum(self.nodes // math.prod(self.extents[:level]) * math.prod(self.up[:level + 1])
                     for level in range(len(self.extents)))
        return cables * (2 if self.duplex == "full" else 1)

    def name(self, link: Link) -> str:
        level, down, group, *taken = link
        ways = "link" if self.duplex == "half" else f"link {'up' if not down else 'down'}"
        return (f"{ways} {'from' if not down else 'to'} "
                f"{f'switch group {group} of level {level}' if level else f'node {group}'}"
                + (f", cable {'.'.join(map(str, taken))}" if taken else ", all cables"))


@dataclass(frozen=True, kw_only=True)
class Dragonfly(Shape):
    """Groups of routers, every router of a group beside every other, every group beside every
    other; ``extents`` are groups, routers per group, nodes per router.

    Two kinds of links have rates: within groups, and between them. A way is a hop to the router
    whose cable leads to the other group, over it, and a hop to the node's router; cables of a
    group belong to its routers in turn, in the order of the groups after it (palm tree). Detours
    through a third group are not taken.

    Attributes:
        cables: between two groups.
    """

    cables: int = 1

    kind = "dragonfly"
    means = "groups, routers per group and nodes per router"

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "cables", fields.whole("shape.cables of dragonfly", self.cables))
        if len(self.extents) != 3:
            raise ArgumentError("machine", f"shape.extents of {self.kind}: expected {self.means}, "
                                f"got {list(self.extents)!r}")

    @property
    def kinds(self) -> int:
        return 2

    def ways(self, start: int, end: int) -> Iterator[tuple[Link, ...]]:
        groups, routers, below = self.extents
        here, there = start // below, end // below
        one, other = here // routers, there // routers
        if one == other:
            yield self._hop(one, here % routers, there % routers)
            return
        away, back = (other - one - 1) % groups, (one - other - 1) % groups
        for shift in range(self.cables):
            cable = (end + shift) % self.cables
            leaves = (away * self.cables + cable) % routers
            enters = (back * self.cables + cable) % routers
            ends = (one, other) if self.duplex == "full" or one < other else (other, one)
            yield (*self._hop(one, here % routers, leaves), (1, *ends, cable),
                   *self._hop(other, enters, there % routers))

    def _hop(self, group: int, a: int, b: int) -> tuple[Link, ...]:
        if a == b:
            return ()
        return ((0, group, *(sorted((a, b)) if self.duplex == "half" else (a, b))),)

    @property
    def links(self) -> int:
        groups, routers, _ = self.extents
        both = groups * routers * (routers - 1) + groups * (groups - 1) * self.cables
        return both if self.duplex == "full" else both // 2

    def name(self, link: Link) -> str:
        if link[0]:
            return f"cable {link[3]} from group {link[1]} to group {link[2]}"
        return f"link from router {link[2]} to router {link[3]} of group {link[1]}"


SHAPES: Mapping[str, type[Shape]] = {
    "torus": Torus, "mesh": MeshShape, "fat_tree": FatTree, "dragonfly": Dragonfly}


def shape_from_data(data: Any, file: str) -> Shape:
    """Read the ``shape`` of a machine file.

    Raises:
        ArgumentError: an unknown kind, or a missing, unknown or malformed field.
    """
    if isinstance(data, Mapping):
        kind = data.get("kind")
        if not isinstance(kind, str) or kind not in SHAPES:
            raise ArgumentError("machine", f"{file}: shape.kind: expected one of "
                                f"{', '.join(SHAPES)}, got {kind!r}")
        made = SHAPES[kind]
        known = tuple(f.name for f in dataclass_fields(made) if f.name != "extents")
        fields.check(data, "shape", ("kind", "extents"), known, file)
        try:
            return made(**{name: value for name, value in data.items() if name != "kind"})
        except ArgumentError as error:
            raise ArgumentError("machine", f"{file}: {_problem(error)}") from error
    raise ArgumentError("machine", f"{file}: shape: expected an object with the fields kind, "
                                   f"extents, got {data!r}")


def shape_as_data(shape: Shape) -> dict[str, Any]:
    """The ``shape`` of a machine file."""
    held = {f.name: getattr(shape, f.name) for f in dataclass_fields(shape)
            if getattr(shape, f.name) != f.default}
    return {"kind": shape.kind, **{name: list(value) if isinstance(value, tuple) else value
                                   for name, value in held.items()}}


def shape_from_text(text: str, argument: str = "shape") -> Shape:
    """Read a shape as people write it: ``torus:4x4x4``, ``fat_tree:8x4:up=1x2:routing=spread``.

    >>> shape_from_text("mesh:4x2:bytes_per_second=2e9").nodes
    8

    Raises:
        ArgumentError: text that is no shape.
    """
    kind, *rest = text.split(":")
    data: dict[str, Any] = {"kind": kind, "extents": rest[0] if rest else ""}
    for part in rest[1:]:
        name, equals, value = part.partition("=")
        if not equals or name in data:
            raise ArgumentError(argument, f"cannot read {part!r} in {text!r}",
                                "write fields as in fat_tree:8x4:up=1x2:routing=spread")
        data[name] = value
    try:
        return shape_from_data({name: value if name == "kind" else _value(value)
                                for name, value in data.items()}, repr(text))
    except ArgumentError as error:
        raise ArgumentError(argument, _problem(error)) from error


def _value(text: str) -> Any:
    """Numbers with an x between them, words, true and false."""
    words = {"true": True, "false": False}
    parts = []
    for part in text.split("x"):
        try:
            parts.append(words[part] if part in words else float(part))
        except ValueError:
            return text
    return parts if len(parts) > 1 else parts[0]


def _problem(error: ArgumentError) -> str:
    """What an error says behind the name of its argument."""
    return str(error).removeprefix(f"{error.argument}: ")


def _listed(value: Any) -> list:
    """One value, or several."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
