"""Rails of blocks: ranks that stand for absent ones."""

from hpccoll.algorithms.hierarchical.rails_blocks import rails
from hpccoll.ir.topology import Topology


def test_a_present_rank_stands_for_absent_ones():
    """Rank 3 is alone in its group and swaps with all three of the other one."""
    (level, blocks), = rails(Topology.parse("3,1"), 3)
    assert level.mine == 1
    assert [[(piece.ranks, piece.keys) for piece in pieces] for pieces in blocks] == [
        [([0, 3], [0]), ([1, 3], [1]), ([2, 3], [2])], [([0, 3], [3])]]
