"""Errors that mpi4py's ``except MPI.Exception`` catches too."""

import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.errors.mpi import DeadCommunicatorError, OperatorError, RequestError, RootError


@pytest.mark.parametrize("error, builtin, code", [
    (RootError("root", "7 is not a rank", "choose one of 0..3"), ValueError, MPI.ERR_ROOT),
    (OperatorError("op", "MPI.BAND is not defined for float64"), TypeError, MPI.ERR_OP),
    (DeadCommunicatorError("was freed"), ValueError, MPI.ERR_COMM),
    (RequestError("is active"), MPI.Exception, MPI.ERR_REQUEST)])
def test_they_have_a_class_of_mpi_and_a_message_of_hpccoll(error, builtin, code):
    for base in (HpccollError, MPI.Exception, builtin):
        assert isinstance(error, base)
    assert error.Get_error_class() == error.Get_error_code() == int(error) == code
    assert str(error) in repr(error) and "MPI_ERR" not in str(error)


def test_arguments_keep_their_fields():
    error = RootError("root", "7 is not a rank", "choose one of 0..3")
    assert isinstance(error, ArgumentError) and error.argument == "root"
    assert str(error).startswith("root: 7 ") and str(error).endswith("; choose one of 0..3")
