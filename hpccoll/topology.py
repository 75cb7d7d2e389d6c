"""Topology: nested groups of ranks, written as text such as ``8``, ``2x4`` or ``3,5,4``.

``4x2x8`` reads from the outside in: four nodes of two sockets of eight ranks. A comma
separates unequal groups, and parentheses nest them: ``(2,3),(4)`` is two nodes, the first
with two groups of 2 and 3 ranks, the second with one of 4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, Union

from hpccoll.errors import ArgumentError

#: A group is a number of ranks, or a tuple of smaller groups.
Group = Union[int, tuple]

_TOKEN = re.compile(r"\s*(\d+|[x,()])")


@dataclass(frozen=True)
class Topology:
    """Ranks 0..size-1, in order, as the leaves of a tree of groups.

    >>> Topology.parse("2x4").groups()
    [range(0, 4), range(4, 8)]
    >>> print(Topology.parse("3,5,4"), Topology.parse("3,5,4").size)
    3,5,4 12
    """

    tree: Group

    @classmethod
    def parse(cls, text: str | int | "Topology", size: int | None = None) -> "Topology":
        """Read a topology from text.

        Args:
            text: ``"8"``, ``"2x4"``, ``"4x2x8"``, ``"3,5,4"``, ``"(2,3),(4)"`` or an int.
            size: number of ranks the topology must have, when known.

        Raises:
            ArgumentError: malformed text, an empty group, or another number of ranks.
        """
        if isinstance(text, Topology):
            topology = text
        elif isinstance(text, int) and not isinstance(text, bool):
            topology = cls(_positive(text, str(text)))
        elif isinstance(text, str):
            topology = cls(_parse(text))
        else:
            raise ArgumentError("topology", f"expected text such as '2x4', got {text!r}")
        if size is not None and topology.size != size:
            raise ArgumentError("topology", f"'{topology}' describes {topology.size} ranks, "
                                            f"the communicator has {size}",
                                "give one that sums to the communicator's size")
        return topology

    @property
    def size(self) -> int:
        """Number of ranks."""
        return _size(self.tree)

    @property
    def depth(self) -> int:
        """Number of levels: 1 when flat, 2 for nodes of ranks, and so on."""
        return _depth(self.tree)

    @property
    def children(self) -> tuple["Topology", ...]:
        """The groups one level down; empty when the topology is flat."""
        return tuple(Topology(g) for g in self.tree) if isinstance(self.tree, tuple) else ()

    def groups(self) -> list[range]:
        """Ranks of each outermost group; one range per rank when the topology is flat."""
        return list(self._ranges())

    def _ranges(self) -> Iterator[range]:
        start = 0
        for group in (self.tree if isinstance(self.tree, tuple) else (1,) * self.tree):
            yield range(start, start + _size(group))
            start += _size(group)

    def __str__(self) -> str:
        return _text(self.tree)


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


def _positive(number: int, text: str) -> int:
    if number < 1:
        raise ArgumentError("topology", f"'{text}' has a group of {number} ranks",
                            "every group needs at least one rank")
    return number


def _parse(text: str) -> Group:
    tokens, position = [], 0
    for match in iter(lambda: _TOKEN.match(text, position), None):
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
    """list := product ("," product)*"""
    tree, tokens = _product(tokens, text)
    groups = [tree]
    while tokens and tokens[0] == ",":
        tree, tokens = _product(tokens[1:], text)
        groups.append(tree)
    return (groups[0] if len(groups) == 1 else tuple(groups)), tokens


def _product(tokens: list[str], text: str) -> tuple[Group, list[str]]:
    """product := number ["x" product] | "(" list ")" """
    if not tokens or tokens[0] in "x,)":
        raise ArgumentError("topology", f"'{text}' lacks a number"
                            + (f" before '{tokens[0]}'" if tokens else " at its end"))
    if tokens[0] == "(":
        tree, rest = _list(tokens[1:], text)
        if not rest or rest[0] != ")":
            raise ArgumentError("topology", f"'{text}' lacks a ')'")
        return (tree if isinstance(tree, tuple) else (tree,)), rest[1:]
    count = _positive(int(tokens[0]), text)
    if len(tokens) > 1 and tokens[1] == "x":
        inner, rest = _product(tokens[2:], text)
        return (inner,) * count, rest
    return count, tokens[1:]
