"""Swing: partners at distances 1, 1, 3, 5, 11, 21, ..., in turn to the right and to the left.

In step s an even rank r meets r + rho(s), rho(s) = (1 - (-2)^(s+1)) / 3, an odd one r - rho(s):
the same pairs. Seen from r, offset d is the block of rank r + d for even r, of r - d for odd r. Its
*route* home is some of the steps, in order, whose reaches with alternating signs add up to d; of
several routes it takes the least, as binary numbers with step 0 first. The reduce-scatter takes
steps 0, 1, 2, ... and sends every offset in the first step of its route, most data between the
nearest ranks; the allgather runs backwards. Scratch holds the offsets in the order of their routes:
what a step sends is then the tail of what is left, one slice, and it meets slots in the same
order, with gaps for some sizes that are no powers of two.
Distances are two thirds of powers of two, so fewer blocks cross between groups of ranks than with
other algorithms of so few rounds, unless the sizes of groups are powers of two.
Steps need an even number of ranks P: of an odd one, the last rank exchanges single blocks with
their owners, in every step as many as others exchange.
Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", NSDI 2024;
"Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality", SC 2025, arXiv
2508.17311 (the same steps; order in memory, for powers of two).
Rounds: ceil(log2 P) for each half, P = p or p - 1. Sent: n(p-1)/p for each half.

    p = 16: reduce-scatter of rank 0 sends 8, 4, 2, 1 blocks to ranks 1, 15, 3, 11
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hpccoll.collective import IN, OUT, TMP
from hpccoll.passes import runs
from hpccoll.schedule import LEFT, RIGHT, Program, Round, Span, Step, at, copy, recv, reduce, send


class Move(NamedTuple):
    """One step: how far partners are, the slots that leave and the slots that they meet."""

    reach: int
    tail: Span
    front: tuple[Span, ...]


def allreduce(rank: int, size: int) -> Program:
    """Combine and collect in scratch, which keeps its order; put the blocks in place last."""
    ring = size - size % 2
    order, moves = routes(ring)
    if rank == ring:
        return Program(((copy(at(OUT, 0, size), at(IN, 0, size)),),
                        *(_hand_out(rank, OUT, move, order) for move in moves),
                        *(_hand_back(rank, move, order) for move in reversed(moves))))
    keys = layout(rank, size)
    return Program((tuple(copy(at(TMP, slot), at(IN, key)) for slot, key in enumerate(keys)),
                    *(tuple(_combine(rank, size, move)) for move in moves),
                    *(_collect(rank, size, move) for move in reversed(moves)),
                    tuple(copy(at(OUT, key), at(TMP, slot)) for slot, key in enumerate(keys))),
                   keys)


def reduce_scatter(rank: int, size: int) -> Program:
    """Combine in scratch; the last round has only the own block left and ends in ``out``."""
    ring = size - size % 2
    order, moves = routes(ring)
    if rank == ring:
        return Program(((copy(at(TMP, 0, size), at(IN, 0, size)),),
                        *(_hand_out(rank, TMP, move, order) for move in moves),
                        (copy(at(OUT, 0), at(TMP, rank)),)), range(size))
    keys = layout(rank, size)
    *most, (give, take, *others) = (tuple(_combine(rank, size, move)) for move in moves)
    return Program((tuple(copy(at(TMP, slot), at(IN, key)) for slot, key in enumerate(keys)),
                    *most, (give, recv(take.peer, at(OUT, 0)), *others,
                            reduce(at(OUT, 0), at(TMP, 0), RIGHT))), keys)


def allgather(rank: int, size: int) -> Program:
    """Collect in scratch, then put the blocks in place."""
    ring = size - size % 2
    order, moves = routes(ring)
    if rank == ring:
        return Program(((copy(at(OUT, rank), at(IN, 0)),),
                        *(_hand_back(rank, move, order) for move in reversed(moves))))
    keys = layout(rank, size)
    return Program(((copy(at(TMP, 0), at(IN, 0)),),
                    *(_collect(rank, size, move) for move in reversed(moves)),
                    tuple(copy(at(OUT, key), at(TMP, slot)) for slot, key in enumerate(keys))),
                   keys)


@lru_cache(maxsize=64)
def routes(ring: int) -> tuple[tuple[int, ...], tuple[Move, ...]]:
    """List the offsets by route, least first, and the steps in the order of the reduce-scatter.

    >>> routes(6)[0]
    (0, 3, 5, 2, 1, 4)
    >>> [move.reach for move in routes(6)[1]]
    [1, -1, 3]
    """
    order, moves, known = [0], [], {0}
    for step in reversed(range(rounds(ring))):
        reach, start, front = (1 - (-2) ** (step + 1)) // 3, len(order), []
        for slot in range(start):
            offset = (reach - order[slot]) % ring
            if offset not in known:
                known.add(offset)
                order.append(offset)
                front.append(slot)
        moves.append(Move(reach, at(TMP, start, len(order)), runs(TMP, front)))
    return tuple(order), tuple(reversed(moves))


def rounds(size: int) -> int:
    """Closed form: rounds of each half."""
    return (max(size - size % 2, 1) - 1).bit_length()


def partner(rank: int, reach: int, ring: int) -> int:
    """The rank, or the block, at an offset."""
    return (rank - reach if rank % 2 else rank + reach) % ring


def layout(rank: int, size: int) -> list[int]:
    """The block in each slot of scratch; that of a last rank which is one too many comes last."""
    ring = size - size % 2
    return [partner(rank, offset, ring) for offset in routes(ring)[0]] + [ring] * (size % 2)


def served(move: Move, order: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks with which a last rank that is one too many exchanges blocks in a step.

    They are those with the numbers of the offsets that move, so its port is as busy as others'.
    """
    start, stop = move.tail.start, move.tail.stop
    return order[start - (start == 1):stop]


def _combine(rank: int, size: int, move: Move) -> list[Step]:
    peer, last = partner(rank, move.reach, size - size % 2), size - 1
    steps = [send(peer, move.tail), recv(peer, *move.front, reduce=LEFT)]
    if size % 2 and rank in served(move, routes(last)[0]):
        steps += [send(last, at(TMP, last)), recv(last, at(TMP, 0), reduce=LEFT)]
    return steps


def _collect(rank: int, size: int, move: Move) -> Round:
    peer, last = partner(rank, move.reach, size - size % 2), size - 1
    steps = [send(peer, *move.front), recv(peer, move.tail)]
    if size % 2 and rank in served(move, routes(last)[0]):
        steps += [send(last, at(TMP, 0)), recv(last, at(TMP, last))]
    return tuple(steps)


def _hand_out(last: int, buffer: str, move: Move, order: tuple[int, ...]) -> Round:
    return tuple(step for rank in served(move, order)
                 for step in (send(rank, at(buffer, rank)),
                              recv(rank, at(buffer, last), reduce=LEFT)))


def _hand_back(last: int, move: Move, order: tuple[int, ...]) -> Round:
    return tuple(step for rank in served(move, order)
                 for step in (send(rank, at(OUT, last)), recv(rank, at(OUT, rank))))
