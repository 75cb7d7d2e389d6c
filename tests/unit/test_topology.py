"""Topology: text in, groups out, and text again."""

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.topology import Topology


@pytest.mark.parametrize("text, tree, size, depth", [
    ("8", 8, 8, 1), ("2x4", (4, 4), 8, 2), ("4x2x8", ((8, 8),) * 4, 64, 3),
    ("3,5,4", (3, 5, 4), 12, 2), ("(2,3),(4)", ((2, 3), (4,)), 9, 3), ("1x8", (8,), 8, 2),
    ("8x1", (1,) * 8, 8, 2), (" 2 x ( 1 , 2 ) ", ((1, 2), (1, 2)), 6, 3),
    ("1x(2,3)", ((2, 3),), 5, 3), ("2x2,3", ((2, 2), 3), 7, 3), (8, 8, 8, 1)])
def test_text_is_read(text, tree, size, depth):
    topology = Topology.parse(text)
    assert (topology.tree, topology.size, topology.depth) == (tree, size, depth)
    assert Topology.parse(str(topology)) == topology
    assert Topology.parse(topology) is topology


@pytest.mark.parametrize("text, printed", [
    ("2x4", "2x4"), ("4,4", "2x4"), ("3,5,4", "3,5,4"), ("(2,3),(4)", "(2,3),(1x4)"),
    ("2x(1,2)", "2x(1,2)"), ("((8))", "1x8"), (" 4 ", "4")])
def test_text_is_printed(text, printed):
    assert str(Topology.parse(text)) == printed


@pytest.mark.parametrize("text, complaint", [
    ("", "cannot read '' at position 0"), (" ", "cannot read ' '"),
    ("x4", "lacks a number before 'x'"), ("2x", "lacks a number at its end"),
    ("3,,4", "lacks a number before ','"), (",3", "lacks a number before ','"),
    ("3,", "lacks a number at its end"), ("()", "lacks a number before '\\)'"),
    ("2,3)", "unmatched '\\)'"), ("(2,3", "lacks a '\\)'"), ("2 3", "unmatched '3'"),
    ("a", "at position 0"), ("2x4y", "at position 3"), ("2.5", "at position 1"),
    ("-3", "at position 0"), ("0", "group of 0 ranks"), ("2x0", "group of 0 ranks"),
    (0, "group of 0 ranks"), (-3, "group of -3 ranks"), (None, "expected text"),
    (2.0, "expected text"), (True, "expected text"), ([2, 3], "expected text")])
def test_malformed_text_is_refused_by_name(text, complaint):
    with pytest.raises(ArgumentError, match=f"topology: .*{complaint}") as caught:
        Topology.parse(text)
    assert caught.value.argument == "topology"


def test_the_size_must_match():
    assert Topology.parse("2x4", 8).size == 8
    with pytest.raises(ArgumentError, match="'2x4' describes 8 ranks, the communicator has 6"):
        Topology.parse("2x4", 6)


def test_groups_and_children():
    topology = Topology.parse("(2,3),(4)")
    assert topology.groups() == [range(0, 5), range(5, 9)]
    assert [str(child) for child in topology.children] == ["2,3", "1x4"]
    assert Topology(3).groups() == [range(0, 1), range(1, 2), range(2, 3)]
    assert Topology(3).children == ()


def test_topologies_are_values():
    assert Topology.parse("2x4") == Topology((4, 4)) != Topology.parse("8")
    assert hash(Topology.parse("2x4")) == hash(Topology((4, 4)))
