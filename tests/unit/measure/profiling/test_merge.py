"""Records of ranks, joined: which calls belong together, and who waited for whom."""

import numpy
import pytest

from hpccoll.measure.profiling.merge import correct_times, join, waits_by_kind

from .made import ALLREDUCE, BCAST, REDUCE, SCAN, STARTED, rank_record


def waits_of(kind, starts):
    """Each rank's wait in one call."""
    joined = join([rank_record(rank, [(kind, start, 9.0)], len(starts))
                   for rank, start in enumerate(starts)])
    return joined.matched[0].waits[:, 0].tolist()


@pytest.mark.parametrize("kind, waits", [
    (ALLREDUCE, [3, 0, 2]),  # for everybody
    (BCAST, [3, 0, 2]),  # for the root, which is 1 and the last
    (BCAST._replace(root=0), [0, 0, 0]),  # it came first
    (REDUCE, [3, 0, 0]),  # only the root waits
    (SCAN, [0, 0, 2]),  # for the ranks before
    (ALLREDUCE._replace(title="iallreduce"), [0, 0, 0])])
def test_a_rank_waits_for_those_that_it_needs(kind, waits):
    assert waits_of(kind, [1.0, 4.0, 2.0]) == waits


def test_a_wait_ends_with_the_call():
    """A rank may be let go before the last one has come: it only sends."""
    joined = join([rank_record(0, [(ALLREDUCE, 1, 5)]), rank_record(1, [(ALLREDUCE, 8, 9)])])
    assert joined.matched[0].waits[:, 0].tolist() == [4, 0]


def test_calls_belong_together_by_their_number():
    """One rank has forgotten its first call, and starts a request in between."""
    one = rank_record(0, [(ALLREDUCE, 1, 2), (BCAST, 3, 4), (ALLREDUCE, 5, 6)])
    two = rank_record(1, [(ALLREDUCE, 1, 2), (BCAST, 3, 4), (STARTED, 4.5, 4.6),
                          (ALLREDUCE, 5.5, 6)])
    two.communicators[0].forget(3)
    [found] = join([two, one]).matched
    assert found.starts.tolist() == [[3, 5], [3, 5.5]]
    assert found.skews.tolist() == [0, 0.5]
    assert [found.kinds[number] for number in found.calls] == [BCAST, ALLREDUCE]


def test_calls_that_differ_are_left_out():
    [found] = join([rank_record(0, [(ALLREDUCE, 1, 2), (BCAST, 3, 4)]),
                    rank_record(1, [(REDUCE, 1, 2), (BCAST, 3, 4)])]).matched
    assert found.starts.tolist() == [[3], [3]]


def test_a_rank_that_has_not_told_leaves_its_communicators_unmatched():
    assert not join([rank_record(0, [(ALLREDUCE, 1, 2)])]).matched


def test_clocks_are_corrected_in_proportion():
    assert correct_times(numpy.array([0.0, 5.0, 10.0]), [(0.0, 1.0), (10.0, 3.0)]).tolist() == [
        1.0, 7.0, 13.0]
    joined = join([rank_record(0, [(ALLREDUCE, 4.0, 9.0)]),
                   rank_record(1, [(ALLREDUCE, 104.0, 109.0)], clock="two",
                               ahead=[(100.0, -100.0), (110.0, -100.0)])])
    assert joined.matched[0].skews.tolist() == [0.0]
    assert joined.offsets == {1: -100.0}


def test_sums_by_kind_are_over_all_ranks():
    joined = join([rank_record(0, [(ALLREDUCE, 1, 5), (ALLREDUCE, 6, 8)]),
                   rank_record(1, [(ALLREDUCE, 3, 5), (ALLREDUCE, 6, 8)])])
    assert waits_by_kind(joined) == {ALLREDUCE: (2.0, 10.0, 2.0)}
