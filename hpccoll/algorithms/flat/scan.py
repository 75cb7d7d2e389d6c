"""Prefix sums: the chain, and recursive doubling over groups of 1, 2, 4, ... ranks.

Chain: each rank waits for the result of the rank below, adds its own and passes it on; the
least work of all, and once cut into segments a pipeline. Recursive doubling: partners
exchange the sums of their groups; the upper one adds what it gets to its result. Where no
rank is above the merged group, its sum is not needed, and only the upper one is served.
Both keep rank order and serve any number of ranks.
Source: Open MPI (linear), MPICH (recursive doubling).
Rounds: linear p-1, recursive doubling q = ceil(log2 p). Sent: n and qn.
"""

from __future__ import annotations

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Round, at, copy, recv, reduce, send


def linear_scan(rank: int, size: int) -> Program:
    """Add the prefix that comes from below, and pass the sum on."""
    result = at(OUT, 0)
    rounds: list[Round] = [(copy(result, at(IN, 0)),)]
    if rank:
        rounds.append((recv(rank - 1, result, reduce=LEFT),))
    if rank < size - 1:
        rounds.append((send(rank + 1, result),))
    return Program(tuple(rounds))


def linear_exscan(rank: int, size: int) -> Program:
    """Keep the prefix that comes from below; pass it on with the own contribution added."""
    result, total = at(OUT, 0), at(TMP, 0)
    if rank == size - 1:
        return Program(((recv(rank - 1, result),),) if rank else ())
    if not rank:
        return Program(((send(1, at(IN, 0)),),))
    return Program(((copy(total, at(IN, 0)),),
                    (recv(rank - 1, result), reduce(total, result, LEFT)),
                    (send(rank + 1, total),)), (0,))


def scan(rank: int, size: int) -> Program:
    """Exchange group sums, the result starting as the own contribution."""
    total, result = at(TMP, 0), at(OUT, 0)
    start = (copy(total, at(IN, 0)), copy(result, at(IN, 0)))
    return Program((start, *_exchange(rank, size, started=True)), (0, 0))


def exscan(rank: int, size: int) -> Program:
    """Exchange group sums, the result starting as the first sum from below."""
    start = (copy(at(TMP, 0), at(IN, 0)),)
    return Program((start, *_exchange(rank, size, started=False)), (0, 0))


def _exchange(rank: int, size: int, started: bool) -> list[Round]:
    """Meet partners at doubling distances; ``started`` is True if ``out`` has content."""
    total, arriving, result = at(TMP, 0), at(TMP, 1), at(OUT, 0)
    rounds: list[Round] = []
    for distance in (1 << i for i in range((size - 1).bit_length())):
        partner = rank ^ distance
        if partner >= size:
            continue
        wanted = (rank | 2 * distance - 1) + 1 < size
        if rank < partner:
            back = (recv(partner, total, reduce=RIGHT),) if wanted else ()
            rounds.append((send(partner, total), *back))
            continue
        landing = arriving if started else result
        steps = [recv(partner, landing)]
        steps += [send(partner, total)] if wanted else []
        steps += [reduce(result, landing, LEFT)] if started else []
        steps += [reduce(total, landing, LEFT)] if wanted else []
        rounds.append(tuple(steps))
        started = True
    return rounds
