"""Recursive doubling: ranks exchange everything with partners 1, 2, 4, ... away.

The number of rounds is the smallest possible, so small messages finish fast. Ranks beyond
the largest power of two are folded: among the first 2(p-P) ranks each even one hands its
data to its odd neighbour before, and gets the result after. Contiguous groups of ranks are
combined lower group first, so contributions stay in rank order.
Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 2005.
Rounds: log2 P, plus 2 when p is not a power of two. Sent: n log2 P, plus n.
"""

from __future__ import annotations

from hpccoll.algorithms.fold import Fold
from hpccoll.collective import IN, OUT
from hpccoll.schedule import LEFT, RIGHT, Program, at, copy, recv, send


def allreduce(rank: int, size: int) -> Program:
    """Exchange and combine whole vectors; any operator, any number of ranks."""
    fold, whole = Fold(size), at(OUT, 0)
    start, finish = fold.reduce_in(rank, whole), fold.copy_out(rank, whole)
    middle = []
    virtual = fold.virtual(rank)
    if virtual is not None:
        for distance in fold.distances():
            partner = virtual ^ distance
            middle.append((send(fold.real(partner), whole),
                           recv(fold.real(partner), whole,
                                reduce=LEFT if partner < virtual else RIGHT)))
    return Program(((copy(whole, at(IN, 0)),), *start, *middle, *finish))
