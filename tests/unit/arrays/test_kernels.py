"""Arrays of frameworks, kernels."""

import ctypes
import sys

import numpy
import pytest
from mpi4py import MPI

from hpccoll.arrays import kernels
from hpccoll.arrays.dlpack import from_dlpack
from hpccoll.arrays.exact import exact_reduction, inputs, wrong
from hpccoll.calls.datatypes import PAIRS, datatype_of, element_type
from hpccoll.errors import ArgumentTypeError
from hpccoll.ir.operators import OPERATORS
from support.gpu.tensors import Tensor

# Reduction kernels against NumPy, for every operator and type, and every way to alias
PAIR = element_type(MPI.DOUBLE_INT)
TYPES = [*map(numpy.dtype, "?bBhHiIlLefdgFDG"), *map(element_type, PAIRS)]


def mpi(name):
    return getattr(MPI, name.upper())


def valid(name, dtype):
    return OPERATORS[name].pairs if dtype.names else OPERATORS[name].defined_on(dtype.kind)


CASES = [(name, dtype) for name in OPERATORS for dtype in TYPES if valid(name, dtype)]


def operands(name, dtype, count=9):
    return [inputs(name, dtype, rank, 2, count) for rank in (0, 1)]


@pytest.mark.parametrize("name, dtype", CASES, ids=str)
def test_kernels_compute_what_the_operator_means(name, dtype):
    kernels.check_op(mpi(name), dtype, "allreduce")
    kernel = kernels.kernel(mpi(name), dtype, datatype_of(dtype))
    expected = exact_reduction(name, dtype, (0, 1), 2, 9)
    for into in ("apart", "left", "right"):
        left, right = operands(name, dtype)
        target = {"apart": numpy.zeros_like(left), "left": left, "right": right}[into]
        kernel(left, right, target)
        assert not wrong(target, expected), into
        for mine, rank in ((left, 0), (right, 1)):
            assert mine is target or not wrong(mine, inputs(name, dtype, rank, 2, 9), True)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_users_operator_keeps_its_order(count):
    def first_minus_twice_the_second(one, two, datatype):
        left, right = (numpy.frombuffer(memory, "f8") for memory in (one, two))
        right[...] = left - 2 * right

    op = MPI.Op.Create(first_minus_twice_the_second, commute=False)
    kernel = kernels.kernel(op, numpy.dtype("f8"), MPI.DOUBLE)
    for into in ("apart", "left", "right", "view of right"):
        left, right = numpy.arange(float(count)), numpy.arange(float(count)) + 5
        expected = left - 2 * right
        target = {"apart": numpy.zeros(count), "left": left, "right": right,
                  "view of right": right[:]}[into]
        kernel(left, right, target)
        assert not wrong(target, expected), into
    op.Free()


def test_every_operator_is_known():
    for name, operator in OPERATORS.items():
        assert kernels.operator_of(mpi(name)) is operator
    assert kernels.operator_of(MPI.REPLACE) is None


@pytest.mark.parametrize("name", OPERATORS)
def test_undefined_combinations_are_refused_by_name(name):
    for dtype in TYPES:
        if not valid(name, dtype):
            with pytest.raises(ArgumentTypeError, match=f"op: MPI.{name.upper()} .*supports"):
                kernels.check_op(mpi(name), dtype, "allreduce")


@pytest.mark.parametrize("op, complaint", [
    ("sum", "allreduce.*MPI.Op.*'sum'.*MPI.SUM"), (numpy.add, "MPI.SUM"),
    (None, "MPI.SUM, MPI.MAX.*MPI.Op.Create"), (max, "MPI.MAX"),
    (MPI.OP_NULL, "allreduce"), (MPI.REPLACE, "allreduce"),
    (MPI.NO_OP, "allreduce")])
def test_what_is_no_operator(op, complaint):
    with pytest.raises(ArgumentTypeError, match=complaint):
        kernels.check_op(op, numpy.dtype("f8"), "allreduce")


def test_a_users_operator_may_work_on_anything():
    op = MPI.Op.Create(lambda one, two, datatype: None)
    kernels.check_op(op, PAIR, "allreduce")
    assert not kernels.is_exact(op, numpy.dtype("i4"))
    op.Free()


def test_exactness():
    assert kernels.is_exact(MPI.SUM, numpy.dtype("i4"))
    assert kernels.is_exact(MPI.LOR, numpy.dtype("?"))
    assert not kernels.is_exact(MPI.SUM, numpy.dtype("f8"))
    assert not kernels.is_exact(MPI.MAXLOC, PAIR)


# Arrays over the memory of DLPack exporters
FLOATS = numpy.arange(6.0)


class Exporter:
    """Exports an array, and spoils its memory when the capsule ends, consumed or not."""

    def __init__(self, values):
        self.array = numpy.array(values)
        self.ended = 0
        # The destructor must outlive the capsule.
        self.destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._end)

    def _end(self, capsule):
        self.ended += 1
        self.array[:] = -1

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, stream=None):
        managed = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                       type(self.destructor)]
        self.managed = managed
        return new(pointer(managed, b"dltensor"), b"dltensor", self.destructor)


def test_an_array_keeps_the_capsule_and_nothing_else():
    exporter = Exporter([1.0, 2.0, 3.0])
    array = from_dlpack(exporter)
    part = array[1:]
    del array
    assert part.tolist() == [2.0, 3.0] and not exporter.ended
    part[0] = 7.0
    assert exporter.array[1] == 7.0
    del part
    assert exporter.ended == 1


def test_references_are_released():
    values = numpy.arange(4.0)
    before = sys.getrefcount(values)
    for _ in range(5):
        from_dlpack(values)
    assert sys.getrefcount(values) == before


@pytest.mark.parametrize("dtype", "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
def test_types(dtype):
    array = numpy.arange(6).astype(dtype)
    found = from_dlpack(array)
    assert found.dtype == array.dtype and (found == array).all()
    assert numpy.shares_memory(found, array)


def test_types_of_ml_dtypes_and_of_nobody():
    found = from_dlpack(Tensor(dtype="u2", code=4, values=[0x3f80]))
    assert found.dtype.name == "bfloat16" and float(found[0]) == 1.0
    assert from_dlpack(Tensor(dtype="u1", code=10)).dtype.name == "float8_e4m3fn"
    for dtype, code in ("u2", 3), ("u4", 4), ("u1", 99):
        with pytest.raises(TypeError, match=f"type {code} with"):
            from_dlpack(Tensor(dtype=dtype, code=code))


@pytest.mark.parametrize("shape, order", [((6,), "C"), ((2, 3), "C"), ((2, 3), "F"), ((1, 6), "C"),
                                          ((), "C"), ((0, 3), "C"), ((3, 1, 2), "F")])
def test_shapes(shape, order):
    array = numpy.array(numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape), order=order)
    assert from_dlpack(array).tolist() == array.ravel(order="K").tolist()


@pytest.mark.parametrize("array", [FLOATS[::2], FLOATS.reshape(2, 3)[:, :2], FLOATS[::-1]],
                         ids=["stride", "columns", "reversed"])
def test_gaps_are_an_error(array):
    with pytest.raises(BufferError, match="contiguous"):
        from_dlpack(array)


def test_an_offset_and_read_only_memory():
    assert from_dlpack(FLOATS[2:]).tolist() == [2.0, 3.0, 4.0, 5.0]
    frozen = FLOATS.copy()
    frozen.flags.writeable = False
    assert not from_dlpack(frozen).flags.writeable
