"""Random collectives on a real device, with work on other streams before and after them."""

import pytest

from hpccoll.testing import world
from support.gpu import device_world
from support.gpu.real_device import delay, device_reason, installed

pytestmark = pytest.mark.skipif(bool(device_reason()), reason=device_reason() or "")


@pytest.mark.parametrize("part", range(8))
def test_random_calls(part, monkeypatch):
    monkeypatch.setattr(device_world, "installed", installed)
    monkeypatch.setattr(device_world, "delay", delay)
    monkeypatch.setattr(world, "PATIENCE", 10_000_000)  # a device takes its time
    for seed in range(part, 400, 8):
        # Messages of ranks in one process are copies by NumPy: they do not move device memory.
        assert not device_world.make(device_world.RandomCall(seed, devices=1, direct=False)), seed
