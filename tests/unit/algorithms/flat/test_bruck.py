"""Bruck: hops of the alltoall, and where blocks land."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import (
    bruck,
    circulant,
)
from hpccoll.ir.collectives import OUT
from hpccoll.ir.schedule import RECV


@pytest.mark.parametrize(("size", "k", "messages", "blocks"), [
    (64, 2, 6, 192), (64, 3, 8, 158), (64, 4, 9, 144), (64, 8, 14, 112), (64, 64, 63, 63),
    (37, 2, 6, 90), (37, 3, 7, 77), (37, 4, 8, 73), (37, 8, 11, 61), (37, 37, 36, 36)])
def test_bruck_alltoall_counts(size, k, messages, blocks):
    rounds = bruck.hops(size, k)
    assert sum(map(len, rounds)) == messages
    assert sum(len(offsets) for hops in rounds for _, offsets in hops) == blocks
    assert bruck.alltoall_sent(size, k) == blocks


def test_alltoall_hops_reach_every_distance():
    for size in range(1, 130):
        for rounds in (bruck.hops(size, 2), bruck.hops(size, 5), circulant.hops(size)):
            travelled = [0] * size
            for hops in rounds:
                for distance, offsets in hops:
                    for offset in offsets:
                        travelled[offset] += distance
            assert travelled == list(range(size))


def test_bruck_alltoall_lands_last_hops_in_the_output():
    made = schedule("alltoall", "bruck", 8)
    spans = [span for steps in made.program(3).rounds for step in steps if step.kind == RECV
             for span in step.spans if span.buffer == OUT]
    assert sorted(span.start for span in spans) == [0, 1, 2, 4, 5, 6, 7]
