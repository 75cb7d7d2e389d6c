"""Results of the simulator: tables, reports, pictures, and how they compare with measurements."""

import json

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import HpccollError
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine, find
from hpccoll.simulator.table import level_note, points, simulated_table, summary
from hpccoll.simulator.validation import (
    ComparedTimes,
    compare,
    conclusion,
)


# Simulated against measured times: what is compared, and how picks are counted
def result(candidate, nbytes, seconds, **changes):
    return {"collective": "allreduce", "candidate": candidate, "nbytes": nbytes,
            "count": nbytes // 4, "ranks": 4, "root": None, "dtype": "float32", "op": "sum",
            "in_place": False, "wrong": 0, "changed": 0,
            "statistics": {"p50_seconds": seconds, "ratio": None}, **changes}


def record(**changes):
    results = [result(candidate, nbytes, seconds)
               for nbytes in (64, 1 << 20)
               for candidate, seconds in (("native", 1e-6), ("ring", 2e-5),
                                          ("recursive_doubling", 1e-5),
                                          ("recursive_multiplying:k=2", 3e-5))]
    return {"schema": 1, "settings": {}, "results": results, "environment": {
        "mpi": "MPICH", "topology": None, "rank_hosts": ["a", "a", "b", "b"]}, **changes}


def test_algorithms_are_simulated_on_the_hosts_of_the_record():
    found = compare(record(), find("hdr"))
    assert [c.candidate for c in found] == ["ring", "recursive_doubling",
                                            "recursive_multiplying:k=2"] * 2
    small = {c.candidate: c.simulated for c in found[:3]}
    # One round inside the nodes, one across.
    assert small["recursive_doubling"] == pytest.approx(2e-6, rel=0.02)
    assert small["recursive_multiplying:k=2"] == pytest.approx(small["recursive_doubling"])
    given = compare(record(environment={"topology": "4x1", "rank_hosts": []}), find("hdr"))
    assert given[1].simulated == pytest.approx(3e-6, rel=0.02)


def test_one_host_on_a_machine_of_one_level():
    """The layout of a record has hosts and ranks, what is measured on one node has ranks alone."""
    machine = Machine("m", (Level("node", 1e-6, 1e-10, bus=12e9),))
    ring = [result("ring", 1 << 20, 1e-3)]
    found = [compare(record(results=ring, environment=environment), machine)[0].simulated
             for environment in ({"topology": None, "rank_hosts": ["a"] * 4},
                                 {"topology": "4", "rank_hosts": []})]
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx(6 * (1e-6 + (1 << 20) / 12e9))


@pytest.mark.parametrize("wrong", [
    {}, [], {"environment": {}, "results": [{}]}, record(results=[]), record(results=3)])
def test_no_record(wrong):
    with pytest.raises(HpccollError, match="record"):
        compare(wrong, find("hdr"))


@pytest.fixture
def call(tmp_path):
    """Run the command against a record of this text."""
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from click.testing import CliRunner

    from hpccoll.cli import main
    file = tmp_path / "record.json"

    def called(text, *words):
        file.write_text(text if isinstance(text, str) else json.dumps(text))
        return CliRunner().invoke(main, ["simulate", *words, "--against", str(file)])
    return called


def test_the_command(call, tmp_path):
    done = call(record())
    assert done.exit_code == 0, done.output
    assert "of 2 sizes" in done.output
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "picture.png"
    done = call(record(), "--plot", str(drawn))
    assert done.exit_code == 0 and drawn.read_bytes()[1:4] == b"PNG", done.output


def test_the_command_writes_json(call, tmp_path):
    done = call(record(), "allreduce", "--json", "-")
    data = json.loads(done.stdout)
    assert (data["machine"]["name"], data["of"], len(data["results"])) == ("hdr", 2, 6)
    assert data["results"][0]["measured"] == 2e-5
    done = call(record(), "--json", str(tmp_path / "no" / "x"))
    assert done.exit_code == 2 and "--json: cannot write" in done.output


@pytest.mark.parametrize(("words", "problem"), [
    (("bcast",), "the record has no algorithm of bcast"),
    (("--algorithm", "ring"), "--against: does not go with --algorithm"),
    (("--itemsize", "4"), "--against: does not go with --itemsize"),
    (("--nodes", "2"), "--against: does not go with --nodes"),
    (("--no-fold",), "--against: does not go with --no-fold"),
    (("--segment-bytes", "1K:4K"), "--segment-bytes: cannot read '1K:4K'")])
def test_what_does_not_go_with_a_record(call, words, problem):
    done = call(record(), *words)
    assert done.exit_code == 2 and done.stdout == ""
    assert problem in done.stderr and done.stderr.count("\n") == 1


def changed(**fields):
    return record(results=[{**result("ring", 64, 1e-5), **fields}])


@pytest.mark.parametrize("wrong", [
    pytest.param("{", id="text"), pytest.param("[" * 100_000, id="nested"), "3", "null",
    changed(statistics={"p50_seconds": 0, "ratio": None}),
    changed(statistics={"p50_seconds": "1", "ratio": None}),
    changed(candidate="ring:k=x"), changed(candidate="ring:k"), changed(candidate="ring:k=2"),
    changed(candidate="recursive_multiplying:k=0"), changed(candidate=None),
    changed(nbytes="64"), changed(nbytes=-4), changed(nbytes=1 << 4000), changed(count="16"),
    changed(count=5), changed(collective=[]), changed(collective="bcast", root=9,
                                                      candidate="binomial"),
    record(environment=3), record(environment={"mpi": ""}),
    *(record(environment={"mpi": "", "topology": topology, "rank_hosts": hosts})
      for topology, hosts in ((None, None), (None, []), (None, {}), (None, [[1]]), (True, []),
                              ("2x", [])))])
def test_what_was_written_by_hand(call, wrong):
    done = call(wrong)
    assert done.exit_code == 2 and done.stdout == "", done.output
    assert "record.json" in done.stderr and done.stderr.count("\n") == 1


def test_a_machine_file_that_does_not_fit_is_said_not_to():
    """As calibrated on a busy machine: all times are 100 times too long, and every pick is
    right."""
    times = [ComparedTimes("allreduce", n, name, t, t) for n, name, t in
             ((8, "ring", 2e-5), (8, "pat", 1e-5), (64, "ring", 2e-4), (64, "pat", 1e-4))]
    slow = [c._replace(simulated=100 * c.measured) for c in times]
    told = "\n".join(conclusion(slow))
    assert "2 of 2 sizes" in told and "100x too long" in told and "does not match" in told
    assert "simulated / measured: 100 in the middle" in told
    assert "too" not in "\n".join(conclusion(times))
    assert "100x too short" in "\n".join(conclusion(
        [c._replace(simulated=c.measured / 100) for c in times]))


# Records of ranks that are not numbered host by host
def test_a_record_of_ranks_dealt_out_is_simulated_so():
    def seconds(hosts):
        record = {"environment": {"topology": None, "rank_hosts": hosts}, "results": [
            {"collective": "allreduce", "candidate": name, "nbytes": 64, "count": 16,
             "root": None, "statistics": {"p50_seconds": 1e-6}}
            for name in ("leader", "linear")]}
        return [found.simulated for found in compare(record, find("hdr"))]
    assert seconds(["a", "b"] * 4)[0] == pytest.approx(seconds(["a"] * 4 + ["b"] * 4)[0])


# Simulations side by side: a table that fits, and a sentence that says who is fastest
def simulated(names, nodes, sizes, machine="hdr", collective="allreduce"):
    made = []
    for count in nodes:
        for nbytes in sizes:
            for name in names:
                layout = Topology.parse(f"{count}x2")
                inner = layout if name in ("rails", "leader") else None
                made.append((count, simulate(
                    schedule(collective, name, layout.size, topology=inner), nbytes, find(machine),
                    layout)))
    return made


MANY = simulated(["ring", "recursive_doubling", "rails"], [2, 4, 8, 16], [1 << 10, 1 << 30])


def test_the_sentence_counts_and_names_what_is_level():
    told = summary(points(MANY))
    assert told.startswith("in simulation, ") and "at " in told and " of 8 points" in told
    twice = simulated(["ring", "rails"], [4], [1 << 20]) * 1
    level = [(4, twice[0][1]), (4, twice[0][1])]
    assert "ring and ring are equal and fastest" in summary(points(level))
    assert summary(points(twice[:1])) == ""
    alone = simulated(["ring"], [8], [1 << 20])  # a point with nothing to compare
    assert " points" not in summary(points([*twice, *alone]))


def test_a_layout_shallower_than_the_machine_is_said():
    note = level_note(find("frontier"), Topology.parse("4x8"))
    assert "package is not used" in note and "--nodes N --ppn AxB" in note
    assert level_note(find("frontier"), Topology.parse("4x4x2")) == ""
    assert level_note(find("frontier"), Topology.parse("4x1")) == ""
    assert "count as node" in level_note(find("hdr"), Topology.parse("2x2x2"))
    lines, _ = simulated_table(simulated(["ring"], [4], [1 << 20], "frontier"))
    assert any("note: frontier" in line for line in lines)


# Reports: the critical path adds up
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
