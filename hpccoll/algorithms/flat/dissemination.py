"""Dissemination: knowledge of arrivals spreads by a factor k a round.

In round i each rank sends to the ranks j*k^i above it, j = 1..k-1, and receives from those below.
Source: Hensgen, Finkel and Manber, 1988; n-way: Hoefler et al., IPDPS 2006.
Rounds: ceil(log_k p), for any p. Messages per rank: k-1 a round.
"""

from __future__ import annotations

from hpccoll.algorithms.parts.trees import radix
from hpccoll.ir.schedule import Program, recv, send


def barrier(rank: int, size: int, k: int) -> Program:
    """Exchange tokens with k-1 partners a round, ever farther away."""
    rounds = []
    for distance in distances(size, k):
        hops = range(distance, min(size, k * distance), distance)
        rounds.append((*(send((rank + hop) % size) for hop in hops),
                       *(recv((rank - hop) % size) for hop in hops)))
    return Program(tuple(rounds))


def distances(size: int, k: int) -> list[int]:
    """1, k, k^2, ... below the number of ranks: one for each round."""
    hops = [1] if size > 1 else []
    while hops and hops[-1] * radix(k) < size:
        hops.append(hops[-1] * k)
    return hops
