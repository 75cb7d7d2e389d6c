"""MPI datatypes and dtypes, there and back."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.calls.datatypes import PAIRS, datatype_of, element_type, is_packed, with_own_datatypes
from hpccoll.calls.native import native_form
from hpccoll.calls.specification import buffer_of
from hpccoll.errors import ArgumentTypeError


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8",
                                   "g", "F", "D", "G"])
def test_there_and_back(dtype):
    datatype = datatype_of(numpy.dtype(dtype))
    assert element_type(datatype) == numpy.dtype(dtype) and not is_packed(datatype)


def test_pair_types():
    for pair in PAIRS:
        assert datatype_of(element_type(pair)) == pair
    made = numpy.zeros(3, [("value", "f8"), ("index", "i4")])
    if made.dtype.itemsize == element_type(MPI.DOUBLE_INT).itemsize:
        assert buffer_of(made, "b").datatype == MPI.DOUBLE_INT
    aligned = numpy.zeros(3, numpy.dtype([("v", "f8"), ("i", "i4")], align=True))
    assert buffer_of(aligned, "b").datatype == MPI.DOUBLE_INT
    with pytest.raises(KeyError, match="MPI"):
        datatype_of(numpy.dtype([("a", "f4"), ("b", "f4"), ("c", "f4")]))
    with pytest.raises(ArgumentTypeError, match="datatype"):
        buffer_of(numpy.zeros(3, [("a", "f4"), ("b", "f4"), ("c", "f4")]), "b")


def test_types_of_elements():
    assert element_type(MPI.DOUBLE) == "f8" and element_type(MPI.INT32_T) == "i4"
    assert element_type(MPI.DATATYPE_NULL) is None
    freed = MPI.INT.Create_vector(2, 1, 2).Commit()
    assert element_type(freed) is None
    freed.Free()


def test_what_has_to_be_packed():
    apart = MPI.INT.Create_vector(2, 1, 2)
    assert is_packed(apart) and is_packed(MPI.SHORT_INT)  # a short, a gap, an int
    assert not is_packed(MPI.TWOINT) and not is_packed(MPI.DATATYPE_NULL)
    assert not is_packed(MPI.CHAR)
    apart.Free()


def test_a_caller_may_free_datatypes_that_last():
    apart, copies = MPI.INT.Create_vector(2, 1, 2), []
    spec = [bytearray(16), (1, 0), apart]
    same = with_own_datatypes(spec, copies)
    apart.Free()
    assert same[0] is spec[0] and same[1] == (1, 0) and copies == [same[2]]
    assert same[2].Get_size() == 8
    same[2].Free()
    plain = [spec[0], 4, MPI.INT]
    assert with_own_datatypes(plain, copies) == plain and len(copies) == 1


def test_bfloat16():
    """MPI has no such type: a private one stands for it, and mpi4py is given 16-bit words."""
    dtype = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    array = numpy.zeros((2, 3), dtype)
    found = buffer_of(array, "sendbuf")
    assert found.array.dtype == dtype and found.counts == [6]
    assert element_type(found.datatype) == dtype and found.datatype.Get_name() == "bfloat16"
    assert buffer_of([array, 4], "sendbuf").datatype == found.datatype
    for spec, rest in ((array, ()), ([array, 4], (4,)), ((array, ([1, 2], [0, 3])),
                                                        (([1, 2], [0, 3]),))):
        form = native_form(spec)
        assert form[0] is array and form[1:] == [*rest, MPI.UINT16_T]
    for spec in (None, MPI.IN_PLACE, [array, MPI.BYTE], [array, 4, "B"], array.view("u2"), (), 3,
                 [array, ([1], [0]), [MPI.BYTE]]):
        assert native_form(spec) is spec


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4", "int2"])
def test_other_types_of_ml_dtypes_are_not_taken_for_numbers_of_their_size(name):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    with pytest.raises(ArgumentTypeError, match="datatype"):
        buffer_of(numpy.zeros(4, dtype), "sendbuf")
