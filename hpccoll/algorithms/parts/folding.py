"""Folding: runs algorithms for special numbers of ranks, such as powers of two, on any number.

The p ranks form P groups of neighbours, P <= p, of nearly equal sizes, larger ones first. The last
rank of a group (or the root) reduces the contributions of the others, acts as the virtual rank,
and sends the result back. Groups are contiguous, so rank order is kept. By default P is the largest
power of two: p - P pairs, then single ranks.
Source: MPICH and Open MPI (pairs, recursive doubling); MPICH recexch (larger groups).
Extra: 2 rounds; every rank but the leaders sends n before, and every leader n to each of them
after.
"""

from __future__ import annotations

from hpccoll.ir.schedule import LEFT, RIGHT, Round, Span, recv, send


class Fold:
    """Ranks 0..size-1 mapped onto ``power`` virtual ranks."""

    def __init__(self, size: int, power: int | None = None, root: int | None = None):
        self.size, self.root = size, root
        self.power = power or 1 << (size.bit_length() - 1)
        self.width, self.extra = divmod(size, self.power)

    def group(self, rank: int) -> int:
        """Return the virtual rank of a rank's group."""
        wide = self.extra * (self.width + 1)
        if rank < wide:
            return rank // (self.width + 1)
        return self.extra + (rank - wide) // self.width

    def members(self, virtual: int) -> range:
        """Return the ranks of a virtual rank's group."""
        start = virtual * self.width + min(virtual, self.extra)
        return range(start, start + self.width + (virtual < self.extra))

    def block(self, start: int, stop: int) -> tuple[int, int]:
        """Return start and stop of the ranks of virtual ranks ``start`` to ``stop - 1``."""
        return self.members(start).start, self.members(stop).start

    def real_rank(self, virtual: int) -> int:
        """Return the rank that acts as a virtual rank."""
        members = self.members(virtual)
        return self.root if self.root is not None and self.root in members else members[-1]

    def virtual(self, rank: int) -> int | None:
        """Return the virtual rank of a rank; ``None`` for folded ranks, which wait."""
        group = self.group(rank)
        return group if self.real_rank(group) == rank else None

    def others(self, rank: int) -> list[int]:
        """Return the other ranks of this rank's group."""
        return [r for r in self.members(self.group(rank)) if r != rank]

    def distances(self) -> list[int]:
        """Return 1, 2, 4, ... below the power of two."""
        return [1 << i for i in range(self.power.bit_length() - 1)]

    def reduce_in(self, rank: int, *spans: Span) -> list[Round]:
        """Return the round that reduces inside groups, in rank order."""
        leader, others = self.real_rank(self.group(rank)), self.others(rank)
        if not others:
            return []
        if rank != leader:
            return [(send(leader, *spans),)]
        below = [recv(r, *spans, reduce=LEFT) for r in reversed(others) if r < rank]
        above = [recv(r, *spans, reduce=RIGHT) for r in others if r > rank]
        return [(*below, *above)]

    def copy_out(self, rank: int, *spans: Span) -> list[Round]:
        """Return the round that sends the result to the folded ranks."""
        leader, others = self.real_rank(self.group(rank)), self.others(rank)
        if not others:
            return []
        if rank != leader:
            return [(recv(leader, *spans),)]
        return [tuple(send(r, *spans) for r in others)]
