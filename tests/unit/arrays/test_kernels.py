"""Reduction kernels against NumPy, for every operator and type, and every way to alias."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.arrays import kernels
from hpccoll.arrays.exact import exact_reduction, inputs, wrong
from hpccoll.calls.datatypes import PAIRS, datatype_of, element_type
from hpccoll.errors import ArgumentTypeError
from hpccoll.ir.operators import OPERATORS

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
