"""Recursive multiplying: groups of up to k ranks exchange everything, at growing distances.

Like recursive doubling with k - 1 messages in flight at a time, which pays where starting a
message costs more than the gap between two. The p ranks are seen as a mixed-radix number
with digits of at most k; where p has no such form of few digits, ranks are folded onto the
largest power of k. Every rank combines the k vectors of a round from the lowest rank to the
highest, so contributions stay in rank order and all ranks compute by the same association.
Source: MPICH recursive_multiplying and recexch; Wilkins et al., CLUSTER 2023. Mixed radices
and equal folding groups are our own: p = 8 takes 2 rounds of 4 and 2 ranks, p = 7 folds pairs.
Rounds: number of radices, plus 2 when folded; never more than floor(log_k p) + 2.
Sent: n times the sum of (radix - 1), plus n for each folded rank of the group.
"""

from __future__ import annotations

from math import prod

from hpccoll.algorithms.parts.folding import Fold
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Round, at, copy, recv, reduce, send


def allreduce(rank: int, size: int, k: int) -> Program:
    """Exchange and combine whole vectors within each digit; any operator."""
    digits, whole = radices(size, k), at(OUT, 0)
    fold = Fold(size, prod(digits))
    virtual, middle, distance = fold.virtual(rank), [], 1
    if virtual is not None:
        for radix in digits:
            mine = virtual // distance % radix
            peers = [fold.real_rank(virtual + (digit - mine) * distance) for digit in range(radix)]
            middle.append(_combine(peers, mine))
            distance *= radix
    return Program(((copy(whole, at(IN, 0)),), *fold.reduce_in(rank, whole), *middle,
                    *fold.copy_out(rank, whole)), (0,) * (max(digits, default=1) - 1))


def _combine(peers: list[int], mine: int) -> Round:
    """Swap vectors with all peers; combine them from left to right, the same on every rank."""
    whole = at(OUT, 0)
    below = [(peer, at(TMP, slot)) for slot, peer in enumerate(peers[:mine])]
    above = [(peer, at(TMP, slot)) for slot, peer in enumerate(peers[mine + 1:], mine)]
    steps = [send(peer, whole) for peer, _ in below + above]
    steps += [recv(peer, slot) for peer, slot in below + above]
    steps += [reduce(at(TMP, 0), slot, RIGHT) for _, slot in below[1:]]
    steps += [reduce(whole, slot, LEFT) for _, slot in below[:1]]
    steps += [reduce(whole, slot, RIGHT) for _, slot in above]
    return tuple(steps)


def radices(size: int, k: int) -> list[int]:
    """Choose the digits: those of ``size`` when few enough, else a power of k to fold onto.

    >>> radices(12, 4), radices(14, 4)
    ([4, 3], [4])
    """
    if k < 2:
        raise ArgumentError("k", f"expected a factor of at least 2 per round, got {k}")
    most = 0
    while k ** (most + 1) <= size:
        most += 1
    exact = _fewest(size, k)
    if exact is not None and len(exact) <= most + 2:
        return exact
    return [k] * most


def _fewest(number: int, most: int) -> list[int] | None:
    """Return the shortest factorisation with factors 2..``most``, largest first, or None."""
    if number == 1:
        return []
    products = [[factor, *rest]
                for factor in range(min(most, number), 1, -1) if number % factor == 0
                for rest in [_fewest(number // factor, factor)] if rest is not None]
    return min(products, key=len, default=None)


def rounds(size: int, k: int) -> int:
    """Return the number of rounds: one per digit, two for folding."""
    digits = radices(size, k)
    return len(digits) + 2 * (prod(digits) < size)


def sent_vectors(size: int, k: int) -> int:
    """Return the number of vectors that the leader of a largest group sends."""
    digits = radices(size, k)
    return sum(digits) - len(digits) + -(-size // prod(digits)) - 1
