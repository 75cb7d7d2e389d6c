"""Rails: what crosses between groups."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.schedule import SEND
from hpccoll.proof.verifier import verify


def crossing(made, rank):
    """Blocks and messages that a rank sends out of its largest group."""
    own = next(group for group in made.topology.groups() if rank in group)
    sends = [step for steps in made.program(rank).rounds for step in steps
             if step.kind == SEND and step.peer not in own]
    return sum(span.stop - span.start for step in sends for span in step.spans), len(sends)


def crossing_blocks(made):
    return [crossing(made, rank)[0] for rank in range(made.size)]


@pytest.mark.parametrize("leaders", [1, 3, 9])
@pytest.mark.parametrize("shape", ["6", "2x3", "2x2x2", "1,4,2", "((1,2),3),(2,1)"])
def test_any_number_of_leaders(leaders, shape):
    verify(schedule("allreduce", "multi_leader", topology=shape, leaders=leaders))


@pytest.mark.parametrize(("shape", "across", "ranks"), [
    ("4x4", 4, 4), ("2x8", 2, 8), ("8x2", 8, 2), ("3x5", 3, 5), ("4x2x3", 4, 6), ("2x2x2x2", 2, 8)])
def test_rails_send_what_blueconnect_promises(shape, across, ranks):
    """A rank's share is 1/ranks of the vector, and (m-1)/m of it cross, once each way."""
    made = schedule("allreduce", "rails", topology=shape)
    share = made.nblocks // ranks
    assert share * ranks == made.nblocks and share % across == 0
    assert set(crossing_blocks(made)) == {2 * share * (across - 1) // across}


@pytest.mark.parametrize("shape", ["3,5,4", "1,4,2", "5,1,1", "(2,3),(4)", "7,9,8,1"])
def test_rails_between_unequal_groups_are_complete_and_balanced(shape):
    """Groups together send no more than equal ones would, and no rank more than its share."""
    made = schedule("allreduce", "rails", topology=shape)
    groups = made.topology.groups()
    found = crossing_blocks(made)
    assert sum(found) == 2 * made.nblocks * (len(groups) - 1)
    for group in groups:
        share = -(-made.nblocks // len(group))
        assert all(found[rank] <= 2 * share for rank in group)
