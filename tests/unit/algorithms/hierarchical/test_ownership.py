"""Ownership: every rank has its part of the blocks."""

import pytest

from hpccoll.algorithms.hierarchical.ownership import (
    columns,
    cut,
    nblocks,
    ownership,
    rooted_nblocks,
)
from hpccoll.ir.topology import Topology

SHAPES = ["1", "5", "1x4", "4x1", "2x2", "2x3", "3x2", "2x4", "4x2x2", "2x2x2x2", "3,5,4", "1,4,2",
          "(2,3),(4)", "5,1,1", "2x(1,3)", "((1,2),3),(2,1)"]
#: Proved for some algorithms only, to save time.
LARGE = ["16x8"]


@pytest.mark.parametrize("shape", ["64x64", "3,5,4", "1,1,1", "16x(3,4,5)", "64x16"])
def test_blocks_are_as_many_as_ranks_or_twice(shape):
    topology = Topology.parse(shape)
    assert nblocks(topology) <= 2 * topology.size
    assert rooted_nblocks(topology) <= 2 * topology.size
    if shape == "64x16":
        assert (nblocks(topology), rooted_nblocks(topology)) == (1024, 16)
        assert nblocks(topology, 2) == 128


@pytest.mark.parametrize("shape", SHAPES + LARGE)
@pytest.mark.parametrize("leaders", [1, 2, 99])
def test_owners_partition_the_blocks(shape, leaders):
    """Every rank that may own has its part, up to one block a level."""
    topology = Topology.parse(shape)
    n = nblocks(topology, leaders)
    found = ownership(topology.tree, n, leaders)
    assert len(found) == n and set(found) <= set(range(topology.size))
    if leaders == 1:
        assert set(found) == {0}
    if leaders == 99 and topology.depth == 1:
        assert {found.count(rank) for rank in range(topology.size)} == {n // topology.size}


def test_columns_are_the_intersections_of_shares():
    found = columns((2, 3), 6, 9)
    assert [(column.owners, column.keys, column.before) for column in found] == [
        ({2: 0, 3: 0}, [0, 1], 0), ({2: 0, 3: 1}, [2], 2),
        ({2: 1, 3: 1}, [3], 3), ({2: 1, 3: 2}, [4, 5], 4)]


def test_larger_shares_move_on_from_cut_to_cut():
    assert cut(range(5), 3, 0) == [range(2), range(2, 4), range(4, 5)]
    assert cut(range(5, 9), 3, 5) == [range(5, 6), range(6, 7), range(7, 9)]
    assert cut([1, 4, 6], 2, 0) == [[1, 4], range(6, 7)]
