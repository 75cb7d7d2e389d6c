"""Whether two ranks share a cache, by made-up times."""

from itertools import cycle

import numpy
import pytest

from hpccoll.transport.shm import caches
from hpccoll.transport.shm.mapping import SharedMemory

#: Seconds that a reading takes at a rate just fast enough, and at the rate of memory.
SWIFT, SLOW = 0.99 * caches.NBYTES / caches.LEAST_RATE, caches.NBYTES / 2e9


class Pair:
    """A communicator of two ranks, of which the other one says what it is told to."""

    def __init__(self, other):
        self.other, self.barriers = other, 0

    def Get_rank(self):
        return 0

    def Barrier(self):
        self.barriers += 1

    def allgather(self, mine):
        return [mine, self.other]


def verdict(monkeypatch, mine, other):
    """What rank 0 finds whose readings take these times, beside one whose fastest took that."""
    parts = [numpy.zeros(caches.NBYTES, numpy.uint8) for _ in range(2)]
    monkeypatch.setattr(caches, "share", lambda pair, nbytes: SharedMemory(parts))
    clock, now = cycle(mine), [0.0, True]

    def perf_counter():
        now[1] = not now[1]
        now[0] += next(clock) if now[1] else 1.0
        return now[0]

    monkeypatch.setattr(caches, "perf_counter", perf_counter)
    pair = Pair(other)
    found = caches.share_a_cache(pair)
    # Nobody writes while the other one reads.
    assert pair.barriers == 2 * caches.ROUNDS
    return found


@pytest.mark.parametrize("mine, other, shared", [
    ([SWIFT], SWIFT, True), ([SLOW], SLOW, False), ([SLOW], SWIFT, False), ([SWIFT], SLOW, False),
    ([SLOW] * (caches.ROUNDS - 1) + [SWIFT], SWIFT, True)],
    ids=["both fast", "both slow", "slow here", "slow there", "disturbed"])
def test_the_fastest_reading_of_the_slower_rank_decides(monkeypatch, mine, other, shared):
    assert verdict(monkeypatch, mine, other) is shared


def test_ranks_without_shared_memory_share_no_cache(monkeypatch):
    monkeypatch.setattr(caches, "share", lambda pair, nbytes: None)
    assert caches.share_a_cache(Pair(SWIFT)) is False
