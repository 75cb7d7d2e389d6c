"""k-nomial trees: every rank that has the data passes it on, so ranks served multiply.

Few rounds, whole vectors: right for small messages on many ranks. Binomial is k = 2; a larger k
makes the tree flatter and the root busier. The tree is cut from ranges of real ranks (see
:func:`~hpccoll.algorithms.parts.trees.knomial`), so reductions keep rank order and gathered blocks
are contiguous for every root.
Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005; k-nomial in Open MPI, UCC.
Rounds: the largest j with (k^j - 1)/(k - 1) < p, floor(log2 p) for k = 2. Sent: n per child,
at most ceil(log2 p) children for k = 2; reduce n; gather n floor(p/2)/p; scatter n(p-1)/p.
"""

from __future__ import annotations

from hpccoll.algorithms.parts import tree_walks
from hpccoll.algorithms.parts.trees import knomial
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import Program, at, copy, recv, send


def barrier(rank: int, size: int, k: int) -> Program:
    """Gather tokens up the tree to rank 0, then release everyone down it."""
    node = knomial(rank, size, 0, k)
    return Program((*tree_walks.fan_in(rank, node), *tree_walks.fan_out(node)))


def bcast(rank: int, size: int, root: int, k: int = 2) -> Program:
    """Pass the whole vector down the tree."""
    return tree_walks.bcast(knomial(rank, size, root, k))


def reduce(rank: int, size: int, root: int, k: int = 2) -> Program:
    """Combine whole vectors up the tree, in rank order."""
    return tree_walks.reduce(rank, knomial(rank, size, root, k))


def allreduce(rank: int, size: int) -> Program:
    """Combine whole vectors up the binomial tree to rank 0, then pass the result down it."""
    node, whole = knomial(rank, size, 0), at(OUT, 0)
    return Program(((copy(whole, at(IN, 0)),),
                    *tree_walks.fan_in(rank, node, whole), *tree_walks.fan_out(node, whole)))


def gather(rank: int, size: int, root: int) -> Program:
    """Collect the blocks of each binomial subtree at its head, straight into place at the root."""
    node = knomial(rank, size, root)
    if node.parent is not None and not node.children:
        return Program(((send(node.parent, at(IN, 0)),),))
    buffer, first = (OUT, 0) if node.parent is None else (TMP, node.ranks.start)
    rounds = [(copy(at(buffer, rank - first), at(IN, 0)),),
              tuple(recv(child, at(buffer, ranks.start - first, ranks.stop - first))
                    for child, ranks in zip(node.children, node.branches))]
    if node.parent is None:
        return Program(tuple(rounds))
    rounds.append((send(node.parent, at(TMP, 0, len(node.ranks))),))
    return Program(tuple(rounds), node.ranks)


def scatter(rank: int, size: int, root: int) -> Program:
    """Hand each binomial subtree's blocks to its head, straight from the input at the root."""
    node = knomial(rank, size, root)
    if node.parent is not None and not node.children:
        return Program(((recv(node.parent, at(OUT, 0)),),))
    buffer, first = (IN, 0) if node.parent is None else (TMP, node.ranks.start)
    rounds = [tuple(send(child, at(buffer, ranks.start - first, ranks.stop - first))
                    for child, ranks in zip(node.children, node.branches)),
              (copy(at(OUT, 0), at(buffer, rank - first)),)]
    if node.parent is None:
        return Program(tuple(rounds))
    return Program(((recv(node.parent, at(TMP, 0, len(node.ranks))),), *rounds), node.ranks)
