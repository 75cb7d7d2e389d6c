"""Tree shapes, the circulant tables, and the proofs of the algorithms built on them."""

from functools import partial

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.flat import bine, circulant_broadcast, dissemination, linear
from hpccoll.algorithms.parts import trees
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.schedule import RECV
from hpccoll.proof.cases import BlockSizes
from hpccoll.proof.verifier import prove, verify

SIZES = [*range(1, 70), 99, 100, 127, 128, 129, 255, 256, 257, 299, 300]

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

ALGORITHM_NAMES = [(c, n) for c, names in {
    "barrier": "dissemination tree linear",
    "bcast": "linear binomial knomial chain binary scatter_allgather scatter_ring double_tree "
             "circulant bine",
    "reduce": "linear binomial knomial chain in_order_binary double_tree circulant bine",
    "allreduce": "linear reduce_bcast double_tree",
    "gather": "linear binomial",
    "scatter": "linear binomial"}.items() for n in names.split()]


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


def test_circulant_tables_meet_the_conditions_of_the_paper():
    for size in [*range(2, 130), 255, 256, 257, 300, 1000]:
        skip = circulant_broadcast.skips(size)
        q = len(skip) - 1
        assert skip[0] == 1 and skip[q] == size and q == (size - 1).bit_length()
        takes = [circulant_broadcast.receive_table(v, skip) for v in range(size)]
        gives = [[takes[(v + skip[k]) % size][k] for k in range(q)] for v in range(size)]
        assert gives[0] == list(range(q)), size
        for v in range(1, size):
            b = circulant_broadcast.baseblock(v, skip)
            assert sorted(takes[v]) == sorted({b, *range(-q, 0)} - {b - q}), (size, v)
            assert gives[v][0] == b - q, (size, v)
            assert all(gives[v][k] in (b - q, *takes[v][:k]) for k in range(1, q)), (size, v)


def test_dissemination_reaches_everyone_in_the_fewest_rounds():
    for size in SIZES:
        for k in (2, 3, 5, 400):
            rounds = len(dissemination.distances(size, k))
            assert k ** rounds >= size and (not rounds or k ** (rounds - 1) < size)


@pytest.mark.parametrize("collective, name", ALGORITHM_NAMES)
def test_proved_where_the_sweep_does_not_go(collective, name):
    entry = ALGORITHMS[collective][name]
    for size, root in (33, 20), (129, 128):
        verify(schedule(collective, name, size, root=root), commutative=not entry.rank_order)
    for size, root in (65, 3), (100, 50):
        made = schedule(collective, name, size, root=root)
        keys = made.nblocks if made.collective.payload == "vector" else size
        prove(made, COLLECTIVES[collective], BlockSizes(lambda key: 1, keys))


@pytest.mark.parametrize("collective, name, values", [
    ("barrier", "dissemination", {"k": (2, 3, 40)}), ("barrier", "tree", {"k": (3, 40)}),
    ("bcast", "knomial", {"k": (2, 3, 40)}), ("reduce", "knomial", {"k": (2, 3, 40)}),
    ("bcast", "circulant", {"n": (1, 2, 5, 13)}), ("reduce", "circulant", {"n": (1, 2, 5, 13)})])
def test_proved_for_other_parameters(collective, name, values):
    (key, choices), = values.items()
    entry = ALGORITHMS[collective][name]
    for choice in choices:
        for size in (1, 2, 7, 12):
            verify(schedule(collective, name, size, root=size // 2, **{key: choice}),
                   commutative=not entry.rank_order)


@pytest.mark.parametrize("name", ["scatter_allgather", "scatter_ring"])
def test_nobody_receives_a_block_twice(name):
    for size in (1, 2, 3, 7, 8, 24, 33):
        for root in some_roots(size):
            for rank, program in enumerate(schedule("bcast", name, size, root=root).programs()):
                received = [slot for steps in program.rounds for step in steps if step.kind == RECV
                            for span in step.spans for slot in range(span.start, span.stop)]
                assert sorted(received) == ([] if rank == root else list(range(size)))


def test_gather_lands_in_place_at_the_root():
    for name in ("linear", "binomial"):
        program = schedule("gather", name, 12, root=5).program(5)
        assert not program.scratch
        assert all(step.spans[0].buffer == OUT for step in program.rounds[1])


def test_a_linear_reduction_bounds_its_landing_space():
    program = schedule("reduce", "linear", 200, root=77).program(77)
    assert max(map(len, program.rounds)) == linear.FAN
    assert sum(map(len, program.rounds[1:])) == 199


@pytest.mark.parametrize("collective, name", [
    ("barrier", "dissemination"), ("barrier", "tree"), ("bcast", "knomial"),
    ("reduce", "knomial")])
def test_a_radix_below_two_is_refused(collective, name):
    with pytest.raises(ArgumentError, match="k: expected at least 2, got 1"):
        schedule(collective, name, 8, k=1)
