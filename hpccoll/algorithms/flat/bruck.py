"""Bruck: data moves by the base-k digits of its distance, one digit a round, for any p.

Allgather: before the round of digit d = k^i a rank holds the blocks of ranks r .. r+d-1, and
fetches the next d from each of the ranks r+d, r+2d, ... Blocks stay at their places; a range
that wraps round the end goes as two messages, so there is no final rotation.
Alltoall: in the round of digit d the block for rank r+i hops j*d ranks on, j being that digit of
i. Blocks travel through other ranks, which need no counts when all
have one size. A block on its last hop lands in the output.
Source: Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 1997; MPICH (k > 2).
Rounds: ceil(log_k p), of k-1 messages each. Sent: allgather n(p-1)/p; alltoall one block for
every digit that is not zero of every number below p, about (n/2) log2 p for k = 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import merge_parts
from hpccoll.ir.schedule import Program, Round, Span, at, copy, recv, send

#: Hops of each round: the distance, and the offsets of the blocks.
Hops = Sequence[Sequence[tuple[int, Sequence[int]]]]


def allgather(rank: int, size: int, k: int) -> Program:
    """Multiply the range of blocks held by k every round."""
    rounds: list[Round] = [(copy(at(OUT, rank), at(IN, 0)),)]
    for power in powers(size, k):
        steps = []
        for distance in range(power, min(k * power, size), power):
            to, frm = (rank - distance) % size, (rank + distance) % size
            count = min(power, size - distance)
            steps += [send(to, span) for span in arc(OUT, rank, count, size)]
            steps += [recv(frm, span) for span in arc(OUT, frm, count, size)]
        rounds.append(tuple(steps))
    return Program(tuple(rounds))


def alltoall(rank: int, size: int, k: int) -> Program:
    """Forward each block by the digits of its distance; all blocks of one size."""
    return forward(rank, size, hops(size, k))


def powers(size: int, k: int) -> list[int]:
    """Return 1, k, k^2, ... below the size.

    >>> powers(10, 3)
    [1, 3, 9]
    """
    if k < 2:
        raise ArgumentError("k", f"expected a base of at least 2, got {k}")
    digits = []
    power = 1
    while power < size:
        digits.append(power)
        power *= k
    return digits


def hops(size: int, k: int) -> Hops:
    """Rounds of the alltoall, lowest digit first."""
    return [[(distance, [offset for start in range(distance, size, k * power)
                         for offset in range(start, min(start + power, size))])
             for distance in range(power, min(k * power, size), power)]
            for power in powers(size, k)]


def forward(rank: int, size: int, rounds: Hops) -> Program:
    """Move blocks through intermediate ranks, hop by hop.

    The block for rank r+i starts in the input of every rank r; after its last hop, the block with
    offset i has come from rank r-i. In between, a received block is stored in one of two slots of
    its offset, while the other one may be sent.
    """
    last = {offset: number for number, hops in enumerate(rounds)
            for _, offsets in hops for offset in offsets}
    waits = [at(IN, (rank + offset) % size) for offset in range(size)]
    taken = [0] * size
    program: list[Round] = [(copy(at(OUT, rank), at(IN, rank)),)]
    for number, moves in enumerate(rounds):
        steps = []
        for distance, offsets in moves:
            steps.append(send((rank + distance) % size, *merge_parts(waits[i] for i in offsets)))
            for i in offsets:
                waits[i] = (at(OUT, (rank - i) % size) if last[i] == number
                            else at(TMP, i + taken[i] % 2 * size))
                taken[i] += 1
            steps.append(recv((rank - distance) % size, *merge_parts(waits[i] for i in offsets)))
        program.append(tuple(steps))
    slots = 0 if max(taken) < 2 else size if max(taken) < 3 else 2 * size
    return Program(tuple(program), (0,) * slots)


def arc(buffer: str, start: int, count: int, size: int) -> list[Span]:
    """Return blocks ``start`` to ``start + count - 1`` of the ring, as two spans if they wrap."""
    if start + count <= size:
        return [at(buffer, start, start + count)]
    return [at(buffer, start, size), at(buffer, 0, start + count - size)]


def alltoall_sent(size: int, k: int) -> int:
    """Return the number of nonzero digits of all numbers below the size."""
    return sum(size - size // (k * power) * power - min(size % (k * power), power)
               for power in powers(size, k))
