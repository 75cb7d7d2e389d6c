"""Reading and printing layouts."""

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.topology import Topology


@pytest.mark.parametrize("text, tree, size, depth", [
    ("8", 8, 8, 1), ("2x4", (4, 4), 8, 2), ("4x2x8", ((8, 8),) * 4, 64, 3),
    ("3,5,4", (3, 5, 4), 12, 2), ("(2,3),(4)", ((2, 3), (4,)), 9, 3), ("1x8", (8,), 8, 2),
    ("8x1", (1,) * 8, 8, 2), (" 2 x ( 1 , 2 ) ", ((1, 2), (1, 2)), 6, 3), ("1x(2,3)", ((2, 3),), 5, 3),
])
def test_text_is_read(text, tree, size, depth):
    topology = Topology.parse(text)
    assert (topology.tree, topology.size, topology.depth) == (tree, size, depth)
    assert Topology.parse(str(topology)) == topology


@pytest.mark.parametrize("text", [
    "", " ", "x4", "2x", "2x0", "0", "3,,4", ",3", "3,", "a", "2x4y", "(2,3", "2,3)", "-3", "2.5",
    None, 2.0, True, [2, 3]])
def test_malformed_text_is_refused(text):
    with pytest.raises(ArgumentError, match="topology"):
        Topology.parse(text)


def test_the_size_must_match():
    assert Topology.parse("2x4", 8).size == 8
    with pytest.raises(ArgumentError, match="8 ranks, the communicator has 6"):
        Topology.parse("2x4", 6)


def test_groups_and_children():
    topology = Topology.parse("(2,3),(4)")
    assert topology.groups() == [range(0, 5), range(5, 9)]
    assert [str(child) for child in topology.children] == ["2,3", "1x4"]
    assert Topology(3).groups() == [range(0, 1), range(1, 2), range(2, 3)]
    assert Topology(3).children == ()
