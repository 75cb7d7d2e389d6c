"""The comparison of all ranks: what differs first, and on which ranks."""

import pytest

from hpccoll.errors.agreement import Difference, compare, first_difference
from support.threads import run_ranks


@pytest.mark.parametrize("lists, place, text, ranks", [
    (["ab", "ab"], None, "", ()),
    (["abc", "abd", "abc"], 2, "c on ranks 0, 2; d on rank 1", (1,)),
    (["b", "a", "a"], 0, "b on rank 0; a on ranks 1, 2", (0,)),
    (["a", "b"], 0, "a on rank 0; b on rank 1", (1,)),
    (["", "x"], 0, "nothing on rank 0; x on rank 1", (1,)),
    (["ab", "a"], 1, "b on rank 0; nothing on rank 1", (1,))])
def test_the_first_difference_is_the_same_on_all_ranks(lists, place, text, ranks):
    difference = first_difference(lists)
    if place is None:
        assert difference is None
    else:
        assert isinstance(difference, Difference) and difference.place == place
        assert str(difference) == text and difference.ranks == ranks
    assert run_ranks(len(lists), lambda comm: compare(comm, lists[comm.rank])) == [
        difference] * len(lists)


def test_entries_are_compared_one_by_one():
    lists = ["a", "b"], ["a\nb"]
    assert run_ranks(2, lambda comm: compare(comm, lists[comm.rank]).place) == [0, 0]


def test_one_rank_agrees_with_itself():
    assert run_ranks(1, lambda comm: compare(comm, ["a"])) == [None]
