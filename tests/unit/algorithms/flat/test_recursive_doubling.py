"""Recursive doubling: partners at doubling distances, and folded ranks beside them."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.schedule import SEND


def peers(made, rank):
    return [step.peer for steps in made.program(rank).rounds for step in steps
            if step.kind == SEND]


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "barrier"])
def test_partners_are_twice_as_far_every_round(collective):
    made = schedule(collective, "recursive_doubling", 16)
    assert all(peers(made, rank) == [rank ^ 1, rank ^ 2, rank ^ 4, rank ^ 8]
               for rank in range(16))


def test_a_folded_rank_talks_to_its_neighbour_only():
    made = schedule("allreduce", "recursive_doubling", 6)
    assert peers(made, 0) == [1] and peers(made, 2) == [3]
    assert set(peers(made, 1)) == {0, 3, 4} and 4 in peers(made, 5)
