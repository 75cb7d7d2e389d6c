"""Double binary tree: half of the vector flows through each of two trees.

In one binary tree the leaves, half of the ranks, forward nothing. Here a rank that has children
in one tree is a leaf of the other, so everyone forwards half of the data to two children: full
bandwidth in about log2 p rounds, in a plan that runs it segment by segment. The inner half of a
rank's work comes first; waiting for the leaf half before it would close a cycle of waits.
Source: Sanders, Speck and Träff, ParCo 2009; NCCL.
Rounds: bits of p-1, twice that for allreduce. Sent: at most n for bcast and for reduce, 2n for
allreduce. Commutative operators, since the second tree wraps round.
"""

from __future__ import annotations

from hpccoll.algorithms.parts.tree_walks import side
from hpccoll.algorithms.parts.trees import TreeNode, double
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import Program, Round, at, copy, recv, send


def bcast(rank: int, size: int, root: int) -> Program:
    """Pass each half down its tree."""
    return Program(tuple(broadcast_rounds(double(rank, size, root))))


def reduce(rank: int, size: int, root: int) -> Program:
    """Combine each half up its tree."""
    mine, trees = OUT if rank == root else TMP, double(rank, size, root)
    return Program(((copy(at(mine, 0, 2), at(IN, 0, 2)),), *reduce_rounds(rank, trees, mine)),
                   () if rank == root else range(2))


def allreduce(rank: int, size: int) -> Program:
    """Combine each half up its tree to rank 0, then pass it down the same tree."""
    trees = double(rank, size, 0)
    return Program(((copy(at(OUT, 0, 2), at(IN, 0, 2)),), *reduce_rounds(rank, trees, OUT),
                    *broadcast_rounds(trees)))


def broadcast_rounds(trees: tuple[TreeNode, TreeNode]) -> list[Round]:
    """Receive the half to forward; then forward it and receive the other."""
    inner = [recv(t.parent, at(OUT, h)) for h, t in enumerate(trees)
             if t.parent is not None and t.children]
    rest = [send(child, at(OUT, h)) for h, t in enumerate(trees) for child in t.children]
    rest += [recv(t.parent, at(OUT, h)) for h, t in enumerate(trees)
             if t.parent is not None and not t.children]
    return [tuple(steps) for steps in (inner, rest) if steps]


def reduce_rounds(rank: int, trees: tuple[TreeNode, TreeNode], buffer: str) -> list[Round]:
    """Reduce into one half and send the other; then send the reduced half on."""
    first = [recv(child, at(buffer, h), reduce=side(child, rank))
             for h, t in enumerate(trees) for child in t.children]
    first += [send(t.parent, at(buffer, h)) for h, t in enumerate(trees)
              if t.parent is not None and not t.children]
    inner = [send(t.parent, at(buffer, h)) for h, t in enumerate(trees)
             if t.parent is not None and t.children]
    return [tuple(steps) for steps in (first, inner) if steps]
