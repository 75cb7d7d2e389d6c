"""Leaders: each group speaks through one rank."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.schedule import SEND


def crossing(made, rank):
    """Blocks and messages that a rank sends out of its largest group."""
    own = next(group for group in made.topology.groups() if rank in group)
    sends = [step for steps in made.program(rank).rounds for step in steps
             if step.kind == SEND and step.peer not in own]
    return sum(span.stop - span.start for step in sends for span in step.spans), len(sends)


@pytest.mark.parametrize(("collective", "name"), [("allreduce", "leader"),
                                                  ("allreduce", "multi_leader")])
@pytest.mark.parametrize("shape", ["4x4", "3,5,4", "1,4,2"])
def test_only_leaders_cross(collective, name, shape):
    made = schedule(collective, name, topology=shape)
    for group in made.topology.groups():
        talking = [rank for rank in group if crossing(made, rank)[1]]
        most = dict(made.params).get("leaders", 1)
        assert talking == list(group[:most])
