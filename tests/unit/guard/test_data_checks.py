"""The census and the comparison of data, on ranks whose records are made up.

Seen to fail where all records are taken for equal.
"""

from types import SimpleNamespace

import numpy
import pytest

from hpccoll.calls import resolve
from hpccoll.errors import CollectiveTimeout
from hpccoll.errors.checks import NonFiniteInput, UnequalError
from hpccoll.guard.data_checks import check_equal, check_finite, gather_rows, result_of


class Ranks:
    """A communicator of rank 0 and others, who bring what their changes make of its record."""

    def __init__(self, *others, complete=True):
        self.others, self.complete, self.mine = others, complete, None

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1 + len(self.others)

    def Iallgather(self, mine, found):
        found[0] = self.mine = mine
        for row, change in zip(found[1:], self.others):
            row[...] = change(mine.copy())
        return SimpleNamespace(Test=lambda: self.complete)


def context(*others, complete=True):
    comm = Ranks(*others, complete=complete)
    return SimpleNamespace(comm=comm, size=comm.Get_size(), timeouts=(0.05, 0.04, None),
                           abandoned=[], fail=lambda error, title: error)


def same(record):
    return record


def flipped(record):
    record.view("u1")[0] ^= 1
    return record


def test_equal_data_is_no_error():
    check_equal(context(same, same), numpy.arange(4), "x")
    check_equal(context(same), numpy.empty((0, 3)), "x")
    check_equal(context(same), numpy.array(3.5), "x")


def test_who_has_other_bits():
    with pytest.raises(UnequalError, match="rank 1") as caught:
        check_equal(context(flipped, same), numpy.arange(4), "x")
    assert caught.value.ranks == (1,)
    with pytest.raises(UnequalError) as caught:
        check_equal(context(flipped), numpy.arange(4), "x")
    assert caught.value.ranks == ()


def test_another_type_or_shape_is_told_before_other_bits():
    record = context(same)
    check_equal(record, numpy.zeros(4, "f4"), "x")
    other = record.comm.mine.copy()
    with pytest.raises(UnequalError, match=(
            r"rank 2: float32.*\(4,\).*ranks 0, 1: int64")):
        check_equal(context(flipped, lambda mine: other), numpy.arange(4), "x")


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "f2"])
def test_the_census_counts(dtype):
    x = numpy.ones(6, dtype)
    check_finite(context(same), resolve.buffer_of(x, "x"), "allreduce")
    check_finite(context(same), None, "reduce")
    x[[2, 4]] = numpy.inf, numpy.nan
    with pytest.raises(NonFiniteInput, match=(
            "rank 0: infinity.*element 2.*2; rank 1: NaN.*element 5;")) as caught:
        check_finite(context(lambda mine: [1, 5, 1], lambda mine: [0, 0, 0]),
                     resolve.buffer_of(x, "x"), "allreduce")
    assert caught.value.ranks == (0, 1)


def test_bfloat16_too():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = numpy.array([1, numpy.nan], ml_dtypes.bfloat16)
    with pytest.raises(NonFiniteInput, match="NaN.*element 1"):
        check_finite(context(), resolve.buffer_of(x, "x"), "allreduce")


def test_ranks_that_do_not_come():
    here = context(same, complete=False)
    with pytest.raises(CollectiveTimeout, match="census.*bcast.*rank 0"):
        gather_rows(here, numpy.zeros(2), "census before bcast")
    assert len(here.abandoned) == 1


def test_results_that_all_ranks_share():
    x, y = numpy.ones(2), numpy.zeros(2)
    assert result_of(resolve.allreduce(2, 0, x, y, resolve.MPI.SUM)) is not None
    assert result_of(resolve.bcast(2, 1, x, 0)).view("f8").tolist() == [1, 1]
    assert result_of(resolve.scan(2, 0, x, y, resolve.MPI.SUM)) is None
    assert result_of(None) is None and result_of(resolve.barrier(2, 0)) is None
