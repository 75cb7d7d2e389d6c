"""When times are too noisy to be results."""

import pytest
from unit.bench_results import result

from hpccoll.measure import noise


def test_parts_of_a_series():
    assert noise.parts([1, 1, 2, 2, 3, 3, 4, 4, 5, 5]) == [1, 2, 3, 4, 5]
    assert noise.parts([7.0, 8.0]) == [7, 8] and noise.parts([]) == []


def test_what_moves_together_is_not_noise():
    """Candidates take turns: a machine that slows down does so to all."""
    slower = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0]
    found = noise.spread(slower, [2 * t for t in slower])
    assert found == (0.5, 0.5) and not found.noisy
    assert noise.spread(slower, [1.0] * 10).noisy


def test_one_bad_moment_is_not_noise():
    assert not noise.spread([1.0] * 8 + [50.0] * 2, [1.0] * 10).noisy
    assert noise.drift_factor([1.0] * 8 + [50.0] * 2) == 1


@pytest.mark.parametrize("native, other, found", [
    ([877] * 10, [9.4] * 10, 877 / 9.4),               # as a busy machine once said
    ([20] * 10, [1] * 10, 0),                          # a true one: eager messages, shared cores
    ([3, 3, 5, 5, 16, 16, 25, 25, 40, 40], [1] * 10, 16.6),  # native itself moved
    ([2] * 10, [1] * 10, 0)])
def test_ratios_that_are_not_believed(native, other, found):
    assert noise.absurd([result("native", native), result("ring", other)]) == pytest.approx(
        found, rel=0.15)


def test_without_native_nothing_is_absurd():
    assert noise.absurd([result("ring", [1] * 5)]) == 0
    assert noise.absurd([result("native", [1] * 5)]) == 0


@pytest.mark.parametrize("times, found", [
    ([(64, 385), (512, 385), (4 << 10, 95), (256 << 10, 95)], [385 / 95, 385 / 95, 0, 0]),
    ([(8, 29), (64, 10), (512, 30)], [0, 0, 0]),   # another protocol, or where turns are taken
    ([(8, 90), (16, 10)], [0, 0]),                 # a little more than 8 bytes says less
    ([(8, 110), (16, 10)], [11, 0]),
    ([(512, 10), (8, 40)], [4, 0][::-1]),          # in whatever order
    ([(8, 5), (64, 0)], [0, 0]), ([(0, 5)], [0]), ([], [])])
def test_a_size_that_took_much_longer_than_a_larger_one(times, found):
    assert noise.implausible_ratios(times) == pytest.approx(found)
