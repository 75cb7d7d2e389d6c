"""Neighbour exchange: pairs of ranks swap pairs of blocks, alternately with either neighbour.

After the first round every pair (2i, 2i+1) holds its two blocks. From then on even ranks turn
to the left and to the right neighbour in turn, odd ranks the other way round, and pass on the
two blocks they got last: half the rounds of the ring over the same links.
Source: Chen, Zhang and Yuan, "Performance evaluation of allgather algorithms on terascale
Linux cluster with fast Ethernet", HPC Asia 2005; Open MPI.
Rounds: p/2. Sent: n(p-1)/p. Needs an even number of ranks; an odd one falls back to the ring.
"""

from __future__ import annotations

from hpccoll.algorithms.flat import ring
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Program, Span, at, copy, recv, send


def allgather(rank: int, size: int) -> Program:
    """Swap own blocks within the pair, then pairs of blocks with either neighbour in turn."""
    if size % 2:
        return ring.allgather(rank, size)
    other = rank ^ 1
    rounds = [(copy(at(OUT, rank), at(IN, 0)),),
              (send(other, at(OUT, rank)), recv(other, at(OUT, other)))]
    # Even ranks fetch pairs -1, +1, -2, +2, ... relative to their own, odd ranks +1, -1, ...
    sign = 1 if rank % 2 else -1
    held = 0
    for step in range(1, size // 2):
        turn = sign if step % 2 else -sign
        partner, fetched = (rank + turn) % size, turn * ((step + 1) // 2)
        rounds.append((send(partner, _pair(rank, size, held)),
                       recv(partner, _pair(rank, size, fetched))))
        held = fetched
    return Program(tuple(rounds))


def _pair(rank: int, size: int, offset: int) -> Span:
    """Return the blocks of the pair at a distance in pairs after the rank's own."""
    first = (rank - rank % 2 + 2 * offset) % size
    return at(OUT, first, first + 2)
