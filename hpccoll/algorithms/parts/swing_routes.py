"""Routes: partners at distances 1, 1, 3, 5, 11, 21, ..., in turn to either side.

In step s an even rank r meets r + rho(s), rho(s) = (1 - (-2)^(s+1)) / 3, an odd one r - rho(s):
the same pairs, if the number of ranks is even. Seen from r, offset d is the block of rank r + d for
even r, of r - d for odd r. Its *route* home is some of the steps, in order, whose reaches with
alternating signs add up to d; of several routes it takes the least, as binary numbers with step 0
first. What is left of a least route after its first step is one, so all blocks get home if every
step moves the offsets whose route starts with it.
In the order of their routes the offsets that a step moves are the last of those that are left, and
meet others in the same order, with gaps for some sizes that are no powers of two.
Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", NSDI 2024;
"Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality", SC 2025, arXiv
2508.17311 (the same steps, for powers of two). The order for other sizes is our own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hpccoll.ir.collectives import TMP
from hpccoll.ir.passes import runs
from hpccoll.ir.schedule import Span, at


class Move(NamedTuple):
    """One step: distance of the partner, sent slots and received slots."""

    reach: int
    tail: Span
    front: tuple[Span, ...]


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


@lru_cache(maxsize=64)
def places(ring: int) -> tuple[int, ...]:
    """Return the index of each offset in the list of :func:`routes`.

    >>> places(6)
    (0, 4, 3, 1, 5, 2)
    """
    found = [0] * max(ring, 1)
    for place, offset in enumerate(routes(ring)[0]):
        found[offset] = place
    return tuple(found)


def rounds(size: int) -> int:
    """Return the rounds of each half, in closed form."""
    return (max(size - size % 2, 1) - 1).bit_length()


def partner(rank: int, reach: int, ring: int) -> int:
    """Return the rank, or the block, at an offset."""
    return (rank - reach if rank % 2 else rank + reach) % ring
