"""Lane Bruck: several rounds between groups."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.schedule import SEND
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove


def crossing(made, rank):
    """Blocks and messages that a rank sends out of its largest group."""
    own = next(group for group in made.topology.groups() if rank in group)
    sends = [step for steps in made.program(rank).rounds for step in steps
             if step.kind == SEND and step.peer not in own]
    return sum(span.stop - span.start for step in sends for span in step.spans), len(sends)


def crossing_blocks(made):
    return [crossing(made, rank)[0] for rank in range(made.size)]


@pytest.mark.parametrize("shape", ["9x2", "16x3", "10x3", "2,5,3,2,2,4,2,2,3,2"])
def test_lane_bruck_in_several_rounds(shape):
    made = schedule("allgather", "lane_bruck", topology=shape)
    proof = prove(made, made.collective, next(iter(cases(made, made.collective))))
    assert made.rounds in (None, proof.rounds) and made.sent in (None, proof.sent)


@pytest.mark.parametrize("shape", ["2x4", "3x2", "9x2", "4x3", "16x3", "2x2x2x2"])
def test_lane_bruck_deals_out_the_last_round_too(shape):
    made = schedule("allgather", "lane_bruck", topology=shape)
    groups = made.topology.groups()
    assert made.sent == made.size - 1
    assert set(crossing_blocks(made)) == {len(groups) - 1}
