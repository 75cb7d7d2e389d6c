"""Exact inputs: no order rounds, every contribution counts, and wrong results are seen."""

import random
from fractions import Fraction

import numpy
import pytest

from hpccoll.arrays.exact import (
    BFLOAT16,
    MEANING,
    PRIME,
    GuardedArray,
    affine,
    exact_reduction,
    from_bfloat16,
    inputs,
    to_bfloat16,
    wrong,
)
from hpccoll.errors import ArgumentError, ArgumentTypeError
from support.folded import folded

PAIR = numpy.dtype([("value", "f8"), ("index", "i4")])
TYPES = ["i1", "u1", "i4", "u8", "f2", "f4", "f8", "g", BFLOAT16, "c8", "c16", "?", PAIR]
SIZES = [1, 2, 3, 11, 70]


def defined(op, dtype):
    try:
        inputs(op, dtype, 0, 1, 1)
    except ArgumentTypeError:
        return False
    return True


CASES = [(op, dtype) for op in MEANING for dtype in TYPES if defined(op, dtype)]


def test_operators_are_defined_where_they_should_be():
    kinds = {op: "".join(sorted({numpy.dtype("f4" if t == BFLOAT16 else t).kind
                                 for o, t in CASES if o == op})) for op in MEANING}
    assert kinds == {"sum": "cfiu", "prod": "cfiu", "max": "fiu", "min": "fiu", "land": "biu",
                     "lor": "biu", "lxor": "biu", "band": "iu", "bor": "iu", "bxor": "iu",
                     "maxloc": "V", "minloc": "V", "affine": "c"}
    with pytest.raises(ArgumentError, match="'avg'"):
        inputs("avg", "f4", 0, 1, 1)


@pytest.mark.slow
@folded("size", SIZES)
@folded("op, dtype", CASES)
def test_no_order_and_no_grouping_rounds(op, dtype, size):
    parts = [inputs(op, dtype, rank, size, 20) for rank in range(size)]
    expected, turns = exact_reduction(op, dtype, range(size), size, 20), random.Random(size)
    if op != "affine":
        turns.shuffle(parts)
    with numpy.errstate(over="ignore" if expected.dtype.kind in "iu" else "raise"):
        while len(parts) > 1:
            at = turns.randrange(len(parts) - 1)
            both = MEANING[op](*parts[at:at + 2]).astype(expected.dtype)
            if dtype == BFLOAT16:
                both = from_bfloat16(to_bfloat16(both))
            parts[at:at + 2] = [both]
    assert not wrong(parts[0], expected)
    assert not numpy.any(expected != expected)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
def test_the_sum_is_the_real_sum(dtype):
    for seed in range(3):
        parts = [inputs("sum", dtype, rank, 9, 5, seed) for rank in range(9)]
        total = exact_reduction("sum", dtype, range(9), 9, 5, seed)
        for part in (numpy.real, numpy.imag):
            assert [Fraction(float(x)) for x in part(total)] == [
                sum(Fraction(float(part(p)[i])) for p in parts) for i in range(5)]


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", [2, 5, 37, 150])
@pytest.mark.parametrize("op", ["sum", "prod", "lxor", "bxor", "affine"])
def test_lost_and_doubled_contributions_show(op, size):
    dtype = {"lxor": "?", "bxor": "u2", "affine": "c16"}.get(op, "f4")
    expected = exact_reduction(op, dtype, range(size), size, 40)
    for rank in {0, size // 2}:
        without = [r for r in range(size) if r != rank]
        assert wrong(exact_reduction(op, dtype, without, size, 40), expected)
        # Twice is as good as never for the operators that cancel.
        assert wrong(exact_reduction(op, dtype, [*range(size), rank], size, 40), expected)
        swapped = sorted(without + [without[0]])
        assert op == "affine" or wrong(exact_reduction(op, dtype, swapped, size, 40), expected)


def test_affine_does_not_commute_and_stays_exact():
    one, two, three = (inputs("affine", "c16", rank, 3, 50) for rank in range(3))
    assert wrong(affine(one, two), affine(two, one)) == 50
    assert not wrong(affine(affine(one, two), three), affine(one, affine(two, three)))
    a, b, c, d = (list(map(int, part)) for x in (one, two) for part in (x.real, x.imag))
    assert list(affine(one, two)) == [
        complex(p * r % PRIME, (p * s + q) % PRIME) for p, q, r, s in zip(a, b, c, d)]
    into = one.copy()
    affine(into, two, into)
    assert not wrong(into, affine(one, two))


def test_bfloat16_round_trip():
    values = numpy.array([0.0, -1.5, 2.0 ** 100, 255.0, numpy.inf], numpy.float32)
    assert not wrong(from_bfloat16(to_bfloat16(values)), values)
    with pytest.raises(ArgumentError, match="exact.*bfloat16"):
        to_bfloat16(numpy.array([257.0]))


def test_guards_notice_the_first_byte_outside():
    for shift in (0, 3):
        guarded = GuardedArray(3, "f8", shift)
        assert guarded.array.size == 3 and not guarded.describe_overwrites()
        guarded.array[...] = 0
        assert not guarded.describe_overwrites()
        guarded.zones[0][-1] = 0
        assert guarded.describe_overwrites() == "before"
        guarded.zones[1][0] = 0
        assert guarded.describe_overwrites() == "before and after"
    assert GuardedArray(3, "f8", 3).array.ctypes.data % 8
