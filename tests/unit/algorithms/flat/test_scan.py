"""Prefix sums: what goes up, and what nobody needs."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.explain.replay import timeline


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_a_chain_of_sums(collective):
    messages = timeline(schedule(collective, "linear", 5)).messages
    assert [(m.sender, m.receiver, m.values[0].ranks) for m in messages] == [
        (rank, rank + 1, (2 << rank) - 1) for rank in range(4)]


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_sums_that_no_rank_asks_for_are_not_sent(collective):
    size = 5
    messages = timeline(schedule(collective, "recursive_doubling", size)).messages
    # Rank 4 has no partner before the last round, and nobody above it.
    assert [m.sender for m in messages if m.receiver == 4] == [0]
    assert not [m for m in messages if m.sender == 4]
