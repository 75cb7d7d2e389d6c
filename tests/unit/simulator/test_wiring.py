"""Channels: one for all images of a pair, with what its messages share."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.topology import Topology
from hpccoll.simulator.effort import ignore_progress
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.simulator.symmetry import Folding, find_symmetry
from hpccoll.simulator.wiring import ChannelWiring

MACHINE = Machine("m", (Level("network", 2e-6, 1 / 10e9, link=20e9, bus=70e9),
                        Level("node", 5e-7, 1 / 6e9)), 1 / 11e9)


def wired(fold, name="recursive_doubling", layout="2x4"):
    topology = NetworkPaths(Topology.parse(layout))
    work = Workload(schedule("allreduce", name, topology.size), 1000)
    folding = find_symmetry(work, topology) if fold else Folding(None)
    return ChannelWiring(work, MACHINE, topology, folding, ignore_progress)


def used(wiring, channel):
    """What a channel uses, by kind."""
    held = range(*wiring.first_use[channel:channel + 2])
    return {wiring.resources[wiring.uses[use]].kind: (wiring.weights[use], wiring.holds[use])
            for use in held}


def test_every_pair_has_a_channel_each_way():
    wiring = wired(fold=False)
    assert len(wiring.depths) == 8 * 3 and wiring.ends == 2 * 8 * 3
    assert list(wiring.multiple) == [1] * 8
    across = next(c for c, depth in enumerate(wiring.depths) if depth == 0)
    assert used(wiring, across) == {"send": (1e-10, 1), "recv": (1e-10, 1), "out": (1, 1),
                                    "in": (1, 1), "bus": (1, 1)}
    inside = next(c for c, depth in enumerate(wiring.depths) if depth == 1)
    assert used(wiring, inside) == {"send": (1 / 6e9, 1), "recv": (1 / 6e9, 1)}
    assert wiring.betas[inside] == 1 / 6e9


def test_a_class_weighs_as_much_as_all_its_ranks():
    wiring = wired(fold=True)
    assert list(wiring.multiple) == [8] and len(wiring.resources) == 5
    across = next(c for c, depth in enumerate(wiring.depths) if depth == 0)
    assert used(wiring, across) == {"send": (1e-10, 1), "recv": (1e-10, 1), "out": (4, 1),
                                    "in": (4, 1), "bus": (8, 1)}


def test_a_link_that_all_ports_together_cannot_fill_holds_nothing_up():
    machine = Machine("wide", (Level("network", 0, 1 / 10e9, link=80e9), Level("node", 0, 1e-10)))
    topology = NetworkPaths(Topology.parse("2x4"))
    work = Workload(schedule("allreduce", "recursive_doubling", 8), 1000)
    wiring = ChannelWiring(work, machine, topology, Folding(None), ignore_progress)
    across = next(c for c, depth in enumerate(wiring.depths) if depth == 0)
    assert used(wiring, across)["out"] == (1, 0)


@pytest.mark.parametrize("segment_bytes", [0, 100])
def test_ends_are_those_of_all_segments(segment_bytes):
    topology = NetworkPaths(Topology.parse("5"))
    work = Workload(schedule("allreduce", "ring", 5), 1000, 8, segment_bytes)
    wiring = ChannelWiring(work, MACHINE, topology, Folding(None), ignore_progress)
    assert wiring.ends == sum(len(r.messages) for rank in range(5)
                              for s in range(work.segments) for r in work.rounds(rank, s))
