"""Tree shapes: a rank's parent and children, as pure functions of (rank, size, root).

* **k-nomial**, by cutting ranges. The range of ranks is cut into k near-equal parts; the head of
  the range is the parent of one rank, the head, of every other part; each part is cut again.
  Every subtree is a contiguous range of real ranks *for any root*: nothing wraps round, so
  reductions keep rank order and gathered blocks lie side by side without rotation. The head's
  part is the larger one. With root 0 and k^i ranks this is the textbook k-nomial tree; at any
  size its depth is the textbook one, the largest j with (k^j - 1)/(k - 1) < p.
* **in-order binary**: the ranks on either side of the root form a binary search tree (position v
  with lowest bit b hangs below (v xor b) | 2b), the root below neither: rank order for any root,
  and neighbours in rank are neighbours in the tree. Depth: bits of the longer side's length.
* **double binary**: two in-order trees over the ranks that are not the root. The second is the
  mirror image of the first (an even number of such ranks) or the first shifted by one (odd), so
  no rank but the root has children in both. Depth: bits of p-1.
* **chain**: root, root+1, ... modulo p.

Sources: Thakur, Rabenseifner, Gropp, IJHPCA 2005 (binomial); Träff, "On optimal trees for
irregular gather and scatter collectives", TPDS 2019 (contiguous ranges, any root); Sanders, Speck,
Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", ParCo 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from hpccoll.errors import ArgumentError


class TreeNode(NamedTuple):
    """Neighbours of a rank in a tree.

    Attributes:
        parent: the rank above, ``None`` at the root.
        children: the ranks below, those of the largest subtrees first.
        ranks: all ranks of the subtree (k-nomial trees only).
        branches: the ranks of each child's subtree (k-nomial trees only).
    """

    parent: int | None
    children: tuple[int, ...]
    ranks: range = range(0)
    branches: tuple[range, ...] = ()


def radix(k: int) -> int:
    """Return the radix; raise an error below 2."""
    if k < 2:
        raise ArgumentError("k", f"expected at least 2, got {k}")
    return k


def cut(ranks: range, head: int, k: int) -> list[range]:
    """Cut a range into k near-equal parts (fewer if it is short), the head in a longest one."""
    parts = min(radix(k), len(ranks))
    short, extra = divmod(len(ranks), parts)
    before = min((head - ranks.start) // short, parts - extra)
    lengths = [short] * before + [short + 1] * extra + [short] * (parts - extra - before)
    return [range(*ends) for ends in pairwise(accumulate(lengths, initial=ranks.start))]


def ranges(rank: int, size: int, root: int, k: int = 2) -> Iterator[tuple[int, list[range]]]:
    """Yield head and parts of every range around a rank, from all ranks down to its own part."""
    head, ranks = root, range(size)
    while len(ranks) > 1:
        parts = cut(ranks, head, k)
        yield head, parts
        ranks = next(part for part in parts if rank in part)
        if head not in ranks:
            head = ranks.start


def knomial(rank: int, size: int, root: int, k: int = 2) -> TreeNode:
    """Return a rank's node of the k-nomial tree; k = 2 is binomial."""
    parent, ranks = None, range(size)
    branches: list[range] = []
    for head, parts in ranges(rank, size, root, k):
        own = next(i for i, part in enumerate(parts) if head in part)
        if rank == head:
            order = sorted(range(len(parts)), key=lambda i: -abs(i - own))
            branches += [parts[i] for i in order[:-1]]
        elif rank not in parts[own]:
            # Overwritten on the way down: the last head above this rank is its parent.
            parent, ranks = head, next(part for part in parts if rank in part)
    children = tuple(branch.start for branch in branches)
    return TreeNode(parent, children, ranks, tuple(branches))


def depth(size: int, k: int = 2) -> int:
    """Return the depth of a k-nomial tree: the largest j with (k^j - 1)/(k - 1) < size."""
    levels, ones = 0, 1
    while ones < size:
        levels, ones = levels + 1, ones * radix(k) + 1
    return levels


def degree(size: int, k: int = 2) -> int:
    """Return the number of children of the root of a k-nomial tree."""
    children = 0
    while size > 1:
        children, size = children + min(radix(k), size) - 1, -(-size // k)
    return children


def chain(rank: int, size: int, root: int) -> TreeNode:
    """Return a rank's node of the chain that starts at the root."""
    return TreeNode(None if rank == root else (rank - 1) % size,
                () if (rank + 1) % size == root else ((rank + 1) % size,))


def in_order(rank: int, size: int, root: int) -> TreeNode:
    """Return a rank's node of the in-order binary tree; the root has a child on either side."""
    if rank == root:
        above, below = _search(0, size - 1 - root)[1], _search(0, root)[1]
        return TreeNode(None, (*(root + v for v in above), *(root - v for v in below)))
    side, count = (1, size - 1 - root) if rank > root else (-1, root)
    parent, children = _search(side * (rank - root), count)
    return TreeNode(root + side * (parent or 0), tuple(root + side * v for v in children))


def double(rank: int, size: int, root: int) -> tuple[TreeNode, TreeNode]:
    """Return a rank's nodes of both trees of the double binary tree."""
    count, virtual = size - 1, (rank - root) % size

    def place(position: int, rank_at: Callable[[int], int]) -> TreeNode:
        parent, children = _search(position, count)
        return TreeNode(None if parent is None else (root + rank_at(parent)) % size,
                    tuple((root + rank_at(v)) % size for v in children))

    if count % 2:
        twin, back = virtual and (virtual - 2) % count + 1, lambda v: v and v % count + 1
    else:
        twin, back = virtual and count + 1 - virtual, lambda v: v and count + 1 - v
    return place(virtual, lambda v: v), place(twin, back)


def _search(position: int, count: int) -> tuple[int | None, tuple[int, ...]]:
    """Return parent and children of a position in the search tree of 1..count below position 0."""
    if not position:
        return None, (1 << count.bit_length() - 1,) if count else ()
    low = position & -position
    parent = position - low | 2 * low
    if parent > count:
        parent = position - low
    children = [position - low // 2] if low > 1 else []
    # A subtree that reaches beyond the last position starts at the next smaller step.
    steps = (low >> i for i in range(1, low.bit_length()))
    children += [position + s for s in steps if position + s <= count][:1]
    return parent, tuple(children)
