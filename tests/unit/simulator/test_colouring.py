"""Colours: ranks that do the same where no symmetry says so; folding them changes nothing."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.collectives import OUT
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.schedule import Program, at, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate, symmetry
from hpccoll.simulator.colouring import colour
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.simulator.packed import pack

#: Everything is shared and slow, so that any wrong count shows.
SHARED = Machine("shared", (Level("network", 2e-6, 1 / 10e9, link=13e9, bus=70e9, overhead=3e-7),
                            Level("node", 5e-7, 1 / 6e9, link=40e9, bus=17e9),
                            Level("socket", 3e-7, 1 / 9e9, overhead=1e-7)), 1 / 11e9, 1 / 15e9)


def coloured(made, layout):
    return colour(pack(Workload(made, 1000), range(made.size)),
                  NetworkPaths(Topology.parse(layout)))


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("layout", ["2x4", "3x2x3", "3,5", "13x2",
                                    "4x4@0-12/4,1-13/4,2-14/4,3-15/4"])
@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_colours_change_nothing(monkeypatch, collective, layout):
    """Fails without the groups around in what a rank sees, or the place in the peer's program."""
    monkeypatch.setattr(symmetry, "MANY", 0)
    monkeypatch.setattr(symmetry, "symmetries", lambda radices: ())
    topology = Topology.parse(layout)
    for name, entry in ALGORITHMS[collective].items():
        made = (schedule(collective, name, topology=topology) if entry.hierarchical
                else schedule(collective, name, topology.size))
        folded = simulate(made, 3e5, SHARED, topology)
        alone = simulate(made, 3e5, SHARED, topology, fold=False)
        assert folded.seconds == pytest.approx(alone.seconds, rel=1e-9), made.title
        assert folded.level_bytes == pytest.approx(alone.level_bytes)
        assert folded.messages == alone.messages
        assert folded.idle[:3] == pytest.approx(alone.idle[:3], rel=1e-6, abs=1e-12)
        for load, other in zip(sorted(folded.busiest), sorted(alone.busiest)):
            assert load.utilisation == pytest.approx(other.utilisation)
            assert load.kind == other.kind


def test_folded_ranks_are_few_classes():
    found = coloured(schedule("allreduce", "recursive_doubling", 48), "6x8")
    assert found is not None and len(found.first) <= 16
    assert sum(map(found.images, found.representatives())) == 48
    assert "48 ranks in" in found.describe(48) and "by colour" in found.describe(48)


def test_a_chain_has_no_colours():
    assert coloured(schedule("bcast", "chain", 64), "8x8") is None


def test_messages_that_do_not_meet_are_left_to_the_event_loop():
    def lonely(rank, size):
        return Program((((send if rank else recv)(1 - rank, at(OUT, 0)),),) if rank == 1 else ())
    assert coloured(schedule("allgather", lonely, 2), "2") is None


def test_ragged_layouts_are_coloured_too():
    made = schedule("allreduce", "rabenseifner", 300)
    folded = simulate(made, 1e6, "hdr", "100,120,80")
    alone = simulate(made, 1e6, "hdr", "100,120,80", fold=False)
    assert folded.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert folded.idle.mean == pytest.approx(alone.idle.mean, rel=1e-6)
    assert "timed on its own" in alone.folding
