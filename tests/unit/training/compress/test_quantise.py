"""Block quantisation: what is exact, the bound of the error, and values that have no integer."""

import numpy
import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.compress.quantise import (
    AT_ONCE,
    dequantise,
    pack,
    packed_bytes,
    quantise,
    unpack,
)
from support.folded import folded

COUNTS = [0, 1, 2, 3, 7, 8, 255, 256, 257, 1021]
FORMATS = [(bits, block, full) for bits in (4, 8) for block in (2, 16, 256)
           for full in (False, True)]


def there_and_back(values, bits, block, full=False):
    return dequantise(*quantise(values, bits, block, full), values.size, bits, block)


@folded("bits, block, full", FORMATS)
@folded("count", COUNTS)
def test_values_on_the_grid_stay(bits, block, full, count):
    top = 2 ** (bits - 1)
    integers = numpy.random.default_rng(count).integers(1 - top, top, count)
    integers[::block] = -top if full else 1 - top  # every block reaches its end
    scales = 2.0 ** (numpy.arange(-(-count // block)) % 20)
    values = (integers * scales.repeat(block)[:count]).astype("f4")
    packed, found = quantise(values, bits, block, full)
    assert packed.nbytes == packed_bytes(count, bits) and (found == scales).all()
    assert (dequantise(packed, found, count, bits, block) == values).all()


@pytest.mark.parametrize("bits, block, full", FORMATS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_error_is_half_a_step_and_a_whole_one_at_the_end_of_the_full_range(
        bits, block, full, dtype):
    values = numpy.random.default_rng(1).standard_normal(1021).astype(dtype)
    packed, scales = quantise(values, bits, block, full)
    error = numpy.abs(dequantise(packed, scales, 1021, bits, block, numpy.empty(1021, dtype))
                      - values)
    steps = error / scales.repeat(block)[:1021]
    assert steps.max() <= (1.0 if full else 0.5) + 1e-4
    assert (steps <= 0.5 + 1e-4).mean() > 0.4 and steps.max() > 0.25


def test_slices_make_no_difference():
    values = numpy.random.default_rng(2).standard_normal(2 * AT_ONCE + 77).astype("f4")
    packed, scales = quantise(values, 4, 64)
    for start in (0, 64, AT_ONCE - 64, AT_ONCE, 2 * AT_ONCE):
        alone, scale = quantise(values[start:start + 64], 4, 64)
        assert (alone == packed[start // 2:start // 2 + alone.size]).all()
        assert scale[0] == scales[start // 64]


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_have_no_error(bits):
    packed, scales = quantise(numpy.zeros(9, "f4"), bits, 4)
    assert not packed.any() and (scales == 1).all()
    assert not there_and_back(numpy.full(5, 1e-45, "f4"), bits, 4).any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -numpy.inf])
def test_a_block_with_what_is_no_number_is_none(bits, bad):
    values = numpy.arange(12, dtype="f4")
    values[5] = bad
    back = there_and_back(values, bits, 4)
    assert numpy.isnan(back[4:8]).all()
    assert numpy.isfinite(back[:4]).all() and numpy.isfinite(back[8:]).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("width", [1, 3, 4, 5, 16])
def test_packed_codes_come_back(bits, width):
    codes = numpy.random.default_rng(width).integers(0, 2 ** bits, (3, width)).astype("u1")
    packed = pack(codes, bits)
    assert packed.shape == (3, packed_bytes(width, bits))
    assert (unpack(packed, bits)[:, :width] == codes).all()


@pytest.mark.parametrize("bits, block", [(3, 8), (16, 8), (8, 3), (8, 0), (4, -2)])
def test_formats_that_do_not_exist(bits, block):
    with pytest.raises(ArgumentError):
        quantise(numpy.ones(4, "f4"), bits, block)
