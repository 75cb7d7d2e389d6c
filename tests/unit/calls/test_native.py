"""What goes to mpi4py as it is, and what is refused in words before it gets there."""

import re

import numpy
import pytest
from mpi4py import MPI

from hpccoll.calls.native import NativeOnly, call_native, check_understood
from hpccoll.calls.specification import buffer_of, typed_blocks
from hpccoll.errors import (
    ArgumentError,
    ArgumentTypeError,
    BufferArgumentError,
    CommunicatorError,
    HpccollError,
)
from hpccoll.errors.mpi import MpiArgumentError, OperatorError
from support.gpu.tensors import BFLOAT, FLOAT8_E4M3FN, StubbornDeviceArray, StubbornTensor, Tensor

X = numpy.arange(12.0)


def spelled(value):
    """A value as text, the same in every process: test workers compare them."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:60]


@pytest.mark.parametrize("spec", [
    [MPI.BOTTOM, 0, MPI.DOUBLE], [None, 0, MPI.DOUBLE], [MPI.BOTTOM, MPI.DOUBLE]],
    ids=["BOTTOM, 0", "None, 0", "BOTTOM"])
def test_what_mpi4py_serves_is_left_to_it(spec):
    with pytest.raises(NativeOnly):
        buffer_of(spec, "b", writable=True)


@pytest.mark.parametrize("spec, vector, error, complaint", [
    ([X], False, ArgumentError, "a list of 1, expected 2 to 4 items"),
    ([], False, ArgumentError, "a list of 0"),
    ([1., 2., 3., 4., 5.], False, ArgumentError, "a list of 5.*NumPy array"),
    ([X, 1, 2, MPI.DOUBLE, 5], True, ArgumentError, "a list of 5"),
    ([X, (1, 2, 3)], False, ArgumentError, "3 entries, expected counts and displacements"),
    ([X, ([1], [2], [3])], True, ArgumentError, "2 counts|3 entries"),
    (None, False, ArgumentTypeError, "is None, but the call requires elements; pass a NumPy array"),
    (MPI.BOTTOM, False, ArgumentTypeError, "None"),
    ([MPI.BOTTOM, 1, "d"], False, MpiArgumentError, "cannot be used"),
    ([None, 1, "d"], False, ArgumentError, "buffer is None but count is 1"),
    ([X, 1, "no such code"], False, ArgumentTypeError, "'no such code'"),
    ([X, 1, 2.5], False, ArgumentTypeError, "2.5"),
    ([X, MPI.DATATYPE_NULL], False, ArgumentError, "null"),
    ([X, 2, MPI.DATATYPE_NULL], False, MpiArgumentError, "cannot be used"),
    ("text", False, ArgumentTypeError, "is a str, not a buffer.*lower-case"),
    (5, False, ArgumentTypeError, "is a int, not a buffer"),
    (object(), True, ArgumentTypeError, "is a object, not a buffer"),
    ([1., 2.], False, ArgumentTypeError, "list that starts with a float, not a buffer"),
    ([[1.], [2.]], True, ArgumentTypeError, "starts with a list, not a buffer"),
    (numpy.array([None]), False, ArgumentTypeError, "type object.*lower-case method for Python"),
    (numpy.zeros(3, ">f8"), False, BufferArgumentError, "foreign byte order.*newbyteord"),
    (numpy.zeros(3, "U4"), False, ArgumentTypeError, "<U4, which has no MPI datatype.*BYTE"),
    (numpy.zeros(3, "S3"), True, ArgumentTypeError, "S3, which has no MPI datatype.*CHAR"),
    (numpy.zeros(3, "M8[s]"), False, ArgumentTypeError, r"datetime64\[s\], which.*view\('i8'\)"),
    (numpy.zeros(3, "m8[s]"), True, ArgumentTypeError, r"timedelta64\[s\], which.*view\('i8'\)"),
    (numpy.zeros(3, "V2"), False, ArgumentTypeError, "V2, which has no MPI datatype"),
    (StubbornTensor(), False, ArgumentTypeError, "cannot be used: gradients are needed"),
    (StubbornDeviceArray(), True, ArgumentTypeError, "cannot be used: gradients are needed"),
    ([X, 1, {}, MPI.DOUBLE], False, ArgumentTypeError, "integers, got {}"),
    ([X, numpy.ones((2, 2), int), MPI.DOUBLE], False, ArgumentTypeError, "integers"),
    ([X, 2, numpy.ones((2, 2), int), MPI.DOUBLE], False, ArgumentTypeError, "integers"),
], ids=spelled)
def test_what_mpi4py_does_not_understand_either(spec, vector, error, complaint):
    for raw in (False, True):
        if raw and isinstance(spec, list) and spec and spec[0] is None:
            continue  # it has no memory, then
        with pytest.raises(error) as caught:
            buffer_of(spec, "b", vector=vector, blocks=3 if vector else None, raw=raw)
        assert isinstance(caught.value, HpccollError) and caught.value.argument == "b"
        assert re.match(f"b: .*(?:{complaint})", str(caught.value)), caught.value


@pytest.mark.parametrize("dtype", ["u2", "f8"])
def test_tensors_are_their_memory(dtype):
    """Ranks whose buffer is a NumPy array must find the same call."""
    tensor = Tensor(dtype=dtype)
    for spec, count in ((tensor, 6), ([tensor, 3], 3)):
        found, plain = buffer_of(spec, "b"), buffer_of([numpy.zeros(6, dtype), count], "b")
        assert (found.datatype, found.counts) == (plain.datatype, plain.counts)
        assert numpy.shares_memory(found.array, numpy.from_dlpack(tensor))


def test_bfloat16_tensors_are_combined():
    found = buffer_of(Tensor(dtype="u2", code=BFLOAT), "b")
    assert found.dtype.name == "bfloat16" and found.counts == [6]


def test_tensors_of_types_that_mpi_lacks_are_moved_but_not_combined():
    """mpi4py takes them for bytes, and Open MPI then adds byte by byte."""
    for spec in (Tensor(dtype="u1", code=FLOAT8_E4M3FN),
                 [Tensor(dtype="u1", code=FLOAT8_E4M3FN), 6]):
        with pytest.raises(NativeOnly):
            buffer_of(spec, "b", raw=True)
        with pytest.raises(ArgumentTypeError, match="^b: .*MPI.*ml_dtypes"):
            buffer_of(spec, "b")


@pytest.mark.parametrize("spec, code", [
    ([MPI.BOTTOM, [1, 0, 1], MPI.DOUBLE], MPI.ERR_BUFFER),
    ([MPI.BOTTOM, ([0, 1, 0], [0, 0, 64]), "d"], MPI.ERR_BUFFER),
    ([X, [1, 0, 1], MPI.DATATYPE_NULL], MPI.ERR_TYPE)], ids=spelled)
def test_what_would_crash_some_mpi_libraries(spec, code):
    with pytest.raises(MpiArgumentError) as caught:
        buffer_of(spec, "b", vector=True, blocks=3, raw=True)
    assert caught.value.argument == "b" and caught.value.Get_error_class() == code


def test_absolute_addresses_are_for_mpi():
    where = MPI.Get_address(X)
    for counts, displs in ([1, 0, 1], [where, 0, where + 64]), ([0, 0, 0], [0, 0, 0]):
        with pytest.raises(NativeOnly):
            buffer_of([MPI.BOTTOM, (counts, displs), MPI.BYTE], "b", vector=True, blocks=3,
                      raw=True)


def test_counts_are_checked_where_the_buffer_is_for_mpi4py():
    for counts, error in (([1, 2], ArgumentError), ([1, 2, -3], ArgumentError),
                          ([1, 2, "3"], ArgumentTypeError), (1.5, ArgumentTypeError)):
        with pytest.raises(error, match="^b: "):
            buffer_of([Tensor(), counts, MPI.UINT16_T], "b", vector=True, blocks=3)


@pytest.mark.parametrize("spec, error, complaint", [
    (5, ArgumentTypeError, "int"), (X, ArgumentError, "X|ndarray|None|other|0"),
    ([X], ArgumentTypeError, "parts"), ([X, 1], ArgumentTypeError, "1.*place"),
    ([X, [MPI.DOUBLE]], ArgumentError, "1 types.*2 ranks"),
    ([X, ["d", "d"]], ArgumentTypeError, "'d'"),
    ([X, ([1], [0, 8]), [MPI.DOUBLE] * 2], ArgumentError, "1 counts.*2 ranks"),
    ([X, ([1, 1], 8), [MPI.DOUBLE] * 2], ArgumentTypeError, "8.*displacements"),
    ([X, ([1, 1.5], [0, 8]), [MPI.DOUBLE] * 2], ArgumentTypeError, "integers.*1.5"),
    ([[1.], ([1, 1], [0, 8]), [MPI.DOUBLE] * 2], ArgumentTypeError, "buffer"),
    ([None, ([1, 1], [0, 8]), [MPI.DOUBLE] * 2], ArgumentError, "")])
def test_malformed_blocks_of_several_types(spec, error, complaint):
    with pytest.raises(error, match=f"^b: .*(?:{complaint})") as caught:
        typed_blocks(spec, "b", 2, False)
    assert caught.value.argument == "b"


def test_asking_mpi4py_sends_nothing():
    check_understood([X, 4, MPI.DOUBLE], "b", True)
    check_understood(b"abc", "b", False)
    with pytest.raises(BufferArgumentError):
        check_understood(b"abc", "b", True)


def raising(error):
    def method(*args, **options):
        raise error
    return method


@pytest.mark.parametrize("error, wanted, argument", [
    (KeyError("cannot map 'O'"), ArgumentTypeError, "sendbuf"),
    (TypeError("message: expecting buffer"), ArgumentTypeError, "sendbuf"),
    (ValueError("mismatch"), ArgumentError, "sendbuf"),
    (OverflowError("large"), ArgumentError, "sendbuf"),
    (BufferError("read-only"), BufferArgumentError, "sendbuf"),
    (MPI.Exception(MPI.ERR_TYPE), MpiArgumentError, "sendbuf"),
    (MPI.Exception(MPI.ERR_OP), OperatorError, "op")])
def test_what_native_methods_find_wrong_has_a_name(error, wanted, argument):
    with pytest.raises(wanted) as caught:
        call_native(raising(error), "sendbuf", 1, 2, info=3)
    assert type(caught.value) is wanted and caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument}: ") and "message: " not in str(caught.value)
    assert caught.value.__cause__ is error
    if isinstance(error, MPI.Exception):
        assert isinstance(caught.value, MPI.Exception)
        assert caught.value.Get_error_class() == error.Get_error_class()


def test_other_errors_of_native_methods_stay_what_they_are():
    for error in (MPI.Exception(MPI.ERR_TRUNCATE), CommunicatorError("freed"), MemoryError()):
        with pytest.raises(type(error)) as caught:
            call_native(raising(error), "sendbuf")
        assert caught.value is error
