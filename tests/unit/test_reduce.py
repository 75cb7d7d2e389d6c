"""Local reduction kernels against NumPy, and which operator exists on which type."""

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.buffers import PAIRS, datatype_of, element_type
from hpccoll.errors import ArgumentTypeError
from hpccoll.ops import OPERATORS
from hpccoll.reduce import check_op, is_exact, kernel, operator_of

DTYPES = "?bBhHiIlLefdgFDG"
MEANING = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
           "land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor,
           "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def operator(name):
    return getattr(MPI, name.upper())


@pytest.mark.parametrize("name", MEANING)
@pytest.mark.parametrize("code", DTYPES)
def test_predefined_operators(name, code):
    dtype = np.dtype(code)
    if not OPERATORS[name].defined_on(dtype.kind):
        with pytest.raises(ArgumentTypeError, match=f"MPI.{name.upper()} is not defined"):
            check_op(operator(name), dtype, "allreduce")
        return
    check_op(operator(name), dtype, "allreduce")
    left, right = np.array([0, 1, 1, 3, 2], dtype), np.array([0, 0, 1, 2, 2], dtype)
    expected = MEANING[name](left, right).astype(dtype)
    function = kernel(operator(name), dtype, datatype_of(dtype), np)
    for into in (np.empty(5, dtype), left.copy(), right.copy()):
        operands = [left, right]
        function(*operands, into)
        assert into.dtype == dtype and (into == expected).all()


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_go_through_the_mpi_library(pair):
    dtype = element_type(pair)
    check_op(MPI.MAXLOC, dtype, "allreduce")
    left, right = np.array([(1, 5), (7, 1)], dtype), np.array([(2, 3), (7, 0)], dtype)
    into = np.empty(2, dtype)
    kernel(MPI.MAXLOC, dtype, pair, np)(left, right, into)
    assert into.tolist() == [(2, 3), (7, 0)]
    with pytest.raises(ArgumentTypeError):
        check_op(MPI.SUM, dtype, "allreduce")
    with pytest.raises(ArgumentTypeError):
        check_op(MPI.MAXLOC, np.dtype("f8"), "allreduce")


@pytest.mark.parametrize("target", ["apart", "left", "right", "left alias", "right alias"])
def test_users_operators_keep_their_operands_apart(target):
    def affine(here, there, datatype):
        # (a, b) after (c, d) is (ac, ad + b): does not commute.
        x = np.frombuffer(here, "i8").reshape(-1, 2)
        y = np.frombuffer(there, "i8").reshape(-1, 2)
        y[:] = np.column_stack([x[:, 0] * y[:, 0], x[:, 0] * y[:, 1] + x[:, 1]])

    op = MPI.Op.Create(affine, commute=False)
    try:
        check_op(op, np.dtype("i8"), "scan")
        assert operator_of(op) is None and not is_exact(op, np.dtype("i8"))
        left, right = np.array([2, 3, 5, 7]), np.array([1, 4, 2, 6])
        into = {"apart": np.empty(4, "i8"), "left": left, "right": right,
                "left alias": left[:], "right alias": right[:]}[target]
        expected = [2, 11, 10, 37]
        kernel(op, np.dtype("i8"), MPI.INT64_T, np)(left, right, into)
        assert into.tolist() == expected
        if into.base is not left and into is not left:
            assert left.tolist() == [2, 3, 5, 7]
    finally:
        op.Free()


@pytest.mark.parametrize("op", [None, "sum", sum, MPI.OP_NULL, MPI.REPLACE, MPI.NO_OP])
def test_what_is_no_reduction_operator(op):
    with pytest.raises(ArgumentTypeError, match="op"):
        check_op(op, np.dtype("f8"), "reduce")


def test_exactness():
    assert is_exact(MPI.SUM, np.dtype("i4")) and is_exact(MPI.LXOR, np.dtype("?"))
    assert not is_exact(MPI.SUM, np.dtype("f4")) and not is_exact(MPI.MAX, np.dtype("f8"))
    assert set(OPERATORS) == set(MEANING) | {"maxloc", "minloc"}
