"""Lanes in the simulator: each takes its own time, and waits where it says so."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.outside import load
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import OUT
from hpccoll.ir.order import lanes
from hpccoll.ir.schedule import Program, at, recv, send
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine

A, B = 1e-6, 1e-9
FLAT = Machine("flat", (Level("network", A, B),))
LANES = str(Path(__file__).resolve().parents[3] / "examples" / "lanes.py")
TWO_WAYS, PIPELINE = load(f"{LANES}:TWO_WAYS"), load(f"{LANES}:PIPELINE")


def serial(made):
    """The same rounds, one after the other."""
    return replace(made, rounds=None,
                   build=lambda rank: made.program(rank)._replace(after=()))


def spread(rank, size, root):
    """Rank 0 sends two messages to each of the others, in a lane for each."""
    if rank:
        return Program(((recv(0, at(OUT, 0)),), (recv(0, at(OUT, 1)),)))
    return lanes(*([(send(peer, at(OUT, block)),) for block in (0, 1)] for peer in range(1, size)))


def test_lanes_take_the_time_of_the_longest():
    made = schedule("bcast", spread, 4, nblocks=2)
    assert simulate(made, 2, FLAT).seconds == pytest.approx(2 * A, rel=0.01)
    assert simulate(serial(made), 2, FLAT).seconds == pytest.approx(6 * A, rel=0.01)
    # What they send shares the port.
    assert simulate(made, 2e6, FLAT).seconds == pytest.approx(2 * A + 6e6 * B, rel=1e-3)


def test_a_chain_passes_blocks_on_while_others_come():
    made = schedule("bcast", PIPELINE, 5, n=4)
    found = simulate(made, 1600, FLAT)
    assert found.seconds == pytest.approx(7 * (A + 400 * B))
    assert sum(cost.latency for cost in found.critical) == pytest.approx(7 * A)
    assert simulate(serial(made), 1600, FLAT).seconds > 1.5 * found.seconds


def test_segments_follow_each_other_behind_all_lanes():
    made = schedule("allreduce", TWO_WAYS, 3)
    found = simulate(made, 6 * 500, FLAT, segment_bytes=100)
    assert found.messages == 5 * simulate(made, 3000, FLAT).messages
    # Two segments in flight share the ports: no time but that of the bytes, and of one segment.
    assert 8 * 500 * B < found.seconds < 8 * 500 * B + 3 * 4 * A


def test_ranks_that_do_the_same_in_lanes_are_folded():
    made = schedule("allreduce", TWO_WAYS, 8)
    folded = simulate(made, 8e3, FLAT)
    assert folded.folding.startswith("8 ranks in 1 class")
    assert folded.seconds == pytest.approx(simulate(made, 8e3, FLAT, fold=False).seconds)

    def build(rank):  # rank 5 waits otherwise than the others: it is another kind of rank
        program = made.program(rank)
        return program._replace(after=()) if rank == 5 else program
    assert not simulate(replace(made, build=build), 8e3, FLAT).folding.startswith(
        "8 ranks in 1 class")


def test_lanes_that_wait_for_ever():
    def build(rank, size, root):
        steps = ((recv(1 - rank, at(OUT, 0)),), (send(1 - rank, at(OUT, 0)),))
        return Program(steps, (), ((), (0,)))
    with pytest.raises(ScheduleError, match="rank 0.*round 0.*1 message"):
        simulate(schedule("bcast", build, 2), 8, FLAT)
