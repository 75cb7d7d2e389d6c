"""Ring: every rank talks to its neighbours only, one block a round."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.schedule import RECV, SEND


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather"])
@pytest.mark.parametrize("size", [3, 4, 7])
def test_one_block_a_round_to_the_right(collective, size):
    made = schedule(collective, "ring", size)
    for rank in range(size):
        for steps in made.program(rank).rounds:
            messages = {step.kind: step for step in steps if step.kind in (SEND, RECV)}
            if messages:
                assert messages[SEND].peer == (rank + 1) % size
                assert messages[RECV].peer == (rank - 1) % size
                assert all(span.stop - span.start == 1
                           for step in messages.values() for span in step.spans)


def test_the_picture_of_the_docstring():
    made = schedule("reduce_scatter", "ring", 4)
    stops = [next(step.peer for step in made.program(rank).rounds[number + 1]
                  if step.kind == SEND and step.spans[0].start == 0)
             for number, rank in enumerate((1, 2, 3))]
    assert stops == [2, 3, 0]
