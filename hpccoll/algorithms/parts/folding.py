"""Folding: how algorithms for a convenient number of ranks serve any number.

The p ranks form P groups of neighbours, P <= p, as equal as can be and the larger ones first.
The last rank of a group (the root, in its group) collects the contributions of the others,
plays the group's virtual rank, and hands the result back. Groups are contiguous, so the
order of contributions is kept. By default P is the largest power of two, and the groups are
e = p - P pairs and then single ranks.
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
        """The virtual rank of the group that a rank belongs to."""
        wide = self.extra * (self.width + 1)
        if rank < wide:
            return rank // (self.width + 1)
        return self.extra + (rank - wide) // self.width

    def members(self, virtual: int) -> range:
        """The ranks that a virtual rank stands for."""
        start = virtual * self.width + min(virtual, self.extra)
        return range(start, start + self.width + (virtual < self.extra))

    def block(self, start: int, stop: int) -> tuple[int, int]:
        """First and past-the-last rank that virtual ranks ``start`` to ``stop - 1`` stand for."""
        return self.members(start).start, self.members(stop).start

    def real_rank(self, virtual: int) -> int:
        """The rank that plays a virtual rank."""
        members = self.members(virtual)
        return self.root if self.root is not None and self.root in members else members[-1]

    def virtual(self, rank: int) -> int | None:
        """Virtual rank, or ``None`` for a rank that waits outside."""
        group = self.group(rank)
        return group if self.real_rank(group) == rank else None

    def others(self, rank: int) -> list[int]:
        """The other ranks of this rank's group."""
        return [r for r in self.members(self.group(rank)) if r != rank]

    def distances(self) -> list[int]:
        """1, 2, 4, ... below the power of two."""
        return [1 << i for i in range(self.power.bit_length() - 1)]

    def reduce_in(self, rank: int, *spans: Span) -> list[Round]:
        """The round in which groups combine, in rank order."""
        leader, others = self.real_rank(self.group(rank)), self.others(rank)
        if not others:
            return []
        if rank != leader:
            return [(send(leader, *spans),)]
        below = [recv(r, *spans, reduce=LEFT) for r in reversed(others) if r < rank]
        above = [recv(r, *spans, reduce=RIGHT) for r in others if r > rank]
        return [(*below, *above)]

    def copy_out(self, rank: int, *spans: Span) -> list[Round]:
        """The round in which the ranks outside get the result."""
        leader, others = self.real_rank(self.group(rank)), self.others(rank)
        if not others:
            return []
        if rank != leader:
            return [(recv(leader, *spans),)]
        return [tuple(send(r, *spans) for r in others)]
