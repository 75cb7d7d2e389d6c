"""Broadcast by scatter and allgather: every rank soon forwards a different part.

The vector is cut into p blocks, scattered down the binomial tree, then collected by everyone.
Heads of subtrees got more than their own block in the scatter; what a rank already holds is
not sent to it again, so no rank receives a block twice.
Source: van de Geijn, "On global combine operations", JPDC 1994; ring and recursive doubling as
in MPICH; leaving out known blocks in the ring: Zhou et al., arXiv 1603.06809.

* ``scatter_allgather``: the exchange runs back up the same ranges. A range with head h is two
  halves A (with h) and B; all of A holds A's blocks, all of B B's. Ranks of A but h exchange
  pairwise with ranks of B; where B has one more, h sends to it. Any p, contiguous blocks.
* ``scatter_ring``: blocks travel once round the ring; neighbours only.

Rounds: floor(log2 p) + floor(log2 4p/3), and floor(log2 p) + p-1. Sent: at most 2n(p-1)/p.
Received: n.
"""

from __future__ import annotations

from hpccoll.algorithms.parts.trees import knomial, ranges
from hpccoll.ir.collectives import OUT
from hpccoll.ir.schedule import Program, Round, Span, at, recv, send


def bcast(rank: int, size: int, root: int) -> Program:
    """Scatter down the binomial tree, then exchange halves back up its ranges."""
    rounds = scatter(rank, size, root)
    for head, (lower, upper) in reversed(list(ranges(rank, size, root))):
        near, far = (lower, upper) if head in lower else (upper, lower)
        single = len(far) - (len(near) - 1)
        mine, other = (near, far) if rank in near else (far, near)
        index = rank - mine.start - (mine is near and rank > head)
        if rank == head or mine is far and index < single:
            if single:
                rounds.append((send(far.start, blocks(near)),) if rank == head
                              else (recv(head, blocks(near)),))
            continue
        if mine is near:
            partner = far.start + index + single
        else:
            partner = near.start + index - single
            partner += partner >= head
        rounds.append((send(partner, blocks(mine)), recv(partner, blocks(other))))
    return Program(tuple(rounds))


def bcast_ring(rank: int, size: int, root: int) -> Program:
    """Scatter down the binomial tree, then pass blocks round the ring to those who lack them."""
    left, right = (rank - 1) % size, (rank + 1) % size
    held, known = knomial(rank, size, root).ranks, knomial(right, size, root).ranks
    rounds = scatter(rank, size, root)
    for t in range(size - 1):
        out, into = (rank - t) % size, (rank - t - 1) % size
        sent = (send(right, at(OUT, out)),) if out not in known else ()
        received = (recv(left, at(OUT, into)),) if into not in held else ()
        rounds.append((*sent, *received))
    return Program(tuple(filter(None, rounds)))


def scatter(rank: int, size: int, root: int) -> list[Round]:
    """Send the blocks of each binomial subtree to its head."""
    node = knomial(rank, size, root)
    rounds: list[Round] = []
    if node.parent is not None:
        rounds.append((recv(node.parent, blocks(node.ranks)),))
    if node.children:
        rounds.append(tuple(send(child, blocks(ranks))
                            for child, ranks in zip(node.children, node.branches)))
    return rounds


def blocks(ranks: range) -> Span:
    """Return the blocks of a range of ranks."""
    return at(OUT, ranks.start, ranks.stop)
