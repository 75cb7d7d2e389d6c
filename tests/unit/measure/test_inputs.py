"""Benchmark data whose result is exact."""

import numpy
import pytest

from hpccoll.arrays.kernels import UFUNCS
from hpccoll.ir.operators import OPERATORS
from hpccoll.measure import inputs
from support.folded import folded

FLOAT = numpy.dtype("f4")


DTYPES = [numpy.dtype(code) for code in "efdgFDGbIq?"]


DEFINED = [(o.name, d) for o in OPERATORS.values() for d in DTYPES if o.defined_on(d.kind)]


@folded("op, dtype", DEFINED)
@folded("size", [1, 3, 16])
def test_any_order_gives_the_result(op, dtype, size):
    kernel = getattr(numpy, UFUNCS[op])
    parts = [inputs.contribution(op, dtype, r, size, 0, 5, 100) for r in range(size)]
    numpy.random.default_rng(size).shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = kernel(total, part).astype(dtype)
    expected = inputs.result(op, dtype, range(size), size, 0, 5, 100)
    assert inputs.wrong(total, expected, False) == 0
    if op in ("sum", "bxor") and size > 1:  # a contribution that is lost shows everywhere
        less = inputs.result(op, dtype, range(size - 1), size, 0, 5, 100)
        assert inputs.wrong(less, expected, False) > 90


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, inputs.PERIOD - 1, inputs.PERIOD, 2 * inputs.PERIOD + 3])
def test_wrong_elements_are_counted(dtype, count):
    period = inputs.contribution(None, dtype, 1, 4, 2, 3, count)
    array = numpy.empty(count, dtype)
    inputs.fill(array, period)
    assert inputs.wrong(array, period, True) == 0
    if count:
        for spoilt in {0, count // 2, count - 1}:
            copy = array.copy()
            copy[spoilt:spoilt + 1].view("u1")[0] ^= 1
            assert inputs.wrong(copy, period, True) == 1


def test_data_differs():
    """Between ranks, blocks and iterations, so nothing stale or misplaced passes."""
    made = {(r, b, i): inputs.contribution("sum", FLOAT, r, 4, b, i, 64).tobytes()
            for r in range(4) for b in range(3) for i in range(3)}
    made |= {("moved", r, b, i): inputs.contribution(None, FLOAT, r, 4, b, i, 64).tobytes()
             for r in range(4) for b in range(3) for i in range(3)}
    assert len(set(made.values())) == len(made)


def test_data_is_made_once_and_cannot_be_changed():
    for op in "sum", None:
        one, again = (inputs.contribution(op, FLOAT, 1, 4, 2, 3, 99) for _ in range(2))
        assert one is again and not one.flags.writeable
        assert inputs.contribution(op, FLOAT, 1, 4, 2, 4, 99) is not one
    whole, same = (inputs.result("sum", FLOAT, ranks, 4, 2, 3, 99) for ranks in ([0, 1], (0, 1)))
    assert whole is same and not whole.flags.writeable
    assert (inputs.result("sum", FLOAT, [0, 2], 4, 2, 3, 99) != whole).any()
