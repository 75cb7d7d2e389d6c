"""Symbols: contents of memory elements during a proof, with their whole history.

A symbol is an integer. A negative one is a contribution: one element of one rank's block. Others
are the combination ``left op right`` of two symbols, numbered once for each pair, so equal symbols
have equal histories. ``GARBAGE`` is memory that was never written, and anything combined with it.

If symbols stand for whole blocks, a message may also be received into blocks of the same sizes in
another order. A slot across the borders of blocks contains a :class:`BlockPart`, which is whole
again only if all parts are adjacent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

#: A contribution, a combination, a part of blocks, or garbage.
Symbol: TypeAlias = "int | BlockPart | None"
#: The symbol of memory that was never written.
GARBAGE = None


class BlockPart(NamedTuple):
    """Content of one of several slots that have received blocks across their borders.

    Attributes:
        pieces: the blocks, by key and symbol, in order.
        slots: the keys of the slots that hold them, in order.
        place: index of this slot among them.
    """

    pieces: tuple[tuple[int, Symbol], ...]
    slots: tuple[int, ...]
    place: int


def pieces_of(keys: Sequence[int], symbols: Sequence[Symbol]) -> list[tuple[int, Symbol]]:
    """Return the blocks in a row of slots, by key and symbol; complete parts are merged."""
    pieces: list[tuple[int, Symbol]] = []
    at = 0
    while at < len(symbols):
        symbol = symbols[at]
        if isinstance(symbol, BlockPart) and list(symbols[at:at + len(symbol.slots)]) == [
                symbol._replace(place=place) for place in range(len(symbol.slots))]:
            pieces += symbol.pieces
            at += len(symbol.slots)
        else:
            pieces.append((keys[at], symbol))
            at += 1
    return pieces


def write_pieces(keys: Sequence[int], pieces: Sequence[tuple[int, Symbol]]) -> list[Symbol]:
    """Return the symbols of slots after a row of as many blocks is written into them.

    If the slots so far have the same keys as the blocks so far, in any order, a slot and a block
    end at the same element, whatever the sizes. Only slots between two such positions have parts.
    """
    symbols: list[Symbol] = []
    apart: Counter[int] = Counter()  # by key, number of slots minus number of blocks so far
    for place, (key, (block, _)) in enumerate(zip(keys, pieces, strict=True), 1):
        for held, more in ((key, 1), (block, -1)):
            apart[held] += more
            if not apart[held]:
                del apart[held]
        if not apart:
            first = len(symbols)
            row, slots = tuple(pieces[first:place]), tuple(keys[first:place])
            symbols += ([row[0][1]] if len(row) == 1 else
                        [BlockPart(row, slots, number) for number in range(len(row))])
    return symbols


class SymbolTable:
    """Symbols of one proof.

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
        #: Symbols combined by a network in an unspecified order.
        self.unordered_ones: set[int] = set()

    def contribution(self, key: int, element: int, rank: int) -> int:
        """Return a rank's element of a block: negative, unlike a combination."""
        return -1 - ((self.base[key] + element) * self.size + rank)

    def combine(self, left: Symbol, right: Symbol) -> Symbol:
        if left.__class__ is int and right.__class__ is int:
            return self._pair(left, right)
        return GARBAGE

    def _pair(self, left: int, right: int) -> int:
        symbol = self.known.setdefault((left, right), len(self.operands))
        if symbol == len(self.operands):
            self.operands.append((left, right))
            if self.unordered_ones and not self.unordered_ones.isdisjoint((left, right)):
                self.unordered_ones.add(symbol)
        return symbol

    def aggregate(self, left: Symbol, right: Symbol) -> Symbol:
        """Return a new symbol of both, combined by a network in an unspecified order."""
        if left.__class__ is not int or right.__class__ is not int:
            return GARBAGE
        symbol = len(self.operands)
        self.operands.append((left, right))
        self.canonical[symbol] = symbol
        self.unordered_ones.add(symbol)
        return symbol

    def in_order(self, symbol: int) -> bool:
        """Return True if the schedule determines the order of combination."""
        return symbol not in self.unordered_ones

    def leaves(self, symbol: int, most: int) -> list[int]:
        """Return the contributions of a symbol from left to right; stops after ``most``."""
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
        """Return True if two results have the same bits: one association, operands in any order."""
        return one == other or (isinstance(one, int) and isinstance(other, int)
                                and self.canonical_form(one) == self.canonical_form(other))

    def canonical_form(self, symbol: int) -> int:
        """Return the same association with operands in canonical order: ``a+b`` equals ``b+a``."""
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
        """Return a text of the first contributions: ``rank 1's block 0, rank 2's block 0 ...``."""
        words = []
        for leaf in contributions[:8]:
            cell, rank = divmod(-1 - leaf, self.size)
            key = next(k for k, end in enumerate(self.base[1:]) if end > cell)
            words.append(f"rank {rank}'s block {key}")
        return ", ".join(words) + (" ..." if len(contributions) > 8 else "")
