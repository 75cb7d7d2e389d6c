"""Derived datatypes: elements that lie apart, packed into bytes and unpacked."""

import numpy
from mpi4py import MPI

from hpccoll.calls.packed import Block, PackedBlocks
from hpccoll.calls.specification import buffer_of

X = numpy.arange(12.0)


def test_derived_datatypes_are_packed_and_unpacked():
    matrix = numpy.arange(12.0).reshape(4, 3)
    apart = MPI.DOUBLE.Create_vector(4, 1, 3)
    column = apart.Create_resized(0, 8).Commit()
    buffer = buffer_of([matrix, ([1, 1], [2, 0]), column], "b", vector=True, blocks=2, raw=True,
                     writable=True)
    assert (buffer.counts, buffer.displs, buffer.dtype) == ([32, 32], [0, 32], None)
    buffer.load()
    assert buffer.array.view("f8").tolist() == [2, 5, 8, 11, 0, 3, 6, 9]
    column.Free()  # the call has begun
    buffer.array.view("f8")[:] = range(100, 108)
    buffer.store()
    assert matrix.tolist() == [[104, 1, 100], [105, 4, 101], [106, 7, 102], [107, 10, 103]]
    apart.Free()


def test_a_derived_datatype_may_begin_before_and_end_behind_what_is_passed():
    """As for mpi4py: what is passed is where it begins."""
    around = MPI.DOUBLE.Create_indexed([1, 1], [1, -1]).Commit()
    buffer = buffer_of([X[4:5], 1, around], "b", raw=True)
    buffer.load()
    assert buffer.array.view("f8").tolist() == [X[5], X[3]]
    around.Free()


def test_blocks_without_elements_need_no_memory():
    nothing = PackedBlocks(None, [Block(MPI.DOUBLE, 0, 8), Block(MPI.DOUBLE, 0, -8)], True)
    nothing.load()
    nothing.store()
    assert nothing.array.size == 0


def test_one_load_without_a_store_frees_its_datatype():
    form = PackedBlocks(X, [Block(MPI.DOUBLE, 2, 8), Block(MPI.DOUBLE, 1, 64)], True)
    form.load(once=True)
    assert form.array.view("f8").tolist() == [1, 2, 8]
    assert form.datatype == MPI.DATATYPE_NULL
