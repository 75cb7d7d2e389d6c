"""Errors of checks of data: corrupt, unequal or not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpccoll.errors import MOST_NAMED, HpccollError, NonFiniteError
from hpccoll.errors.waits import rank_list

__all__ = ["CorruptMessage", "NonFiniteInput", "UnequalError"]


class CorruptMessage(HpccollError, RuntimeError):
    """A received message differs from the sent one, or another message arrived.

    Attributes:
        sender, receiver: ranks of the message.
        number: index of the message between these ranks with this tag, from 1.
        round: round of the collective; ``None`` if unknown.
    """

    def __init__(self, problem: str, sender: int, receiver: int, number: int,
                 round: int | None = None):
        self.sender, self.receiver, self.number, self.round = sender, receiver, number, round
        where = "" if round is None else f" in round {round}"
        super().__init__(
            f"message {number} from rank {sender} to rank {receiver}{where} {problem}; "
            "check the memory, network and drivers between these ranks")


class NonFiniteInput(NonFiniteError):
    """Inputs of a reduction contain NaN or infinity; raised on every rank before it starts.

    Attributes:
        ranks: the ranks with such inputs.
        collective: the method.
    """

    def __init__(self, collective: str, site: str, values: Mapping[int, str]):
        self.collective = collective
        some = "; ".join(f"rank {rank}: {text}" for rank, text in list(values.items())[:MOST_NAMED])
        more = f"; and {len(values) - MOST_NAMED} more ranks" if len(values) > MOST_NAMED else ""
        where = f" at {site}" if site else ""
        super().__init__(f"inputs of {collective}{where} contain NaN or infinity: {some}{more}; "
                         "check the values that these ranks computed, or unset HPCCOLL_CHECK",
                         tuple(values))


class UnequalError(HpccollError, ValueError):
    """Data that must be equal differs between ranks; raised on every rank.

    Attributes:
        groups: ranks with equal data, the largest group first.
        ranks: those that differ from the majority; empty without a majority.
    """

    def __init__(self, what: str, groups: Sequence[tuple[tuple[int, ...], str]]):
        groups = sorted(groups, key=lambda group: (-len(group[0]), group[0]))
        self.groups = tuple(ranks for ranks, _ in groups)
        clear = len(self.groups[0]) > len(self.groups[1])
        self.ranks = tuple(sorted(rank for ranks in self.groups[1:] for rank in ranks)
                           ) if clear else ()
        ordered = [*groups[1:], groups[0]] if clear else groups
        text = "; ".join(f"{rank_list(ranks)}: {text}" for ranks, text in ordered[:MOST_NAMED])
        super().__init__(f"ranks have different {what}: {text}; check how these ranks computed or "
                         "received them")
