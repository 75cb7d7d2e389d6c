"""Moving data along a tree: fan-out from parents to children, fan-in from children to parents.

A tree algorithm is a shape of :mod:`hpccoll.algorithms.parts.trees` and one of these walks. All
messages between a rank and its children are in one round, so no child waits for another;
reductions are applied in that round's order, nearest child first, which keeps rank order in
trees whose subtrees are contiguous ranges.
Rounds: the depth of the tree. Sent: n per child in a fan-out, n in a fan-in.
"""

from __future__ import annotations

from hpccoll.algorithms.parts.trees import TreeNode
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Round, Span, at, copy, recv, send


def fan_out(node: TreeNode, *spans: Span) -> list[Round]:
    """Receive from the parent, then send to all children, largest subtree first."""
    rounds: list[Round] = []
    if node.parent is not None:
        rounds.append((recv(node.parent, *spans),))
    if node.children:
        rounds.append(tuple(send(child, *spans) for child in node.children))
    return rounds


def fan_in(rank: int, node: TreeNode, *spans: Span) -> list[Round]:
    """Reduce what all children send into the spans, then send them to the parent."""
    rounds: list[Round] = []
    if node.children:
        rounds.append(tuple(recv(child, *spans, reduce=side(child, rank) if spans else "")
                            for child in reversed(node.children)))
    if node.parent is not None:
        rounds.append((send(node.parent, *spans),))
    return rounds


def side(arriving: int, rank: int) -> str:
    """Return the side of the contribution of another rank's subtree: lower ranks to the left."""
    return LEFT if arriving < rank else RIGHT


def bcast(node: TreeNode) -> Program:
    """Pass the whole vector from the root down the tree."""
    return Program(tuple(fan_out(node, at(OUT, 0))))


def reduce(rank: int, node: TreeNode) -> Program:
    """Combine whole vectors up the tree; a leaf sends its input as it is."""
    if node.parent is not None and not node.children:
        return Program(tuple(fan_in(rank, node, at(IN, 0))))
    mine = at(OUT if node.parent is None else TMP, 0)
    return Program(((copy(mine, at(IN, 0)),), *fan_in(rank, node, mine)),
                   () if node.parent is None else (0,))
