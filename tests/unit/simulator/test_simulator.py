"""The simulator against closed forms, against itself without folding, and against bad input."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest

import hpccoll
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT
from hpccoll.ir.schedule import Program, Schedule, at, copy, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import catalog, simulate
from hpccoll.simulator.fair_share import fair_rates
from hpccoll.simulator.machine_model import Level, Machine, machine_as_data, machine_from_text
from hpccoll.simulator.network import NetworkPaths
from hpccoll.simulator.symmetry import Symmetry

A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
FLAT = Machine("flat", (Level("network", A, B),), G)
#: Two levels; the link of a node lets one rank out at full speed, and a bus slows the inside.
SHARED = Machine("shared", (Level("network", 2e-6, 1 / 10e9, link=13e9, bus=70e9, overhead=3e-7),
                            Level("node", 5e-7, 1 / 6e9, link=40e9, bus=17e9),
                            Level("socket", 3e-7, 1 / 9e9, overhead=1e-7)), G, 1 / 15e9)


def log(p):
    return p.bit_length() - 1


def up(p):
    return (p - 1).bit_length()


#: (collective, algorithm, sizes, seconds for p ranks) on a machine where nothing is shared.
CLOSED = [
    ("allreduce", "ring", (2, 3, 7, 16), lambda p: 2 * (p - 1) * (A + N / p * B)
     + (p - 1) * N / p * G),
    ("allreduce", "recursive_doubling", (2, 4, 64), lambda p: log(p) * (A + N * B + N * G)),
    ("allreduce", "recursive_doubling", (3, 12, 50), lambda p: (log(p) + 2) * (A + N * B)
     + (log(p) + 1) * N * G),
    ("allreduce", "rabenseifner", (2, 8, 64), lambda p: 2 * log(p) * A
     + 2 * N * (p - 1) / p * B + N * (p - 1) / p * G),
    ("allreduce", "circulant", (2, 5, 13, 33), lambda p: 2 * up(p) * A
     + 2 * N * (p - 1) / p * B + N * (p - 1) / p * G),
    ("reduce_scatter", "ring", (2, 5, 9), lambda p: (p - 1) * (A + N / p * (B + G))),
    ("reduce_scatter", "pairwise", (2, 5, 8), lambda p: (p - 1) * (A + N / p * (B + G))),
    ("reduce_scatter", "recursive_halving", (4, 16), lambda p: log(p) * A
     + N * (p - 1) / p * (B + G)),
    ("reduce_scatter", "circulant", (3, 11), lambda p: up(p) * A + N * (p - 1) / p * (B + G)),
    ("allgather", "ring", (2, 5, 9), lambda p: (p - 1) * (A + N / p * B)),
    ("allgather", "neighbor_exchange", (4, 10), lambda p: p / 2 * A + N * (p - 1) / p * B),
    ("allgather", "recursive_doubling", (4, 32), lambda p: log(p) * A + N * (p - 1) / p * B),
    ("allgather", "bruck", (2, 7, 12), lambda p: up(p) * A + N * (p - 1) / p * B),
    ("allgather", "linear", (2, 9), lambda p: A + N * (p - 1) / p * B),
    ("alltoall", "pairwise", (2, 5, 8), lambda p: (p - 1) * (A + N / p * B)),
    ("alltoall", "bruck", (4, 32), lambda p: log(p) * (A + N / 2 * B)),
    ("alltoall", "linear", (3, 8), lambda p: A + N * (p - 1) / p * B),
    ("barrier", "dissemination", (2, 5, 100), lambda p: up(p) * A),
    ("bcast", "chain", (2, 6), lambda p: (p - 1) * (A + N * B)),
    ("bcast", "linear", (2, 6), lambda p: A + (p - 1) * N * B),
    # A rank sends to all its children at once; each of k messages then takes k times as long.
    ("bcast", "binomial", (2, 8, 64), lambda p: log(p) * A + log(p) * (log(p) + 1) / 2 * N * B),
    ("gather", "linear", (2, 6), lambda p: A + (p - 1) * N / p * B),
    ("scatter", "linear", (2, 6), lambda p: A + (p - 1) * N / p * B),
    ("scan", "linear", (2, 7), lambda p: (p - 1) * (A + N * (B + G))),
]


@pytest.mark.parametrize("fold", [True, False], ids=["folded", "every rank"])
@pytest.mark.parametrize(("collective", "name", "sizes", "seconds"), CLOSED,
                         ids=[f"{c}-{n}" for c, n, *_ in CLOSED])
def test_closed_forms(collective, name, sizes, seconds, fold):
    for p in sizes:
        found = simulate(schedule(collective, name, p), N, FLAT, fold=fold)
        assert found.seconds == pytest.approx(seconds(p), rel=1e-9), p


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


def test_fair_rates():
    uses = [[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)], [(2, 2.0)]]
    assert fair_rates(uses, [1.0, 2.0, 8.0]) == pytest.approx([0.5, 0.5, 1.5, 4.0])
    assert fair_rates([[]], []) == [math.inf]


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


def test_overhead_keeps_the_processor():
    machine = Machine("m", (Level("network", A, B, overhead=1e-6),))
    found = simulate(schedule("gather", "linear", 5), 0 + 5e3, machine)
    # The root posts four receives, one after the other; the last message starts after them.
    assert found.seconds == pytest.approx(4e-6 + A + 1e3 * B, rel=0.2)
    assert sum(cost.posting for cost in found.critical) > 0


def test_headers_are_on_the_way_but_no_bytes_of_a_message():
    machine = Machine("m", (Level("network", A, B, link=1 / B, header=500), Level("node", A, B)))
    pairs = schedule("allgather", "rails", topology="2x4")  # first across, all four ranks of a node
    across, inside = 4 * (1e3 + 500) * B, 2 * A + 6 * 1e3 * B
    found = simulate(pairs, 8e3, machine)
    assert found.seconds == pytest.approx(A + across + inside)
    assert found.level_bytes == simulate(pairs, 8e3, replace(machine, levels=tuple(
        replace(level, header=0) for level in machine.levels))).level_bytes
    # A message of nothing else takes its time, too.
    barrier = simulate(schedule("barrier", "dissemination", 2), 0, machine, "2x1")
    assert barrier.seconds == pytest.approx(A + 500 * B)


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


def test_nothing_to_do():
    assert simulate(schedule("allreduce", "ring", 1), 1e6, FLAT).seconds == 0
    assert simulate(schedule("allreduce", "ring", 4), 0, FLAT).seconds == 0
    assert "time           0 s" in str(simulate(schedule("barrier", "tree", 1), 0, FLAT))
    assert "GB/s" not in str(simulate(schedule("barrier", "tree", 4), 1e6, FLAT))


def test_a_deadlock_is_named():
    def stuck(rank, size):
        return Program(((recv((rank + 1) % size, at(OUT, 0)),),))

    with pytest.raises(ScheduleError, match="rank 0 waits for ever in round 0 for 1 message"):
        simulate(schedule("allgather", stuck, 3), 8, FLAT)


def test_messages_of_unequal_size_are_named():
    def wrong(rank, size):
        return Program(((copy(at(OUT, 0), at(IN, 0)),),
                        (send(1, at(OUT, 0)),) if rank == 0 else (recv(0, at(OUT, 0, 2)),)))

    with pytest.raises(ScheduleError, match="rank 1 expects 8 bytes in round 0, .* says 4"):
        simulate(schedule("allgather", wrong, 2), 8, FLAT)


def test_rounds_that_cut_messages_differently():
    """One round sends two messages to a peer that receives them in two rounds."""
    def cut(rank, size):
        if rank == 0:
            return Program(((send(1, at(OUT, 0)), send(1, at(OUT, 1))),))
        return Program(((recv(0, at(OUT, 0)),), (recv(0, at(OUT, 1)),)))

    made = Schedule(COLLECTIVES["bcast"], "cut", 2, lambda rank: cut(rank, 2), nblocks=2)
    assert simulate(made, 2e6, FLAT).seconds == pytest.approx(2 * A + 2e6 * B)


def test_layouts():
    layout = NetworkPaths(Topology.parse("(2,3),(4)"))
    assert [layout.path(r) for r in (0, 2, 4, 5, 8)] == [
        (0, 0, 0), (0, 1, 0), (0, 1, 2), (1, 0, 0), (1, 0, 3)]
    assert (layout.ranks(()), layout.ranks((0,)), layout.ranks((0, 1)),
            layout.ranks((0, 1, 2))) == (9, 5, 3, 1)
    assert layout.radices() is None
    assert NetworkPaths(Topology.parse("4x2x8")).radices() == (4, 2, 8)


def test_symmetry_arithmetic():
    symmetry = Symmetry((3, 4, 2), ("+", "^", "="))
    paths = [NetworkPaths(Topology.parse("3x4x2")).path(r) for r in range(24)]
    assert symmetry.order == 12
    assert [symmetry.rank(path) for path in paths] == list(range(24))
    assert list(symmetry.representatives()) == [0, 1]
    assert symmetry.fixing((2,)) == 4
    for path in paths:
        there = symmetry.moved(symmetry.classed(path), path)
        assert there == path
        for other in paths[::5]:
            apart = symmetry.apart(path, other)
            assert all(symmetry.apart(symmetry.moved(path, by), symmetry.moved(other, by)) == apart
                       for by in paths[::7])


# -- input ---------------------------------------------------------------------------------
GOOD = {"name": "m", "reduce_bytes_per_second": 1e9,
        "levels": [{"name": "network", "alpha_seconds": 1e-6, "bytes_per_second": 1e9}]}


def changed(*where, **fields):
    data = json.loads(json.dumps(GOOD))
    place = data["levels"][0] if where else data
    for name, value in fields.items():
        if value is None:
            del place[name]
        else:
            place[name] = value
    return json.dumps(data)


@pytest.mark.parametrize(("text", "problem"), [
    ("{", "f.json: not JSON"),
    pytest.param("[" * 100_000, "f.json: nested too deep", id="nested"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 400},"),
                 r"levels\[0\].alpha_seconds: expected a number, got inf", id="400 digits"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 5000},"),
                 r"levels\[0\].alpha_seconds: expected a number, got inf", id="5000 digits"),
    ("[]", "f.json: the file: expected an object"),
    (changed(name=None), "f.json: the file lacks the field name"),
    (changed(levels=[]), "f.json: levels: expected a list of at least one"),
    (changed(colour=1), "f.json: the file has an unknown field colour"),
    (changed(reduce_bytes_per_second=None), "lacks the field reduce_bytes_per_second"),
    (changed(reduce_bytes_per_second=-1), "reduce_bytes_per_second: must be positive, got -1"),
    (changed(sources="x"), "f.json: sources: expected a list of texts"),
    (changed(0, bytes_per_second=None), r"levels\[0\] lacks the field bytes_per_second"),
    (changed(0, bytes_per_second=0), r"levels\[0\].bytes_per_second: must be positive, got 0"),
    (changed(0, bytes_per_second="12"), r"levels\[0\].bytes_per_second: expected a number"),
    (changed(0, alpha_seconds=-1e-6), r"levels\[0\].alpha_seconds: must be 0 or more"),
    (changed(0, link_bytes_per_second=True), r"link_bytes_per_second: expected a number"),
    (changed(0, beta=1), r"levels\[0\] has an unknown field beta"),
    (changed(0, name=""), r"levels\[0\].name: expected a text"),
    (changed(0, alpha_seconds=math.nan), "f.json: NaN is not a number"),
    (changed(0, bytes_per_second=math.inf), "f.json: Infinity is not a number"),
    (changed(0, bytes_per_second=0).replace("0,", "1e999,"), "expected|must be positive"),
    ('{"name": "a", "name": "b"}', "f.json: name is given twice"),
    (changed(levels=GOOD["levels"] * 2), "two levels of one name")])
def test_bad_machine_files(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        machine_from_text(text, "f.json")


def test_machines_that_come_along():
    for name in catalog.names():
        machine = catalog.find(name)
        assert machine.name == name
        assert machine.description
        assert machine.sources
        again = machine_from_text(json.dumps(machine_as_data(machine)), name)
        for level, other in zip(machine.levels, again.levels):
            assert (level.name, level.alpha, level.link, level.bus, level.overhead,
                    level.header) == (other.name, other.alpha, other.link, other.bus,
                                      other.overhead, other.header)
            assert level.beta == pytest.approx(other.beta)


def test_machines_by_file_and_not_at_all(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(GOOD))
    assert catalog.find(file) == catalog.find(str(file))
    with pytest.raises(ArgumentError, match="cannot read 'nowhere'.*one of"):
        catalog.find("nowhere")
    with pytest.raises(TypeError, match="expected a name, a file or a Machine"):
        catalog.find(7)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="it is not text"):
        catalog.find(file)
    with pytest.raises(ArgumentError, match="rate is infinite"):
        machine_as_data(Machine("m", (Level("a", 0, 0),)))


@pytest.mark.parametrize("wrong", [
    dict(alpha=-1), dict(beta=math.nan), dict(beta=math.inf), dict(link=0), dict(bus=-1),
    dict(overhead="1"), dict(alpha=True), dict(header=-1)])
def test_bad_levels(wrong):
    with pytest.raises(ArgumentError, match=f"{next(iter(wrong))} of level 'x'"):
        Level(**{"name": "x", "alpha": 1e-6, "beta": 1e-9, **wrong})


def test_bad_machines():
    with pytest.raises(ArgumentError, match="has no levels"):
        Machine("m", ())
    with pytest.raises(ArgumentError, match="gamma of machine 'm'"):
        Machine("m", FLAT.levels, -1)


@pytest.mark.parametrize(("given", "problem"), [
    (dict(nbytes=-1), "nbytes: expected a number of bytes"),
    (dict(nbytes=math.nan), "nbytes"), (dict(nbytes="1G"), "nbytes"),
    (dict(nbytes=10, itemsize=4), "10 bytes are no whole number of elements of 4"),
    (dict(nbytes=8, segment_bytes=-1), "segment_bytes"),
    (dict(nbytes=8, topology="2x3"), "topology: '2x3' describes 6 ranks"),
    (dict(nbytes=8, machine="none"), "machine")])
def test_bad_arguments(given, problem):
    with pytest.raises(ArgumentError, match=problem):
        simulate(schedule("allreduce", "ring", 4), **{"machine": FLAT, **given})


def test_no_schedule():
    with pytest.raises(ArgumentError, match="schedule: expected a Schedule"):
        simulate("ring", 8)


def test_the_public_name():
    """It is the function, whatever was imported before, and needs neither NumPy nor MPI."""
    # In a process of its own: pytest's collection of modules puts the package in its place.
    done = subprocess.run([sys.executable, "-c", "import sys\n"
                           "sys.modules.update(numpy=None, mpi4py=None)\n"
                           "import hpccoll.simulator.catalog, hpccoll\n"
                           "s = hpccoll.schedule('allreduce', 'ring', 8)\n"
                           "print(hpccoll.simulate(s, 1 << 20, topology='2x4'))"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "critical path" in done.stdout
