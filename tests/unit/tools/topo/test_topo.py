"""``hpccoll topo``: words, levels of links, the picture, and the command on one rank."""

import io
import json

import pytest

from hpccoll.machine.levels import Position, layout

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from rich.console import Console

from hpccoll.cli import main
from hpccoll.tools.topo import JobMap, Links, choose_ranks, table, tree


def machine(nodes=4, per_node=4, racks=2):
    """Nodes below switches, each of two sockets."""
    size = nodes * per_node
    starts = [n - n % per_node for n in range(size)]
    positions = [Position(f"n{n // per_node}", ("top", f"s{n // per_node * racks // nodes}"),
                          n % per_node * 2 // per_node) for n in range(size)]
    return JobMap(layout(starts, positions), f"{nodes}x{per_node}", tuple(starts),
                   tuple(positions), tuple((n % per_node,) for n in range(size)))


def links(size):
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    return Links(tuple(range(size)), {pair: 1e-6 * (1 + pair[1] - pair[0]) for pair in pairs},
                 {pair: 1e9 for pair in pairs})


def shown(what):
    output = io.StringIO()
    Console(file=output, width=100).print(what)
    return output.getvalue()


def test_where_ranks_meet():
    here = machine()
    assert here.layout.names == ("switch", "node", "socket")
    assert [here.meet(0, other) for other in (1, 2, 4, 8)] == ["socket", "node", "switch",
                                                               "network"]
    assert here.meet(15, 14) == "socket"
    one = machine(1)
    assert (one.layout.names, one.meet(0, 3), one.meet(0, 1)) == (("socket",), "node", "socket")
    dealt = here._replace(nodes=tuple(n % 2 for n in range(16)),
                          layout=layout([n % 2 for n in range(16)], here.positions))
    assert (dealt.meet(0, 2), dealt.meet(0, 1)) == ("node", "network")


def dealt():
    """Ranks dealt out over four nodes below two switches."""
    positions = [Position(f"n{n % 4}", (f"s{n % 4 // 2}",)) for n in range(16)]
    nodes = [n % 4 for n in range(16)]
    return JobMap(layout(nodes, positions), "16", tuple(nodes), tuple(positions),
                   tuple((n // 4,) for n in range(16)))


def test_ranks_dealt_out_over_nodes():
    here = dealt()
    assert [here.meet(0, other) for other in (4, 1, 2)] == ["node", "switch", "network"]
    text = shown(tree(here))
    assert "layout 2x2x4@0-12/4,1-13/4,2-14/4,3-15/4 (switch / node / rank)" in text
    assert "node n1  ranks 1,5,9,13" in text and "switch s1  ranks 2-3,6-7,10-11,14-15" in text


def test_tree_in_words():
    text = shown(tree(machine()))
    assert "16 ranks, layout 2x2x2x2 (switch / node / socket / rank); hpccoll uses 4x4" in text
    assert "switch s1  ranks 8-15" in text and "node n3  ranks 12-15" in text
    assert "socket 1  ranks 14-15" in text and "rank 15 on processor 3" in text
    many = JobMap(layout([0] * 99, [Position("x")] * 99), "99", (0,) * 99, (Position("x"),) * 99,
                   ((0, 1),) * 99)
    assert "ranks 0-98 on processors 0-1" in shown(tree(many))


def test_links_by_level():
    lines = table(machine(), links(16))
    order = [next(n for n, line in enumerate(lines) if level in line)
             for level in ("same socket", "same node", "same switch", "network")]
    assert order == sorted(order) and "pairs" in lines[1] and "2 us" in lines[2]
    assert links(16).levels(machine())["socket"] == (pytest.approx(2e-6), 1e9, 8)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_pairs_that_differ_are_said_to(width):
    """One row of medians hid 1.7 to 9.6 us between the pairs of one node."""
    latency = {pair: (n + 1) * 1e-6 for n, pair in enumerate(links(16).latency)}
    lines = table(machine(), links(16)._replace(latency=latency), width)
    assert max(map(len, lines)) <= width
    assert any("1 us - " in line for line in lines)
    assert "differ by more than 3x" in "".join(lines)
    alike = links(16)._replace(latency=dict.fromkeys(latency, 1e-6))
    assert "differ" not in "".join(table(machine(), alike, width))


def test_ranks_to_measure():
    assert choose_ranks(2) == (0, 1) and choose_ranks(32) == tuple(range(32))
    for size in (33, 40, 1000):
        found = choose_ranks(size)
        assert len(found) <= 32 and found[:16] == tuple(range(16)) and found[-1] == size - 1


def topo(*words):
    return CliRunner().invoke(main, ["topo", *words])


def test_command_alone(tmp_path):
    ran = topo("--json", str(tmp_path / "x.json"))
    assert ran.exit_code == 0, ran.output
    assert "1 rank, layout 1" in ran.stdout
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["schema"] == "hpccoll-topo-1" and record["topology"] == "1"
    assert record["ranks"][0]["processors"] and record["links"] == []
    assert json.loads(topo("--json", "-").stdout)["levels"] == []


@pytest.mark.parametrize("words", [
    ["--json", "missing/x"], ["--network", "missing"],
    ["--most", "1"], ["--nonsense"]])
def test_bad_options_are_one_line(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    ran = topo(*words)
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ran.stderr.startswith("hpccoll: topo: ") and ran.stderr.count("\n") == 1


def test_a_network_without_this_node(tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=s0 Nodes=somewhere[0-3]\n")
    ran = topo("--network", str(path))
    assert ran.exit_code == 2 and "is missing" in ran.stderr
