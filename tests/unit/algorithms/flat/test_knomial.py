"""k-nomial trees: where gathered blocks land."""

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import OUT


def test_gather_lands_in_place_at_the_root():
    for name in ("linear", "binomial"):
        program = schedule("gather", name, 12, root=5).program(5)
        assert not program.scratch
        assert all(step.spans[0].buffer == OUT for step in program.rounds[1])
