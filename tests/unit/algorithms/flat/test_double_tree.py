"""Double tree: everyone forwards half of the data."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.explain.replay import timeline


@pytest.mark.parametrize("size", [3, 6, 9, 16])
def test_no_rank_but_the_root_forwards_both_halves(size):
    for root in (0, size - 1):
        forwarded = {}
        for message in timeline(schedule("bcast", "double_tree", size, root=root)).messages:
            forwarded.setdefault(message.sender, set()).update(v.block for v in message.values)
        assert forwarded.pop(root) == {0, 1}
        assert all(len(halves) == 1 for halves in forwarded.values())
