"""Sizes of blocks as symbols, to lower a program once for blocks of any size.

A :class:`Size` is a number of elements: a constant plus multiples of the sizes of blocks, which are
all at least 1. Lowering and encoding accept it instead of an ``int``. A comparison whose result is
not the same for all sizes raises :class:`UndecidedError`: then there is no common form.

>>> block = Size.of(0)
>>> 2 * block + Size.of(1) > block, (2 * block).at([5])
(True, 10)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class UndecidedError(ArithmeticError):
    """Raised if a comparison of sizes depends on the sizes of the blocks."""


class Size:
    """A number of elements: ``constant + sum(factor * block size)``; immutable.

    Attributes:
        factors: nonzero factors, by block.
        constant: the part that does not depend on any block.
    """

    __slots__ = "constant", "factors"

    def __init__(self, factors: Mapping[int, int], constant: int = 0):
        self.factors = {block: factor for block, factor in factors.items() if factor}
        self.constant = constant

    @classmethod
    def of(cls, block: int) -> Size:
        return cls({block: 1})

    def at(self, sizes: Sequence[int]) -> int:
        """Return the number for the sizes of all blocks."""
        return self.constant + sum(factor * sizes[block] for block, factor in self.factors.items())

    def __add__(self, other: Size | int) -> Size:
        if isinstance(other, int):
            return Size(self.factors, self.constant + other)
        blocks = {*self.factors, *other.factors}
        return Size({block: self.factors.get(block, 0) + other.factors.get(block, 0)
                     for block in blocks}, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, times: int) -> Size:
        return Size({block: times * factor for block, factor in self.factors.items()},
                    times * self.constant)

    __rmul__ = __mul__

    def __sub__(self, other: Size | int) -> Size:
        return self + other * -1

    def __rsub__(self, other: int) -> Size:
        return self * -1 + other

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Size):
            return self.factors == other.factors and self.constant == other.constant
        return not self.factors and self.constant == other

    def __hash__(self) -> int:
        return hash((frozenset(self.factors.items()), self.constant))

    def __bool__(self) -> bool:
        return not self == 0

    def __gt__(self, other: Size | int) -> bool:
        more = self - other
        if more._least() > 0:
            return True
        if (more * -1)._least() >= 0:
            return False
        raise UndecidedError(f"{self} > {other}")

    def __lt__(self, other: Size | int) -> bool:
        return self * -1 > other * -1

    def __ge__(self, other: Size | int) -> bool:
        return not self < other

    def __le__(self, other: Size | int) -> bool:
        return not self > other

    def _least(self) -> float:
        """Return the smallest value for any sizes of blocks."""
        if any(factor < 0 for factor in self.factors.values()):
            return float("-inf")
        return self.constant + sum(self.factors.values())

    def __repr__(self) -> str:
        return " + ".join([f"{factor}*n{block}" for block, factor in sorted(self.factors.items())]
                          + [str(self.constant)] * bool(self.constant or not self.factors))


def maximum(one: Any, other: Any) -> Any:
    """Return the larger of two numbers; a number that is not smaller than either, if undecided.

    >>> maximum(2, 3), maximum(Size.of(0), Size.of(1))
    (3, 1*n0 + 1*n1)
    """
    try:
        return one if one > other else other
    except UndecidedError:
        blocks = {*one.factors, *other.factors}
        return Size({block: max(one.factors.get(block, 0), other.factors.get(block, 0))
                     for block in blocks}, max(one.constant, other.constant))
