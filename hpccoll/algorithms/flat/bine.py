"""Bine trees: binomial trees whose branches reach to both sides, so they need not reach as far.

The tree of a root is the way its block takes in the allgather of
:mod:`~hpccoll.algorithms.flat.swing`: the root first sends to its farthest partner, and every rank
that has the vector to ever nearer ones. It is as deep as a binomial tree, but its edges are
shorter, so fewer of them cross between groups of ranks whose sizes are no powers of two. Branches
on both sides mix the order of ranks: reductions must commute. Of an odd number of ranks, a
neighbour of the root is left out and hangs below it.
Source: De Sensi et al., "Bine Trees: Enhancing Collective Operations by Optimizing Communication
Locality", SC 2025, arXiv 2508.17311 (powers of two).
Rounds: floor(log2 p). Sent: n a child, of which the root has most; reduce n.
"""

from __future__ import annotations

from hpccoll.algorithms.parts import tree_walks
from hpccoll.algorithms.parts.swing_routes import partner, places, routes
from hpccoll.algorithms.parts.trees import TreeNode
from hpccoll.ir.schedule import Program


def bcast(rank: int, size: int, root: int) -> Program:
    """Pass the whole vector down the tree, whose branches reach to both sides."""
    return tree_walks.bcast(tree(rank, size, root))


def reduce(rank: int, size: int, root: int) -> Program:
    """Combine whole vectors up the tree, whose branches reach to both sides; commutative."""
    return tree_walks.reduce(rank, tree(rank, size, root))


def tree(rank: int, size: int, root: int) -> TreeNode:
    """Place a rank in the tree."""
    left_out = size if size % 2 == 0 else root + 1 if root + 1 < size else root - 1
    if rank == left_out:
        return TreeNode(root, ())
    ring = size - size % 2
    place_of, moves = places(ring), routes(ring)[1]

    def slot(virtual: int) -> int:
        """Return the slot of the root's block on a rank in the allgather."""
        away = root - (root > left_out) - virtual
        return place_of[(-away if virtual % 2 else away) % max(ring, 1)]

    virtual = rank - (rank > left_out)
    own, parent, children = slot(virtual), None, []
    for move in moves:
        peer = partner(virtual, move.reach, ring)
        if own >= move.tail.start:
            parent = peer + (peer >= left_out)
            break
        if move.tail.start <= slot(peer) < move.tail.stop:
            children.append(peer + (peer >= left_out))
    below = (left_out,) if rank == root and size % 2 and size > 1 else ()
    return TreeNode(parent, (*reversed(children), *below))


def degree(size: int) -> int:
    """Return the number of children of the root, one more for odd sizes; in closed form.

    Below 4/3 of a power of two the two farthest partners are reached by other routes.
    """
    return (3 * (size - size % 2)).bit_length() - 2 + size % 2 if size > 1 else 0
