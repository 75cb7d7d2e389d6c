"""Ring: blocks travel round the ring of ranks, one hop a round.

Every rank talks only to its two neighbours, and every link carries one block at a time,
so large messages move at full bandwidth for any number of ranks.
Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009.
Rounds: p-1 for each half, 2(p-1) for allreduce. Sent per rank: n(p-1)/p per half.

    p = 4, reduce-scatter: block 0 starts at rank 1, ends complete at rank 0
    rank 1 --b0--> rank 2 --b0--> rank 3 --b0--> rank 0
"""

from __future__ import annotations

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, Program, Round, at, copy, recv, send


def allreduce(rank: int, size: int) -> Program:
    """Reduce-scatter round the ring, then allgather the finished blocks the same way."""
    left, right = (rank - 1) % size, (rank + 1) % size
    rounds: list[Round] = [(copy(at(OUT, 0, size), at(IN, 0, size)),)]
    for t in range(size - 1):
        rounds.append((send(right, at(OUT, (rank - t) % size)),
                       recv(left, at(OUT, (rank - t - 1) % size), reduce=LEFT)))
    for t in range(size - 1):
        rounds.append((send(right, at(OUT, (rank + 1 - t) % size)),
                       recv(left, at(OUT, (rank - t) % size))))
    return Program(tuple(rounds))


def reduce_scatter(rank: int, size: int) -> Program:
    """Each block travels once round, gathering a contribution at every stop."""
    left, right = (rank - 1) % size, (rank + 1) % size
    # In place, out[0] is the start of the input: everything is saved before it is written.
    rounds: list[Round] = [
        (copy(at(TMP, 0, size), at(IN, 0, size)), copy(at(OUT, 0), at(TMP, rank)))]
    for t in range(size - 1):
        into = at(TMP, (rank - t - 2) % size) if t < size - 2 else at(OUT, 0)
        rounds.append((send(right, at(TMP, (rank - t - 1) % size)),
                       recv(left, into, reduce=LEFT)))
    return Program(tuple(rounds), range(size))


def allgather(rank: int, size: int) -> Program:
    """Each block travels once round, left behind at every stop."""
    left, right = (rank - 1) % size, (rank + 1) % size
    rounds: list[Round] = [(copy(at(OUT, rank), at(IN, 0)),)]
    for t in range(size - 1):
        rounds.append((send(right, at(OUT, (rank - t) % size)),
                       recv(left, at(OUT, (rank - t - 1) % size))))
    return Program(tuple(rounds))
