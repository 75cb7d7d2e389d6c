"""Binary tree in rank order: at most two children, subtrees of neighbouring ranks.

Fewer rounds than a chain and at most 2n per rank whatever p is, so segments pipeline through it
well. The tree has any rank as its root and still keeps rank order (see
:func:`hpccoll.algorithms.parts.trees.in_order`), where others reduce to rank p-1 and forward.
Source: in-order binary reduction, Open MPI coll/tuned.
Rounds: bits of the length of the longer side of the root, max(root, p-1-root); about log2 p.
Sent: at most 2n for bcast, n for reduce.
"""

from __future__ import annotations

from hpccoll.algorithms.parts import tree_walks
from hpccoll.algorithms.parts.trees import in_order
from hpccoll.ir.schedule import Program


def bcast(rank: int, size: int, root: int) -> Program:
    """Pass the whole vector down the tree."""
    return tree_walks.bcast(in_order(rank, size, root))


def reduce(rank: int, size: int, root: int) -> Program:
    """Combine whole vectors up the tree, lower subtree, own, upper subtree."""
    return tree_walks.reduce(rank, in_order(rank, size, root))
