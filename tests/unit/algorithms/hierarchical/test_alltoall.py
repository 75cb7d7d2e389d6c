"""Alltoall on groups: blocks cross once, in few messages."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.schedule import SEND


def crossing(made, rank):
    """Blocks and messages that a rank sends out of its largest group."""
    own = next(group for group in made.topology.groups() if rank in group)
    sends = [step for steps in made.program(rank).rounds for step in steps
             if step.kind == SEND and step.peer not in own]
    return sum(span.stop - span.start for step in sends for span in step.spans), len(sends)


def crossing_blocks(made):
    return [crossing(made, rank)[0] for rank in range(made.size)]


@pytest.mark.parametrize("name", ["two_phase", "leader"])
@pytest.mark.parametrize("shape", ["4x4", "3,5,4", "1,4,2", "2x2x3"])
def test_alltoall_blocks_cross_once(name, shape):
    made = schedule("alltoall", name, topology=shape)
    inside = sum(len(group) ** 2 for group in made.topology.groups())
    assert sum(crossing_blocks(made)) == made.size ** 2 - inside


def test_two_phase_sends_one_message_to_each_other_group():
    made = schedule("alltoall", "two_phase", topology="5x3")
    assert {crossing(made, rank) for rank in range(15)} == {(12, 4)}
