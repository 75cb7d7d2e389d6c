"""Reductions on a real device have the bits of the host's: the tests of the sources, run there."""

import numpy
import pytest
from unit.cuda import test_kernels

from hpccoll.arrays import half
from hpccoll.cuda import kernels
from support.gpu.real_device import device_reason, installed

pytestmark = pytest.mark.skipif(bool(device_reason()), reason=device_reason() or "")


@pytest.fixture(autouse=True)
def real(monkeypatch):
    """CuPy in the place of its stand-in."""
    monkeypatch.setattr(test_kernels, "installed", installed)


@pytest.mark.parametrize(("name", "dtype"), test_kernels.CASES,
                         ids=lambda x: str(x).replace(" ", ""))
def test_two_operands(name, dtype):
    test_kernels.test_two_operands_have_the_bits_of_the_host(name, dtype)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_rare_numbers(name):
    test_kernels.test_rare_numbers_meet_each_other(name)


@pytest.mark.parametrize("dtype", [
    dtype for dtype in test_kernels.types_of("sum") if dtype.name in (
        "int32", "float32", "float64", "complex64", "float16", "bfloat16")], ids=str)
def test_many_operands(dtype):
    test_kernels.test_many_operands_in_one_pass(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i8"])
def test_more_than_one_turn_of_all_threads(dtype):
    """A launch has so many threads that each takes several packs, and the rest behind them."""
    dtype = numpy.dtype(dtype)
    count = 3 * kernels.THREADS * kernels.BLOCKS * kernels.QUAD // dtype.itemsize + 5
    given = [test_kernels.numbers(numpy.dtype("i1"), count, seed).astype(dtype)
             for seed in range(3)]
    with installed() as cupy:
        found, = test_kernels.launched(cupy, kernels.DeviceKernel(cupy, "sum", dtype), given, 0,
                                    [numpy.empty(count, dtype)])
    wide = half.FLOAT32 if half.is_half(dtype) else dtype
    assert (found == sum(one.astype(wide) for one in given).astype(dtype)).all()


def test_the_result_may_be_an_operand():
    test_kernels.test_the_result_may_be_an_operand()
