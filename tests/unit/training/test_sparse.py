"""Rows by their indices, added up."""

import numpy
import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.sparse import check, exchange_rows
from support.threads import run_ranks


def drive(task):
    while True:
        try:
            next(task).Wait()
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_rows_of_all_ranks_are_added_up(size):
    def rank(comm):
        me = comm.Get_rank()
        indices = numpy.array([me, 7, me], numpy.int64)[:me + 1]  # one row, two, then three
        return drive(exchange_rows(comm, indices, numpy.full((len(indices), 2), 4.0 ** me)))

    dense = numpy.zeros((8, 2))
    for me in range(size):
        for index in ([me, 7, me][:me + 1]):
            dense[index] += 4.0 ** me
    for indices, rows in run_ranks(size, rank):
        assert indices.tolist() == sorted(set(indices.tolist()))
        full = numpy.zeros((8, 2))
        full[indices] = rows
        assert (full == dense).all()


def test_a_rank_without_rows_and_nobody_with_rows():
    def rank(comm, count):
        rows = numpy.ones((count, 3), numpy.float32)
        return drive(exchange_rows(comm, numpy.arange(count), rows))

    for indices, rows in run_ranks(2, lambda comm: rank(comm, comm.Get_rank() * 2)):
        assert indices.tolist() == [0, 1] and rows.shape == (2, 3)
    for indices, _ in run_ranks(2, lambda comm: rank(comm, 0)):
        assert not len(indices)


def test_rows_of_different_lengths_are_an_error_on_all_ranks():
    def rank(comm):
        with pytest.raises(ArgumentError, match="rows"):
            drive(exchange_rows(comm, numpy.arange(1), numpy.ones((1, comm.Get_rank() + 1))))

    run_ranks(2, rank)


def test_unusable_rows_are_refused():
    with pytest.raises(ArgumentTypeError):
        check([0.5], [1.0])
    with pytest.raises(ArgumentError):
        check([1, 2], [1.0])
    with pytest.raises(ArgumentError):
        check([[1]], [1.0])
