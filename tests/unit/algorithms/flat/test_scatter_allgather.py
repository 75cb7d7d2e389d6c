"""Scatter and allgather: no rank gets a block that it has."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.explain.replay import timeline


@pytest.mark.parametrize("name", ["scatter_allgather", "scatter_ring"])
@pytest.mark.parametrize("size, root", [(2, 1), (5, 2), (8, 0), (13, 12)])
def test_every_block_arrives_once(name, size, root):
    arrived = {rank: [] for rank in range(size)}
    for message in timeline(schedule("bcast", name, size, root=root)).messages:
        arrived[message.receiver] += [value.block for value in message.values]
    assert not arrived.pop(root)
    assert all(sorted(blocks) == list(range(size)) for blocks in arrived.values())
