"""Chain: each rank passes the whole vector to the next.

Every rank sends and receives the vector once, so a plan that runs it segment by segment moves
large messages at full link bandwidth after p-1 segments of start-up.
Source: Open MPI coll/tuned "pipeline"; NCCL ring broadcast.
Rounds: p-1. Sent: n.
"""

from __future__ import annotations

from hpccoll.algorithms.parts import tree_walks
from hpccoll.algorithms.parts.trees import chain
from hpccoll.ir.schedule import Program


def bcast(rank: int, size: int, root: int) -> Program:
    """Pass the vector from the root along the chain."""
    return tree_walks.bcast(chain(rank, size, root))


def reduce(rank: int, size: int, root: int) -> Program:
    """Combine vectors along the chain towards the root; commutative, as the chain wraps round."""
    return tree_walks.reduce(rank, chain(rank, size, root))
