"""Flat algorithms of newer papers: Swing, Bine trees, PAT, circulant graphs and the census."""

from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.schedule import SEND


def sends(made, rank):
    """Peer and number of blocks of every message that a rank sends, round by round."""
    rounds = [[(step.peer, sum(span.stop - span.start for span in step.spans))
               for step in steps if step.kind == SEND] for steps in made.program(rank).rounds]
    return [found for found in rounds if found]


@pytest.mark.parametrize(("size", "most"), [(2, 1), (8, 1), (64, 1), (12, 1), (96, 1), (97, 2),
                                            (18, 3), (80, 2), (120, 6)])
def test_an_allreduce_needs_no_scratch_where_few_slices_move(size, most):
    made = schedule("allreduce", "swing", size)
    for rank in range(size - size % 2):
        program, found = made.program(rank), sends(made, rank)
        assert program.scratch == ()
        assert all(len(step.spans) == 1 for steps in program.rounds for step in steps)
        assert max(map(len, found)) <= most and sum(map(len, found)) <= 3 * len(found)


def crossing(collective, name, size, borders, root=0):
    """Share of the vector, or of all blocks, that goes from one group of neighbours to another."""
    group = [sum(rank >= border for border in borders) for rank in range(size)]
    made = schedule(collective, name, size, root=root)
    blocks = made.nblocks if made.collective.payload == "vector" else size
    return sum(count for rank in range(size) for steps in sends(made, rank)
               for peer, count in steps if group[rank] != group[peer]) / blocks


def test_fewer_blocks_cross_between_groups_of_any_sizes():
    """Than with any other algorithm of few rounds: the ring sends least, in p-1 rounds."""
    random, size, total = Random(7), 96, {}
    for _ in range(4):
        borders = sorted(random.sample(range(1, size), 5))
        for name in ("ring", "swing", "pat", "circulant", "bruck", "recursive_doubling"):
            total[name] = total.get(name, 0) + crossing("allgather", name, size, borders)
    assert total["ring"] < total["swing"]
    assert total["swing"] < 0.85 * min(total[name] for name in total
                                       if name not in ("ring", "swing"))


# Bine trees: the root, and what crosses between groups
def test_fewer_edges_of_bine_trees_cross_between_groups():
    random, size, total = Random(7), 100, {"bine": 0, "binomial": 0}
    for _ in range(12):
        borders, root = sorted(random.sample(range(1, size), 7)), random.randrange(size)
        for name in total:
            total[name] += crossing("bcast", name, size, borders, root)
    assert total["bine"] < 0.95 * total["binomial"]
