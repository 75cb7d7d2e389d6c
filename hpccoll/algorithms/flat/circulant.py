"""Circulant skips: partners at distances that halve p rounding up, for any number of ranks.

Skips are S_q = p, S_k = ceil(S_{k+1} / 2), down to S_0 = 1. Seen from rank r, block i is the
block of rank r + i. The reduce-scatter sends blocks S_k .. S_{k+1}-1 to rank r + S_k, from
k = q-1 down to 0, so that what is left shrinks to the own block; the allgather is the same
backwards. No rank is folded and no byte moves twice, whatever p is. Blocks stay at their
places: a range that wraps round the end is sent as two messages, and since sender and
receiver see the same blocks, both cut at the same place.
Source: Traeff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms",
arXiv 2410.14234.
Rounds: q = ceil(log2 p) for each half, 2q for allreduce. Sent: n(p-1)/p for each half.
Alltoall: q rounds; never more blocks than Bruck with k = 2, fewer just above a power of two.

    p = 13: skips 1, 2, 4, 7; reduce-scatter sends 6, 3, 2, 1 blocks
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.algorithms.flat.bruck import Hops, arc, forward
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Round, at, copy, recv, reduce, send


def allreduce(rank: int, size: int) -> Program:
    """Reduce-scatter so that block r ends at rank r, then allgather."""
    combine = [_combine(rank, size, OUT, *skip) for skip in reversed(list(skips(size)))]
    collect = [_collect(rank, size, *skip) for skip in skips(size)]
    return Program(((copy(at(OUT, 0, size), at(IN, 0, size)),), *combine, *collect))


def reduce_scatter(rank: int, size: int) -> Program:
    """Combine in scratch; the last round has only the own block left and ends in ``out``."""
    rounds: list[Round] = [(copy(at(TMP, 0, size), at(IN, 0, size)),)]
    if size == 1:
        return Program((*rounds, (copy(at(OUT, 0), at(TMP, 0)),)), range(size))
    rounds += [_combine(rank, size, TMP, *skip) for skip in reversed(list(skips(size))[1:])]
    right, left = (rank + 1) % size, (rank - 1) % size
    rounds.append((send(right, at(TMP, right)), recv(left, at(OUT, 0)),
                   reduce(at(OUT, 0), at(TMP, rank), RIGHT)))
    return Program(tuple(rounds), range(size))


def allgather(rank: int, size: int) -> Program:
    """Double the range of blocks held, cut to p at every skip."""
    return Program(((copy(at(OUT, rank), at(IN, 0)),),
                    *(_collect(rank, size, *skip) for skip in skips(size))))


def alltoall(rank: int, size: int) -> Program:
    """Forward each block by the largest skip that does not pass its destination."""
    return forward(rank, size, hops(size))


def skips(size: int) -> Iterator[tuple[int, int]]:
    """Yield each skip with the next larger one, smallest first.

    >>> list(skips(13))
    [(1, 2), (2, 4), (4, 7), (7, 13)]
    """
    downwards = [size]
    while downwards[-1] > 1:
        downwards.append((downwards[-1] + 1) // 2)
    return zip(downwards[:0:-1], downwards[-2::-1])


def _combine(rank: int, size: int, buffer: str, skip: int, following: int) -> Round:
    """Send the far end of the remaining blocks; reduce the received ones."""
    to, frm, count = (rank + skip) % size, (rank - skip) % size, following - skip
    return (*(send(to, span) for span in arc(buffer, to, count, size)),
            *(recv(frm, span, reduce=LEFT) for span in arc(buffer, rank, count, size)))


def _collect(rank: int, size: int, skip: int, following: int) -> Round:
    """Send the first blocks; append the received ones."""
    to, frm, count = (rank - skip) % size, (rank + skip) % size, following - skip
    return (*(send(to, span) for span in arc(OUT, rank, count, size)),
            *(recv(frm, span) for span in arc(OUT, frm, count, size)))


def hops(size: int) -> Hops:
    """Return the rounds of the alltoall: the skip, and the offsets of the blocks."""
    left, rounds = list(range(size)), []
    for skip, _ in reversed(list(skips(size))):
        moving = [offset for offset in range(size) if left[offset] >= skip]
        for offset in moving:
            left[offset] -= skip
        rounds.append([(skip, moving)])
    return rounds


def alltoall_sent(size: int) -> int:
    """Return the number of hops of all blocks of a rank."""
    return sum(len(offsets) for hop in hops(size) for _, offsets in hop)
