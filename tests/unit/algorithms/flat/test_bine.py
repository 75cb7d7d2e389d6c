"""Bine trees: the root, and what crosses between groups."""

from random import Random

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import bine
from hpccoll.ir.schedule import SEND


def sends(made, rank):
    """Peer and number of blocks of every message that a rank sends, round by round."""
    rounds = [[(step.peer, sum(span.stop - span.start for span in step.spans))
               for step in steps if step.kind == SEND] for steps in made.program(rank).rounds]
    return [found for found in rounds if found]


def crossing(collective, name, size, borders, root=0):
    """Share of the vector, or of all blocks, that goes from one group of neighbours to another."""
    group = [sum(rank >= border for border in borders) for rank in range(size)]
    made = schedule(collective, name, size, root=root)
    blocks = made.nblocks if made.collective.payload == "vector" else size
    return sum(count for rank in range(size) for steps in sends(made, rank)
               for peer, count in steps if group[rank] != group[peer]) / blocks


def test_fewer_edges_of_bine_trees_cross_between_groups():
    random, size, total = Random(7), 100, {"bine": 0, "binomial": 0}
    for _ in range(12):
        borders, root = sorted(random.sample(range(1, size), 7)), random.randrange(size)
        for name in total:
            total[name] += crossing("bcast", name, size, borders, root)
    assert total["bine"] < 0.95 * total["binomial"]


def test_bine_roots_have_as_many_children_as_the_closed_form_says():
    for size in range(1, 200):
        for root in {0, size // 2, size - 1}:
            nodes = [bine.tree(rank, size, root) for rank in range(size)]
            assert len(nodes[root].children) == bine.degree(size)
            assert max(len(node.children) for node in nodes) == bine.degree(size)
