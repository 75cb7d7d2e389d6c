"""Limits of messages: what holds for both sets of them."""

import pytest

from hpccoll.machine.limits import DEDICATED, OVERSUBSCRIBED


@pytest.mark.parametrize("limits", [DEDICATED, OVERSUBSCRIBED])
def test_large_blocks_have_large_segments(limits):
    large = limits.large_block_bytes
    assert limits.segment_of(large) == limits.segment_of(1) == limits.segment_bytes
    assert limits.segment_of(large + 1) == limits.large_segment_bytes > limits.segment_bytes
    assert limits.segment_of(None) == limits.segment_bytes  # not all ranks know the size


@pytest.mark.parametrize("limits", [DEDICATED, OVERSUBSCRIBED])
def test_eager_messages_fit_cells(limits):
    assert 0 < limits.eager_bytes <= limits.cell_bytes


def test_oversubscribed_ranks_yield_at_once():
    assert OVERSUBSCRIBED.spins == 0 < DEDICATED.spins
