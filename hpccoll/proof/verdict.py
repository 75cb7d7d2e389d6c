"""The verdict on results: what was wanted, and what the symbols in the output say.

:class:`Judge` judges one output after the other; :class:`Proof` is what holds of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpccoll.proof.memory_rules import Fault
from hpccoll.proof.symbols import GARBAGE, BlockPart, Symbol, SymbolTable


class Proof(NamedTuple):
    """What was proved about a schedule.

    Attributes:
        rank_order: contributions are combined in rank order: operators need not commute.
        replicas_identical: all ranks compute a shared result by the same association, so
            that floating-point results have the same bits everywhere.
        rounds: longest chain of dependent messages (the messages of a round are independent).
        sent: most elements sent by one rank, with one element per block.
        messages: most messages sent by one rank.
        network: what the network must be able to do: of :data:`hpccoll.ir.in_network.ABILITIES`.
    """

    rank_order: bool
    replicas_identical: bool
    rounds: int
    sent: int
    messages: int
    network: tuple[str, ...] = ()


class WantedElement(NamedTuple):
    """An element of the output: its block, its place in it, and the ranks that must contribute."""

    key: int
    element: int
    ranks: Sequence[int]


class Judge:
    """Judges results, one by one.

    Attributes:
        ordered: so far, all combine contributions in rank order.
        identical: so far, all ranks have combined the same elements alike.
    """

    def __init__(self, symbols: SymbolTable, fault: Fault):
        self.symbols, self.fault = symbols, fault
        self.ordered = self.identical = True
        self.first: dict[WantedElement, Symbol] = {}
        self.judged: dict[tuple[Symbol, WantedElement], bool] = {}

    def judge(self, rank: int, place: str, symbol: Symbol, wanted: WantedElement) -> None:
        """Judge one result.

        Raises:
            ProofError: it is not what is wanted there.
        """
        case = symbol, wanted
        if case not in self.judged:
            self.judged[case] = self._in_order(rank, place, symbol, wanted)
        self.ordered &= self.judged[case]
        self.identical &= self.symbols.associate_alike(self.first.setdefault(wanted, symbol),
                                                       symbol)

    def _in_order(self, rank: int, place: str, symbol: Symbol, wanted: WantedElement) -> bool:
        """Tell whether a result is in rank order; raise when it is wrong."""
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
