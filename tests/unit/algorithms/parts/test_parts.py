"""Parts that algorithms share: folding, trees and the routes of Swing."""

from functools import partial

import pytest

from hpccoll.algorithms.flat import bine, linear
from hpccoll.algorithms.parts import trees

# Tree shapes: everyone hangs below one parent, in ranges that keep rank order
SIZES = [*range(1, 36), 63, 64, 65, 99, 128, 129]
SHAPES = {
    "binomial": (trees.knomial, trees.depth),
    "3-nomial": (partial(trees.knomial, k=3), partial(trees.depth, k=3)),
    "4-nomial": (partial(trees.knomial, k=4), partial(trees.depth, k=4)),
    "9-nomial": (partial(trees.knomial, k=9), partial(trees.depth, k=9)),
    "bine": (bine.tree, trees.depth),
    "chain": (trees.chain, lambda p: p - 1),
    "star": (linear.star, lambda p: int(p > 1)),
    "in_order": (trees.in_order, lambda p: (p - 1).bit_length()),
    "double_first": (lambda *a: trees.double(*a)[0], lambda p: (p - 1).bit_length()),
    "double_second": (lambda *a: trees.double(*a)[1], lambda p: (p - 1).bit_length()),
}


def some_roots(size):
    return range(size) if size <= 9 else sorted({0, size // 3, size - 1})


def depths(nodes, root):
    """Distance from the root of every rank that can be reached from it."""
    found, reached = {root: 0}, [root]
    for rank in reached:
        for child in nodes[rank].children:
            assert child not in found, f"{child} has two parents"
            found[child] = found[rank] + 1
            reached.append(child)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_everyone_hangs_below_one_parent_that_knows_it(shape):
    place, bound = SHAPES[shape]
    for size in SIZES:
        for root in some_roots(size):
            nodes = [place(rank, size, root) for rank in range(size)]
            found = depths(nodes, root)
            assert len(found) == size, (size, root)
            assert nodes[root].parent is None
            for rank, node in enumerate(nodes):
                assert all(nodes[child].parent == rank for child in node.children)
            assert max(found.values()) <= bound(size), (size, root)
            if "nomial" in shape:
                assert max(found.values()) == bound(size), (size, root)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 4, 9])
def test_knomial_subtrees_are_adjacent_ranges(k):
    for size in SIZES:
        for root in some_roots(size):
            nodes = [trees.knomial(rank, size, root, k) for rank in range(size)]
            assert len(nodes[root].children) == trees.degree(size, k)
            for rank, node in enumerate(nodes):
                assert [nodes[c].ranks for c in node.children] == list(node.branches)
                start, stop = rank, rank + 1
                for branch in reversed(node.branches):
                    assert branch.start == stop or branch.stop == start, (size, root, rank)
                    start, stop = min(start, branch.start), max(stop, branch.stop)
                assert node.ranks == range(start, stop)


def test_in_order_subtrees_stand_on_their_side():
    def span(nodes, rank):
        inner = [span(nodes, child) for child in nodes[rank].children]
        return min([rank, *(a for a, _ in inner)]), max([rank, *(b for _, b in inner)])

    for size in [1, 2, 3, 6, 13, 32, 100]:
        for root in some_roots(size):
            nodes = [trees.in_order(rank, size, root) for rank in range(size)]
            assert max(depths(nodes, root).values()) == max(root, size - 1 - root).bit_length()
            for rank, node in enumerate(nodes):
                below = [span(nodes, c) for c in node.children]
                assert all(b < rank or a > rank for a, b in below)
                assert len({a < rank for a, _ in below}) == len(below) <= 2


def test_double_tree_has_no_rank_but_the_root_inside_both():
    for size in SIZES:
        for root in some_roots(size):
            for rank in range(size):
                first, second = trees.double(rank, size, root)
                assert rank == root or not (first.children and second.children)
                assert len(first.children) + len(second.children) <= 2
