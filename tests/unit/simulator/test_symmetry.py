"""Symmetries: what is found, and that folding changes nothing."""

from dataclasses import replace

import pytest

import hpccoll
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.collectives import OUT
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.schedule import at, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.simulator.symmetry import Symmetry

A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
FLAT = Machine("flat", (Level("network", A, B),), G)
#: Two levels; the link of a node lets one rank out at full speed, and a bus slows the inside.
SHARED = Machine("shared", (Level("network", 2e-6, 1 / 10e9, link=13e9, bus=70e9, overhead=3e-7),
                            Level("node", 5e-7, 1 / 6e9, link=40e9, bus=17e9),
                            Level("socket", 3e-7, 1 / 9e9, overhead=1e-7)), G, 1 / 15e9)

#: The same, but no processor is busy with posting.
AT_ONCE = Machine("at once", tuple(replace(level, overhead=0.0) for level in SHARED.levels),
                  G, 1 / 15e9)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("layout", ["6", "2x4", "3x4", "2x2x2", "3x2x3", "3,5"])
@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_folding_changes_nothing(collective, layout):
    """On a machine where everything is shared and slow, so that any wrong count shows."""
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


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["6", "2x4", "3x4", "5x8"])
@pytest.mark.parametrize(("collective", "name"), [
    ("reduce_scatter", "linear"), ("allreduce", "allpairs"), ("alltoall", "linear")])
def test_messages_posted_at_once_may_be_in_any_order(collective, name, layout):
    made = schedule(collective, name, Topology.parse(layout).size)
    for machine in (FLAT, AT_ONCE, "hdr", "dgx-h100"):
        folded = simulate(made, 3e5, machine, layout)
        assert "in 1 class " in folded.folding
        assert folded.seconds == simulate(made, 3e5, machine, layout, fold=False).seconds


def test_messages_posted_in_turn_are_in_order():
    made = schedule("allreduce", "allpairs", 8)
    assert SHARED.posts_in_turn and not AT_ONCE.posts_in_turn
    folded = simulate(made, 3e5, SHARED, "2x4")
    assert "each timed on its own" in folded.folding
    assert folded.seconds == simulate(made, 3e5, SHARED, "2x4", fold=False).seconds


@pytest.mark.parametrize(("collective", "name", "layout", "symmetry"), [
    ("allreduce", "ring", "12", "12+"), ("allreduce", "ring", "4x3", "4+x3"),
    ("allreduce", "recursive_doubling", "4x4", "4^x4^"),
    ("allreduce", "rails", "6x2x4", "6+x2+x4+"), ("allreduce", "multi_leader", "5x4", "5+x4"),
    ("allreduce", "leader", "8x3", "8^x3"), ("alltoall", "two_phase", "5x4", "5+x4^"),
    ("allgather", "rails", "5x4", "5+x4+"), ("barrier", "dissemination", "3x5", "3+x5")])
def test_symmetries_that_are_found(collective, name, layout, symmetry):
    made = (schedule(collective, name, topology=layout)
            if ALGORITHMS[collective][name].hierarchical
            else schedule(collective, name, Topology.parse(layout).size))
    assert f"symmetry {symmetry}, checked on all ranks" in simulate(
        made, 4096, SHARED, layout).folding


def test_one_rank_that_does_something_else_is_not_folded():
    def ring_but_one(rank, size):
        program = hpccoll.schedule("allgather", "ring", size).program(rank)
        extra = ((send(1, at(OUT, 0)),) if rank == 0 else (recv(0, at(OUT, 0)),)
                 if rank == 1 else ())
        return program._replace(rounds=(*program.rounds, extra))

    found = simulate(schedule("allgather", ring_but_one, 6), 6e4, FLAT)
    assert "each timed on its own" in found.folding
    assert found.seconds == pytest.approx(6 * (A + 1e4 * B))


def test_symmetry_arithmetic():
    symmetry = Symmetry((3, 4, 2), ("+", "^", "="))
    paths = [NetworkPaths(Topology.parse("3x4x2")).path(r) for r in range(24)]
    assert symmetry.order == 12
    assert [symmetry.rank(path) for path in paths] == list(range(24))
    assert list(symmetry.representatives()) == [0, 1]
    assert symmetry.fixing_count((2,)) == 4
    for path in paths:
        there = symmetry.image_of(symmetry.representative_path(path), path)
        assert there == path
        for other in paths[::5]:
            apart = symmetry.digit_difference(path, other)
            assert all(symmetry.digit_difference(symmetry.image_of(path, by),
                                                 symmetry.image_of(other, by)) == apart
                       for by in paths[::7])
