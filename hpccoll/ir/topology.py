"""Topology: nested groups of ranks, written as text such as ``8``, ``2x4`` or ``3,5,4``.

``4x2x8`` reads from the outside in: four nodes of two sockets of eight ranks. A comma
separates unequal groups, and parentheses nest them: ``(2,3),(4)`` is two nodes, the first
with two groups of 2 and 3 ranks, the second with one of 4.

Ranks that are not numbered group by group are listed after an ``@``, in the order of their
*positions* in the groups: ``2x3@0,2,4,1,3,5`` has ranks 0, 2 and 4 on the first node. ``3-6``
in such a list is short for ``3,4,5,6``, and ``0-4/2`` for ``0,2,4``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from hpccoll.errors import ArgumentError

#: A group is a number of ranks, or a tuple of smaller groups.
Group: TypeAlias = "int | tuple[Group, ...]"

_TOKEN = re.compile(r"\s*(\d+|[x,()])")
_RUN = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*(?:/\s*(\d+)\s*)?)?")


class GroupBounds(NamedTuple):
    """Bounds of the subgroups of a group.

    Attributes:
        starts: the first position of each, and the end; ``None`` if all have one size.
        least: number of ranks of the smallest.
        shapes: the different ones, in order of appearance.
    """

    number: int
    starts: tuple[int, ...] | None
    least: int
    shapes: tuple[Group, ...]

    def group(self, index: int) -> range:
        """Return the positions of one subgroup."""
        if self.starts is None:
            return range(index * self.least, (index + 1) * self.least)
        return range(self.starts[index], self.starts[index + 1])

    def index_of(self, position: int) -> int:
        """Return the number of the subgroup with a position."""
        if self.starts is None:
            return position // self.least
        return bisect_right(self.starts, position) - 1


@dataclass(frozen=True)
class Topology:
    """Ranks 0..size-1 as the leaves of a tree of groups.

    Attributes:
        tree: the groups.
        order: the rank at each position, which is the leaf's number from the left; ``None``
            if every rank is at the position of its own number.

    >>> Topology.parse("2x4").groups()
    [range(0, 4), range(4, 8)]
    >>> Topology.parse("2x2@0,2,1,3").groups()
    [(0, 2), (1, 3)]
    >>> print(Topology.parse("3,5,4"), Topology.parse("3,5,4").size)
    3,5,4 12
    """

    tree: Group
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.order is not None:
            order = tuple(self.order)
            if sorted(order) != list(range(self.size)):
                raise ArgumentError(
                    "topology", f"'{_text(self.tree)}@{_order_text(order)}' does not place every "
                                f"rank of 0..{self.size - 1} once",
                    "after the @, list every rank once: 2x2@0,2,1,3")
            # One value for one layout: equal layouts compare, print and hash equally.
            object.__setattr__(self, "order", None if order == tuple(range(len(order)))
                               else order)

    @classmethod
    def parse(cls, text: str | int | Topology, size: int | None = None) -> Topology:
        """Parse a topology from text.

        Args:
            text: ``"8"``, ``"2x4"``, ``"4x2x8"``, ``"3,5,4"``, ``"(2,3),(4)"``,
                ``"2x2@0,2,1,3"`` or an int.
            size: number of ranks the topology must have, when known.

        Raises:
            ArgumentError: malformed text, an empty group, another number of ranks, or an invalid
                order.
        """
        if isinstance(text, Topology):
            topology = text
        elif isinstance(text, int) and not isinstance(text, bool):
            topology = cls(_positive(text, str(text)))
        elif isinstance(text, str):
            tree, at, order = text.partition("@")
            groups = _parse(tree)
            topology = cls(groups, _parse_order(order, _size(groups), text) if at else None)
        else:
            raise ArgumentError("topology", f"expected text such as '2x4', got {text!r}")
        if size is not None and topology.size != size:
            raise ArgumentError("topology", f"'{topology}' has {topology.size} ranks, the "
                                            f"communicator has {size}",
                                "pass a topology with as many ranks as the communicator")
        return topology

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Cached: there is one lookup per program, and there may be many groups.
        return hash((self.tree, self.order))

    @cached_property
    def size(self) -> int:
        """Return the number of ranks."""
        return _size(self.tree)

    @cached_property
    def _bounds(self) -> dict[object, GroupBounds]:
        return {}

    def bounds(self, tree: Group) -> GroupBounds:
        """Return the bounds of the subgroups of a group; cached for equal ones.

        Args:
            tree: the group, an object of :attr:`tree` itself.
        """
        # A number is the same group in any position; a tuple lives as long as the tree.
        key = (tree,) if isinstance(tree, int) else id(tree)
        found = self._bounds.get(key)
        if found is None:
            if isinstance(tree, int):
                found = GroupBounds(tree, None, 1, (1,))
            else:
                sizes = [_size(group) for group in tree]
                shapes = tuple(dict.fromkeys(tree))
                starts = None if len(set(sizes)) == 1 else tuple(accumulate(sizes, initial=0))
                found = GroupBounds(len(tree), starts, min(sizes), shapes)
            self._bounds[key] = found
        return found

    @property
    def depth(self) -> int:
        """Return the number of levels: 1 when flat, 2 for nodes of ranks, and so on."""
        return _depth(self.tree)

    @property
    def children(self) -> tuple[Topology, ...]:
        """Return the shapes of the groups one level down; empty when the topology is flat."""
        return tuple(Topology(g) for g in self.tree) if isinstance(self.tree, tuple) else ()

    @cached_property
    def plain(self) -> Topology:
        """Return the same groups with ranks in order."""
        return self if self.order is None else Topology(self.tree)

    @property
    def ranks(self) -> Sequence[int]:
        """Return the rank at every position."""
        return range(self.size) if self.order is None else self.order

    @cached_property
    def positions(self) -> Sequence[int]:
        """Return the position of every rank."""
        if self.order is None:
            return range(self.size)
        positions = [0] * len(self.order)
        for position, rank in enumerate(self.order):
            positions[rank] = position
        return positions

    def groups(self) -> list[Sequence[int]]:
        """Return the ranks of each outermost group; single ranks when the topology is flat."""
        ranks = self.ranks
        return [ranks[group.start:group.stop] for group in self.ranges()]

    def ranges(self) -> Iterator[range]:
        """Yield the positions in each outermost group."""
        start = 0
        for group in (self.tree if isinstance(self.tree, tuple) else (1,) * self.tree):
            yield range(start, start + _size(group))
            start += _size(group)

    def __str__(self) -> str:
        return _text(self.tree) + (f"@{_order_text(self.order)}" if self.order else "")


def _size(tree: Group) -> int:
    return tree if isinstance(tree, int) else sum(map(_size, tree))


def _depth(tree: Group) -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(_depth, tree))


def _text(tree: Group) -> str:
    if isinstance(tree, int):
        return str(tree)
    if len(set(tree)) == 1:
        inner = _text(tree[0])
        return f"{len(tree)}x" + (f"({inner})" if "," in inner else inner)
    return ",".join(_text(g) if isinstance(g, int) else f"({_text(g)})" for g in tree)


def _order_text(order: Sequence[int]) -> str:
    """Return ranks as text; three or more with the same step between them are a run."""
    words, start = [], 0
    while start < len(order):
        step = order[start + 1] - order[start] if start + 1 < len(order) else 0
        stop = start + 1
        while step > 0 and stop < len(order) and order[stop] - order[stop - 1] == step:
            stop += 1
        if stop - start < 3:
            words.append(str(order[start]))
            stop = start + 1
        else:
            words.append(f"{order[start]}-{order[stop - 1]}" + (f"/{step}" if step > 1 else ""))
        start = stop
    return ",".join(words)


def _positive(number: int, text: str) -> int:
    if number < 1:
        raise ArgumentError("topology", f"'{text}' has a group of {number} ranks",
                            "every group needs at least one rank")
    return number


def _parse(text: str) -> Group:
    tokens, position = [], 0
    while match := _TOKEN.match(text, position):
        tokens.append(match.group(1))
        position = match.end()
    if text[position:].strip() or not tokens:
        raise ArgumentError("topology", f"cannot read '{text}' at position {position}",
                            "write it like '8', '2x4', '4x2x8' or '3,5,4'")
    tree, rest = _list(tokens, text)
    if rest:
        raise ArgumentError("topology", f"'{text}' has an unmatched '{rest[0]}'")
    return tree


def _list(tokens: list[str], text: str) -> tuple[Group, list[str]]:
    """Parse ``list := product ("," product)*``."""
    tree, tokens = _product(tokens, text)
    groups = [tree]
    while tokens and tokens[0] == ",":
        tree, tokens = _product(tokens[1:], text)
        groups.append(tree)
    return (groups[0] if len(groups) == 1 else tuple(groups)), tokens


def _product(tokens: list[str], text: str) -> tuple[Group, list[str]]:
    """Parse ``product := number ["x" product] | "(" list ")"``."""
    if not tokens or tokens[0] in "x,)":
        raise ArgumentError("topology", f"'{text}' has no number"
                            + (f" before '{tokens[0]}'" if tokens else " at its end"))
    if tokens[0] == "(":
        tree, rest = _list(tokens[1:], text)
        if not rest or rest[0] != ")":
            raise ArgumentError("topology", f"'{text}' has an unmatched '('")
        return (tree if isinstance(tree, tuple) else (tree,)), rest[1:]
    count = _positive(int(tokens[0]), text)
    if len(tokens) > 1 and tokens[1] == "x":
        inner, rest = _product(tokens[2:], text)
        return (inner,) * count, rest
    return count, tokens[1:]


def _parse_order(order: str, size: int, text: str) -> tuple[int, ...]:
    """Parse ``order := run ("," run)*``, where ``run := rank ["-" rank ["/" step]]``."""
    ranks: list[int] = []
    for word in order.split(","):
        match = _RUN.fullmatch(word)
        first, last, step = match.groups() if match else ("", None, None)
        if match is None or last and int(last) < int(first) or step and int(step) == 0:
            raise ArgumentError("topology",
                                f"cannot read {word.strip()!r} in the order of '{text}'",
                                "list ranks like '0,2,1,3', '0-3' or '0-6/2'")
        # Checked before the run is expanded: a mistyped number may have many digits.
        if int(last or first) >= size:
            raise ArgumentError("topology", f"'{text}' places rank {last or first}, its ranks are "
                                            f"0..{size - 1}")
        ranks += range(int(first), int(last or first) + 1, int(step or 1))
    return tuple(ranks)
