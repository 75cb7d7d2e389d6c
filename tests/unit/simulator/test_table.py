"""Simulations side by side: a table that fits, and a sentence that says who is fastest."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.catalog import find
from hpccoll.simulator.table import level_note, points, rates_of, simulated_table, summary


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


FEW = simulated(["ring", "recursive_doubling", "rails"], [4], [1 << 10, 1 << 30])
MANY = simulated(["ring", "recursive_doubling", "rails"], [2, 4, 8, 16], [1 << 10, 1 << 30])


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("reports", [FEW, MANY], ids=["few", "many"])
def test_it_fits(reports, width):
    lines, best = simulated_table(reports, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text  # no name is cut
    assert "allreduce on hdr" in lines[0] and "vendor data" in lines[1]
    assert "time" in text and best


def test_the_fastest_stands_first_and_is_marked():
    lines, best = simulated_table(FEW)
    marked = [line for number, line in enumerate(lines) if number in best]
    assert all(line.startswith("* ") and " 1.00" in line for line in marked) and len(marked) == 2
    assert "# allreduce on hdr, 4 nodes, 8 ranks" in lines[0]  # constants; sizes are a column
    assert "1 GiB" in "\n".join(lines)


def test_many_points_get_a_line_each_and_full_shows_all():
    short, _ = simulated_table(MANY)
    assert sum("MiB" in line or "KiB" in line or "GiB" in line for line in short) == 8
    assert any("--full shows all 3 algorithms" in line for line in short)
    full, _ = simulated_table(MANY, full=True)
    assert sum(" ring " in line for line in full) == 8 and "sharing" in "\n".join(full)


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


def test_where_rates_come_from():
    assert "peak rates from vendor data" in rates_of(find("frontier"))
    assert "measured" in rates_of(find("vm-2core")) and "not measured" not in rates_of(
        find("vm-2core"))


def test_a_layout_stands_in_for_nodes():
    lines, _ = simulated_table(FEW, layout="4,4")
    assert "layout 4,4" in lines[0] and "nodes" not in lines[0]
