"""Fat trees and dragonflies: nodes below switches.

Sources: Zahavi, "D-Mod-K routing", 2010, and Petrini and Vanneschi, "k-ary n-trees", 1997 (fat
trees); Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA
2008, with the palm-tree arrangement of Camarero et al., 2014.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from hpccoll.errors import ArgumentError
from hpccoll.simulator import fields
from hpccoll.simulator.shapes import MOST_WAYS, Link, Shape, Way, as_list

__all__ = ["Dragonfly", "FatTree"]


@dataclass(frozen=True, kw_only=True)
class FatTree(Shape):
    """An extended generalised fat tree: ``extents[0]`` nodes below a switch, and so on upwards.

    Every level has a rate, from the nodes' cables upwards. A shortest route goes up to the first
    level at which both nodes are below one switch, and down again.

    Attributes:
        up: cables upwards from a node, from a switch of the first level, ...: with fewer than
            downwards, the tree tapers. By default a node has one, and a switch as many as
            downwards.
    """

    up: tuple[int, ...] = ()

    kind = "fat_tree"
    means = "nodes per switch, switches of that level per group, ..."

    def __post_init__(self):
        up = tuple(as_list(self.up)) or (1, *as_list(self.extents)[:-1])
        object.__setattr__(self, "up", tuple(
            fields.as_integer("shape.up of fat_tree", n) for n in up))
        super().__post_init__()
        if len(self.up) != len(self.extents):
            raise ArgumentError("machine", f"shape.up of fat_tree: expected {len(self.extents)} "
                                f"numbers, one for each of the extents, got {list(self.up)!r}")

    def _climb(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return the levels on the route up, and the groups of each that are left and entered."""
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
            raise ArgumentError("machine", "shape.routing of fat_tree: adaptive routing over "
                                           f"{math.prod(cables):,} paths, more than {MOST_WAYS:,}",
                                "spread uses all paths")
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

    def all_shortest(self, start: int, end: int) -> Way:
        # Traffic out of a group is spread over all its cables, so they are equal: modelled as one.
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
    """Groups of routers, all-to-all connected within groups and between them.

    ``extents`` are groups, routers per group, nodes per router.

    Two kinds of links have rates: within groups, and between them. A route is a hop to the router
    with a cable to the other group, a hop over it, and a hop to the node's router. Cables of a
    group are assigned to its routers in turn, in the order of the groups after it (palm tree).
    Detours through a third group are not used.

    Attributes:
        cables: number of cables between two groups.
    """

    cables: int = 1

    kind = "dragonfly"
    means = "groups, routers per group and nodes per router"

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "cables",
                           fields.as_integer("shape.cables of dragonfly", self.cables))
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
