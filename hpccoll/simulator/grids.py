"""Tori and meshes: nodes at the points of a grid.

Source: Dally and Towles, "Principles and Practices of Interconnection Networks", 2004 (dimension
order).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from hpccoll.errors import ArgumentError
from hpccoll.simulator.shapes import Link, Shape, as_list

__all__ = ["MeshShape", "Torus"]


@dataclass(frozen=True, kw_only=True)
class Torus(Shape):
    """Nodes at the points of a grid; position = i + extents[0] * (j + extents[1] * (k ...)).

    Every dimension has its own rate. If it wraps around, its last node has a link to the first; two
    nodes then have two cables. Shortest routes use the shorter direction, both if they are equal
    (``static``: upwards), and take the dimensions in order, starting with any of them (``static``:
    with the first).

    Attributes:
        wrap: True for dimensions that wrap around, one value for all or one each.
    """

    wrap: tuple[bool, ...] = (True,)

    kind = "torus"
    means = "nodes per dimension"

    def __post_init__(self):
        object.__setattr__(self, "wrap", tuple(as_list(self.wrap)))
        super().__post_init__()
        if len(self.wrap) not in (1, len(self.extents)) or not all(
                isinstance(w, bool) for w in self.wrap):
            raise ArgumentError("machine", f"shape.wrap of {self.kind}: expected true or false, "
                                f"one or {len(self.extents)}, got {list(self.wrap)!r}")

    def digits(self, position: int) -> list[int]:
        """Return the coordinates of a position."""
        found = []
        for extent in self.extents:
            position, digit = divmod(position, extent)
            found.append(digit)
        return found

    def wraps(self, dimension: int) -> bool:
        """Return True if a dimension wraps around."""
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
        """Return the position one step up or down a dimension, wrapped around at the ends."""
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
    """A torus that does not wrap around."""

    wrap: tuple[bool, ...] = (False,)

    kind = "mesh"
