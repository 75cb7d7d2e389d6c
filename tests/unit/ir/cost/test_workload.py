"""Workloads: segments, whole elements, arguments."""

import math

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.cost import workload
from hpccoll.ir.schedule import Program, at, send
from hpccoll.runtime.planning import plan
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine

A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
FLAT = Machine("flat", (Level("network", A, B),), G)


def test_as_many_segments_are_in_flight_as_in_plans():
    assert workload.DEPTH == plan.DEPTH


def test_segments_are_a_pipeline():
    """Two segments are in flight: the latency of every other one hides behind the one before."""
    made = schedule("bcast", "chain", 5)
    for segments in (1, 2, 7):
        found = simulate(made, N, FLAT, segment_bytes=N / segments)
        assert found.segments == segments
        pairs, odd = divmod(segments - 1, 2)
        flow = N / segments * B
        assert found.seconds == pytest.approx((4 + 2 * pairs) * (A + flow) + odd * flow, rel=1e-9)
    # Of a ring, the messages of both segments in flight share the port, and gain the reduction.
    alone = simulate(schedule("allreduce", "ring", 8), N, FLAT)
    assert simulate(schedule("allreduce", "ring", 8), N, FLAT,
                    segment_bytes=N / 64).seconds < alone.seconds


def test_whole_elements():
    """Five elements on four ranks: two of the blocks that travel are larger, and none is a part."""
    found = simulate(schedule("allgather", "ring", 4), 20, FLAT, itemsize=4)
    assert found.seconds == pytest.approx(3 * (A + 8 * B))
    # With one element, one block; empty ones vanish.
    one = simulate(schedule("allreduce", "ring", 4), 4, FLAT, itemsize=4)
    assert one.messages == 6
    assert simulate(schedule("allreduce", "ring", 4), 64, FLAT, itemsize=4).folding.startswith(
        "4 ranks in 1 class")


@pytest.mark.parametrize(("given", "problem"), [
    (dict(nbytes=-1), "nbytes: .*bytes"),
    (dict(nbytes=math.nan), "nbytes"), (dict(nbytes="1Q"), "nbytes: .*read.*1Q"),
    (dict(nbytes=10, itemsize=4), "10 bytes.*4"),
    (dict(nbytes=8, segment_bytes=-1), "segment_bytes"),
    (dict(nbytes=8, topology="2x3"), "topology: .*'2x3'.*6 ranks"),
    (dict(nbytes=10 ** 400), "nbytes: .*0.*1e.30.*1329"),
    (dict(nbytes=1e300), "nbytes"), (dict(nbytes=8, segment_bytes=1e-300), "segment_bytes: 1e-300"),
    (dict(nbytes=1e9, segment_bytes=1), "1,000,000"),
    (dict(nbytes=1e9, machine=Machine("slow", (Level("net", 0., 1e308),))), "machine: .*1e.09"),
    (dict(nbytes=8, machine="none"), "machine")])
def test_bad_arguments(given, problem):
    with pytest.raises(ArgumentError, match=problem):
        simulate(schedule("allreduce", "ring", 4), **{"machine": FLAT, **given})


@pytest.mark.parametrize(("build", "problem"), [
    (lambda rank, size: None, "rank 0: .*nothing.*Program"),
    (lambda rank, size: Program(((send(99, at("in", 0)),),)), "99 .*another rank"),
    (lambda rank, size: Program(((send(rank, at("in", 0)),),)), "0 .*another rank"),
    (lambda rank, size: Program(((send(1 - rank, at("in", 0, 10 ** 9)),),)), "exist"),
    (lambda rank, size: {}[rank], "KeyError")])
def test_builders_that_make_no_program(build, problem):
    with pytest.raises(ScheduleError, match=problem):
        simulate(schedule("allreduce", build, 2), 8, FLAT)
