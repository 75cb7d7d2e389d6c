"""Recursive doubling: ranks exchange everything with partners 1, 2, 4, ... away.

The number of rounds is the smallest possible, so small messages finish fast. Ranks beyond
the largest power of two P are folded: their neighbour speaks for them and hands them the
result. Contiguous groups of ranks are combined lower group first, so contributions stay in
rank order, and all ranks compute by the same association.
Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 2005.
Rounds: log2 P, plus 2 when p is not a power of two. Sent: allreduce n log2 P, plus n;
allgather n(P-1)/p and the folded neighbours' blocks, plus n(p-1)/p to hand the result back.
"""

from __future__ import annotations

from hpccoll.algorithms.parts.folding import Fold
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Round, Span, at, copy, recv, send


def allreduce(rank: int, size: int) -> Program:
    """Exchange and combine whole vectors; any operator, any number of ranks."""
    whole = at(OUT, 0)
    return Program(((copy(whole, at(IN, 0)),), *_exchange(rank, size, whole)))


def barrier(rank: int, size: int) -> Program:
    """Exchange empty messages: each round doubles the ranks that have arrived."""
    return Program(tuple(_exchange(rank, size)))


def _exchange(rank: int, size: int, *spans: Span) -> list[Round]:
    """Fold, combine with partners at doubling distances, unfold."""
    fold, middle = Fold(size), []
    virtual = fold.virtual(rank)
    if virtual is not None:
        for distance in fold.distances():
            partner = virtual ^ distance
            middle.append((send(fold.real_rank(partner), *spans),
                           recv(fold.real_rank(partner), *spans,
                                reduce=LEFT if partner < virtual else RIGHT)))
    return [*fold.reduce_in(rank, *spans), *middle, *fold.copy_out(rank, *spans)]


def allgather(rank: int, size: int) -> Program:
    """Swap all blocks held; a folded rank gives its block first and gets the rest last."""
    fold = Fold(size)
    virtual, others = fold.virtual(rank), fold.others(rank)
    rounds: list[Round] = [(copy(at(OUT, rank), at(IN, 0)),)]
    if virtual is None:
        leader, = others
        rounds.append((send(leader, at(OUT, rank)),))
        rounds.append(tuple(recv(leader, span) for span in _all_but(rank, size)))
        return Program(tuple(rounds))
    rounds.append(tuple(recv(other, at(OUT, other)) for other in others))
    for distance in fold.distances():
        start = virtual // distance * distance
        peer, theirs = fold.real_rank(virtual ^ distance), start ^ distance
        rounds.append((send(peer, at(OUT, *fold.block(start, start + distance))),
                       recv(peer, at(OUT, *fold.block(theirs, theirs + distance)))))
    rounds.append(tuple(send(other, span) for other in others for span in _all_but(other, size)))
    return Program(tuple(rounds))


def _all_but(rank: int, size: int) -> list[Span]:
    """Return all blocks except one, in two spans, to avoid packing."""
    return [span for span in (at(OUT, 0, rank), at(OUT, rank + 1, size))
            if span.start < span.stop]


def allgather_sent(size: int) -> int:
    """Return the blocks that virtual rank 0 sends, whose groups have most folded ranks."""
    fold = Fold(size)
    handed_back = size - 1 if fold.extra else 0
    return sum(fold.block(0, distance)[1] for distance in fold.distances()) + handed_back
