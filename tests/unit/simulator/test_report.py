"""Reports: the critical path adds up."""

import json

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine

A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
#: Two levels; the link of a node lets one rank out at full speed, and a bus slows the inside.
SHARED = Machine("shared", (Level("network", 2e-6, 1 / 10e9, link=13e9, bus=70e9, overhead=3e-7),
                            Level("node", 5e-7, 1 / 6e9, link=40e9, bus=17e9),
                            Level("socket", 3e-7, 1 / 9e9, overhead=1e-7)), G, 1 / 15e9)


@pytest.mark.parametrize(("collective", "name", "layout"), [
    ("allreduce", "rails", "3x4"), ("bcast", "binomial", "3x4"), ("alltoall", "linear", "2x3"),
    ("barrier", "leader", "2x5"), ("reduce", "rabenseifner", "3x3")])
def test_the_critical_path_adds_up(collective, name, layout):
    made = (schedule(collective, name, topology=layout)
            if ALGORITHMS[collective][name].hierarchical
            else schedule(collective, name, Topology.parse(layout).size))
    for segment in (0, 2e4):
        found = simulate(made, 3e5, SHARED, layout, segment_bytes=segment)
        parts = sum(c.posting + c.latency + c.transfer + c.sharing for c in found.critical)
        assert parts + found.local_seconds == pytest.approx(found.seconds, rel=1e-9)
        assert sum(c.messages for c in found.critical) <= len(found.hops)
        assert min(min(hop[4:]) for hop in found.hops) >= -1e-12
        assert found.idle.least >= -1e-12
        assert all(load.utilisation <= 1 + 1e-9 for load in found.busiest)
        assert json.loads(json.dumps(found.as_json())) == found.as_json()
        assert made.title in str(found)
