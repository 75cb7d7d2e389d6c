"""Pairwise: every block goes straight to the rank that needs it, a few partners at a time.

In step j rank r sends to r + j and receives from r - j (alltoall on a power of two: both are
r xor j), so every rank sends and receives one message per step and no destination is hit by
two. ``pairwise`` takes one step a round, ``scattered`` a batch of them, ``linear`` all at
once, still staggered. Block sizes may differ. An allreduce of two such rounds (``allpairs``) has
the fewest rounds that move no more than the ring does: best where links do not get in each
other's way, as in the shared memory of a node, and where ranks wait for a processor.
Source: MPICH (pairwise, scattered), Open MPI (linear, linear_sync), MSCCL (allpairs).
Rounds: pairwise p-1, scattered ceil((p-1)/batch), linear 1. Sent: p-1 blocks; allpairs twice.
"""

from __future__ import annotations

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import (
    LEFT,
    RIGHT,
    Program,
    Round,
    Span,
    Step,
    at,
    copy,
    recv,
    reduce,
    send,
)


def alltoall(rank: int, size: int) -> Program:
    """Swap blocks with one partner a round; pairs swap both ways where p is a power of two."""
    rounds: list[Round] = [(copy(at(OUT, rank), at(IN, rank)),)]
    for step in range(1, size):
        to, frm = (rank + step) % size, (rank - step) % size
        if size & (size - 1) == 0:
            to = frm = rank ^ step
        rounds.append((send(to, at(IN, to)), recv(frm, at(OUT, frm))))
    return Program(tuple(rounds))


def scattered_alltoall(rank: int, size: int, batch: int) -> Program:
    """Take ``batch`` steps a round: in flight together, without flooding the network."""
    rounds: list[Round] = [(copy(at(OUT, rank), at(IN, rank)),)]
    for first in range(1, size, batch):
        steps: list[Step] = []
        for step in range(first, min(first + batch, size)):
            to, frm = (rank + step) % size, (rank - step) % size
            steps += (send(to, at(IN, to)), recv(frm, at(OUT, frm)))
        rounds.append(tuple(steps))
    return Program(tuple(rounds))


def linear_alltoall(rank: int, size: int) -> Program:
    """Send everything at once."""
    return scattered_alltoall(rank, size, size)


def linear_allgather(rank: int, size: int) -> Program:
    """Send the own block to everybody at once."""
    steps: list[Step] = []
    for step in range(1, size):
        to, frm = (rank + step) % size, (rank - step) % size
        steps += (send(to, at(OUT, rank)), recv(frm, at(OUT, frm)))
    return Program(((copy(at(OUT, rank), at(IN, 0)),), tuple(steps)))


def reduce_scatter(rank: int, size: int) -> Program:
    """Send each block to its owner, one a round; owners add what arrives to their own."""
    # In place, out[0] is the start of the input: everything is saved before it is written.
    rounds = [(copy(at(TMP, 0, size), at(IN, 0, size)), copy(at(OUT, 0), at(TMP, rank)))]
    for step in range(1, size):
        to, frm = (rank + step) % size, (rank - step) % size
        rounds.append((send(to, at(TMP, to)), recv(frm, at(OUT, 0), reduce=LEFT)))
    return Program(tuple(rounds), range(size))


def allreduce(rank: int, size: int) -> Program:
    """Send each block to its owner at once; owners combine outwards, and send to everybody."""
    after, before = range(rank + 1, size), range(rank - 1, -1, -1)
    arriving = [recv(frm, at(OUT, rank), reduce=RIGHT if frm in after else LEFT)
                for frm in (*after, *before)]
    return Program((
        (copy(at(OUT, 0, size), at(IN, 0, size)),),
        (*(send(to, at(OUT, to)) for to in (*before, *after)), *arriving),
        (*(send(to, at(OUT, rank)) for to in (*before, *after)),
         *(recv(frm, at(OUT, frm)) for frm in (*after, *before)))))


def linear_reduce_scatter(rank: int, size: int) -> Program:
    """Send each block to its owner at once; owners combine from rank 0 to rank p-1."""
    steps: list[Step] = []
    for step in range(1, size):
        to, frm = (rank + step) % size, (rank - step) % size
        steps += (send(to, at(TMP, to)), recv(frm, _recv_slot(frm, rank, size)))
    steps += [reduce(at(OUT, 0), _recv_slot(r, rank, size), RIGHT) for r in range(1, size)]
    # Rank 0's own contribution starts the sum; in place, it is there already.
    start = (copy(at(OUT, 0), at(IN, 0)),) if rank == 0 else ()
    return Program(((copy(at(TMP, 0, size), at(IN, 0, size)), *start), tuple(steps)),
                   [*range(size), *[rank] * size])


def _recv_slot(source: int, rank: int, size: int) -> Span:
    """Return the slot of a received contribution: rank 0's starts the sum, the own one is there."""
    if source == rank:
        return at(TMP, rank)
    return at(TMP, size + source) if source else at(OUT, 0)
