"""Closed forms that have a text and a value.

Operators combine symbols to formulas, so that text and value agree:

>>> print(2 * ceil_log2(p)), (2 * ceil_log2(p))(100)
2⌈log₂p⌉
(None, 14)

A call with a number of ranks or a topology, and the algorithm's parameters, returns the value, or
``None`` if the formula requires equal groups and they differ. Formulas are for two ranks and more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, TypeAlias

from hpccoll.algorithms.parts.trees import radix
from hpccoll.ir.topology import Topology

#: A closed form in (size or topology, **params).
ClosedForm: TypeAlias = Callable[..., "int | None"]
#: Operator precedence of a text, weakest first.
SENTENCE, SUM, PRODUCT, ATOM = range(4)


class UnequalGroups(Exception):
    """The groups differ, but the formula requires equal ones."""


class Scope(NamedTuple):
    """Values of the symbols of a formula.

    Attributes:
        where: the number of ranks, or the topology.
        params: the algorithm's parameters.
        bound: the variables of sums.
    """

    where: int | Topology
    params: Mapping[str, int]
    bound: Mapping[str, int] = {}

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.where if isinstance(self.where, int) else self.where.size

    @property
    def levels(self) -> list[int]:
        """Return the number of groups in a group, by level, outermost first.

        Raises:
            UnequalGroups: groups of a level differ.
        """
        tree = self.where if isinstance(self.where, int) else self.where.tree
        numbers = []
        while isinstance(tree, tuple):
            if len(set(tree)) > 1:
                raise UnequalGroups
            numbers += [len(tree)] if len(tree) > 1 else []
            tree = tree[0]
        return [*numbers, tree] if tree > 1 else numbers or [1]


@dataclass(frozen=True)
class Formula:
    """Closed form.

    Attributes:
        text: its text.
        value: function of a :class:`Scope`.
        binding: operator precedence of the text, for brackets.
    """

    text: str
    value: Callable[[Scope], int] = field(compare=False, repr=False)
    binding: int = ATOM

    def __call__(self, where: int | Topology, **params: int) -> int | None:
        try:
            return self.value(Scope(where, params))
        except UnequalGroups:
            return None

    def __str__(self) -> str:
        return self.text

    def as_operand(self, binding: int) -> str:
        """Return the text as an operand, in brackets if the precedence requires them."""
        return self.text if self.binding >= binding else f"({self.text})"

    def __add__(self, other: Formula | int) -> Formula:
        right = number(other)
        return Formula(f"{self.as_operand(SUM)} + {right.as_operand(SUM)}",
                       lambda s: self.value(s) + right.value(s), SUM)

    def __radd__(self, other: int) -> Formula:
        return number(other) + self

    def __sub__(self, other: Formula | int) -> Formula:
        right = number(other)
        return Formula(f"{self.as_operand(SUM)} - {right.as_operand(PRODUCT)}",
                       lambda s: self.value(s) - right.value(s), SUM)

    def __mul__(self, other: Formula) -> Formula:
        return Formula(self.as_operand(PRODUCT) + other.as_operand(PRODUCT),
                       lambda s: self.value(s) * other.value(s), PRODUCT)

    def __rmul__(self, other: int) -> Formula:
        return number(other) * self

    def __truediv__(self, other: Formula | int) -> Formula:
        """Return the quotient; the division has no remainder."""
        right = number(other)
        return Formula(f"{self.as_operand(PRODUCT)}/{right.as_operand(ATOM)}",
                       lambda s: self.value(s) // right.value(s), PRODUCT)


def number(value: Formula | int) -> Formula:
    """Return a constant."""
    return value if isinstance(value, Formula) else Formula(str(value), lambda s: value)


def parameter(name: str) -> Formula:
    """Return a parameter of the algorithm."""
    return Formula(name, lambda s: s.params[name])


def bound_variable(name: str, text: str) -> Formula:
    """Return the variable of a sum."""
    return Formula(text, lambda s: s.bound[name])


# -- symbols -----------------------------------------------------------------------------------
#: Ranks; the same if groups are equal; the largest power of two, and the largest even number, that
#: are not larger; 1 unless the number of ranks is a power of two (some ranks are folded), else 0.
p = Formula("p", lambda s: s.size)
p_equal = Formula("p", lambda s: prod(s.levels))
P = Formula("P", lambda s: _power(s.size))
even = Formula("p′", lambda s: s.size - s.size % 2)
f = Formula("f", lambda s: _fold_number(s.size))
#: Groups of the outermost level, ranks of each, f of the number of groups; groups at another level.
m0 = Formula("m₀", lambda s: s.levels[0])
g = Formula("g", lambda s: s.size // s.levels[0])
f0 = Formula("f₀", lambda s: _fold_number(s.levels[0]))
m = bound_variable("m", "mᵢ")
#: 1, 2, 4, ... P/2.
d = bound_variable("d", "d")
k, n, batch = parameter("k"), parameter("n"), parameter("batch")
#: Meanings of the symbols.
LEGEND = {
    "p": "ranks", "P": "the largest power of two up to p", "f": "1 if p > P, else 0",
    "p′": "p rounded down to an even number", "d": "1, 2, 4, ... P/2",
    "m₀": "groups of the outermost level", "g": "ranks in each of them, p/m₀",
    "f₀": "f of m₀ instead of p", "mᵢ": "groups in a group at each further level",
    "k, n, batch": "parameters of the algorithm", "[...]": "1 if the condition holds, else 0"}


# -- functions ---------------------------------------------------------------------------------
def floor_log2(x: Formula) -> Formula:
    """Return the logarithm to base 2, rounded down."""
    return Formula(f"⌊log₂{x.as_operand(ATOM)}⌋", lambda s: max(x.value(s), 1).bit_length() - 1)


def ceil_log2(x: Formula) -> Formula:
    """Return the logarithm to base 2, rounded up."""
    return Formula(f"⌈log₂{x.as_operand(ATOM)}⌉", lambda s: (max(x.value(s), 1) - 1).bit_length())


def floor_log(base: Formula, x: Formula) -> Formula:
    """Return the logarithm to another base, rounded down."""
    def value(s: Scope) -> int:
        most, by, exponent = x.value(s), radix(base.value(s)), 0
        power = by
        while power <= most:
            power, exponent = power * by, exponent + 1
        return exponent

    return Formula(f"⌊{_log(base)}{x.as_operand(ATOM)}⌋", value)


def ceil_log(base: Formula, x: Formula) -> Formula:
    """Return the logarithm to another base, rounded up."""
    def value(s: Scope) -> int:
        wanted, by, power, exponent = x.value(s), radix(base.value(s)), 1, 0
        while power < wanted:
            power, exponent = power * by, exponent + 1
        return exponent

    return Formula(f"⌈{_log(base)}{x.as_operand(ATOM)}⌉", value)


def _log(base: Formula) -> str:
    return "logₖ" if base.text == "k" else f"log_{base.as_operand(ATOM)} "


def floor_div(x: Formula, y: Formula | int) -> Formula:
    """Return a quotient, rounded down."""
    by = number(y)
    return Formula(f"⌊{x.as_operand(PRODUCT)}/{by.as_operand(ATOM)}⌋",
                   lambda s: x.value(s) // by.value(s))


def ceil_div(x: Formula, y: Formula | int) -> Formula:
    """Return a quotient, rounded up."""
    by = number(y)
    return Formula(f"⌈{x.as_operand(PRODUCT)}/{by.as_operand(ATOM)}⌉",
                   lambda s: -(-x.value(s) // by.value(s)))


def least(x: Formula, y: Formula | int) -> Formula:
    """Return the minimum."""
    other = number(y)
    return Formula(f"min({x}, {other})", lambda s: min(x.value(s), other.value(s)))


def more_than(x: Formula, y: int) -> Formula:
    """Return 1 if ``x`` is larger than ``y``, else 0."""
    return Formula(f"[{x} > {y}]", lambda s: int(x.value(s) > y))


def if_odd(odd: Formula, otherwise: Formula) -> Formula:
    """Return the first formula for odd numbers of ranks, the second for even ones."""
    return Formula(f"{otherwise}, or {odd} for odd p",
                   lambda s: (odd if s.size % 2 else otherwise).value(s), SENTENCE)


def inner(x: Formula) -> Formula:
    """Return the sum over all levels except the outermost; ``m`` is a level's number of groups."""
    return _sum(x, "m", lambda s: s.levels[1:])


def doubling_sum(x: Formula) -> Formula:
    """Return the sum over ``d`` = 1, 2, 4, ... P/2."""
    return _sum(x, "d", lambda s: [1 << i for i in range(s.size.bit_length() - 1)])


def _sum(x: Formula, variable: str, values: Callable[[Scope], list[int]]) -> Formula:
    return Formula(f"Σ{x.as_operand(PRODUCT)}", lambda s: sum(
        x.value(s._replace(bound={variable: value})) for value in values(s)), PRODUCT)


# -- relations ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Relation:
    """Value of a function, and its relation to a formula: ``=``, ``≤`` or ``≥``; tests check it."""

    compute: ClosedForm = field(repr=False)
    relation: str
    statement: Formula

    def __call__(self, where: int | Topology, **params: int) -> int | None:
        return self.compute(where, **params)

    def __str__(self) -> str:
        return self.statement.text if self.relation == "=" else f"{self.relation} {self.statement}"


def _power(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _fold_number(number: int) -> int:
    return int(number & (number - 1) != 0)
