"""The kernels of devices, run by the processor from their own source, against those of the host."""

from itertools import product

import numpy
import pytest
from mpi4py import MPI

from hpccoll.arrays import half
from hpccoll.calls.datatypes import datatype_of
from hpccoll.cuda import kernels
from hpccoll.cuda.kernels import has_kernel, kernel_for
from hpccoll.ir.operators import OPERATORS
from support.gpu import cuda_on_host
from support.gpu.device import installed
from support.gpu.kernel_types import types_of

pytestmark = pytest.mark.skipif(cuda_on_host.compiler() is None, reason="no compiler of C++")

#: None, fewer than 16 bytes, whole and broken sixteens, more than one turn of a few threads.
COUNTS = (0, 1, 5, 16, 131)
CASES = [(name, dtype) for name in OPERATORS for dtype in types_of(name)]
RARE = [0.0, -0.0, 1.0, -1.0, numpy.inf, -numpy.inf, numpy.nan, 6e-8, -6e-5, 65504.0, 65520.0,
        1e-40, 3e38, 1 + 2 ** -11, 1 + 3 * 2 ** -11]


def numbers(dtype, count, seed):
    """Numbers of a type, with those that are rare among them."""
    draw = numpy.random.default_rng(seed)
    if dtype.names is not None:
        made = numpy.empty(count, dtype)
        for name in dtype.names:  # a few values, so that many are equal
            made[name] = draw.integers(-2, 3, count)
        return made
    if dtype.kind == "c":
        # Whole numbers: NumPy fuses products with sums where the processor can.
        parts = draw.integers(-99, 99, (2, count))
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if dtype.kind in "fV":
        made = draw.standard_normal(count)
        rare = draw.random(count) < 0.3
        made[rare] = draw.choice(RARE, rare.sum())
        with numpy.errstate(all="ignore"):
            return made.astype(dtype)
    return draw.integers(0, 256, count * dtype.itemsize, "u1").view(dtype) & dtype.type(
        1 if dtype.kind == "b" else -1 if dtype.kind == "i" else numpy.iinfo(dtype).max)


def same(one, other):
    """Tell whether bits are equal; all NaN count as one."""
    if one.dtype.kind in "fV" and one.dtype.names is None:
        rare = numpy.isnan(one.astype("f8"))
        return (numpy.array_equal(rare, numpy.isnan(other.astype("f8")))
                and one[~rare].tobytes() == other[~rare].tobytes())
    return one.tobytes() == other.tobytes()


def host_kernel(name, dtype):
    datatype = MPI.BYTE if half.is_bfloat16(dtype) else datatype_of(dtype)
    return kernel_for(getattr(MPI, name.upper()), dtype, datatype, numpy)


def launched(cupy, made, operands, swapped, outs, shifts=None):
    """Combine on the device; what the outputs, given as arrays, hold afterwards."""
    shifts = shifts or [0] * (len(operands) + len(outs))

    def placed(array, shift):
        whole = cupy.empty(array.size + shift, array.dtype)
        whole[shift:] = cupy.asarray(array)
        return whole[shift:]

    arrays = [placed(array, shift) for array, shift in zip([*operands, *outs], shifts)]
    outs = tuple(arrays[len(operands):])
    made.fold(kernels.Combination(tuple(arrays[:len(operands)]), swapped, outs))
    return [cupy.asnumpy(array) for array in outs]


@pytest.mark.long(every=5)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda x: str(x).replace(" ", ""))
def test_two_operands_have_the_bits_of_the_host(name, dtype):
    on_host = host_kernel(name, dtype)
    with installed(True) as cupy:
        made = kernels.DeviceKernel(cupy, name, dtype)
        # All alike, all alike but not at a multiple of 16 bytes, each in a place of its own.
        for count, shifts in product(COUNTS, ([0, 0, 0], [1, 1, 1], [0, 1, 3])):
            left, right = (numbers(dtype, count, seed) for seed in (1, 2))
            wanted = numpy.empty(count, dtype)
            on_host(left, right, wanted)
            found, = launched(cupy, made, [left, right], 0, [numpy.empty(count, dtype)], shifts)
            assert same(found, wanted), (count, shifts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_rare_numbers_meet_each_other(name):
    with installed(True) as cupy:
        for dtype in types_of(name):
            if dtype.kind not in "fV":
                continue
            with numpy.errstate(all="ignore"):
                left, right = (part.ravel().astype(dtype) for part in numpy.meshgrid(RARE, RARE))
            wanted = numpy.empty(left.size, dtype)
            host_kernel(name, dtype)(left, right, wanted)
            found, = launched(cupy, kernels.DeviceKernel(cupy, name, dtype), [left, right], 0,
                              [numpy.empty(left.size, dtype)])
            assert same(found, wanted), dtype


@pytest.mark.parametrize("dtype", [dtype for dtype in types_of("sum") if dtype.name in (
    "int32", "float32", "float64", "complex64", "float16", "bfloat16")], ids=str)
def test_many_operands_in_one_pass(dtype):
    wide = half.FLOAT32 if half.is_half(dtype) else dtype
    with installed(True) as cupy:
        for name, count, operands in product(("sum", "prod"), (3, 40), range(2, kernels.MOST + 1)):
            if dtype.kind == "c" and name == "prod" and operands > 3:
                continue  # no longer exact, see numbers()
            made = kernels.DeviceKernel(cupy, name, dtype)
            given = [numbers(dtype, count, seed) for seed in range(operands)]
            swapped = 0b10100110
            ufunc = numpy.add if name == "sum" else numpy.multiply
            wanted = given[0].astype(wide)
            with numpy.errstate(all="ignore"):
                for j, one in enumerate(given[1:], 1):
                    one = one.astype(wide)
                    wanted = ufunc(one, wanted) if swapped >> j & 1 else ufunc(wanted, one)
                rounded = wanted.astype(dtype)
            found, = launched(cupy, made, given, swapped, [numpy.empty(count, dtype)])
            assert same(found, rounded)
            if wide != dtype:  # an accumulator, and an accumulator as an operand
                held, into = launched(cupy, made, given, swapped,
                                      [numpy.empty(count, wide), numpy.empty(count, dtype)])
                assert same(held, wanted) and same(into, rounded)
                if operands < kernels.MOST:
                    found, = launched(cupy, made, [*given, held], 0, [numpy.empty(count, wide)])
                    folded, = launched(cupy, made, given, 0, [numpy.empty(count, wide)])
                    with numpy.errstate(all="ignore"):
                        assert same(found, ufunc(folded, held))


def test_the_result_may_be_an_operand():
    with installed(True) as cupy:
        made = kernels.DeviceKernel(cupy, "sum", numpy.dtype("f4"))
        for place in (0, 1):
            pair = [cupy.asarray(numpy.full(37, value, "f4")) for value in (1, 2)]
            made(*pair, pair[place])
            assert list(cupy.asnumpy(pair[place])) == [3] * 37


def test_which_types_have_a_kernel():
    with installed(True) as cupy:
        assert has_kernel(MPI.SUM, numpy.dtype("f4"), cupy)
        assert has_kernel(MPI.MAXLOC, numpy.dtype("f4,i4"), cupy)
        for dtype in ("f4,i8", "f8,i4", "g", "G", ">f4", "V3"):
            assert not has_kernel(MPI.SUM, numpy.dtype(dtype), cupy)
            assert has_kernel(MPI.SUM, numpy.dtype(dtype), numpy)
        assert not has_kernel(MPI.Op.Create(lambda *_: None), numpy.dtype("f4"), cupy)


# -- steps that become one -------------------------------------------------------------------------
def steps(cupy, dtype, text):
    """Kernels on ten arrays of three numbers, ``"2=0+1 2=3+2"``; digits say which array."""
    memory = cupy.empty(33, dtype)
    memory[...] = cupy.asarray(numpy.arange(33, dtype=dtype))
    made = kernels.DeviceKernel(cupy, "sum", numpy.dtype(dtype))

    def part(word):
        start = 3 * int(word[0]) + word.count("'")  # each ' moves it by an element
        return memory[start:start + 3]

    actions = []
    for step in text.split():
        into, _, operands = step.partition("=")
        if "+" in operands:
            actions.append((made, (*map(part, operands.split("+")), part(into))))
        else:
            actions.append((cupy.copyto, (part(into), part(operands))))
    return memory, actions


#: Steps, and how many launches they become.
CHAINS = {
    "2=0+1 2=2+3 2=4+2 2=2+5": 1,
    "2=0+1 6=2+3": 2,                         # the first result is wanted
    "2=0+1 2=2+2": 2,                         # used twice
    "2=0+1 5=3+4": 2,                         # not used
    "2=0+1 2=3 2=2+4": 3,                     # something between
    "2=0+1 2=2+2'": 2,                        # what the first writes is read at another place
    "2=0+2' 2=2+1": 2,                        # what is read lies at another place of the result
    "2=2+0 2=2+1": 1,                         # in place
    "0=0+1 0=0+2 0=0+3 0=0+4 0=0+5 0=0+6 0=0+7 0=0+8 0=0+9": 2,
}


@pytest.mark.parametrize("text", CHAINS)
def test_steps_that_become_one(text):
    with installed(True) as cupy:
        memory, actions = steps(cupy, "i4", text)
        for function, operands in actions:
            function(*operands)
        wanted = list(cupy.asnumpy(memory))
        memory, actions = steps(cupy, "i4", text)
        fewer = kernels.fuse(actions)
        for function, operands in fewer:
            function(*operands)
        assert list(cupy.asnumpy(memory)) == wanted
        assert len(fewer) == CHAINS[text]


def test_accumulators_need_not_be_written():
    with installed(True) as cupy:
        made = kernels.DeviceKernel(cupy, "sum", numpy.dtype("f2"))
        terms = [cupy.asarray(numpy.full(5, value, "f2")) for value in (2048, 1, 1)]
        held, into = cupy.empty(5, "f4"), cupy.empty(5, "f2")
        (function, operands), = kernels.fuse([(made, (terms[0], terms[1], held)),
                                            (made, (held, terms[2], into))])
        function(*operands)
        assert list(cupy.asnumpy(into)) == [2050] * 5  # 2048 + 1 is 2048 in float16
        assert not (cupy.asnumpy(held) == 2049).any()
        # Where the value between is wanted, too, it is.
        between = cupy.empty(5, "f2")
        both = kernels.fuse([(made, (terms[0], terms[1], held, between)),
                           (made, (held, terms[2], into))])
        assert len(both) == 2
