"""When a job may measure: by its time, the size of a call, and the ranks."""

import numpy
import pytest
from unit.tune.choosing import allreduce

from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.tune import online
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate


@pytest.fixture
def clock(monkeypatch):
    """The seconds since the start, in a list."""
    now = [100.0]
    monkeypatch.setattr(online, "perf_counter", lambda: now[0])
    return now


def first_permission(clock, nbytes, size):
    """The seconds after which a job may measure calls of a size."""
    allowance, start = online.Allowance(), clock[0]
    while not allowance.permits(nbytes, size):
        clock[0] += 0.5
        assert clock[0] < start + 1e6
    return clock[0] - start


def test_measurements_take_two_percent_of_the_time(clock):
    assert 12 < first_permission(clock, 8, 4) < 14
    assert 60 < first_permission(clock, 8, 1000) < 65
    assert first_permission(clock, 16 << 20, 4) > 100
    allowance = online.Allowance()
    clock[0] += 20
    assert allowance.permits(8, 4)
    allowance.spent = 1.0
    assert not allowance.permits(8, 4)
    clock[0] += 50
    assert allowance.permits(8, 4)


def test_checks_come_at_every_place_of_a_pattern():
    numbers, number = [], 0
    for _ in range(400):
        number = online.next_check(number)
        numbers.append(number)
    assert numbers[0] == online.FIRST and numbers == sorted(set(numbers))
    assert max(b - a for a, b in zip(numbers, numbers[1:])) == online.DISTANCE
    for length in range(2, 12):
        assert {number % length for number in numbers} == set(range(length))


@pytest.mark.parametrize("facts, sums, expected", [
    (CallFacts("bcast", "bcast", 8), False, True),
    (CallFacts("allgatherv", "allgather", 8, uniform=False), False, False),
    (CallFacts("alltoallv", "alltoall", None), True, False),
    (CallFacts("bcast", "bcast", online.LARGEST + 1), True, False),
    (facts_of(allreduce(numpy.ones(4))), False, False),
    (facts_of(allreduce(numpy.ones(4))), True, True),
    (facts_of(allreduce(numpy.ones(4, "i4"))), False, True)])
def test_calls_that_times_may_decide(facts, sums, expected):
    assert online.may_be_measured(facts, sums) is expected


def test_times_hold_between_two_powers_of_two():
    times = JobTimes(tried={("bcast", True): ((100, {Candidate("native"): 2.0,
                                                     Candidate("binomial"): 1.0}),)})
    assert [bool(times.ranking("bcast", True, nbytes)) for nbytes in (63, 64, 127, 128)] == [
        False, True, True, False]
    assert times.covers("bcast", 64) and not times.covers("bcast", 128)
    assert not times.ranking("bcast", True, 100, tried=False)
    assert times.ranking("bcast", True, 100)[0].candidate.name == "binomial"
