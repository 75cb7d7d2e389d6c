"""Buffer specifications: every form mpi4py takes, and what is wrong with the others."""


import numpy
import pytest
from mpi4py import MPI

from hpccoll.calls.native import NativeOnly
from hpccoll.calls.specification import buffer_of, is_in_place, overlap
from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError

X = numpy.arange(12.0)


def test_fortran_order_is_the_same_memory():
    matrix = numpy.arange(6.0).reshape(2, 3).T
    assert list(buffer_of(matrix, "b").array) == list(range(6))
    assert numpy.shares_memory(buffer_of(matrix, "b").array, matrix)


def test_a_datatype_of_another_size_counts_its_own_elements():
    assert buffer_of([X, MPI.BYTE], "b").count == 96
    assert buffer_of([bytearray(16), MPI.DOUBLE], "b").count == 2
    assert buffer_of([bytearray(17), 2, MPI.DOUBLE], "b").count == 2
    with pytest.raises(ArgumentError, match="17 bytes.*8 bytes"):
        buffer_of([bytearray(17), MPI.DOUBLE], "b")


def test_derived_datatypes_are_for_mpi_where_there_is_an_operator():
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    with pytest.raises(NativeOnly, match="derived"):
        buffer_of([X, 6, pair], "b")
    pair.Free()


@pytest.mark.parametrize("datatype, size", [(MPI.CHAR, 1), (MPI.WCHAR, 4), (MPI.DOUBLE_INT, 12),
                                            (MPI.SHORT_INT, 6), (MPI.TWOINT, 8), (MPI.FLOAT, 4)])
def test_raw_buffers_count_the_bytes_of_elements_without_gaps(datatype, size):
    """Other ranks may have them side by side."""
    buffer = buffer_of([bytearray(64), 3, datatype], "b", raw=True)
    assert buffer.counts == [3 * size]
    assert (buffer.load is not None) == (size in (6, 12))


def test_subclasses_are_seen_as_mpi4py_sees_them():
    """With the methods of their own they would cut and compute in other ways."""
    class Other(numpy.ndarray):
        def reshape(self, *shape):
            raise NotImplementedError

    plain = numpy.array([1.0, 2.0])
    for made in plain.view(Other), numpy.ma.array(plain, mask=[True, False]):
        array = buffer_of(made, "b").array
        assert type(array) is numpy.ndarray and array.tolist() == [1, 2]
        assert numpy.shares_memory(array, made)


@pytest.mark.parametrize("spec, options, error, complaint", [
    ([X, 13], {}, BufferArgumentError, "13 elements.*0.*12"),
    ([X, (5, 8)], {}, BufferArgumentError, "5 elements.*8.*12"),
    ([X, -1], {}, ArgumentError, "displacements.*-1"),
    ([X, (1, -1)], {}, ArgumentError, "negative.*-1"),
    ([X, 1.5], {}, ArgumentTypeError, "displacements.*1.5"),
    ([X, (1, 1.5)], {}, ArgumentTypeError, "integers.*1.5"),
    ([X, [1, 2]], dict(vector=True, blocks=3), ArgumentError, "2 counts.*3"),
    ([X, [1, 2, -3]], dict(vector=True, blocks=3), ArgumentError, "negative.*-3"),
    ([X, [1, 2, "3"]], dict(vector=True, blocks=3), ArgumentTypeError, "'3'"),
    ([X, ([1, 2, 3], [0, 1])], dict(vector=True, blocks=3), ArgumentError, "2 counts"),
    ([X, ([1, 2, 3], [0, 1, 10])], dict(vector=True, blocks=3), BufferArgumentError, "fit"),
    ([X, [5, 5, 5]], dict(vector=True, blocks=3), BufferArgumentError, "fit"),
    ([X, 1.5], dict(vector=True, blocks=3), ArgumentTypeError, "counts"),
    (X[::2], {}, BufferArgumentError, "contiguous"),
    (b"abc", dict(writable=True), BufferArgumentError, "read-only"),
])
def test_malformed(spec, options, error, complaint):
    with pytest.raises(error, match=f"^recvbuf: .*{complaint}") as caught:
        buffer_of(spec, "recvbuf", **options)
    assert caught.value.argument == "recvbuf"


def test_read_only_memory_may_be_sent():
    frozen = X.copy()
    frozen.flags.writeable = False
    assert buffer_of(frozen, "sendbuf").count == 12
    with pytest.raises(BufferArgumentError, match="recvbuf: .*read-only"):
        buffer_of(frozen, "recvbuf", writable=True)


def test_in_place_in_all_its_forms():
    assert is_in_place(MPI.IN_PLACE) and is_in_place(None)
    assert not is_in_place(X) and not is_in_place([X, 3])


def test_overlap():
    def at(count, displ):
        return buffer_of([X, (count, displ)], "b")
    assert overlap(at(4, 0), at(4, 3)) and not overlap(at(4, 0), at(4, 4))
    assert not overlap(at(0, 3), at(12, 0))
    assert not overlap(buffer_of(X, "b"), buffer_of(X.copy(), "b"))
    gaps, others, meeting = (buffer_of([X, (counts, displs)], "b", vector=True, blocks=2)
                             for counts, displs in [([2, 2], [0, 8]), ([3, 2], [4, 10]),
                                                    ([0, 3], [0, 7])])
    assert not overlap(gaps, at(6, 2)) and overlap(gaps, at(7, 2))  # what lies between is free
    assert not overlap(gaps, others) and overlap(gaps, meeting) and not overlap(meeting, others)
    assert overlap(buffer_of([X, ([9, 1], [0, 11])], "b", vector=True, blocks=2), meeting)
