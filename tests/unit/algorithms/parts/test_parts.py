"""Parts that algorithms share: folding, trees and the routes of Swing."""

from functools import partial

import pytest

from hpccoll.algorithms.flat import bine, linear
from hpccoll.algorithms.parts import swing_routes, tree_walks, trees
from hpccoll.algorithms.parts.folding import Fold
from hpccoll.algorithms.parts.trees import TreeNode
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, at, copy, recv, send


# Folding: groups of ranks behind virtual ones
def test_fold_is_a_partition_into_neighbours():
    for size in range(1, 300):
        for power in {1 << (size.bit_length() - 1), 1, size, max(size // 3, 1)}:
            fold = Fold(size, power)
            members = [fold.members(v) for v in range(power)]
            assert [r for group in members for r in group] == list(range(size))
            assert {len(group) for group in members} <= {size // power, -(-size // power)}
            assert [fold.virtual(fold.real_rank(v)) for v in range(power)] == list(range(power))
            assert all(fold.group(r) == v for v in range(power) for r in members[v])
            assert fold.block(0, power) == (0, size)


def test_fold_onto_a_power_of_two_makes_pairs():
    for size in range(1, 300):
        fold = Fold(size)
        extra = size - fold.power
        assert fold.power <= size < 2 * fold.power
        for rank in range(size):
            if rank < 2 * extra:
                expected = rank // 2 if rank % 2 else None
            else:
                expected = rank - extra
            assert fold.virtual(rank) == expected


def test_fold_lets_the_root_take_part():
    for size in range(1, 40):
        for root in range(size):
            fold = Fold(size, root=root)
            assert fold.virtual(root) == fold.group(root) == Fold(size).group(root)
            virtual = range(fold.power)
            assert [fold.virtual(fold.real_rank(v)) for v in virtual] == list(virtual)


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


@pytest.mark.parametrize("k, i", [(2, 1), (2, 2), (2, 5), (3, 3), (4, 3)])
def test_knomial_is_the_textbook_tree_at_powers(k, i):
    size = k ** i
    for rank in range(1, size):
        digit = next(d for d in range(i) if rank % k ** (d + 1))
        assert trees.knomial(rank, size, 0, k).parent == rank - rank % k ** (digit + 1)


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


# Tree walks: messages of a rank and its children, in rank order
INNER = TreeNode(9, (7, 4, 6))


def test_a_fan_out_receives_and_then_sends_to_the_largest_subtree_first():
    whole = at(OUT, 0)
    assert tree_walks.fan_out(INNER, whole) == [
        (recv(9, whole),), (send(7, whole), send(4, whole), send(6, whole))]
    assert tree_walks.fan_out(TreeNode(None, ())) == []


def test_a_fan_in_reduces_the_nearest_child_first_on_its_side():
    whole = at(OUT, 0)
    assert tree_walks.fan_in(5, INNER, whole) == [
        (recv(6, whole, reduce=RIGHT), recv(4, whole, reduce=LEFT), recv(7, whole, reduce=RIGHT)),
        (send(9, whole),)]
    assert tree_walks.fan_in(5, INNER) == [(recv(6), recv(4), recv(7)), (send(9),)]


def test_a_leaf_sends_its_input_as_it_is():
    leaf = tree_walks.reduce(5, TreeNode(9, ()))
    assert leaf.rounds == ((send(9, at(IN, 0)),),) and not leaf.scratch
    inner = tree_walks.reduce(5, INNER)
    assert inner.rounds[0] == (copy(at(TMP, 0), at(IN, 0)),) and inner.scratch == (0,)


# Swing routes: every offset has one, and partners agree
def slots(spans):
    return [slot for span in spans for slot in range(span.start, span.stop)]


def least_routes(ring):
    """The least mask of steps, step 0 first, for every offset; by trying all."""
    bits, found = swing_routes.rounds(ring), {}
    for mask in range(1 << bits):
        steps = [step for step in range(bits) if mask >> (bits - 1 - step) & 1]
        reaches = [(1 - (-2) ** (step + 1)) // 3 for step in steps]
        found.setdefault(sum(reaches[::2]) - sum(reaches[1::2]), mask)
    least = {}
    for offset, mask in found.items():
        least[offset % ring] = min(mask, least.get(offset % ring, mask))
    return least


def test_offsets_are_in_the_order_of_their_least_routes():
    for ring in range(2, 130, 2):
        least = least_routes(ring)
        assert list(swing_routes.routes(ring)[0]) == sorted(range(ring), key=least.__getitem__)


def test_every_offset_has_a_route_and_every_step_sends_a_tail():
    for ring in (*range(0, 400, 2), 1022, 1026, 4094, 4096, 4098):
        order, moves = swing_routes.routes(ring)
        assert sorted(order) == list(range(max(ring, 1)))
        live = len(order)
        for move in moves:
            assert move.tail.stop == live
            live = move.tail.start
            front = slots(move.front)
            assert len(front) == move.tail.stop - move.tail.start and front[-1] < live
            assert [order[slot] for slot in front] == [
                (move.reach - offset) % ring for offset in order[live:move.tail.stop]]
        assert live == 1


def test_powers_of_two_meet_one_slice():
    for bits in range(1, 12):
        assert all(len(move.front) == 1 for move in swing_routes.routes(1 << bits)[1])


@pytest.mark.parametrize("ring", [2, 6, 10, 16, 100])
def test_partners_agree(ring):
    for move in swing_routes.routes(ring)[1]:
        for rank in range(ring):
            peer = swing_routes.partner(rank, move.reach, ring)
            assert peer != rank and swing_routes.partner(peer, move.reach, ring) == rank
