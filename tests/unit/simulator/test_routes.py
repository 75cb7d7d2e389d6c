"""Routes: what shares what, on shapes, rails and half-duplex ports, by closed forms."""

from dataclasses import replace

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.schedule import Program, Schedule, at, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.simulator.routes import Routes
from hpccoll.simulator.shape_files import shape_from_text

ALPHA, HOP, RATE = 1e-6, 1e-7, 1e9
#: Ports are a hundred times as fast as the links of the shapes.
WIDE = Machine("m", (Level("network", ALPHA, 1 / 100e9), Level("node", ALPHA, 1 / 100e9)))


def on(text):
    return replace(WIDE, shape=shape_from_text(
        f"{text}:bytes_per_second={RATE}:hop_seconds={HOP}"))


def sends(size, pairs, counts=None):
    """One round in which messages go from rank to rank; block ``sender`` unless said."""
    def build(rank):
        steps = [send(b, at(OUT, a)) for a, b in pairs if a == rank]
        return Program((tuple(steps + [recv(a, at(OUT, a)) for a, b in pairs if b == rank]),))
    return Schedule(COLLECTIVES["allgather"], "some", size, build)


def seconds(size, pairs, text, **more):
    """Seconds of messages of one megabyte each."""
    return simulate(sends(size, pairs), 1e6 * size, on(text), str(size), **more).seconds


def test_a_message_alone_takes_its_hops():
    assert seconds(8, [(0, 3)], "torus:8") == pytest.approx(ALPHA + 3 * HOP + 1e-3)
    assert seconds(8, [(0, 6)], "torus:8") == pytest.approx(ALPHA + 2 * HOP + 1e-3)
    assert seconds(8, [(0, 6)], "mesh:8") == pytest.approx(ALPHA + 6 * HOP + 1e-3)
    assert seconds(8, [(0, 7)], "fat_tree:2x2x2") == pytest.approx(ALPHA + 6 * HOP + 1e-3)
    assert seconds(8, [(0, 1)], "fat_tree:2x2x2") == pytest.approx(ALPHA + 2 * HOP + 1e-3)


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_shifts_round_a_ring(distance):
    """All nodes send so far up: as many messages on every link upwards, none on those down."""
    pairs = [(n, (n + distance) % 8) for n in range(8)]
    assert seconds(8, pairs, "torus:8") == pytest.approx(
        ALPHA + distance * HOP + distance * 1e-3)
    found = simulate(sends(8, pairs), 8e6, on("torus:8"))
    assert len(found.links) == 8 and all(use.link[1] == 0 for use in found.links)
    assert all(use.nbytes == pytest.approx(distance * 1e6) for use in found.links)


def test_half_duplex_links():
    pairs = [(0, 1), (1, 0)]
    assert seconds(4, pairs, "torus:4") == pytest.approx(ALPHA + HOP + 1e-3)
    assert seconds(4, pairs, "torus:4:duplex=half") == pytest.approx(ALPHA + HOP + 2e-3)


def test_opposite_nodes_of_a_ring_take_both_ways_at_once():
    assert seconds(8, [(0, 4)], "torus:8") == pytest.approx(ALPHA + 4 * HOP + 1e-3)
    assert seconds(8, [(0, 4)], "torus:8:routing=spread") == pytest.approx(
        ALPHA + 4 * HOP + 0.5e-3)
    # Two messages that would meet on the way upwards: the second one goes down.
    crossing = [(0, 4), (1, 3)]
    assert seconds(8, crossing, "torus:8") == pytest.approx(ALPHA + 2 * HOP + 2e-3, rel=1e-3)
    assert seconds(8, crossing, "torus:8:routing=adaptive") == pytest.approx(
        ALPHA + 4 * HOP + 1e-3)


@pytest.mark.parametrize(("up", "times"), [("1x4", 1), ("1x2", 2), ("1x1", 4)])
def test_tapering(up, times):
    """Four nodes of a switch send to another switch over 4, 2 or 1 cables."""
    pairs = [(n, n + 4) for n in range(4)]
    for routing in ("static", "spread", "adaptive"):
        assert seconds(8, pairs, f"fat_tree:4x2:up={up}:routing={routing}") == pytest.approx(
            ALPHA + 4 * HOP + times * 1e-3), routing


def test_cables_that_static_routes_do_not_use():
    """Nodes of equal digit share a cable by D-mod-K; adaptive routes find the other one."""
    pairs = [(0, 2), (1, 4)]
    static, adaptive, spread = (
        seconds(6, pairs, f"fat_tree:2x3:up=1x2:routing={routing}")
        for routing in ("static", "adaptive", "spread"))
    assert static == pytest.approx(ALPHA + 4 * HOP + 2e-3)
    assert adaptive == spread == pytest.approx(ALPHA + 4 * HOP + 1e-3)


def test_cables_of_a_dragonfly():
    """Two routers of two nodes a group; both nodes of a router send to another group."""
    pairs = [(0, 4), (1, 5)]
    assert seconds(8, pairs, "dragonfly:2x2x2") == pytest.approx(ALPHA + HOP + 2e-3)
    # The second cable belongs to the second router: static routes tell nodes 4 and 5 apart.
    assert seconds(8, pairs, "dragonfly:2x2x2:cables=2") == pytest.approx(
        ALPHA + 3 * HOP + 1e-3)
    assert seconds(8, pairs, "dragonfly:2x2x2:cables=2:routing=spread") == pytest.approx(
        ALPHA + 3 * HOP + 1e-3)


def test_nodes_sit_where_the_file_says():
    machine = on("torus:8")
    scattered = replace(machine, shape=replace(machine.shape, positions=(0, 3, 6)))
    made = sends(3, [(0, 1)])
    assert simulate(made, 3e6, scattered).seconds == pytest.approx(ALPHA + 3 * HOP + 1e-3)
    with pytest.raises(ArgumentError, match="4 nodes.*3 positions"):
        simulate(sends(4, [(0, 1)]), 4e6, scattered)


def test_ranks_of_a_node_share_its_place():
    """Inside a node nothing goes over the shape; between nodes all of its ranks share it."""
    made = sends(8, [(0, 1), (2, 4), (3, 5)])
    found = simulate(made, 8e6, on("torus:4"), "2x4")
    assert found.seconds == pytest.approx(ALPHA + HOP + 2e-3)
    assert [use.nbytes for use in found.links] == [pytest.approx(2e6)]


# -- rails, and ports and links that both ways share ---------------------------------------------
def rails(number, **more):
    return Machine("m", (Level("network", ALPHA, 1 / 100e9, link=RATE, rails=number, **more),
                         Level("node", ALPHA, 1 / 100e9)))


@pytest.mark.parametrize(("number", "times"), [(1, 4), (2, 2), (3, 2), (4, 1), (8, 1)])
def test_ranks_are_dealt_out_among_rails(number, times):
    pairs = [(n, n + 4) for n in range(4)]
    for fold in (True, False):
        found = simulate(sends(8, pairs + [(b, a) for a, b in pairs]), 8e6, rails(number), "2x4",
                         fold=fold)
        assert found.seconds == pytest.approx(ALPHA + times * 1e-3)


@pytest.mark.parametrize("layout", ["4x4", "2x2x2", "3x2x2", "(2,3),(2)"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("duplex", ["full", "half"])
def test_rails_fold_where_folding_is_exact(layout, number, duplex):
    size = Topology.parse(layout).size
    for name in ("ring", "rails", "recursive_doubling"):
        made = (schedule("allreduce", name, topology=layout) if name == "rails" else
                schedule("allreduce", name, size))
        machine = replace(rails(number, duplex=duplex), duplex=duplex)
        folded, whole = (simulate(made, 1e6, machine, layout, fold=f) for f in (True, False))
        assert folded.seconds == pytest.approx(whole.seconds, rel=1e-9)


def test_rails_that_are_no_groups_are_not_folded():
    def by_groups(number, layout):
        return Routes(rails(number), NetworkPaths(Topology.parse(layout))).by_groups
    assert by_groups(2, "4x2x3") and by_groups(6, "4x2x3") and by_groups(1, "3,4")
    assert not by_groups(3, "4x2x3") and not by_groups(2, "3,4") and not by_groups(2, "4x4")


def test_half_duplex_ports_and_node_links():
    both = sends(2, [(0, 1), (1, 0)])
    port = Machine("m", (Level("network", ALPHA, 1 / RATE),))
    assert simulate(both, 2e6, port).seconds == pytest.approx(ALPHA + 1e-3)
    for fold in (True, False):
        found = simulate(both, 2e6, replace(port, duplex="half"), fold=fold)
        assert found.seconds == pytest.approx(ALPHA + 2e-3)
        assert found.busiest[0].name.startswith("port of rank 0")
    assert simulate(both, 2e6, rails(1), "2x1").seconds == pytest.approx(ALPHA + 1e-3)
    for fold in (True, False):
        found = simulate(both, 2e6, rails(1, duplex="half"), "2x1", fold=fold)
        assert found.seconds == pytest.approx(ALPHA + 2e-3)
        assert found.busiest[0].name == "network link of group 0"


def test_what_bytes_and_seconds_take():
    machine = Machine("m", (Level("network", 0.0, 1 / RATE, energy=3.0),
                            Level("node", 0.0, 1 / RATE, energy=0.5)), 0.0, idle=7.0,
                      reduce_energy=0.25)
    made = schedule("allreduce", "ring", 4)
    for fold in (True, False):
        found = simulate(made, 400, machine, "2x2", fold=fold)
        assert found.energy == pytest.approx({
            "idle of 4 ranks": 7 * 4 * found.seconds, "network": 3 * 2 * 6 * 100,
            "node": 0.5 * 2 * 6 * 100, "reducing": 0.25 * 4 * 3 * 100})
        assert found.as_json()["energy_joules"] == found.energy
        assert "energy" in found.as_text()
    hops = replace(on("torus:8"), shape=replace(on("torus:8").shape, joules_per_byte=2.0))
    assert simulate(sends(8, [(0, 3)]), 800, hops).energy == {"torus links": 2.0 * 300}
    assert simulate(made, 400, WIDE).energy == {} and "energy" not in simulate(
        made, 400, WIDE).as_text()
