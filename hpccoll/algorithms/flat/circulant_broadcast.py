"""Circulant broadcast: n blocks reach everyone in n-1+q rounds, the least possible.

Every round, each rank sends one block to the rank a skip above it and receives one from the
rank the same skip below; the skips p = S_q, S_k = ceil(S_(k+1)/2), ..., S_0 = 1 repeat in
cycles of q = ceil(log2 p) rounds. Which block is a table of q entries per rank, relative to the
cycle, computed without communication. Reduce is broadcast backwards in time.
Source: Träff, "Optimal broadcast schedules in logarithmic time with applications to broadcast,
all-broadcast, reduction and all-reduction", arXiv 2407.18004.
Rounds: n-1+q for n blocks. Sent by one rank: at most n-1+q blocks (the root: all of them).
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, Program, Round, at, copy, recv, send


def bcast(rank: int, size: int, root: int, n: int) -> Program:
    """Pass n blocks along the circulant graph."""
    rounds = []
    for above, out, below, into in exchanges(rank, size, root, n):
        steps = (send(above, at(OUT, out)),) if out is not None else ()
        rounds.append(steps + ((recv(below, at(OUT, into)),) if into is not None else ()))
    return Program(tuple(filter(None, rounds)))


def reduce(rank: int, size: int, root: int, n: int) -> Program:
    """Combine n blocks along the circulant graph, backwards; commutative."""
    mine = OUT if rank == root else TMP
    rounds: list[Round] = [(copy(at(mine, 0, n), at(IN, 0, n)),)]
    for above, into, below, out in reversed(list(exchanges(rank, size, root, n))):
        steps = (send(below, at(mine, out)),) if out is not None else ()
        rounds.append(steps + ((recv(above, at(mine, into), reduce=LEFT),)
                               if into is not None else ()))
    return Program(tuple(filter(None, rounds)), () if rank == root else range(n))


def exchanges(rank: int, size: int, root: int, n: int
              ) -> Iterator[tuple[int, int | None, int, int | None]]:
    """Yield (rank above, block to it, rank below, block from it) of every broadcast round."""
    skip, virtual = skips(size), (rank - root) % size
    q = len(skip) - 1
    takes = receive_table(virtual, skip)
    gives = [receive_table((virtual + s) % size, skip)[k] for k, s in enumerate(skip[:q])]
    first = -(n - 1) % q if q else 0
    for i in range(first, first + n - 1 + q if q else 0):
        k, offset = i % q, i - i % q - first
        out, into = min(gives[k] + offset, n - 1), min(takes[k] + offset, n - 1)
        yield ((rank + skip[k]) % size, out if out >= 0 and (virtual + skip[k]) % size else None,
               (rank - skip[k]) % size, into if into >= 0 and virtual else None)


def skips(size: int) -> list[int]:
    """Return 1 = S_0, S_1, ..., S_q = size, each half of the next, rounded up."""
    downwards = [size]
    while downwards[-1] > 1:
        downwards.append(-(-downwards[-1] // 2))
    return downwards[::-1]


def baseblock(virtual: int, skip: list[int]) -> int:
    """Return the index of the smallest skip of a rank's sum of skips."""
    q = len(skip) - 1
    last = q
    for k in range(q - 1, -1, -1):
        if virtual >= skip[k]:
            virtual, last = virtual - skip[k], k
    return last


def receive_table(virtual: int, skip: list[int]) -> list[int]:
    """Return the block that a rank receives over each skip; negative for earlier cycles."""
    q, target = len(skip) - 1, skip[-1] + virtual
    base = baseblock(virtual, skip)
    free = [e != base for e in range(q + 1)]
    table: list[int] = []

    def search(start: int, limit: int, top: int) -> None:
        """Fill rounds from ranks that are sums of skips from ``start``, largest first."""
        for e in range(top, -1, -1):
            here, k = start + skip[e], len(table)
            if k == q:
                return
            if not free[e] or here > target - skip[k] or here >= limit:
                continue
            if here <= target - skip[k + 1]:
                search(here, limit, e)
            if len(table) == q or start > target - skip[len(table) + 1]:
                return
            table.append(base if e == q else e - q)
            free[e] = False
            limit = here

    search(0, 2 * skip[-1], q)
    return table
