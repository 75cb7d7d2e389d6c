"""Swing: what is sent, and what crosses between groups."""

from itertools import accumulate
from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import swing
from hpccoll.ir.schedule import SEND
from hpccoll.proof.verifier import verify

NAMES = ("allreduce", "reduce_scatter", "allgather")


def sends(made, rank):
    """Peer and number of blocks of every message that a rank sends, round by round."""
    rounds = [[(step.peer, sum(span.stop - span.start for span in step.spans))
               for step in steps if step.kind == SEND] for steps in made.program(rank).rounds]
    return [found for found in rounds if found]


@pytest.mark.parametrize(("size", "blocks"), [
    (16, [8, 4, 2, 1]), (10, [2, 4, 2, 1]), (18, [2, 8, 4, 2, 1]), (12, [6, 2, 2, 1])])
def test_blocks_of_every_round(size, blocks):
    for rank in (0, 1, size - 1):
        there = [count for (_, count), in sends(schedule("reduce_scatter", "swing", size), rank)]
        back = [count for (_, count), in sends(schedule("allgather", "swing", size), rank)]
        both = [sum(count for _, count in steps)
                for steps in sends(schedule("allreduce", "swing", size), rank)]
        assert (there, back, both) == (blocks, blocks[::-1], blocks + blocks[::-1])


def test_partners_swing_to_either_side():
    found = [peer for (peer, _), in sends(schedule("reduce_scatter", "swing", 32), 0)]
    assert found == [1, 31, 3, 27, 11]


@pytest.mark.parametrize("collective", NAMES)
@pytest.mark.parametrize("size", [1, 3, 5, 11, 13, 101])
def test_the_last_of_an_odd_number_sends_as_much_as_others(collective, size):
    made = schedule(collective, "swing", size)
    halves = 2 if collective == "allreduce" else 1
    last = sends(made, size - 1)
    assert sorted(peer for steps in last for peer, _ in steps) == sorted(
        halves * list(range(size - 1)))
    for steps, others in zip(last, sends(made, 0)):
        most = max(count for _, count in others)
        assert len(steps) <= most + 1 and all(count == 1 for _, count in steps)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective", NAMES)
@pytest.mark.parametrize("size", [*range(1, 13), 18, 22, 26])
def test_proof(collective, size):
    verify(schedule(collective, "swing", size))


@pytest.mark.parametrize(("size", "most"), [(2, 1), (8, 1), (64, 1), (12, 1), (96, 1), (97, 2),
                                            (18, 3), (80, 2), (120, 6)])
def test_an_allreduce_needs_no_scratch_where_few_slices_move(size, most):
    made = schedule("allreduce", "swing", size)
    for rank in range(size - size % 2):
        program, found = made.program(rank), sends(made, rank)
        assert program.scratch == ()
        assert all(len(step.spans) == 1 for steps in program.rounds for step in steps)
        assert max(map(len, found)) <= most and sum(map(len, found)) <= 3 * len(found)


def test_multiples_of_eight_need_no_scratch():
    suited = [ring for ring in range(2, 130, 2) if swing.parts(ring)]
    assert set(range(8, 130, 8)) < set(suited) and 26 not in suited
    for ring in suited:
        assert sorted(swing.parts(ring)) == list(range(ring + 1))
    assert schedule("allreduce", "swing", 26).program(0).scratch


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


def test_aligned_powers_of_two_suit_other_partners_better():
    """Rabenseifner's leave a group of 16 twice in six steps, swing's earlier."""
    borders = list(accumulate([16] * 3))
    found = {name: crossing("allreduce", name, 64, borders)
             for name in ("rabenseifner", "swing", "pat", "circulant")}
    assert found["rabenseifner"] < found["swing"] < found["pat"] < found["circulant"]
