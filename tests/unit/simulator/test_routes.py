"""Messages on simulated wires: routes, traffic, fair shares, packing."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.outside import load
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.order import lanes
from hpccoll.ir.schedule import Program, Schedule, at, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.fair_share import fair_rates, new_rates
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.simulator.shape_files import shape_from_text

# Routes: what shares what, on shapes, rails and half-duplex ports, by closed forms
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


# Lanes in the simulator: each takes its own time, and waits where it says so
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


class Flow:
    """A message with a rate, as the event loop has them."""

    def __init__(self, uses):
        self.uses, self.rate, self.held_by = uses, 0.0, -1


class Shared:
    """Messages that begin and end on resources."""

    def __init__(self, capacity):
        self.capacity, self.sharers = capacity, [{} for _ in capacity]
        self.flows = {}
        self.looked_at = 0

    def change(self, begin=(), end=()):
        """Some messages begin, some end; the others get the rates that they are given."""
        changed = {}
        for flow in (*begin, *end):
            for resource, weight in flow.uses:
                changed[resource] = None
                if flow in self.flows:
                    del self.sharers[resource][flow]
                else:
                    self.sharers[resource][flow] = weight
        self.flows = dict.fromkeys(
            [flow for flow in self.flows if flow not in end] + list(begin))
        found = new_rates(changed, self.sharers, self.capacity)
        self.looked_at += len(found)
        for flow, (rate, held_by) in found.items():
            flow.rate, flow.held_by = rate, held_by

    def wrong(self):
        """By how much the rate of a message differs from that of all shared anew, at most."""
        anew = fair_rates([flow.uses for flow in self.flows], dict(enumerate(self.capacity)))
        return max((abs(flow.rate / rate - 1) for flow, (rate, _) in zip(self.flows, anew)),
                   default=0.0)


@pytest.mark.parametrize("resources", [3, 8, 40])
def test_rates_that_are_kept_are_those_of_all_shared_anew(resources):
    """Fails if one comes in too late, is held by what is not full, or keeps more than others."""
    draw = Random(resources)
    shared = Shared([draw.choice((1.0, 1.0, 2.5, 7.0)) for _ in range(resources)])
    for _ in range(120):
        begin = [Flow([(resource, draw.choice((1.0, 1.0, 0.4, 2.0))) for resource in draw.sample(
            range(resources), min(resources, draw.randint(1, 4)))])
            for _ in range(draw.randrange(3))]
        flows = list(shared.flows)
        end = draw.sample(flows, draw.randint(0, min(len(flows), 1 + len(flows) // 20)))
        shared.change(begin, end)
        assert shared.wrong() < 1e-9
