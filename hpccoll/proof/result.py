"""Comparison of the output's symbols with the specification.

:class:`Judge` checks one output after the other; :class:`Proof` has the common properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpccoll.proof.memory_rules import Fault
from hpccoll.proof.symbols import GARBAGE, BlockPart, Symbol, SymbolTable


class Proof(NamedTuple):
    """Proved properties of a schedule.

    Attributes:
        rank_order: True if contributions are combined in rank order: operators need not commute.
        replicas_identical: True if all ranks compute a shared result by the same association, so
            that floating-point results have the same bits everywhere.
        rounds: longest chain of dependent messages (the messages of a round are independent).
        sent: maximum elements sent by one rank, with one element per block.
        messages: maximum messages sent by one rank.
        network: required abilities of the network: of :data:`hpccoll.ir.in_network.ABILITIES`.
    """

    rank_order: bool
    replicas_identical: bool
    rounds: int
    sent: int
    messages: int
    network: tuple[str, ...] = ()


class WantedElement(NamedTuple):
    """An element of the output: its block, its index there, and the required contributors."""

    key: int
    element: int
    ranks: Sequence[int]


class Judge:
    """Checks results, one by one.

    Attributes:
        ordered: True while all results combine contributions in rank order.
        identical: True while all ranks combine the same elements by the same association.
    """

    def __init__(self, symbols: SymbolTable, fault: Fault):
        self.symbols, self.fault = symbols, fault
        self.ordered = self.identical = True
        self.first: dict[WantedElement, Symbol] = {}
        self.judged: dict[tuple[Symbol, WantedElement], bool] = {}

    def judge(self, rank: int, place: str, symbol: Symbol, wanted: WantedElement) -> None:
        """Check one result."""
        case = symbol, wanted
        if case not in self.judged:
            self.judged[case] = self._in_order(rank, place, symbol, wanted)
        self.ordered &= self.judged[case]
        self.identical &= self.symbols.associate_alike(self.first.setdefault(wanted, symbol),
                                                       symbol)

    def _in_order(self, rank: int, place: str, symbol: Symbol, wanted: WantedElement) -> bool:
        """Return True if a result is in rank order; raise if it is wrong."""
        key, element, ranks = wanted
        where = f"{place} (block {key}, element {element})"
        if symbol is GARBAGE:
            raise self.fault(f"{where} was never written", rank)
        if isinstance(symbol, BlockPart):
            raise self.fault(f"{where} holds parts of blocks of other sizes", rank)
        expected = [self.symbols.contribution(key, element, r) for r in ranks]
        leaves = self.symbols.leaves(symbol, len(expected) + 1)
        if leaves == expected:
            return self.symbols.in_order(symbol)
        if sorted(leaves) != sorted(expected):
            raise self.fault(f"{where} holds {self.symbols.describe(leaves)} instead of the "
                             f"contributions of ranks {list(ranks)}, once each", rank)
        return False
