"""One rank's step: what waits for what."""

from step_simulator.program import BucketJob, Compute, SimulatedRank, replicated, sharded
from step_simulator.traffic import TrafficPart

from hpccoll.training.trace import (
    BLOCKED,
    COMPRESS,
    DONE,
    FLIGHT,
    PROGRAM,
    READY,
    STEP,
    WAIT,
    TimedSpan,
)


def job(name, *parts):
    """A bucket in flight for so long; pairs of compressing before and after where given."""
    return BucketJob(name, 100, 150.0, tuple(TrafficPart(*part) if isinstance(part, tuple)
                                       else TrafficPart(FLIGHT, part) for part in parts))


def flights(rank):
    return {span.name: (span.start, span.stop) for span in rank.spans if span.phase == FLIGHT}


def test_a_transfer_that_ends_before_the_backward_pass_is_hidden():
    rank = SimulatedRank()
    replicated(rank, Compute(4, (2, 6), 1, 3), [job("a", 5), job("b", 1)])
    assert rank.now == 4 + 2 + 6 + 1 + 3 and rank.seconds_of(BLOCKED) == 0
    assert flights(rank) == {"a": (6, 11), "b": (12, 13)}


def test_buckets_wait_for_each_other_and_the_program_for_the_last():
    rank = SimulatedRank()
    replicated(rank, Compute(0, (1, 1), 0, 0.5), [job("a", 4), job("b", 2)])
    assert flights(rank) == {"a": (1, 5), "b": (5, 7)} and rank.now == 7.5
    assert rank.spans == [
        TimedSpan("a", READY, 1, 1, 100), TimedSpan("a", FLIGHT, 1, 5, 100, 150),
        TimedSpan("a", DONE, 5, 5, 100), TimedSpan("b", READY, 2, 2, 100),
        TimedSpan("b", WAIT, 2, 5, 100), TimedSpan("b", FLIGHT, 5, 7, 100, 150),
        TimedSpan("b", DONE, 7, 7, 100), TimedSpan(PROGRAM, BLOCKED, 2, 7),
        TimedSpan(PROGRAM, STEP, 0, 7.5)]


def test_without_overlap_all_goes_after_the_backward_pass():
    rank = SimulatedRank()
    replicated(rank, Compute(0, (1, 1), 2, 0), [job("a", 3), job("b", 2)], overlap=False)
    assert flights(rank) == {"a": (4, 7), "b": (7, 9)} and rank.now == 9


def test_parameters_are_gathered_after_the_update():
    rank = SimulatedRank()
    replicated(rank, Compute(0, (1,), 0, 2), [job("g", 1)], [job("p", 4), job("q", 1)])
    assert flights(rank) == {"g": (1, 2), "p": (4, 8), "q": (8, 9)} and rank.now == 9
    assert rank.seconds_of(BLOCKED) == 6


def test_a_second_lane_compresses_while_the_link_is_busy():
    parts = (COMPRESS, 2), 3, (COMPRESS, 1)
    one, two = SimulatedRank(1), SimulatedRank(2)
    for rank in (one, two):
        replicated(rank, Compute(0, (0, 0), 0, 0), [job("a", *parts), job("b", *parts)])
    assert flights(one) == {"a": (2, 5), "b": (8, 11)} and one.now == 12
    assert flights(two) == {"a": (2, 5), "b": (5, 8)} and two.now == 9


def test_sharded_parameters_come_one_bucket_ahead():
    rank = SimulatedRank()
    gathers = [job("p0", 2), job("p1", 2)]
    sharded(rank, Compute(8, (4, 12), 0, 1), [job("g0", 1), job("g1", 3)], gathers)
    # Forward: p1 (wait 0..2), compute 6, p0 behind it meanwhile, compute 2; backward: p0 ...
    assert [(s.name, s.start, s.stop) for s in rank.spans if s.phase == FLIGHT] == [
        ("p1", 0, 2), ("p0", 2, 4), ("p0", 10, 12), ("p1", 12, 14), ("g0", 16, 17),
        ("g1", 28, 31)]
    assert rank.now == 32 and rank.seconds_of(BLOCKED) == 2 + 2 + 3
