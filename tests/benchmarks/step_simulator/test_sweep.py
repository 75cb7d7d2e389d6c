"""Best buckets, and network rates at which compression pays."""

import math

import pytest
from step_simulator import simulation, sweep
from step_simulator.catalog import find
from step_simulator.collective_times import CollectiveTimes
from step_simulator.model import from_profile
from step_simulator.simulation import StepPlan

from hpccoll.simulator.machine_model import Level, Machine

#: A second for a byte, and nothing else.
BYTES = Machine("bytes", (Level("network", 0.0, 1.0),), 0.0)


class Quarter:
    """A scheme that sends a quarter of the bytes, in an allreduce."""

    name, dense = "quarter", True

    def wire_bytes(self, shapes, size, step=None):
        return sum(math.prod(shape) for shape in shapes) * 2 * (size - 1) / size


@pytest.fixture(autouse=True)
def schemes(monkeypatch):
    monkeypatch.setattr(simulation, "_parsed", lambda text: Quarter())


def lone_array(nbytes):
    return from_profile({"arrays": [{"name": "a", "shape": [nbytes // 4], "dtype": "float32",
                                     "itemsize": 4}],
                         "ready_seconds": [1.0], "backward_seconds": 1.0})


@pytest.mark.slow
def test_buckets_of_every_size_and_the_fastest_of_them():
    times = CollectiveTimes("perlmutter-gpu", "2x2")
    found = sweep.over_buckets(find("resnet50"), StepPlan(), times)
    assert [f.plan.bucket_bytes for f in found] == list(sweep.BUCKETS)
    best = sweep.fastest(found)
    assert best.seconds == min(f.seconds for f in found) < found[-1].seconds
    for f in found:
        alone = simulation.forecast(find("resnet50"), f.plan,
                                    CollectiveTimes("perlmutter-gpu", "2x2"))
        assert f.seconds == pytest.approx(alone.seconds, rel=1e-9)


@pytest.mark.parametrize("rate", [0.25, 4.0])
def test_break_even_by_hand(rate):
    """Two ranks: n bytes take n/r plain, and n/4r + n/rate compressed: even at r = 3/4 rate."""
    times = CollectiveTimes(BYTES, "2", "allreduce=ring", segment_bytes=1 << 30)
    plan = StepPlan(compress="quarter", compress_rate=rate)
    found = sweep.break_even(lone_array(4096), plan, times)
    assert found.factor == pytest.approx(0.75 * rate, rel=0.03)
    assert found.bytes_per_second == found.factor


def test_the_link_of_a_node_is_what_the_rate_is_of():
    machine = Machine("m", (Level("network", 0.0, 1 / 8, link=2.0),), 0.0)
    times = CollectiveTimes(machine, "2", "allreduce=ring", segment_bytes=1 << 30)
    found = sweep.break_even(lone_array(4096), StepPlan(compress="quarter", compress_rate=4.0),
                             times)
    assert found.bytes_per_second == pytest.approx(3.0, rel=0.03)
