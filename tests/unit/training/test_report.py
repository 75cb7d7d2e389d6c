"""Timelines in numbers: hidden and exposed time, late ranks, steps that count."""

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.report import BucketTimes, report
from hpccoll.training.trace import (
    BLOCKED,
    COMPRESS,
    DONE,
    FLIGHT,
    PROGRAM,
    STEP,
    WAIT,
    StepTimeline,
    TimedSpan,
    read,
)


def step(start, stop):
    return TimedSpan(PROGRAM, STEP, start, stop)


def bucket(name, wait, compress, flight, stop, nbytes=400, wire=600.0):
    """A bucket that waits, is compressed, flies and is done at these times."""
    return [TimedSpan(name, WAIT, wait, compress, nbytes),
            TimedSpan(name, COMPRESS, compress, flight, nbytes),
            TimedSpan(name, FLIGHT, flight, stop, nbytes, wire),
            TimedSpan(name, DONE, stop, stop, nbytes)]


def test_what_overlaps_standing_still_is_exposed():
    timeline = StepTimeline({0: [*bucket("a", 1, 2, 4, 8), TimedSpan(PROGRAM, BLOCKED, 3, 5),
                             TimedSpan(PROGRAM, BLOCKED, 7, 10), step(0, 16)]})
    found = report(timeline)
    assert (found.ranks, found.steps, found.seconds, found.exposed) == (1, 1, 16, 5)
    assert found.share == 5 / 16 and found.nbytes == 400 and found.wire_bytes == 600
    assert found.buckets == (BucketTimes("a", 400, 600, 1, 2, 4, exposed=3, hidden=3, late=0),)


def test_buckets_under_way_together_are_each_exposed_but_the_step_only_once():
    timeline = StepTimeline({0: [*bucket("a", 0, 0, 0, 4), *bucket("b", 0, 0, 1, 4),
                             TimedSpan(PROGRAM, BLOCKED, 2, 4), step(0, 4)]})
    found = report(timeline)
    assert [b.exposed for b in found.buckets] == [2, 2] and found.exposed == 2


def test_means_are_over_ranks_and_steps():
    track = [*bucket("a", 0, 0, 0, 2), step(0, 4), *bucket("a", 4, 4, 4, 8), step(4, 8)]
    late = [*bucket("a", 0, 0, 1, 2), step(0, 4), *bucket("a", 4, 4, 7, 8), step(4, 8)]
    found = report(StepTimeline({0: track, 1: late}), skip=0)
    assert (found.ranks, found.steps, found.seconds) == (2, 2, 4)
    [a] = found.buckets
    assert (a.nbytes, a.wire_bytes) == (400, 600)
    assert a.flight == (2 + 4 + 1 + 1) / 4
    assert a.late == (1 + 0 + 3 + 0) / 4, "rank 0 waited for rank 1 in both steps"


def test_a_bucket_in_two_transfers_counts_its_bytes_once():
    spans = [TimedSpan("a", FLIGHT, 0, 1, 400, 50.0), TimedSpan("a", FLIGHT, 2, 3, 400, 70.0),
             TimedSpan("a", DONE, 3, 3, 400), step(0, 4)]
    [a] = report(StepTimeline({0: spans})).buckets
    assert (a.nbytes, a.wire_bytes, a.flight) == (400, 120, 2)


def test_first_steps_are_left_out_where_there_are_more():
    spans = [*bucket("a", 0, 0, 0, 9), step(0, 9), *bucket("a", 9, 9, 9, 10), step(9, 10)]
    timeline = StepTimeline({0: spans})
    assert report(timeline).seconds == 1 and report(timeline).buckets[0].flight == 1
    assert report(timeline, skip=0).seconds == 5
    assert report(timeline, skip=2).steps == 2


def test_what_is_after_the_last_whole_step_does_not_count():
    spans = [*bucket("a", 0, 0, 0, 1), step(0, 2), *bucket("a", 2, 2, 2, 3)]
    assert report(StepTimeline({0: spans})).buckets[0].flight == 1


def test_ranks_that_forgot_some_steps_are_compared_in_the_last_ones():
    one = [*bucket("a", 0, 0, 0, 1), step(0, 1), *bucket("a", 1, 1, 1, 3), step(1, 3)]
    found = report(StepTimeline({0: one, 1: one[-5:]}))
    assert found.steps == 1 and found.seconds == 2 and found.buckets[0].late == 0


def test_a_bucket_that_is_not_on_all_ranks_makes_nobody_late():
    found = report(StepTimeline({0: [*bucket("a", 0, 0, 0, 1), step(0, 1)], 1: [step(0, 1)]}))
    assert found.buckets[0].late == 0


def test_a_file_says_the_same_as_what_was_written(tmp_path):
    third = 1 / 3
    timeline = StepTimeline({0: [*bucket("a", third, 2 * third, 1, 7 * third),
                             TimedSpan(PROGRAM, BLOCKED, 2, 7 * third), step(0, 7 * third)]})
    timeline.save(tmp_path / "t.json")
    one, other = report(timeline), report(read(tmp_path / "t.json"))
    assert other.buckets[0][1:] == pytest.approx(one.buckets[0][1:], abs=1e-8)


@pytest.mark.parametrize("tracks", [{}, {0: []}, {0: [step(0, 1)], 1: []}])
def test_no_whole_step_is_an_error(tracks):
    with pytest.raises(ArgumentError, match="complete step"):
        report(StepTimeline(tracks))


def test_text_and_json():
    found = report(StepTimeline({0: [*bucket("bucket 0", 1, 2, 4, 8),
                                     TimedSpan(PROGRAM, BLOCKED, 7, 8), step(0, 10)]}))
    lines = str(found).splitlines()
    assert lines[0] == "1 rank, 1 step; means over both"
    assert "  exposed        1 s, 10.0% of the step" in lines
    assert lines[-1].split() == [
        "bucket", "0", "400", "B", "600", "B", *"1s2s4s0s1s5s"]
    assert found.as_json()["buckets"][0]["hidden"] == 5
