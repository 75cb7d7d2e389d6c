"""Binned sums against exact ones: bits in any order, rounding, bounds, what is special."""

from fractions import Fraction

import numpy
import pytest

from hpccoll.arrays import binned
from hpccoll.arrays.binned import FORMATS, LANE_BITS, SPECIAL, TOPS, WIDE

TYPES = {"float64": "f8", "float32": "f4", "float16": "f2"}
#: Relative to the largest summand: what one summand may lose.
LOST = {"float64": Fraction(1, 1 << 78), "float32": Fraction(1, 1 << 52),
        "float16": Fraction(1, 1 << 52)}


def total(values):
    """The sums of the columns of a matrix."""
    wide = binned.wide(values)
    tops = binned.tops_of(wide)
    return binned.round_to_dtype(binned.lanes_of(wide, tops), tops, values.dtype)


def same(one, other):
    return one.tobytes() == other.tobytes()


def matrices(name, seed=0):
    """Sums of all kinds: ordinary, of many sizes, cancelling, of tiny numbers."""
    random, dtype = numpy.random.default_rng(seed), numpy.dtype(TYPES[name])
    decades = {"float64": 250, "float32": 30, "float16": 3}[name]
    tiny = numpy.finfo(dtype).smallest_subnormal
    for rows in (1, 2, 3, 17, 40):
        shape = rows, 9
        plain = random.standard_normal(shape)
        for values in (plain, plain * 10.0 ** random.integers(-3, 3, shape),
                       plain * 10.0 ** random.integers(-decades, decades, shape),
                       random.integers(-9, 9, shape) * float(tiny),
                       random.integers(-5, 5, shape) * 2.0 ** random.integers(-8, 8)):
            with numpy.errstate(over="ignore"):
                values = values.astype(dtype)
            values[~numpy.isfinite(values)] = 1
            yield values
            yield numpy.concatenate([values, -values[::-1][:rows // 2]])


@pytest.mark.parametrize("name", TYPES)
def test_sums_are_as_near_as_promised(name):
    for values in matrices(name):
        for column, found in zip(values.T, total(values)):
            exact = sum(map(Fraction, map(float, column)))
            bound = len(column) * Fraction(float(abs(column).max())) * LOST[name]
            half = Fraction(float(numpy.spacing(abs(found)))) / 2
            assert abs(Fraction(float(found)) - exact) <= bound + half
            if bound < abs(exact) / 2 ** 60:  # nothing was lost: the nearest number, not any near
                nearest = numpy.array([float(exact)]).astype(values.dtype)[0]
                assert found == nearest or name != "float64"


@pytest.mark.parametrize("name", TYPES)
def test_no_order_and_no_portions_change_a_bit(name):
    random = numpy.random.default_rng(1)
    for values in matrices(name, 2):
        expected = total(values)
        assert same(total(values[random.permutation(len(values))]), expected)
        # Portions: each with its own top, brought to that of all at the end.
        cut = random.integers(0, len(values) + 1)
        wide = binned.wide(values)
        tops = binned.tops_of(wide)
        lanes = 0
        for part in (wide[:cut], wide[cut:]):
            own = binned.tops_of(part)
            lanes = lanes + binned.raise_tops(binned.lanes_of(part, own), own, tops)
        assert same(binned.round_to_dtype(lanes, tops, values.dtype), expected)


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_arithmetic_and_bits_cut_alike(name):
    random, dtype = numpy.random.default_rng(3), TYPES[name]
    values = (random.standard_normal((50, 40)) * 10.0 ** random.integers(-9, 9, 40)).astype(dtype)
    values[:, ::7] = 0
    for tops in (binned.tops_of(values), binned.tops_of(values) + numpy.uint8(1)):
        one, other = (numpy.zeros((FORMATS[name].fold, 40), "i8") for _ in range(2))
        ordinary = tops >= binned.ORDINARY[name]
        binned._cut(values[:, ordinary], tops[ordinary], one[:, ordinary])
        part = one[:, ordinary]
        binned._cut(values[:, ordinary], tops[ordinary], part)
        binned._cut_bits(values[:, ordinary], tops[ordinary], rest := other[:, ordinary])
        assert (part == rest).all() and part.any()


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_both_ways_to_round_agree(name):
    dtype, form = numpy.dtype(TYPES[name]), FORMATS[name]
    for values in matrices(name, 4):
        tops = binned.tops_of(values)
        lanes = binned.lanes_of(values, tops)
        slow = binned._round_bits(lanes, tops.astype("i8"), form).astype(f"u{form.nbytes}")
        assert same(binned.round_to_dtype(lanes, tops, dtype), slow.view(dtype))


def test_ties_go_to_even_and_anything_else_does_not():
    for name, big in (("float64", 2.0 ** 53), ("float32", 2.0 ** 24)):
        for rest, more in ((0.0, 0.0), (2.0 ** -20, 2.0), (-2.0 ** -20, 0.0)):
            column = numpy.array([[big], [1.0], [rest]], TYPES[name])
            assert total(column) == big + more, (name, rest)
            # By bits too, of which the last one stands for all those behind.
            tops = binned.tops_of(column)
            bits = binned._round_bits(binned.lanes_of(column, tops), tops.astype("i8"),
                                      FORMATS[name])
            assert bits.astype(f"u{column.itemsize}").view(column.dtype) == big + more
    # Halfway between two float32 once it is a float64, and not exactly there.
    for rest, more in ((2.0 ** -60, 2.0 ** -23), (-2.0 ** -60, 0.0), (0.0, 0.0)):
        assert total(numpy.array([[1.0], [2.0 ** -24], [rest]], "f4")) == numpy.float32(1 + more)


def test_the_result_overflows_only_if_it_must():
    most = numpy.finfo("f8").max
    assert total(numpy.array([[most], [most], [-most]])) == most
    assert total(numpy.array([[most], [most]])) == numpy.inf
    assert total(numpy.array([[-most], [-most]])) == -numpy.inf
    assert total(numpy.array([[numpy.finfo("f4").max]] * 2, "f4")) == numpy.inf
    assert total(numpy.array([[60000.0]] * 2, "f2")) == numpy.inf


def test_what_is_not_finite():
    inf, nan = numpy.inf, numpy.nan
    columns = numpy.array([[inf, 1, 2], [-inf, 1, 1e300], [inf, -inf, 0], [nan, 1, 2],
                           [nan, inf, -inf], [inf, inf, -1e308]]).T
    found = total(columns)
    assert same(found, numpy.array([inf, -inf, numpy.nan, numpy.nan, numpy.nan, inf]))
    for dtype in "f4", "f2":
        narrow = numpy.where(abs(columns) == 1e300, 1, columns)
        narrow = numpy.where(narrow == -1e308, -1, narrow).astype(dtype)
        assert same(total(narrow), numpy.array([inf, -inf, nan, nan, nan, inf], dtype))
    # Portions with different NaN: one answer.
    quiet, other = numpy.array([0x7ff8000000000001, -1]).view("f8")
    assert same(total(numpy.array([[quiet]])), total(numpy.array([[other]])))


def test_zeros_and_nothing():
    assert same(total(numpy.array([[-0.0], [-0.0]])), numpy.array([0.0]))
    assert same(total(numpy.zeros((0, 2))), numpy.zeros(2))
    assert total(numpy.zeros((3, 0))).shape == (0,)


def test_subnormal_results_are_rounded_once():
    tiny = numpy.finfo("f8").smallest_subnormal
    assert total(numpy.array([[tiny], [tiny], [-3 * tiny]])) == -tiny
    least = numpy.finfo("f4").smallest_subnormal
    assert total(numpy.array([[least], [least * 2]], "f4")) == least * 3
    half = numpy.array([[6e-8], [6e-8], [1.0], [-1.0]], "f2")
    assert total(half) == numpy.float16(1.2e-7)


def test_long_columns_and_wide_rows_are_cut_into_chunks():
    random = numpy.random.default_rng(5)
    long = random.standard_normal((3 * binned.CHUNK + 1, 1))
    assert same(total(long), total(long[::-1].copy()))
    assert abs(total(long)[0] - sum(map(Fraction, long[:, 0]))) < 1e-12
    wide = random.standard_normal((2, binned.CHUNK + 5))
    assert same(total(wide), wide.sum(axis=0))


def test_sixteen_bits_of_the_other_kind():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random = numpy.random.default_rng(6)
    values = random.standard_normal((30, 8)).astype(ml_dtypes.bfloat16)
    expected = total(values.astype("f4")).astype(ml_dtypes.bfloat16)
    assert same(total(values), expected)


def test_the_table_of_formats():
    for name, form in FORMATS.items():
        if name in TYPES:
            info = numpy.finfo(TYPES[name])
            assert 2.0 ** form.min_exponent == info.smallest_subnormal
            assert numpy.array(numpy.inf, TYPES[name]).view(f"u{form.nbytes}") == form.infinity
        assert WIDE[name] in TOPS
    assert max(TOPS["float64"][:-1]) < 127 < SPECIAL == TOPS["float32"][-1]
    assert LANE_BITS * 2 + 1 == FORMATS["float64"].precision  # a number touches three lanes
    with pytest.raises(TypeError, match="int64"):
        binned.wide(numpy.zeros(3, "i8"))
    with pytest.raises(TypeError, match="sum.*>f8"):
        binned.wide(numpy.zeros(3, ">f8"))
