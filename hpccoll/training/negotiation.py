"""Negotiation: which arrays are ready on every rank, where ranks bring them in any order.

After Horovod's response cache (``horovod/common/response_cache.cc``): an array that all ranks have
brought once has a *slot*, the same on all ranks. A vote is one bitwise-AND reduction of a vector
with a bit for each slot, which is a few bytes however many arrays there are. Only arrays without a
slot are described in full, to all ranks, in a second message that every rank reads alike - there
is no coordinator - and every rank finds the same disagreement, with the ranks on each side.

    bits(...) --AND over ranks--> agreed(...) --somebody has something new--> announced(...)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from hpccoll.errors import ExchangeMismatch
from hpccoll.units import ranks_text

#: Slots kept, the least recently used go first; a vote is so many bits at most.
MOST_SLOTS = 4096
#: The first words of a vote: status, completed transfers in unary.
STATUS, COMPLETED, SLOTS = 0, 1, 2
#: Bits of the status: nothing new here, no data any more.
NOTHING_NEW, JOINED = numpy.uint64(1), numpy.uint64(2)
WORD = 64


class Offer(NamedTuple):
    """What a rank says of arrays that it has brought under one name.

    Attributes:
        name: of the array, or of the group.
        shapes: of the arrays, one unless it is a group.
        dtype: of their elements.
        op, prescale, postscale: what is computed.
        priority: smaller ones first, where priorities count.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    op: str
    prescale: float
    postscale: float
    priority: int = 0

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Offer:
        """An offer that came as a list."""
        name, shapes, *others = fields
        return cls(name, tuple(map(tuple, shapes)), *others)

    def difference(self, other: Offer) -> str:
        """What differs from another offer, in words; empty if nothing does."""
        parts = [f"{what} {mine} and {theirs}" for what, mine, theirs in zip(
            self._fields[1:], self[1:], other[1:]) if mine != theirs]
        return ", ".join(parts)


class Registry:
    """What all ranks know of each other's arrays: the same on every rank.

    It changes by what votes say only, never by what one rank does.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int):
        self.size = size
        self.slots: dict[str, int] = {}
        self.offers: dict[str, Offer] = {}
        self._free: list[int] = []
        self._announced: dict[str, dict[int, Offer]] = {}

    @property
    def words(self) -> int:
        """Length of a vote."""
        return SLOTS + -(-(len(self.slots) + len(self._free)) // WORD)

    def knows(self, offer: Offer) -> bool:
        """Tell whether an offer has a slot, and is the one in it."""
        return self.offers.get(offer.name) == offer

    def described(self, offer: Offer, rank: int) -> bool:
        """Tell whether a rank has described an offer that others have not brought yet."""
        return self._announced.get(offer.name, {}).get(rank) == offer

    def bits(self, ready: Iterable[Offer], new: bool, joined: bool, completed: int
             ) -> numpy.ndarray:
        """The vote of a rank.

        Args:
            ready: what it has brought and knows.
            new: it has brought what it does not know, or says something for the first time.
            joined: it has no data any more, and agrees to everything.
            completed: transfers that have ended here, of those under way, from the oldest on.
        """
        vote = numpy.zeros(self.words, numpy.uint64)
        if joined:
            vote[SLOTS:] = ~numpy.uint64(0)
        vote[STATUS] = (0 if new else NOTHING_NEW) | (JOINED if joined else numpy.uint64(0))
        vote[COMPLETED] = numpy.uint64((1 << min(completed, WORD)) - 1)
        for offer in ready:
            word, bit = divmod(self.slots[offer.name], WORD)
            vote[SLOTS + word] |= numpy.uint64(1 << bit)
        return vote

    def agreed(self, vote: numpy.ndarray) -> list[str]:
        """Names that are ready on every rank, by the outcome of a vote, in the order of slots."""
        words = vote.tolist()
        names = [name for name, slot in self.slots.items()
                 if words[SLOTS + slot // WORD] >> slot % WORD & 1]
        for name in names:  # to the end: used last
            self.slots[name] = self.slots.pop(name)
        return sorted(names, key=self.slots.__getitem__)

    def announced(self, offers: Sequence[Iterable[Offer]], joined: Sequence[bool]) -> list[str]:
        """Take in what ranks have described in full; the names that are ready everywhere by it.

        Args:
            offers: of each rank, what it had not described before.
            joined: which ranks have no data any more.

        Raises:
            ExchangeMismatch: ranks disagree on an array; names it and the ranks.
        """
        for rank, some in enumerate(offers):
            for offer in some:
                # Who holds it ready as it was before has to describe it now, and is compared.
                self._evict(offer.name)
                self._announced.setdefault(offer.name, {})[rank] = offer
        ready = []
        for name, by_rank in list(self._announced.items()):
            _compare(name, by_rank)
            if all(rank in by_rank or joined[rank] for rank in range(self.size)):
                del self._announced[name]
                self._admit(next(iter(by_rank.values())))
                ready.append(name)
        return ready

    def missing(self, name: str) -> tuple[int, ...]:
        """Ranks that have not described an array that others have."""
        by_rank = self._announced.get(name, {})
        return tuple(rank for rank in range(self.size) if rank not in by_rank) if by_rank else ()

    def _admit(self, offer: Offer) -> None:
        if len(self.slots) >= MOST_SLOTS:
            self._evict(next(iter(self.slots)))
        self.slots[offer.name] = self._free.pop() if self._free else len(self.slots)
        self.offers[offer.name] = offer

    def _evict(self, name: str) -> None:
        if name in self.slots:
            self._free.append(self.slots.pop(name))
            del self.offers[name]


def completed_everywhere(vote: numpy.ndarray) -> int:
    """Transfers that have ended on all ranks, by the outcome of a vote."""
    return int(vote[COMPLETED]).bit_count()


def _compare(name: str, by_rank: Mapping[int, Offer]) -> None:
    sides: dict[Offer, list[int]] = {}
    for rank, offer in by_rank.items():
        sides.setdefault(offer, []).append(rank)
    if len(sides) > 1:
        (one, ranks), (other, others) = list(sides.items())[:2]
        raise ExchangeMismatch(
            f"array '{name}' differs between ranks: {one.difference(other)} ({ranks_text(ranks)} "
            f"and {ranks_text(others)}); pass the same array on all ranks", (name,),
            tuple(sorted(by_rank)))
