"""Symbols: what an element of memory holds while a schedule is proved, with its whole history.

A symbol is an integer. A negative one is a contribution: one element of one rank's block. Others
are the combination ``left op right`` of two symbols, numbered once for each pair, so equal symbols
have equal histories. ``GARBAGE`` is memory that was never written, and anything combined with it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TypeAlias

#: A contribution, a combination, or garbage.
Symbol: TypeAlias = "int | None"
#: The symbol of memory that was never written.
GARBAGE = None


class SymbolTable:
    """The symbols of one proof.

    Args:
        size: number of ranks.
        size_of: elements of a block, by its key.
        keys: number of block keys.
    """

    def __init__(self, size: int, size_of: Callable[[int], int], keys: int):
        self.size = size
        self.base = list(accumulate(map(size_of, range(keys)), initial=0))
        self.known: dict[tuple[int, int], int] = {}
        self.operands: list[tuple[int, int]] = []
        self.canonical: dict[int, int] = {}

    def contribution(self, key: int, element: int, rank: int) -> int:
        """A rank's element of a block: negative, so never mistaken for a combination."""
        return -1 - ((self.base[key] + element) * self.size + rank)

    def combine(self, left: Symbol, right: Symbol) -> Symbol:
        """``left op right``."""
        return GARBAGE if left is GARBAGE or right is GARBAGE else self._pair(left, right)

    def _pair(self, left: int, right: int) -> int:
        symbol = self.known.setdefault((left, right), len(self.operands))
        if symbol == len(self.operands):
            self.operands.append((left, right))
        return symbol

    def leaves(self, symbol: int, most: int) -> list[int]:
        """Contributions of a symbol from left to right; stops after ``most``."""
        contributions: list[int] = []
        stack = [symbol]
        while stack and len(contributions) < most:
            top = stack.pop()
            if top < 0:
                contributions.append(top)
            else:
                left, right = self.operands[top]
                stack += (right, left)
        return contributions

    def associate_alike(self, one: Symbol, other: Symbol) -> bool:
        """Tell whether two results have the same bits: the same association, however ordered."""
        return one == other or (one is not GARBAGE and other is not GARBAGE
                                and self.unordered(one) == self.unordered(other))

    def unordered(self, symbol: int) -> int:
        """The same association with operands in canonical order: ``a+b`` equals ``b+a``."""
        done, stack = self.canonical, [symbol]
        while stack:
            top = stack[-1]
            if top < 0 or top in done:
                stack.pop()
                continue
            missing = [o for o in self.operands[top] if o >= 0 and o not in done]
            if missing:
                stack += missing
                continue
            left, right = sorted(o if o < 0 else done[o] for o in self.operands[top])
            ordered = self._pair(left, right)
            done[top] = done[ordered] = ordered
            stack.pop()
        return symbol if symbol < 0 else done[symbol]

    def describe(self, contributions: list[int]) -> str:
        """The first contributions, for people: ``rank 1's block 0, rank 2's block 0 ...``."""
        words = []
        for leaf in contributions[:8]:
            cell, rank = divmod(-1 - leaf, self.size)
            key = next(k for k, end in enumerate(self.base[1:]) if end > cell)
            words.append(f"rank {rank}'s block {key}")
        return ", ".join(words) + (" ..." if len(contributions) > 8 else "")
