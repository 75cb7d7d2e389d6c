"""Explanations of one call: the text, what stands beside it, and its order."""

import json
from pathlib import Path

import pytest
from unit.explain.explained import FLAT, agree, swapped

import hpccoll
from hpccoll import algorithms
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_json, as_list, as_text, draw
from hpccoll.explain.columns import FittedTable, Header
from hpccoll.explain.text import WANTS, first_line
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.schedule import Program, Span, Step, at, recv, send
from support.folded import folded

# Explanations in words
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LAYERED = [(c, a) for c, table in ALGORITHMS.items() for a, e in table.items() if e.hierarchical]


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, algorithm", LAYERED)
def test_layers_are_explained(collective, algorithm):
    for layout in ("2x3", "3,1,2", "2x2x2"):
        made = schedule(collective, algorithm, topology=layout, root=4)
        agree(made)
        text = as_text(made)
        assert f"topology={layout}" in text
        assert "WRONG" not in text and "never" not in text and "never written" not in text
        assert as_json(made)["topology"] == layout


def test_every_collective_is_put_in_words():
    assert set(WANTS) == set(COLLECTIVES)


@pytest.mark.slow
@folded("collective, algorithm", FLAT)
def test_every_algorithm_is_explained(collective, algorithm):
    for size in (1, 2, 7, 17):
        text = as_text(schedule(collective, algorithm, size), nbytes=1000)
        assert text.startswith(f"{collective} {algorithm} size={size}")
        assert "WRONG" not in text and "never" not in text and "never written" not in text
        assert max(map(len, text.splitlines())) <= 100


def test_text_of_a_small_ring():
    text = as_text(schedule("allreduce", "ring", 3), nbytes=3 << 20)
    assert "Wanted: every rank ends with the vector reduced over all ranks." in text
    assert "Payload: a vector split into 3 blocks of 1 MiB." in text
    assert "  rounds      4, the longest chain of dependent messages" in text
    assert "  messages    12 in all, at most 4 from one rank" in text
    assert "  sent        12 blocks (12 MiB) in all, at most 4 blocks (4 MiB) by one rank" in text
    assert "  rank order  not kept" in text
    assert "  round 2: every rank r -> r + 1 (mod 3), 1 block each, reduced on arrival\n" \
           "      0 -> 1: b2 of 0,2   1 -> 2: b0 of 0-1   2 -> 0: b1 of 1-2\n" in text
    assert "      3  send out[1] to 1; receive out[0] from 2\n" in text


def test_patterns_have_names():
    text = as_text(schedule("allreduce", "recursive_doubling", 8))
    assert "every rank r <-> r xor 4" in text
    assert "rank 2 -> 4 ranks" in as_text(schedule("bcast", "linear", 5, root=2))
    assert "4 ranks -> rank 0" in as_text(schedule("gather", "linear", 5))
    assert "every rank -> every other rank" in as_text(schedule("alltoall", "linear", 5))
    assert "no messages: all work is local" in as_text(schedule("alltoall", "linear", 1))


def test_many_ranks_are_summarised():
    text = as_text(schedule("allreduce", "ring", 32))
    ring = "every rank r -> r + 1 (mod 32), 1 block each"
    assert f"  rounds 1-31: {ring}, reduced on arrival\n" in text
    assert f"  rounds 32-62: {ring}, stored\n" in text
    assert "What ranks 0, 16, 31 do" in text and "56 rounds like these" in text
    assert len(text.splitlines()) < 60


def test_thousands_of_ranks_take_no_time():
    text = as_text(schedule("allreduce", "ring", 100_000))
    assert "rounds      199998" in text and "closed forms" in text


def test_a_wrong_schedule_is_explained_with_the_reason():
    made = schedule("allreduce", swapped, 2)
    text = as_text(made)
    assert "WRONG" in text and "instead of the contributions of ranks [0, 1]" in " ".join(
        text.split())
    assert "0 -> 1: b0 of 0" in text
    assert as_json(made)["facts"]["proof"] is None


def test_lanes_are_told_one_by_one():
    made = schedule("bcast", str(EXAMPLES / "lanes.py") + ":PIPELINE", 3, n=2)
    text = as_text(made, rank=1)
    assert text.endswith("""\
  rank 1
   lane 0
      1  round 0: receive out[0] from 0
      2  round 1: receive out[1] from 0
   lane 1
      2  round 2, after round 0: send out[0] to 2
      3  round 3, after round 1: send out[1] to 2
"""), text
    assert "rounds      3, the longest chain" in text
    assert "  1 after []: recv 0 out[1]" in list(made.lines())
    assert as_json(made)["programs"][1]["after"] == [[], [], [0], [1]]

    assert "never  round" in as_text(schedule("bcast", lambda rank, size, root: Program(
        ((recv(1 - rank, at(OUT, 0)),), (send(1 - rank, at(OUT, 0)),)), (), ((), (0,))), 2))


def test_what_the_network_does_is_told():
    example = str(EXAMPLES / "in_network.py")
    made = schedule("allreduce", f"{example}:IN_PIECES", 3)
    text = as_text(made, rank=1)
    assert "needs       in-network reduction and multicast, which few transports support" in text
    assert "  round 1: the network reduces ranks 0-2 for rank 1: b1" in text
    assert "  round 2: multicast of rank 1 to ranks 0,2: b1" in text
    assert "messages    12 in all, at most 4 from one rank" in text
    words = " ".join(text.split())
    assert "pass out[0] to the network, which reduces 0-2 for 0;" in words
    assert "receive out[1] from the network's result of 0-2" in words
    assert words.endswith("multicast out[1] to 0,2; receive out[0] from 0, by multicast; "
                          "receive out[2] from 2, by multicast")
    assert as_json(made)["operations"][0] == {
        "round": 1, "sources": [0, 1, 2], "sinks": [0], "blocks": [0],
        "contributions": [[0, 1, 2]]}
    assert "multicast of rank 0 to rank 1: 1 block" in as_text(
        schedule("bcast", f"{example}:BCAST", 2), brief=True)
    assert "  1: send [0-2 > 0-2] out[0]; recv [0-2 > 0-2] out[0]" in list(
        schedule("allreduce", f"{example}:ALLREDUCE", 3).lines())


# What schedules and reports are as text: a few lines
def test_a_small_schedule_prints_whole_and_a_large_one_how_it_begins():
    small, large = (hpccoll.schedule("allreduce", "rails", topology=layout)
                    for layout in ("1x3", "1024x8"))
    assert str(small).splitlines() == list(small.lines())
    assert len(str(large).splitlines()) < 12 and "8192 ranks in total" in str(large)
    assert len(repr(large)) < 150 and repr(large).startswith("<Schedule allreduce rails size=8192")


def test_it_is_the_schedule_of_the_table():
    assert hpccoll.schedule is algorithms.schedule
    mine = hpccoll.schedule("bcast", "knomial", 9, root=2, k=3)
    assert hpccoll.verify(mine) and mine == hpccoll.schedule("bcast", "knomial", 9, root=2, k=3)
    assert hpccoll.simulate(mine, "1M").seconds == hpccoll.simulate(mine, 1 << 20).seconds


def test_it_is_drawn_and_told_for_a_number_of_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    made = hpccoll.schedule("allreduce", "ring", 4)
    draw(made, tmp_path / "x.svg", "1M")
    assert "<svg" in (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert as_text(made, nbytes=1 << 20).startswith("allreduce ring size=4")


def test_a_report_is_a_few_lines():
    report = hpccoll.simulate(hpccoll.schedule("allreduce", "rails", topology="64x8"), "1G")
    assert len(str(report).splitlines()) <= 6 and len(repr(report)) < 150
    assert len(report.as_text().splitlines()) > 15


# Schedules as plain data
@folded("collective, algorithm", FLAT)
def test_json_reads_back_unchanged_and_complete(collective, algorithm):
    made = schedule(collective, algorithm, 5, root=3)
    data = as_json(made)
    assert json.loads(json.dumps(data)) == data
    assert list(data) == ["format", "title", "collective", "algorithm", "size", "root", "nblocks",
                          "uniform", "params", "topology", "digest", "wanted", "facts",
                          "messages", "programs"]
    for rank, program in enumerate(data["programs"]):
        spans = {s["kind"]: s for steps in program["rounds"] for s in steps}
        assert all(list(s) == ["kind", "peer", "side", "spans", "source"] for s in spans.values())
        rounds = tuple(tuple(Step(s["kind"], s["peer"], tuple(Span(*x) for x in s["spans"]),
                                  tuple(Span(*x) for x in s["source"]), s["side"]) for s in steps)
                       for steps in program["rounds"])
        assert (rounds, program["scratch"]) == (
            made.program(rank).rounds, list(made.program(rank).scratch))


# The table of algorithms as a list
ENTRIES = [pytest.param(entry, id=f"{collective}-{name}")
           for collective, table in ALGORITHMS.items() for name, entry in table.items()]


def test_the_list_has_every_name_with_what_it_does():
    lines = as_list().splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(ALGORITHMS)
    assert f"  {'ring':22} Each block travels once round, left behind at every stop." in lines
    assert len(lines) == len(ALGORITHMS) + len(ENTRIES)
    assert as_list("scan").splitlines()[0] == "scan" and "ring" not in as_list("scan")


def test_the_list_of_an_unknown_collective_names_the_known_ones():
    with pytest.raises(ArgumentError, match="'scam'.*'scan'"):
        as_list("scam")
    assert as_list("Iscan") == as_list("scan")


@folded("entry", ENTRIES)
def test_a_first_line_is_a_sentence(entry):
    line = first_line(entry)
    assert line[0].isupper() and line.endswith(".") and len(line) < 100


# Tables that fit: which columns give way, what is cut, what is left out
COLUMNS = (Header("size"), Header("algorithm", right=False), Header("time"),
           Header("p99", spare=2), Header("min", spare=3), Header("max", spare=3),
           Header("note", right=False, spare=1))
ROWS = [("8 B", "ring", "1 us", "3 us", "1 us", "9 us", ""),
        ("1 MiB", "recursive_multiplying:k=4:segment=65536", "310.5 us", "1 ms", "1 us", "2 ms",
         "-")]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_lines_fit(width):
    table = FittedTable(COLUMNS, ROWS, width)
    lines = table.lines(marked=[0])
    assert max(map(len, lines)) <= width
    assert lines[1].startswith("* ") and lines[2].startswith("  ")
    assert "note" not in lines[0]  # empty in every row
    assert all(word in lines[0] for word in ("size", "algorithm", "time"))


def test_columns_give_way_together_and_are_named():
    lean, wide = (FittedTable(COLUMNS, ROWS, width) for width in (75, 140))
    assert lean.hidden == ["min", "max"] and "p99" in lean.head
    assert lean.left_out() == "--full also shows: min, max"
    assert wide.hidden == [] and wide.left_out() == ""


def test_after_a_long_name_a_row_continues_below():
    lines = FittedTable(COLUMNS[:3], ROWS, 60).lines()
    assert ROWS[1][1] in lines[2]
    table = FittedTable([Header("x", right=False), Header("y")], [["x" * 50, "12 us"]], 60)
    table.widths[0] = 12
    assert table.lines()[1:] == ["  " + "x" * 50, " " * 16 + "12 us"]
    said = FittedTable([Header("x"), Header("y", right=False)], [["1", "word " * 20]], 60).lines()
    assert all(len(line) <= 60 for line in said) and " ".join(said).count("word") == 20
