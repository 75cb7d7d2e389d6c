"""Statistics of results."""

import numpy
import pytest
from unit.bench_results import result

from hpccoll.measure import results


def test_statistics():
    one = result("native", [4, 1, 2, 3, 90])
    assert one.median == pytest.approx(3e-6)
    assert one.mean == pytest.approx(20e-6)
    assert one.algorithm_bandwidth(1e-3) == 1024e3
    assert one.bus_bandwidth(1e-3) == 1.5 * 1024e3
    assert results.ratios([one, result("ring", [6])]) == pytest.approx({"native": 1, "ring": 0.5})
    groups = [[result("native", [4]), result("ring", [2])],
              [result("native", [1]), result("ring", [8])]]
    assert results.mean_ratios(groups)["ring"] == pytest.approx((0.5, 2))
    assert results.ratios([result("ring", [1])]) == {}


@pytest.mark.parametrize("collective, factor", [
    ("allreduce", 1.5), ("allgatherv", 0.75), ("reduce_scatter_block", 0.75), ("alltoallw", 0.75),
    ("gather", 0.75), ("scatterv", 0.75), ("bcast", 1), ("reduce", 1), ("scan", 1)])
def test_bus_factors(collective, factor):
    assert results.bus_factor(collective, 4) == factor


def test_times_in_two_heaps_have_a_time_between_them():
    """As calls have that find the other ranks running, or have to wait for them."""
    rng = numpy.random.default_rng(1)
    runs = [rng.choice([2.0, 9.0], 400) + rng.normal(0, 0.1, 400) for _ in range(50)]
    medians, means = (numpy.array([measure(run) for run in runs])
                      for measure in (numpy.median, results.trimmed_mean))
    assert medians.max() > 4 * medians.min() and means.max() < 1.3 * means.min()
    assert means.mean() == pytest.approx(5.5, abs=0.2)


@pytest.mark.parametrize("seconds, mean", [
    ([3], 3), ([3, 5], 4), ([3, 99, 4], 4), ([0, 4, 5, 6, 99], 5), ([9, 1, 2, 3], 2.5),
    ([*range(20)], 9.5), ([0, 0, *[5] * 16, 99, 999], 5)])
def test_extremes_do_not_count(seconds, mean):
    assert results.trimmed_mean(seconds) == result("native",
                                                   [s * 1e6 for s in seconds]).trimmed_seconds == (
        pytest.approx(mean))
