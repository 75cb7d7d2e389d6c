"""Networks: paths, links and buses that messages share."""


import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.schedule import Program, Schedule, at, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine


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


def test_layouts():
    layout = NetworkPaths(Topology.parse("(2,3),(4)"))
    assert [layout.path(r) for r in (0, 2, 4, 5, 8)] == [
        (0, 0, 0), (0, 1, 0), (0, 1, 2), (1, 0, 0), (1, 0, 3)]
    assert (layout.ranks(()), layout.ranks((0,)), layout.ranks((0, 1)),
            layout.ranks((0, 1, 2))) == (9, 5, 3, 1)
    assert layout.radices() is None
    assert NetworkPaths(Topology.parse("4x2x8")).radices() == (4, 2, 8)
