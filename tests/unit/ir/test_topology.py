"""Topology: text in, groups out, and text again."""

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology


@pytest.mark.parametrize("text, tree, size, depth", [
    ("8", 8, 8, 1), ("2x4", (4, 4), 8, 2), ("4x2x8", ((8, 8),) * 4, 64, 3),
    ("2x2@0,2,1,3", (2, 2), 4, 2), ("3,5,4", (3, 5, 4), 12, 2),
    ("(2,3),(4)", ((2, 3), (4,)), 9, 3), ("1x8", (8,), 8, 2),
    ("8x1", (1,) * 8, 8, 2), (" 2 x ( 1 , 2 ) ", ((1, 2), (1, 2)), 6, 3),
    ("1x(2,3)", ((2, 3),), 5, 3), ("2x2,3", ((2, 2), 3), 7, 3), (8, 8, 8, 1)])
def test_text_is_read(text, tree, size, depth):
    topology = Topology.parse(text)
    assert (topology.tree, topology.size, topology.depth) == (tree, size, depth)
    assert Topology.parse(str(topology)) == topology
    assert Topology.parse(topology) is topology


@pytest.mark.parametrize("text, printed", [
    ("2x4", "2x4"), ("4,4", "2x4"), ("3,5,4", "3,5,4"), ("(2,3),(4)", "(2,3),(1x4)"),
    ("2x(1,2)", "2x(1,2)"), ("((8))", "1x8"), (" 4 ", "4"),
    ("2x2@0,1,2,3", "2x2"), ("2x2@0-3", "2x2"), (" 2x2 @ 0 , 2 , 1 , 3 ", "2x2@0,2,1,3"),
    ("2x3@0,2,4,1,3,5", "2x3@0-4/2,1-5/2"), ("2x3@ 0 - 4 / 2,1-5/2", "2x3@0-4/2,1-5/2"),
    ("2x3@5,4,3,2,1,0", "2x3@5,4,3,2,1,0"), ("2x3@3,4,5,0-2", "2x3@3-5,0-2"),
    ("3,5@7,0,1,2,3,4,5,6", "3,5@7,0-6"), ("(2,3),(1)@5,0-4", "(2,3),(1x1)@5,0-4"),
    ("2@1,0", "2@1,0"), ("1@0", "1")])
def test_text_is_printed(text, printed):
    assert str(Topology.parse(text)) == printed


@pytest.mark.parametrize("text, complaint", [
    ("", "''.*position 0"), (" ", "' '"),
    ("x4", "'x'"), ("2x", "end"),
    ("3,,4", "','"), (",3", "','"),
    ("3,", "end"), ("()", r"'\)'"),
    ("2,3)", r"'\)'"), ("(2,3", r"'\('"), ("2 3", "'3'"),
    ("a", "position 0"), ("2x4y", "position 3"), ("2.5", "position 1"),
    ("-3", "position 0"), ("0", "0 ranks"), ("2x0", "0 ranks"),
    (0, "0 ranks"), (-3, "-3 ranks"), (None, "text"),
    ("2x2@", "''.*'2x2@'"), ("@0", "''.*position 0"),
    ("2x2@a", "'a'.*order"), ("2x2@0,1,2,-3", "'-3'"),
    ("2x2@0,2,1,3,", "''"), ("2x2@0@1", "'0@1'"),
    ("2x2@3-0", "'3-0'"), ("2x2@0-3/0", "'0-3/0'"),
    ("2x2@0,1,2", "'2x2@0-2'.*0..3"),
    ("2x2@0,1,1,3", "'2x2@0,1,1,3'.*0..3"),
    ("2x2@0,1,2,3,0", "place"), ("2x2@0,1,2,4", "rank 4"),
    ("2x2@0-99999999999999", "rank 99999999999999"),
    (2.0, "text"), (True, "text"), ([2, 3], "text")])
def test_malformed_text_is_refused_by_name(text, complaint):
    with pytest.raises(ArgumentError, match=f"topology: .*{complaint}") as caught:
        Topology.parse(text)
    assert caught.value.argument == "topology"


def test_the_size_must_match():
    assert Topology.parse("2x4", 8).size == 8
    with pytest.raises(ArgumentError, match="'2x4'.*8 ranks.*6"):
        Topology.parse("2x4", 6)


def test_groups_and_children():
    topology = Topology.parse("(2,3),(4)")
    assert topology.groups() == [range(5), range(5, 9)]
    assert [str(child) for child in topology.children] == ["2,3", "1x4"]
    assert Topology(3).groups() == [range(1), range(1, 2), range(2, 3)]
    assert Topology(3).children == ()


def test_ranks_and_positions():
    topology = Topology.parse("(2,1),(3)@4,0,2,5,3,1")
    assert topology.groups() == [(4, 0, 2), (5, 3, 1)]
    assert topology.ranks == (4, 0, 2, 5, 3, 1)
    assert [topology.ranks[p] for p in topology.positions] == list(range(6))
    assert topology.plain == Topology.parse("(2,1),(3)") == topology.plain.plain
    assert (topology.plain.ranks, topology.plain.positions) == (range(6), range(6))
    assert Topology.parse("3@2,0,1").groups() == [(2,), (0,), (1,)]
    with pytest.raises(ArgumentError, match="'2x2@1,1'"):
        Topology((2, 2), (1, 1))


def test_topologies_are_values():
    dealt = Topology.parse("2x2@0,2,1,3")
    assert dealt == Topology((2, 2), (0, 2, 1, 3)) != Topology((2, 2))
    assert dealt.positions and dealt == Topology.parse(str(dealt))  # what was looked up is no part
    assert len({dealt, Topology((2, 2)), Topology((2, 2), (0, 1, 2, 3))}) == 2
    assert Topology.parse("2x4") == Topology((4, 4)) != Topology.parse("8")
    assert hash(Topology.parse("2x4")) == hash(Topology((4, 4)))
