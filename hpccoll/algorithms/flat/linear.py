"""Linear: the root talks to every rank directly.

One message deep, p-1 messages wide: right for few ranks and small blocks, and the reference
that other algorithms are compared with. Reductions keep rank order for every root.
Source: Open MPI coll/basic; MPICH for gatherv and scatterv.
Rounds: 1; reduce takes FAN children a round, ceil((p-1)/FAN), so that landing space at the root
stays bounded. Sent: n per peer, by the root (bcast, scatter) or by the others (reduce, gather).
"""

from __future__ import annotations

from hpccoll.algorithms.parts.tree_walks import fan_in, fan_out, side
from hpccoll.algorithms.parts.trees import TreeNode
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.schedule import Program, Round, Span, at, copy, recv, send

#: Contributions that land at the root of a reduction at once.
FAN = 64


def star(rank: int, size: int, root: int) -> TreeNode:
    """Place a rank in the tree in which all ranks hang below the root."""
    if rank != root:
        return TreeNode(root, ())
    return TreeNode(None, tuple((root + i) % size for i in range(1, size)))


def barrier(rank: int, size: int) -> Program:
    """Rank 0 receives from every rank, then answers all."""
    node = star(rank, size, 0)
    return Program((*fan_in(rank, node), *fan_out(node)))


def bcast(rank: int, size: int, root: int) -> Program:
    """The root sends the whole vector to every rank."""
    return Program(tuple(fan_out(star(rank, size, root), at(OUT, 0))))


def reduce(rank: int, size: int, root: int) -> Program:
    """Every rank sends its vector to the root, which combines them outwards from its own."""
    if rank != root:
        return Program(((send(root, at(IN, 0)),),))
    whole = at(OUT, 0)
    return Program(((copy(whole, at(IN, 0)),), *collect(size, root, whole)))


def allreduce(rank: int, size: int) -> Program:
    """Reduce to rank 0, which sends the result to every rank."""
    whole = at(OUT, 0)
    up = collect(size, 0, whole) if rank == 0 else [(send(0, whole),)]
    return Program(((copy(whole, at(IN, 0)),), *up, *fan_out(star(rank, size, 0), whole)))


def collect(size: int, root: int, whole: Span) -> list[Round]:
    """The root's receives: nearest rank first on either side, FAN at a time."""
    outwards = (*range(root - 1, -1, -1), *range(root + 1, size))
    return [tuple(recv(rank, whole, reduce=side(rank, root)) for rank in outwards[i:i + FAN])
            for i in range(0, size - 1, FAN)]


def gather(rank: int, size: int, root: int) -> Program:
    """Every rank sends its block to the root, straight into place."""
    if rank != root:
        return Program(((send(root, at(IN, 0)),),))
    return Program(((copy(at(OUT, root), at(IN, 0)),),
                    tuple(recv(r, at(OUT, r)) for r in range(size) if r != root)))


def scatter(rank: int, size: int, root: int) -> Program:
    """The root sends every rank its block, straight from the input."""
    if rank != root:
        return Program(((recv(root, at(OUT, 0)),),))
    return Program((tuple(send(r, at(IN, r)) for r in range(size) if r != root),
                    (copy(at(OUT, 0), at(IN, root)),)))
