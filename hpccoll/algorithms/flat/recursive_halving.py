"""Recursive halving: partners split what they hold, each reduces one half and gives the other.

What is left halves every round, so a reduce-scatter moves each byte once in log2 P rounds;
retracing the exchanges gathers it again (Rabenseifner). Ranks beyond the largest power of two
P are folded onto a neighbour. Two orders of partners:

* near first (distance 1, 2, 4, ...): neighbours move most and contributions stay in rank order,
  but virtual rank v ends with block bit-reverse(v). Rabenseifner does not mind; the butterfly
  sends blocks home in one more round;
* far first (..., 4, 2, 1): block v ends at virtual rank v, out of rank order.

Source: Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004; Thakur,
Rabenseifner and Gropp, IJHPCA 2005; butterfly: Open MPI.
Rounds (f = 1 where p is no power of two, else 0): allreduce 2 log2 P + 2f, reduce 2 log2 P + f,
recursive halving log2 P + 2f, butterfly log2 P + f, and 1 if f or P > 2.
Sent: allreduce 2n(P-1)/P + fn, reduce n(P-1)/P + n/2, the reduce-scatters n(p-1)/p, and n/p if f
(butterfly: if f or P > 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hpccoll.algorithms.parts.folding import Fold
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Round, at, copy, recv, send

Range = tuple[int, int]


def halves(virtual: int, power: int, distances: Iterable[int]
           ) -> Iterator[tuple[int, Range, Range]]:
    """Yield for each round the partner, the range of blocks kept and the range given away."""
    kept = (0, power)
    for distance in distances:
        middle = sum(kept) // 2
        low, high = (kept[0], middle), (middle, kept[1])
        kept, given = (high, low) if virtual & distance else (low, high)
        yield virtual ^ distance, kept, given


def _reduce_scatter(fold: Fold, virtual: int, buffer: str, distances: Iterable[int],
                    place: Callable[[int, int], Range]) -> list[Round]:
    """Exchange halves and combine; ``place`` maps a range of blocks to slots of the buffer."""
    return [(send(fold.real_rank(partner), at(buffer, *place(*given))),
             recv(fold.real_rank(partner), at(buffer, *place(*kept)),
                  reduce=LEFT if partner < virtual else RIGHT))
            for partner, kept, given in halves(virtual, fold.power, distances)]


def _same(start: int, stop: int) -> Range:
    return start, stop


def allreduce(rank: int, size: int) -> Program:
    """Rabenseifner: halve near first, then retrace the exchanges to collect the result."""
    fold = Fold(size)
    virtual, whole, middle = fold.virtual(rank), at(OUT, 0, fold.power), []
    if virtual is not None:
        near_first = fold.distances()
        middle = _reduce_scatter(fold, virtual, OUT, near_first, _same)
        for partner, kept, given in reversed(list(halves(virtual, fold.power, near_first))):
            peer = fold.real_rank(partner)
            middle.append((send(peer, at(OUT, *kept)), recv(peer, at(OUT, *given))))
    return Program(((copy(whole, at(IN, 0, fold.power)),), *fold.reduce_in(rank, whole),
                    *middle, *fold.copy_out(rank, whole)))


def reduce(rank: int, size: int, root: int) -> Program:
    """Rabenseifner: halve near first, then gather the pieces along a binomial tree."""
    fold = Fold(size, root=root)
    virtual, target = fold.virtual(rank), fold.group(root)
    if virtual is None:
        return Program(tuple(fold.reduce_in(rank, at(IN, 0, fold.power))))
    buffer = OUT if rank == root else TMP
    whole, near_first = at(buffer, 0, fold.power), fold.distances()
    rounds = [(copy(whole, at(IN, 0, fold.power)),), *fold.reduce_in(rank, whole),
              *_reduce_scatter(fold, virtual, buffer, near_first, _same)]
    for partner, kept, given in reversed(list(halves(virtual, fold.power, near_first))):
        if (virtual ^ target) & (virtual ^ partner):
            rounds.append((send(fold.real_rank(partner), at(buffer, *kept)),))
            break
        rounds.append((recv(fold.real_rank(partner), at(buffer, *given)),))
    return Program(tuple(rounds), () if rank == root else range(fold.power))


def reduce_scatter(rank: int, size: int) -> Program:
    """Halve far first: every virtual rank ends with its own group's blocks."""
    fold = Fold(size)
    return _scatter_program(rank, fold, fold.distances()[::-1], lambda virtual: virtual)


def butterfly(rank: int, size: int) -> Program:
    """Halve near first, in rank order, then send every block home."""
    fold = Fold(size)
    bits = fold.power.bit_length() - 1
    return _scatter_program(rank, fold, fold.distances(),
                            lambda virtual: bit_reverse(virtual, bits))


def bit_reverse(value: int, bits: int) -> int:
    """Reverse the lowest ``bits`` bits of a number.

    >>> bit_reverse(0b0011, 4)
    12
    """
    return int(f"{value:0{bits}b}"[::-1], 2) if bits else 0


def _scatter_program(rank: int, fold: Fold, distances: list[int],
                     holder: Callable[[int], int]) -> Program:
    """Fold, halve, and let the holder of each group's blocks send them to their owners.

    ``holder`` maps a group to the virtual rank that ends with its blocks, and back.
    """
    virtual, whole = fold.virtual(rank), at(TMP, 0, fold.size)
    rounds = [(copy(whole, at(IN, 0, fold.size)),), *fold.reduce_in(rank, whole)]
    last, source = [], fold.real_rank(holder(fold.group(rank)))
    if virtual is not None:
        rounds += _reduce_scatter(fold, virtual, TMP, distances, fold.block)
        last = [send(owner, at(TMP, owner))
                for owner in fold.members(holder(virtual)) if owner != rank]
    if source == rank:
        last.append(copy(at(OUT, 0), at(TMP, rank)))
    else:
        last.append(recv(source, at(OUT, 0)))
    return Program((*rounds, tuple(last)), range(fold.size))
