"""Sums whose bits do not depend on the order and the grouping of the summands.

Source: binned sums of J. Demmel and H. D. Nguyen, "Parallel Reproducible Summation", IEEE Trans.
Computers 64 (2015); P. Ahrens, J. Demmel and H. D. Nguyen, "Algorithms for Efficient Reproducible
Floating Point Summation", ACM TOMS 46 (2020). All numbers are split at the same exponents,
multiples of ``LANE_BITS``, into lanes, which are added exactly. Here numbers are truncated, and
lanes are integers:

    x = 1.75 * 2^k    ... | top lane | next lane | next lane | next lane | dropped
                               0..01    1100...0    0..0        0..0

The *top* of a sum is the lane of its largest summand. A sum keeps ``fold`` lanes. The dropped bits
of a summand depend on their exponents only, so the order of additions does not matter. Infinities
and NaN are counted instead.

The arithmetic uses the bits of numbers or is exact, so flushing subnormal numbers to zero changes
no result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

#: Bits of a lane; a sum may have 2 ** (64 - 1 - LANE_BITS) summands.
LANE_BITS = 26
MOST_SUMMANDS = 1 << 63 - LANE_BITS
MASK = numpy.int64((1 << LANE_BITS) - 1)
#: Top of a sum with infinities or NaN, which its lanes count.
SPECIAL = 255
#: Exponent of the lowest bit of lane 0, that of float64's smallest number.
LOWEST = -1074
#: Elements per step, which stay in the cache.
CHUNK = 1 << 13


class Format(NamedTuple):
    """A binary floating-point format.

    Attributes:
        precision: bits of the significand, the hidden one included.
        exponent_bits: bits of the exponent.
        nbytes: bytes of a number.
        fold: lanes that a sum of such numbers keeps.
    """

    precision: int
    exponent_bits: int
    nbytes: int
    fold: int

    @property
    def min_exponent(self) -> int:
        """Return the exponent of the smallest number."""
        return 3 - (1 << self.exponent_bits - 1) - self.precision

    @property
    def infinity(self) -> int:
        """Return the bits of infinity."""
        return ((1 << self.exponent_bits) - 1) << self.precision - 1


#: Formats by NumPy's name. 16-bit numbers are widened exactly, and rounded once at the end.
FORMATS = {"float64": Format(53, 11, 8, 4), "float32": Format(24, 8, 4, 3),
           "float16": Format(11, 5, 2, 3), "bfloat16": Format(8, 8, 2, 3)}
WIDE = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}


def _tops(form: Format) -> numpy.ndarray:
    """Return the top lane of a number, indexed by the bits of its exponent."""
    exponents = numpy.maximum(numpy.arange(1 << form.exponent_bits), 1) - 1 + form.min_exponent
    tops = (exponents + form.precision - 1 - LOWEST) // LANE_BITS
    tops[-1] = SPECIAL
    return tops.astype("u1")


TOPS = {name: _tops(FORMATS[name]) for name in ("float32", "float64")}
#: Factors that scale the lowest bit of a lane to 1; 0 without such a float64.
FACTORS = numpy.array([2.0 ** exponent if abs(exponent) < 1000 else 0.0 for exponent in
                       (-LOWEST - LANE_BITS * top for top in range(SPECIAL + 1))])
#: Value of the lowest bit of a lane.
UNITS = numpy.array([1 / factor if factor else 0.0 for factor in FACTORS])
#: Smallest tops whose kept lanes have factors and no bits of subnormal numbers.
ORDINARY = {"float64": 5, "float32": 39}
HIGHEST = 79
#: Integers below this are float64 numbers.
EXACT = 1 << 52


def wide(values: numpy.ndarray) -> numpy.ndarray:
    """Convert numbers exactly to contiguous float32 or float64.

    Raises:
        TypeError: an unsupported type.
    """
    name = values.dtype.name
    if name not in FORMATS or not values.dtype.isnative:
        raise TypeError(f"sum of {values.dtype} is not defined")
    if name == "bfloat16":
        bits = numpy.ascontiguousarray(values).view("u2").astype("u4") << 16
        return bits.view("f4").reshape(values.shape)
    with numpy.errstate(all="ignore"):
        return numpy.ascontiguousarray(values, WIDE[name]).reshape(values.shape)


def _bits(values: numpy.ndarray) -> numpy.ndarray:
    return values.view(f"i{values.itemsize}")


def tops_of(values: numpy.ndarray) -> numpy.ndarray:
    """Return the top lane of each column of a matrix of wide numbers; the lowest without rows."""
    form, table = FORMATS[values.dtype.name], TOPS[values.dtype.name]
    exponents = numpy.zeros(values.shape[1], "i8")
    step = max(CHUNK // max(values.shape[1], 1), 1)
    for start in range(0, len(values), step):
        part = _bits(values[start:start + step]) >> form.precision - 1
        part &= (1 << form.exponent_bits) - 1
        numpy.maximum(exponents, part.max(axis=0), out=exponents)
    tops: numpy.ndarray = table[exponents]
    return tops


def lanes_of(values: numpy.ndarray, tops: numpy.ndarray) -> numpy.ndarray:
    """Sum the lanes of each column of a matrix of wide numbers.

    Args:
        values: array of shape (rows, columns).
        tops: top of each column; at least that of :func:`tops_of`.

    Returns:
        int64 of shape (fold, columns), the top lane first.
    """
    fold = FORMATS[values.dtype.name].fold
    rows, columns = values.shape
    lanes = numpy.zeros((fold, columns), "i8")
    for first in range(0, columns, CHUNK):
        some = slice(first, first + CHUNK)
        width = min(CHUNK, columns - first)
        height = max(CHUNK // max(width, 1), 1)
        low, high = int(tops[some].min()), int(tops[some].max())
        ordinary = low >= ORDINARY[values.dtype.name] and high <= HIGHEST
        cut = _cut if ordinary else _cut_bits
        for start in range(0, rows, height):
            # A warning that a filter turns into an error would leave other ranks waiting.
            with numpy.errstate(all="ignore"):
                cut(values[start:start + height, some], tops[some], lanes[:, some])
    return lanes


def _cut(values: numpy.ndarray, tops: numpy.ndarray, lanes: numpy.ndarray) -> None:
    """Add the lanes of ordinary numbers by exact arithmetic."""
    rest = values * FACTORS[tops]  # float32 becomes float64 here
    whole = numpy.empty_like(rest)
    for number, lane in enumerate(lanes):
        numpy.trunc(rest, out=whole)
        lane += whole.sum(axis=0).astype("i8") if len(whole) > 1 else whole[0].astype("i8")
        if number < len(lanes) - 1:
            rest -= whole
            rest *= 2.0 ** LANE_BITS


def _cut_bits(values: numpy.ndarray, tops: numpy.ndarray, lanes: numpy.ndarray) -> None:
    """Add the lanes of any numbers by their bits."""
    form = FORMATS[values.dtype.name]
    bits = _bits(numpy.ascontiguousarray(values)).astype("i8")
    exponents = bits >> form.precision - 1 & (1 << form.exponent_bits) - 1
    fraction = bits & (1 << form.precision - 1) - 1
    strange = exponents == (1 << form.exponent_bits) - 1
    special = tops == SPECIAL
    if special.any():
        for lane, found in zip(lanes, (strange & (fraction == 0) & (bits >= 0),
                                       strange & (fraction == 0) & (bits < 0),
                                       strange & (fraction != 0))):
            lane += numpy.where(special, found.sum(axis=0), 0)
    # The significand as 53 bits, and the distance of its lowest bit from that of lane 0.
    significand = fraction | (exponents > 0).astype("i8") << form.precision - 1
    significand <<= FORMATS["float64"].precision - form.precision
    place = (numpy.maximum(exponents, 1) - 1 + form.min_exponent - LOWEST
             - (FORMATS["float64"].precision - form.precision))
    lane_number, offset = place // LANE_BITS, place % LANE_BITS
    low = (significand & MASK) << offset
    middle = ((significand >> LANE_BITS) << offset) + (low >> LANE_BITS)
    sign = numpy.where(bits < 0, -1, 1)
    sign[:, special] = 0
    below = tops.astype("i8") - lane_number - 2
    for piece, digits in enumerate((middle >> LANE_BITS, middle & MASK, low & MASK)):
        digits *= sign
        for number, lane in enumerate(lanes):
            lane += numpy.where(below + piece == number, digits, 0).sum(axis=0)


def raise_tops(lanes: numpy.ndarray, tops: numpy.ndarray, new: numpy.ndarray) -> numpy.ndarray:
    """Raise the tops of sums: shift lanes down, drop the lowest ones."""
    if (tops == new).all():
        return lanes
    result = numpy.zeros_like(lanes)
    counted = (new == SPECIAL) & (tops != SPECIAL)  # finite sums so far
    down = numpy.where(counted, len(lanes), new.astype("i8") - tops)
    for source in range(len(lanes)):
        for target in range(source, len(lanes)):
            result[target] += numpy.where(down == target - source, lanes[source], 0)
    return result


def round_to_dtype(lanes: numpy.ndarray, tops: numpy.ndarray, dtype: Any) -> numpy.ndarray:
    """Round sums to a dtype, each once, to nearest, ties to even.

    Sums of zeros are +0.0; NaN is the one with positive sign and only the first bit set.
    """
    name = numpy.dtype(dtype).name
    form, lowest = FORMATS[name], ORDINARY.get(name, SPECIAL)
    result = numpy.empty(lanes.shape[1], f"u{form.nbytes}")
    for first in range(0, len(result), CHUNK):
        some = slice(first, first + CHUNK)
        high, where = lanes[0, some], tops[some]
        if (lowest <= int(where.min()) and int(where.max()) < HIGHEST
                and -EXACT < int(high.min()) and int(high.max()) < EXACT):
            sums, exact = _float64_sums(lanes[:, some], where)
            with numpy.errstate(all="ignore"):
                result[some] = sums.astype(dtype).view(result.dtype)
            found = _midway(sums, exact, form)
            if len(found):
                found += first
                result[found] = _round_bits(lanes[:, found], tops[found].astype("i8"), form)
        else:
            result[some] = _round_bits(lanes[:, some], where.astype("i8"), form)
    return result.view(dtype)


def _float64_sums(lanes: numpy.ndarray, tops: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Round ordinary sums to float64, as a sum of two halves; return also which are exact."""
    digits = numpy.zeros((4, lanes.shape[1]), "i8")
    over: Any = 0
    for number in range(len(lanes) - 1, 0, -1):
        whole = lanes[number] + over
        digits[number], over = whole & MASK, whole >> LANE_BITS
    high, second, third, last = lanes[0] + over, *digits[1:]
    # If the first half is full, the fourth lane only decides the side of a tie.
    full = (high >= MASK) | (high <= -MASK)
    upper = numpy.where(full, high, (high << LANE_BITS) + second)
    lower = numpy.where(full, second << LANE_BITS | third | (last != 0),
                        third << LANE_BITS | last)
    fraction = lower * 2.0 ** (-2 * LANE_BITS)
    sums = fraction + upper
    exact = sums - upper == fraction
    sums *= UNITS[numpy.where(full, tops, tops - numpy.uint8(1))]
    return sums, exact


def _midway(sums: numpy.ndarray, exact: numpy.ndarray, form: Format) -> numpy.ndarray:
    """Return which inexact float64 are halfway between two numbers of a narrower format."""
    extra = FORMATS["float64"].precision - form.precision
    if not extra or exact.all():
        return numpy.zeros(0, "i8")
    return numpy.flatnonzero(~exact & (_bits(sums) & (1 << extra) - 1 == 1 << extra - 1))


def _round_bits(lanes: numpy.ndarray, tops: numpy.ndarray, form: Format) -> numpy.ndarray:
    """Return the bits of rounded sums."""
    digits, negative = _normal(lanes)
    count, fold = digits.shape[1], len(lanes)
    columns = numpy.arange(count)
    first = (digits != 0).argmax(axis=0)
    left = numpy.bitwise_or.accumulate(digits[::-1], axis=0)[::-1]
    high = digits[first, columns] << LANE_BITS | digits[first + 1, columns]
    low = digits[first + 2, columns] << LANE_BITS | digits[first + 3, columns]
    length = numpy.frexp(high.astype("f8"))[1].astype("i8")
    length[high == 0] = 2 * LANE_BITS  # a sum of zero, see below
    # The 62 highest bits of the sum; the last one is set if any later bit is.
    behind = length - 62 + 2 * LANE_BITS
    leading = high << 62 - length | low >> behind
    lost = low & (numpy.int64(1) << behind) - 1
    lost |= left[numpy.minimum(first + 4, fold + 5), columns]
    leading |= lost != 0
    exponent = LANE_BITS * (tops + 1 - first) + LOWEST - 62 + length
    unit = numpy.maximum(exponent + 62 - form.precision, form.min_exponent)
    cut = numpy.minimum(unit - exponent, 63)
    kept, rest = leading >> cut, leading & (numpy.int64(1) << cut) - 1
    half = numpy.int64(1) << cut - 1
    kept += (rest > half) | (rest == half) & (kept & 1 == 1)
    steps = numpy.minimum(unit - form.min_exponent, (1 << form.exponent_bits) - 1)
    bits = kept.astype("u8") + (steps.astype("u8") << numpy.uint64(form.precision - 1))
    infinity = numpy.uint64(form.infinity)
    bits = numpy.minimum(bits, infinity)
    bits[high == 0] = 0
    sign = numpy.uint64(1 << 8 * form.nbytes - 1)
    bits[negative] |= sign
    special = tops == SPECIAL
    if special.any():
        plus, minus, strange = lanes[:3] > 0
        neither = strange | plus & minus
        bits[special] = numpy.where(minus, infinity | sign, infinity)[special]
        bits[special & neither] = infinity | numpy.uint64(1 << form.precision - 2)
    return bits


def _normal(lanes: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return sums as nonnegative digits, and their signs.

    Two digits precede the top lane, and zeros follow the last one.
    """
    fold = len(lanes)
    digits = numpy.zeros((fold + 6, lanes.shape[1]), "i8")

    def carry() -> None:
        over = numpy.zeros(lanes.shape[1], "i8")
        for number in range(fold - 1, 0, -1):
            whole = lanes[number] + over
            digits[number + 2], over = whole & MASK, whole >> LANE_BITS
        digits[2] = lanes[0] + over

    carry()
    negative = digits[2] < 0
    if negative.any():
        lanes = numpy.where(negative, -lanes, lanes)
        carry()
    digits[1] = digits[2] >> LANE_BITS & MASK
    digits[0] = digits[2] >> 2 * LANE_BITS
    digits[2] &= MASK
    return digits, negative
