"""Programs with lanes run: right in every order of deliveries, and no lane holds up another."""

import gc
import weakref
from pathlib import Path

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.outside import load
from hpccoll.ir.collectives import ALLREDUCE, BCAST
from hpccoll.runtime.execution.tracks import LaneTrack
from hpccoll.testing.model_check import Network, Rounding, Run, explore, wander
from hpccoll.testing.world import Problem, Seat, run
from hpccoll.transport.loopback import Loopback

LANES = str(Path(__file__).resolve().parents[4] / "examples" / "lanes.py")
TWO_WAYS, PIPELINE = load(f"{LANES}:TWO_WAYS"), load(f"{LANES}:PIPELINE")


@pytest.mark.parametrize("how", [
    {}, dict(in_place=True, seed=1), dict(segment=1, seed=2), dict(repeats=3, seed=3),
    dict(direct=True, eager=True, seed=4), dict(direct=True, in_place=True, segment=2, repeats=2)])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_results_are_exact(size, how):
    for count in (0, 1, 2 * size - 1, 4 * size + 3):
        posed = Problem(ALLREDUCE, size, [count], 0, "sum", "i8")
        assert not run(schedule("allreduce", TWO_WAYS, size), posed, **how)
    root = size - 1
    made = schedule("bcast", PIPELINE, size, root=root)
    assert not run(made, Problem(BCAST, size, [7], root), **how)


def test_every_order_of_deliveries():
    made = schedule("allreduce", TWO_WAYS, 2)
    explored = explore(Run(made, Rounding(ALLREDUCE, 2, [4], 0, "sum", "f4"), Network(2)))
    assert not explored.faults and explored.states > 10
    made = schedule("bcast", PIPELINE, 3)
    explored = explore(Run(made, Problem(BCAST, 3, [3], 0), Network(3)))
    assert not explored.faults and explored.states > 6
    made = schedule("allreduce", TWO_WAYS, 4)
    for seed in range(3):
        assert not wander(Run(made, Rounding(ALLREDUCE, 4, [8], 0, "sum", "f4"), Network(4)), seed)


def test_a_lane_goes_on_while_another_one_waits():
    run = Run(schedule("allreduce", TWO_WAYS, 3), Rounding(ALLREDUCE, 3, [6], 0, "sum", "f4"),
              Network(3))
    assert [type(track) for track in run.executions[0].tracks] == [LaneTrack]
    right = [(0, 1, 0), (1, 2, 0), (2, 0, 0)]
    for _ in range(4):          # the lanes to the left have not moved
        for edge in right:
            run.deliver(edge)
    assert not run.is_done and {edge[:2] for edge in run.choices()} == {(1, 0), (2, 1), (0, 2)}
    assert run.executions[0].pending_peers() == (2, (1, 2))
    for edge in [(b, a, tag) for a, b, tag in right] * 4:
        run.deliver(edge)
    assert run.is_done and not run.outcome()


def test_an_execution_is_freed_with_its_last_reference():
    world = Loopback(1)
    seat = Seat(schedule("allreduce", TWO_WAYS, 1), Problem(ALLREDUCE, 1, [4], 0, "sum", "i8"), 0)
    seat.fill()
    execution = seat.execution(world.endpoint(0))
    execution.start()
    assert execution.done and not list(seat.faults())
    gone = weakref.ref(execution)
    gc.disable()
    try:
        del execution
        assert gone() is None
    finally:
        gc.enable()
