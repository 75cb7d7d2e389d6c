"""Who comes last, how often and by how much."""

import pytest

from hpccoll.measure.profiling.merge import join
from hpccoll.measure.profiling.profile import profile
from hpccoll.measure.profiling.stragglers import (
    MOST_TOLD,
    Straggler,
    describe_stragglers,
    stragglers,
)
from hpccoll.tools.call_trace import summary

from .made import ALLREDUCE, BCAST, rank_record


def three():
    """Rank 2 is late to three of four calls, by 1, 2 and 3 seconds; rank 0 to the last, a bit."""
    first = [0.0, 10.0, 20.0, 30.0]
    late = {0: [0, 0, 0, 0.5], 1: [0, 0, 0, 0], 2: [1, 2, 3, 0]}
    return [rank_record(rank, [(ALLREDUCE, begun + by, begun + 5)
                               for begun, by in zip(first, late[rank])], 3) for rank in late]


def test_each_rank_is_told_of_and_the_worst_comes_first():
    assert stragglers(join(three())) == [
        Straggler("WORLD", 2, 4, 3, 1.5, 3.0, 12.0),
        Straggler("WORLD", 0, 4, 1, 0.125, 0.5, 1.0),
        Straggler("WORLD", 1, 4, 0, 0.0, 0.0, 0.0)]


def test_in_words_and_as_data():
    text = ("On WORLD, rank 2 was last in 75% of 4 calls, on average 1.5 s after the first rank, "
            "at most 3 s; others waited 12 s for it in total.")
    found = profile(join(three()))
    assert text in found.remarks() and text in str(found)
    assert found.as_json()["stragglers"][0]["rank"] == 2
    traced = summary(join(three()), 3)
    assert text in traced.sentences() and traced.as_json()["stragglers"][0]["last"] == 3


def test_a_root_that_is_late_is_waited_for_and_a_leaf_is_not():
    """Of a broadcast from rank 1."""
    for rank, waits in ((1, 2.0), (0, 0.0)):
        records = [rank_record(one, [(BCAST, 3.0 if one == rank else 1.0, 9.0)]) for one in (0, 1)]
        found = {one.rank: one for one in stragglers(join(records))}
        assert (found[rank].last, found[rank].waits) == (1, waits)


@pytest.mark.parametrize("records", [
    [], [rank_record(0, [(ALLREDUCE, 1, 2)], 1)], [rank_record(0, []), rank_record(1, [])],
    [rank_record(rank, [(ALLREDUCE._replace(title="iallreduce"), rank, 9)]) for rank in (0, 1)]])
def test_where_nobody_meets_nobody_is_late(records):
    assert not describe_stragglers(stragglers(join(records)))


def test_only_the_worst_communicators_are_told_of():
    found = [Straggler(f"c{number}", 0, 1, 1, 1.0, 1.0, 9.0 - number) for number in range(6)]
    assert [text.split(",")[0] for text in describe_stragglers(found)] == [
        f"On c{number}" for number in range(MOST_TOLD)]


def test_the_parts_of_a_split_have_one_name_and_are_told_of_each():
    found = [Straggler("communicator of 2", rank, 1, 1, 1.0, 1.0, 9.0 - rank, rank // 2 * 2)
             for rank in range(4)]
    assert [text.split(" was last")[0] for text in describe_stragglers(found)] == [
        "On communicator of 2, rank 0", "On communicator of 2, rank 2"]
