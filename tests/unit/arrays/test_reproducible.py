"""Reproducible sums as users make them: portions, shapes, types, and what is refused."""

import numpy
import pytest

import hpccoll
from hpccoll.arrays.binned import MOST_SUMMANDS
from hpccoll.arrays.reproducible import ReproducibleSum, reproducible_sum
from hpccoll.errors import ArgumentError, ArgumentTypeError

RANDOM = numpy.random.default_rng(0)
TERMS = RANDOM.standard_normal((24, 3, 5)) * 10.0 ** RANDOM.integers(-9, 9, (24, 3, 5))


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "c8"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_contributions_dealt_to_any_number_of_ranks(ranks, dtype):
    """What each rank adds first, and what is merged when, changes no bit."""
    terms = (TERMS + 1j * TERMS[::-1]).astype(dtype) if dtype[0] == "c" else TERMS.astype(dtype)
    expected = reproducible_sum(terms, axis=0)
    for dealt in ([terms[rank::ranks] for rank in range(ranks)],
                  [*terms[::-1][:ranks - 1, None], terms[:25 - ranks]]):
        parts = []
        for mine in dealt:
            part = ReproducibleSum((3, 5), dtype)
            for contribution in mine:
                part.add(contribution)
            parts.append(part)
        while len(parts) > 1:
            parts[0].merge(parts.pop(numpy.random.default_rng(ranks).integers(1, len(parts))))
        assert parts[0].value().tobytes() == expected.tobytes()
        assert parts[0].summands == 24


def test_plain_sums_depend_on_it():
    """The tests above would show a sum that rounds on the way."""
    sums = {sum(TERMS[rank::ranks].sum(axis=0) for rank in range(ranks)).tobytes()
            for ranks in (1, 2, 3, 4)}
    assert len(sums) > 1


def test_axes_are_numpys():
    assert reproducible_sum(TERMS) == ReproducibleSum((), "f8").value() + reproducible_sum(
        TERMS.ravel()[::-1])
    for axis in (0, 1, 2, -1):
        found = reproducible_sum(TERMS, axis)
        assert found.shape == TERMS.sum(axis).shape
        assert numpy.allclose(found, TERMS.sum(axis), rtol=1e-9, atol=1e-6)
    assert numpy.isscalar(reproducible_sum([1.5, 2.5])) and reproducible_sum([1.5, 2.5]) == 4
    assert reproducible_sum(numpy.zeros(0)) == 0
    assert reproducible_sum(TERMS[:, ::2, ::-1], 0).tobytes() == reproducible_sum(
        TERMS[:, ::2, ::-1].copy(), 0).tobytes()
    with pytest.raises(ArgumentError, match="axis: .*3"):
        reproducible_sum(TERMS, 3)


def test_leading_axes_are_added():
    sums = ReproducibleSum(5)
    sums.add(TERMS)
    assert sums.summands == 72 and sums.shape == (5,)
    assert sums.value().tobytes() == reproducible_sum(TERMS.reshape(72, 5), 0).tobytes()
    sums.add(numpy.arange(5, dtype="f4"))  # exactly a float64
    assert sums.summands == 73


def test_what_is_refused():
    with pytest.raises(ArgumentTypeError, match="int64.*float64"):
        reproducible_sum(numpy.arange(3))
    with pytest.raises(ArgumentTypeError, match="reproducible.*>f8"):
        ReproducibleSum(3, ">f8")
    with pytest.raises(ArgumentError, match="shape -1"):
        ReproducibleSum(-1)
    sums = ReproducibleSum((2, 3), "f4")
    with pytest.raises(ArgumentTypeError, match="float64.*float32"):
        sums.add(numpy.zeros((2, 3)))
    for shape in ((3,), (3, 2), (2, 3, 1)):
        with pytest.raises(ArgumentError, match="last axes"):
            sums.add(numpy.zeros(shape, "f4"))
    with pytest.raises(ArgumentError, match="sums.*float64.*shape"):
        sums.merge(ReproducibleSum((2, 3)))
    sums.summands = MOST_SUMMANDS
    with pytest.raises(ArgumentError, match="137438953472"):
        sums.add(numpy.zeros((2, 3), "f4"))
    assert not sums.value().any()


def test_infinities_of_several_portions_meet():
    one, other = ReproducibleSum(2), ReproducibleSum(2)
    one.add([1.0, numpy.inf])
    other.add([numpy.inf, -numpy.inf])
    other.add([2.0, 5.0])
    one.merge(other)
    assert one.value()[0] == numpy.inf and numpy.isnan(one.value()[1])


def test_the_package_has_them():
    assert hpccoll.reproducible_sum is reproducible_sum
    assert hpccoll.ReproducibleSum is ReproducibleSum
