"""16-bit floats: the bits of NumPy in one step, one rounding in a chain, the same on all ranks."""

import ctypes
import platform
import threading

import numpy
import pytest
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.arrays import half, kernels
from hpccoll.arrays.exact import GuardedArray
from hpccoll.arrays.half import BLOCK, FEW
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import ALLREDUCE, IN, OUT
from hpccoll.runtime.execution.executor import Execution, Memory
from hpccoll.testing.loopback_direct import Direct
from hpccoll.testing.world import Problem, Seat, interleave
from hpccoll.transport.loopback import Loopback

F2 = numpy.dtype("f2")
EVERY = numpy.arange(1 << 16, dtype="u2").view(F2)
FINITE = EVERY[numpy.isfinite(EVERY)]
OPS = {"add": "SUM", "multiply": "PROD", "maximum": "MAX", "minimum": "MIN"}


@pytest.fixture(params=["compiled_ufunc", "numpy_ufunc"])
def made(request):
    """What makes kernels, in machine code and by functions of NumPy."""
    if request.param == "compiled_ufunc" and not half.BUILT:
        pytest.skip("the compiled kernels were not built")
    return getattr(half, request.param)


def numbers(count, kind, seed):
    """Numbers of all magnitudes, near one, tiny, or with infinities and NaN among them."""
    random = numpy.random.default_rng(seed)
    if kind == "near one":
        return random.standard_normal(count).astype(F2)
    chosen = {"all": FINITE, "special": EVERY}.get(kind, FINITE[abs(FINITE) < 1e-3])
    return random.choice(chosen, count)


def bits(array):
    """The bits; all NaN count as one."""
    return numpy.where(numpy.isnan(array), numpy.uint16(0xffff), array.view("u2"))


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("kind", ["all", "near one", "tiny", "special"])
@pytest.mark.parametrize("name", OPS)
def test_one_step_has_the_bits_of_numpy(name, kind, made):
    kernel = made(getattr(numpy, name), F2)
    for count in (0, 1, FEW, FEW + 1, BLOCK + 3, 70_000):
        for into in ("apart", "left", "right"):
            left, right = numbers(count, kind, 1), numbers(count, kind, 2)
            guarded = GuardedArray(count, F2, shift=1)  # an odd address
            target = {"apart": guarded.array, "left": left, "right": right}[into]
            with numpy.errstate(all="ignore"):
                wanted = getattr(numpy, name)(left, right)
                kernel(left, right, target)
            if name in ("maximum", "minimum"):
                assert numpy.array_equal(target, wanted, equal_nan=True)  # zeros have any sign
            else:
                assert (bits(target) == bits(wanted)).all()
            assert not guarded.describe_overwrites()
            assert target is left or (bits(left) == bits(numbers(count, kind, 1))).all()


@pytest.mark.parametrize("name", OPS)
def test_bfloat16(name, made):
    """The bits of ml_dtypes in one step, and one rounding in a chain."""
    dtype = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    assert half.is_half(dtype) and half.is_bfloat16(dtype) and not half.is_bfloat16(F2)
    ufunc, every = getattr(numpy, name), EVERY.view("u2").view(dtype)
    kernel = made(ufunc, dtype)
    random = numpy.random.default_rng(1)
    for count in (0, 1, 1024, 1025, BLOCK + 3):
        left, right, last = (random.choice(every, count) for _ in range(3))
        found, sums = numpy.zeros(count, dtype), half.accumulator(count)
        with numpy.errstate(all="ignore"):
            kernel(left, right, found)
            assert numpy.array_equal(found.astype("f4"), ufunc(left, right).astype("f4"), True)
            kernel(left, right, sums, found)
            assert numpy.array_equal(found.astype("f4"), ufunc(left, right).astype("f4"), True)
            kernel(last, sums, last)
            assert numpy.array_equal(sums, ufunc(left.astype("f4"), right.astype("f4")), True)


@pytest.mark.skipif(not half.BUILT, reason="the compiled kernels were not built")
@pytest.mark.parametrize("width", [5, 1 << 16])
def test_machine_code_converts_every_number_as_numpy_does(width):
    """Few at a time, as processors do that have no instruction for it, and many."""
    for start in range(0, EVERY.size - width + 1, width):
        part = EVERY[start:start + width]
        wide, back = numpy.empty(width, "f4"), numpy.empty(width, F2)
        half.compiled_ufunc(numpy.maximum, F2)(part, part, wide)
        assert numpy.array_equal(wide, part.astype("f4"), equal_nan=True)
        half.compiled_ufunc(numpy.maximum, F2)(wide, wide, back)
        assert (bits(back) == bits(part)).all()
    steps = numpy.arange(0, 1 << 32, 4097, dtype="u8").astype("u4").view("f4")
    for value in (steps, steps[:5], *steps[:5000].reshape(-1, 5), numpy.nextafter(
            FINITE.astype("f4"), numpy.float32(numpy.inf))):
        found = numpy.empty(value.size, F2)
        with numpy.errstate(all="ignore"):
            half.compiled_ufunc(numpy.maximum, F2)(value, value, found)
            assert (bits(found) == bits(value.astype(F2))).all()


@pytest.mark.skipif(not half.BUILT, reason="the compiled kernels were not built")
def test_machine_code_rounds_bfloat16_as_ml_dtypes_does():
    dtype = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    value = numpy.arange(0, 1 << 32, 4097, dtype="u8").astype("u4").view("f4")
    found = numpy.empty(value.size, dtype)
    with numpy.errstate(all="ignore"):
        half.compiled_ufunc(numpy.maximum, dtype)(value, value, found)
        wanted = value.astype(dtype)
    assert numpy.array_equal(found.astype("f4"), wanted.astype("f4"), equal_nan=True)


@pytest.mark.skipif(not half.BUILT, reason="the compiled kernels were not built")
def test_what_is_no_operand_of_a_compiled_kernel():
    kernel, good = half.compiled_ufunc(numpy.add, F2), numpy.zeros(4, F2)
    fixed = numpy.zeros(4, F2)
    fixed.flags.writeable = False
    for bad in (numpy.zeros(3, F2), numpy.zeros(8, F2)[::2], numpy.zeros(4, "f8")):
        with pytest.raises(ValueError, match="contiguous arrays"):
            kernel(bad, good, good)
        with pytest.raises(ValueError, match="contiguous arrays"):
            kernel(good, good, good, bad)
    with pytest.raises(ValueError, match="contiguous arrays"):
        kernel(good, good, fixed)
    with pytest.raises(ValueError, match="16 bits"):
        kernel(good, good, numpy.zeros(4, "f4"), numpy.zeros(4, "f4"))
    with pytest.raises(TypeError, match="NumPy arrays"):
        kernel([0] * 4, good, good)
    assert half.compiled_ufunc(numpy.logical_and, F2) is None
    assert half.compiled_ufunc(numpy.add, numpy.dtype("f4")) is None


def test_every_number_is_widened_and_rounded_as_it_is():
    sums = numpy.empty(EVERY.size, "f4")
    for part in (EVERY, FINITE):
        half._widen_float16(part, sums[:part.size])
        assert numpy.array_equal(sums[:part.size], part.astype("f4"), equal_nan=True)
    back = numpy.empty_like(FINITE)
    half._narrow_float16(FINITE.astype("f4"), sums[:FINITE.size], back)
    assert (bits(back) == bits(FINITE)).all()


def test_threads_that_take_tiny_numbers_for_zero_get_the_plain_conversion(monkeypatch):
    kernel = half.numpy_ufunc(numpy.add, F2)
    monkeypatch.setattr(half, "_flushes", lambda: True)
    monkeypatch.setattr(half, "_widen_float16", None)
    left, right = numbers(70_000, "tiny", 1), numbers(70_000, "tiny", 2)
    found = numpy.empty_like(left)
    kernel(left, right, found)
    assert (bits(found) == bits(left + right)).all()


@pytest.mark.skipif(platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
                    reason="how the mode is set depends on processor and library")
@pytest.mark.parametrize("mode", [0x8000, 0x40, 0x8040])
def test_the_mode_may_change_after_a_kernel_was_made(mode, made):
    """Results taken for zero, operands taken for zero, or both."""
    kernel = made(numpy.add, F2)
    left, right = numbers(70_000, "tiny", 1), numbers(70_000, "tiny", 2)
    wanted, found, told = left + right, numpy.empty_like(left), [half._flushes()]

    def flushing():
        libm, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
        libm.fegetenv(environment)
        environment[7] |= mode
        libm.fesetenv(environment)
        told.append(half._flushes())
        kernel(left, right, found)

    thread = threading.Thread(target=flushing)  # the mode is the thread's, and ends with it
    thread.start()
    thread.join()
    assert told == [False, True] and not half._flushes()
    assert (bits(found) == bits(wanted)).all()


@pytest.mark.parametrize("count", [5, FEW + 1, BLOCK + 3])
def test_a_chain_is_rounded_once(count, made):
    kernel = made(numpy.add, F2)
    terms = [numbers(count, "near one", seed) for seed in range(5)]
    sums, found = half.accumulator(count), numpy.empty(count, F2)
    kernel(terms[0], terms[1], sums)
    kernel(sums, terms[2], sums)
    kernel(terms[3], sums, sums)
    kernel(sums, terms[4], found)
    one, two, three, four, five = (term.astype("f4") for term in terms)
    assert (bits(found) == bits((four + (one + two + three) + five).astype(F2))).all()


@pytest.mark.parametrize("name, first", [("maximum", 0.0), ("minimum", -0.0)])
def test_which_zero_is_taken_does_not_depend_on_the_count(name, first, made):
    kernel, seen = made(getattr(numpy, name), F2), set()
    for count in (1, 5, FEW, FEW + 1, BLOCK + 3):
        left, right = numpy.full(count, first, F2), numpy.full(count, -first, F2)
        found, sums = numpy.empty(count, F2), half.accumulator(count)
        kernel(left, right, found)
        seen |= set(numpy.signbit(found).tolist())
        kernel(left, right, sums, found)
        seen |= set(numpy.signbit(found).tolist())
    assert len(seen) == 1


def test_what_has_an_accumulator():
    def factory(op, dtype):
        return kernels.accumulator_factory(op, numpy.dtype(dtype), numpy)

    op = MPI.Op.Create(lambda one, two, datatype: None)
    assert factory(MPI.SUM, "f2")(3).dtype == half.FLOAT32
    assert factory(MPI.SUM, "f4") is factory(MPI.SUM, "i2") is factory(op, "f2") is None
    op.Free()


def results(name, size, count, direct, segment=0, in_place=False):
    """The sums of random numbers on all ranks of an allreduce; every order rounds otherwise."""
    made = schedule("allreduce", name, size)
    world = (Direct if direct else Loopback)(size)
    seats = [Seat(made, Problem(ALLREDUCE, size, [count], dtype=F2), rank, in_place,
                  segment=segment) for rank in range(size)]
    executions = []
    for seat in seats:
        seat.fill()
        seat.memory[IN].array[...] = numbers(count, "near one", seat.rank)
        arrays = {buffer: memory.array for buffer, memory in seat.memory.items()}
        executions.append(Execution(
            seat.plan, world.endpoint(seat.rank),
            Memory(arrays, seat.scratch.array, half.kernel(numpy.add, F2), numpy, None,
                   half.accumulator), 0))
    interleave(executions, seed=size)
    return [seat.memory[OUT].array for seat in seats]


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS["allreduce"].items()
                                  if not entry.exact_only])
def test_all_ranks_hold_the_same_bits(name):
    """Also where a rank has a chain that others have in another form, or messages in place."""
    for size in (2, 3, 4, 6, 7, 9):
        try:
            found = results(name, size, 37, False)
        except ScheduleError:
            continue
        for more in (results(name, size, 37, True), results(name, size, 37, True, 4),
                     results(name, size, 37, False, 0, True)):
            assert all((bits(array) == bits(found[0])).all() for array in found + more)


def test_a_chain_of_messages_is_rounded_once():
    """Rank 0 owns the first block: it adds those of 1, 2 and 3, in this order."""
    for direct in (False, True):
        found = results("allpairs", 4, 40, direct)[0][:10]
        terms = [numbers(40, "near one", rank)[:10].astype("f4") for rank in range(4)]
        assert (bits(found) == bits((terms[0] + terms[1] + terms[2] + terms[3]).astype(F2))).all()
