"""The largest of many: against sorting, with ties, whatever the sample says."""

import numpy
import pytest

from hpccoll.training.compress import select

COUNTS = [1, 2, 7, 100, 4099, 20011]


def by_sorting(values, count):
    order = numpy.lexsort((numpy.arange(values.size), -values))
    return numpy.sort(order[:count])


def cases(count):
    random = numpy.random.default_rng(count)
    yield random.standard_normal(count)
    yield random.integers(0, 3, count).astype("f4")  # ties
    yield numpy.zeros(count)
    yield numpy.arange(count)[::-1] * 1.0
    periodic = numpy.zeros(count)  # the sample sees nothing, or all
    periodic[::5] = 1 + random.random(-(-count // 5))
    yield periodic
    rare = numpy.full(count, 1e-30)
    rare[count // 2] = numpy.inf
    yield rare


@pytest.mark.parametrize("count", COUNTS)
def test_the_largest_are_those_of_sorting(count):
    for values in cases(count):
        for wanted in {1, 2, count // 100 + 1, count // 2 + 1, count, count + 5}:
            found = select.select_largest(numpy.abs(values), wanted)
            assert found.tolist() == by_sorting(numpy.abs(values), wanted).tolist()


@pytest.mark.parametrize("count", COUNTS)
def test_sampled_ones_are_no_more_and_above_the_others(count):
    for values in cases(count):
        for wanted in {1, count // 100 + 1, count // 2 + 1, count}:
            sizes = numpy.abs(values)
            found = select.select_sampled(sizes, wanted)
            assert 0 < found.size <= wanted and (numpy.diff(found) > 0).all()
            others = numpy.delete(sizes, found)
            assert others.size == 0 or sizes[found].min() >= others.max()


def test_a_sample_is_near_enough():
    sizes = numpy.abs(numpy.random.default_rng(0).standard_normal(200_003))
    for wanted in (200, 2000, 20_000):
        assert 0.5 * wanted < select.select_sampled(sizes, wanted).size <= wanted
        reached = (sizes >= select.estimate_threshold(sizes, wanted)).sum()
        assert 0.5 * wanted < reached < 2 * wanted
