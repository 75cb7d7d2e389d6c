"""Costs that follow from a schedule: crossings of a network, work of a processor."""

import math

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.cost import workload
from hpccoll.ir.schedule import Program, Schedule, at, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.runtime.planning import plan
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine


# Networks: paths, links and buses that messages share
def test_messages_out_of_a_node_share_its_link():
    machine = Machine("m", (Level("network", 2e-6, 1e-10, link=20e9), Level("node", 1e-6, 2e-10)))
    for fold in (True, False):
        found = simulate(schedule("allreduce", "recursive_doubling", 8), 1e6, machine, "2x4",
                         fold=fold)
        # Two rounds inside; then four ranks send 1 MB each through 20 GB/s.
        assert found.seconds == pytest.approx(2 * (1e-6 + 2e-4) + 2e-6 + 4e6 / 20e9, rel=1e-9)
        network = next(cost for cost in found.critical if cost.level == "network")
        assert network.sharing == pytest.approx(4e6 / 20e9 - 1e6 / 10e9, rel=1e-6)
        assert found.level_bytes == {"network": 8e6, "node": 16e6}


@pytest.mark.parametrize("layout", ["1x4", "2x2", "1x2x2", "2x1x2", "1,3", "(1,2),1"])
def test_levels_below_the_machine_share_its_innermost_bus(layout):
    """A machine measured on one node has one level, a layout of hosts and ranks has two."""
    machine = Machine("m", (Level("node", 1e-6, 1e-10, bus=12e9),))
    made = schedule("allreduce", "recursive_doubling", 4)
    flat = simulate(made, 1e6, machine, "4")
    assert flat.seconds == pytest.approx(2 * (1e-6 + 4e6 / 12e9), rel=1e-9)
    for fold in (True, False):
        found = simulate(made, 1e6, machine, layout, fold=fold)
        assert found.seconds == pytest.approx(flat.seconds, rel=1e-9)
        assert found.level_bytes == pytest.approx(flat.level_bytes)
        assert found.busiest[0].kind == "bus" and found.busiest[0].utilisation > 0.9


def test_a_bus_of_every_node():
    """Sockets of a node, which the machine does not know, are on the bus of their node."""
    machine = Machine("m", (Level("network", 2e-6, 1e-10), Level("node", 1e-6, 1e-10, bus=12e9)))
    made = schedule("allreduce", "rails", topology="2x4")
    known = simulate(made, 1e6, machine)
    for fold in (True, False):
        found = simulate(made, 1e6, machine, "2x2x2", fold=fold)
        assert found.seconds == pytest.approx(known.seconds, rel=1e-9)


def test_unequal_neighbours_on_a_link():
    """Two messages share a link; when the short one is through, the long one has all of it."""
    def build(rank, size):
        steps = {0: (send(2, at(OUT, 0)),), 1: (send(3, at(OUT, 0, 3)),),
                 2: (recv(0, at(OUT, 0)),), 3: (recv(1, at(OUT, 0, 3)),)}[rank]
        return Program((steps,))

    machine = Machine("m", (Level("network", 0.0, 1e-9, link=1e9), Level("node", 0.0, 1e-9)))
    made = Schedule(COLLECTIVES["allgather"], "two", 4, lambda rank: build(rank, 4))
    found = simulate(made, 4e6, machine, "2x2")
    assert found.seconds == pytest.approx(4e-3)
    assert found.idle_seconds[0] == pytest.approx(2e-3)
    assert found.busiest[0].utilisation == pytest.approx(1)


# Simulated times where ranks are not numbered group by group
HIERARCHICAL = [(collective, name) for collective, table in ALGORITHMS.items()
                for name, entry in table.items() if entry.hierarchical]


@pytest.mark.parametrize(("collective", "name"), HIERARCHICAL)
def test_simulated_times_are_those_of_the_plain_layout(collective, name):
    layout = Topology.parse("4x4@0-12/4,1-13/4,2-14/4,3-15/4")
    permuted = simulate(schedule(collective, name, topology=layout), 1e6)
    plain = simulate(schedule(collective, name, topology=layout.plain), 1e6)
    assert permuted.seconds == pytest.approx(plain.seconds, rel=1e-9)
    assert permuted.topology == str(layout)


# Workloads: segments, whole elements, arguments
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
