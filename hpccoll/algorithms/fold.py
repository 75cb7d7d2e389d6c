"""Folding: how algorithms for a power of two serve any number of ranks.

With ``p = P + e`` ranks, P the largest power of two, the first 2e ranks form pairs. The even
rank of a pair hands its contribution to the odd one and waits; the P ranks that are left get
consecutive virtual ranks. Pairs are neighbours, so the order of contributions is kept.
Source: MPICH, Open MPI (recursive doubling). Extra: 2 rounds, n sent before and n after.
"""

from __future__ import annotations

from hpccoll.schedule import LEFT, Round, Span, recv, send


class Fold:
    """Ranks 0..size-1 mapped onto a power of two of virtual ranks."""

    def __init__(self, size: int):
        self.size = size
        self.power = 1 << (size.bit_length() - 1)
        self.extra = size - self.power

    def virtual(self, rank: int) -> int | None:
        """Virtual rank, or ``None`` for a rank that waits outside."""
        if rank >= 2 * self.extra:
            return rank - self.extra
        return rank // 2 if rank % 2 else None

    def real(self, virtual: int) -> int:
        """The rank that plays a virtual rank."""
        return 2 * virtual + 1 if virtual < self.extra else virtual + self.extra

    def members(self, virtual: int) -> range:
        """The rank or pair of ranks that a virtual rank stands for."""
        last = self.real(virtual)
        return range(last - 1 if virtual < self.extra else last, last + 1)

    def distances(self) -> list[int]:
        """1, 2, 4, ... below the power of two."""
        return [1 << i for i in range(self.power.bit_length() - 1)]

    def reduce_in(self, rank: int, *spans: Span) -> list[Round]:
        """The round in which pairs combine, lower rank's operand first."""
        if rank >= 2 * self.extra:
            return []
        if rank % 2:
            return [(recv(rank - 1, *spans, reduce=LEFT),)]
        return [(send(rank + 1, *spans),)]

    def copy_out(self, rank: int, *spans: Span) -> list[Round]:
        """The round in which the ranks outside get the result."""
        if rank >= 2 * self.extra:
            return []
        return [(send(rank - 1, *spans),)] if rank % 2 else [(recv(rank + 1, *spans),)]
