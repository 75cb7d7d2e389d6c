"""Negotiation: agree on arrays that are ready on all ranks; scheduling by priority.

As in Horovod's response cache (``horovod/common/response_cache.cc``), an array that all ranks have
submitted once has a *slot*, the same on all ranks. A vote is one bitwise-AND allreduce of a vector
with one bit for each slot. Only arrays without a slot are described in full, in a second message to
all ranks. There is no coordinator: every rank reads the same messages and detects the same
mismatch, with the ranks on each side.

    bits(...) --AND over ranks--> agreed(...) --a rank has a new array--> announced(...)
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from hpccoll.errors import ExchangeMismatch
from hpccoll.units import ranks_text

#: Largest number of slots, and of bits in a vote; the least recently used slot is evicted.
MOST_SLOTS = 4096
#: First words of a vote: status, and completed transfers in unary.
STATUS, COMPLETED, SLOTS = 0, 1, 2
#: Status bits: this rank has no new array; this rank has joined.
NOTHING_NEW, JOINED = numpy.uint64(1), numpy.uint64(2)
WORD = 64


class Offer(NamedTuple):
    """Description of arrays that a rank has submitted under one name.

    Attributes:
        shapes: shapes of the arrays; one unless it is a group.
        dtype: dtype of the elements.
        priority: smaller values are sent first, in priority order.
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
        """Return an offer from the list of its fields."""
        name, shapes, *others = fields
        return cls(name, tuple(map(tuple, shapes)), *others)

    def difference(self, other: Offer) -> str:
        """Return a text of the differences from another offer; empty if equal."""
        parts = [f"{what} {mine} and {theirs}" for what, mine, theirs in zip(
            self._fields[1:], self[1:], other[1:]) if mine != theirs]
        return ", ".join(parts)


class Registry:
    """Replicated state of the negotiation, identical on every rank.

    Only the results of votes change it, never a local event.
    """

    def __init__(self, size: int):
        self.size = size
        self.slots: dict[str, int] = {}
        self.offers: dict[str, Offer] = {}
        self._free: list[int] = []
        self._descriptions: dict[str, dict[int, Offer]] = {}

    @property
    def words(self) -> int:
        """Length of a vote in words."""
        return SLOTS + -(-(len(self.slots) + len(self._free)) // WORD)

    def has_offer(self, offer: Offer) -> bool:
        """Return True if an offer has a slot and equals the offer in it."""
        return self.offers.get(offer.name) == offer

    def is_described(self, offer: Offer, rank: int) -> bool:
        """Return True if a rank has described an offer that is not ready on all ranks."""
        return self._descriptions.get(offer.name, {}).get(rank) == offer

    def bits(self, ready: Iterable[Offer], new: bool, joined: bool, completed: int
             ) -> numpy.ndarray:
        """Return the vote of this rank; one that has joined agrees to all arrays."""
        vote = numpy.zeros(self.words, numpy.uint64)
        if joined:
            vote[SLOTS:] = ~numpy.uint64(0)
        vote[STATUS] = (0 if new else NOTHING_NEW) | (JOINED if joined else numpy.uint64(0))
        vote[COMPLETED] = numpy.uint64((1 << min(completed, WORD)) - 1)
        for offer in ready:
            word, bit = divmod(self.slots[offer.name], WORD)
            vote[SLOTS + word] |= numpy.uint64(1 << bit)
        return vote

    def ready_names(self, vote: numpy.ndarray) -> list[str]:
        """Return the names that a vote found ready on all ranks, in slot order."""
        words = vote.tolist()
        names = [name for name, slot in self.slots.items()
                 if words[SLOTS + slot // WORD] >> slot % WORD & 1]
        for name in names:  # to the end: most recently used
            self.slots[name] = self.slots.pop(name)
        return sorted(names, key=self.slots.__getitem__)

    def add_descriptions(self, offers: Sequence[Iterable[Offer]],
                         joined: Sequence[bool]) -> list[str]:
        """Process full descriptions of all ranks; return the names that are now ready on all."""
        for rank, some in enumerate(offers):
            for offer in some:
                # Ranks that voted for the old description must describe it now, for the comparison.
                self._evict(offer.name)
                self._descriptions.setdefault(offer.name, {})[rank] = offer
        ready = []
        for name, by_rank in list(self._descriptions.items()):
            _compare(name, by_rank)
            if all(rank in by_rank or joined[rank] for rank in range(self.size)):
                del self._descriptions[name]
                self._admit(next(iter(by_rank.values())))
                ready.append(name)
        return ready

    def missing_ranks(self, name: str) -> tuple[int, ...]:
        """Return the ranks that have not described an array that others have."""
        by_rank = self._descriptions.get(name, {})
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
    """Return the number of transfers that a vote found completed on all ranks."""
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


class ArrayPart(NamedTuple):
    """Elements ``start`` to ``stop`` of an array; sorts in the order of sending."""

    priority: int
    number: int
    start: int
    stop: int
    name: str
    kind: tuple[object, ...]
    nbytes: int


class PriorityScheduler:
    """Scheduler that picks the next pieces to send, by priority within a credit.

    After ByteScheduler (Peng et al., SOSP 2019): the ready piece with the smallest priority number
    is sent next while there is credit, which may be exceeded once; a completed piece returns its
    bytes. An urgent array that becomes ready late waits for no more than the credit in flight.
    Ranks that add the same arrays and complete the same transfers in the same order pick the same
    transfers.

    Args:
        partition_bytes: largest size of a piece; 0 for whole arrays.
        fusion_bytes: largest size of pieces that are sent together.
        credit_bytes: bytes in flight at a time; 0 for no limit.
    """

    def __init__(self, partition_bytes: int, fusion_bytes: int, credit_bytes: int):
        self.partition_bytes, self.fusion_bytes = partition_bytes, fusion_bytes
        self.credit_bytes = credit_bytes
        self._pieces: list[ArrayPart] = []
        self._under_way: deque[int] = deque()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, name: str, count: int, itemsize: int, priority: int,
            kind: tuple[object, ...], whole: bool = False) -> int:
        """Partition an array of ``count`` elements; return the number of pieces."""
        length = max(count, 1)
        if self.partition_bytes and not whole:
            length = max(self.partition_bytes // itemsize, 1)
        starts = range(0, max(count, 1), length)
        for start in starts:
            stop = min(start + length, count)
            heapq.heappush(self._pieces, ArrayPart(priority, self._numbers, start, stop, name, kind,
                                              (stop - start) * itemsize))
            self._numbers += 1
        return len(starts)

    def complete(self, transfers: int) -> None:
        """Return the credit of the oldest transfers in flight."""
        for _ in range(transfers):
            self._under_way.popleft()

    def pick(self) -> list[list[ArrayPart]]:
        """Return the transfers to start; neighbours of one kind are fused up to the limit."""
        transfers: list[list[ArrayPart]] = []
        left, held = self.credit_bytes - sum(self._under_way), 0
        while self._pieces and (not self.credit_bytes or left > 0):
            piece = heapq.heappop(self._pieces)
            left -= piece.nbytes
            if (transfers and transfers[-1][0].kind == piece.kind
                    and held + piece.nbytes <= self.fusion_bytes):
                transfers[-1].append(piece)
                held += piece.nbytes
            else:
                transfers.append([piece])
                held = piece.nbytes
        if self.credit_bytes:
            self._under_way += [sum(piece.nbytes for piece in pieces) for pieces in transfers]
        return transfers
