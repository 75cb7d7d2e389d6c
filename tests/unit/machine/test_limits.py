"""Limits of messages: what holds for both sets of them."""

import pytest

from hpccoll.machine.limits import DEDICATED, DEVICE_SEGMENTS, OVERSUBSCRIBED


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


@pytest.mark.parametrize("limits", [DEDICATED, OVERSUBSCRIBED])
@pytest.mark.parametrize("path", DEVICE_SEGMENTS)
def test_devices_change_the_segments_alone(limits, path):
    there = limits.on_devices(path)
    assert there.segment_of(2 << 20) == there.segment_of(None) == 4 << 20
    assert there.segment_of(64 << 20) == (16 << 20 if path == "ipc" else 4 << 20)
    changed = {field for field, one, other in zip(limits._fields, limits, there) if one != other}
    assert changed <= {"segment_bytes", "large_segment_bytes", "large_block_bytes"}
