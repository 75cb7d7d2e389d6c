"""What was done inside of calls, by the moments that were noted there."""

import pytest

from hpccoll.measure.profiling import phases
from hpccoll.measure.profiling.phases import activities, reduced_by_kind, spans
from hpccoll.runtime.events.phase_events import Activity

from .made import ALLREDUCE, SCAN, moment, noting, rank_record


def record_of(*moments, calls=((ALLREDUCE, 1.0, 2.0), (SCAN, 3.0, 4.0)), **plan):
    """A record of two calls in which there were moments: second, activity, phase, segment."""
    record = rank_record(1, calls, size=3)
    record.communicators[0].noted = noting(*moments, **plan)
    return record


def shown(record):
    one = record.communicators[0]
    return [(span.line, span.name, round(span.start, 6), round(span.stop, 6))
            for span in spans(one, activities(one))]


def test_an_activity_lasts_until_the_next_or_the_end_of_the_call():
    record = record_of(moment(1.1, Activity.SENDING), moment(1.2, Activity.WAITING),
                       moment(1.6, Activity.REDUCING), moment(1.7, Activity.SENDING, 1),
                       moment(1.8, Activity.DRAINING, 1), moment(3.5, Activity.COPYING))
    assert shown(record) == [
        (0, "phase 0", 1.1, 1.7), (0, "sending", 1.1, 1.2), (0, "waiting for rank 2", 1.2, 1.6),
        (0, "reducing", 1.6, 1.7), (0, "phase 1", 1.7, 2.0), (0, "sending", 1.7, 1.8),
        (0, "waiting for space at ranks 0, 2", 1.8, 2.0),
        (0, "phase 0", 3.5, 4.0), (0, "copying", 3.5, 4.0)]
    assert reduced_by_kind([record]) == pytest.approx({ALLREDUCE: 0.1, SCAN: 0.0})
    phase = next(spans(record.communicators[0], activities(record.communicators[0])))
    assert phase.details == {"of": "a plan", "to": [0], "from": [2]}


def test_moments_outside_of_calls_say_nothing():
    record = record_of(moment(0.5, Activity.WAITING), moment(2.5, Activity.REDUCING),
                       moment(4.5, Activity.REDUCING))
    assert shown(record) == [] and reduced_by_kind([record]) == {}
    for none in (record_of(calls=()), rank_record(1, [(ALLREDUCE, 1.0, 2.0)])):
        assert activities(none.communicators[0]) is None and reduced_by_kind([none]) == {}


def test_segments_in_flight_have_a_line_each():
    """Segments 0 and 2 follow each other, 1 runs beside them; between two there may be a pause."""
    record = record_of(
        moment(1.0, Activity.WAITING, 0, 0), moment(1.1, Activity.WAITING, 0, 1),
        moment(1.2, Activity.REDUCING, 0, 0), moment(1.3, Activity.WAITING, 0, 2),
        moment(1.4, Activity.REDUCING, 0, 1), moment(1.5, Activity.OVER, 0, 1),
        moment(1.8, Activity.REDUCING, 0, 2), moment(1.9, Activity.OVER, 0, 2),
        depth=2, segments=[0, 0, 0])
    assert [one for one in shown(record) if "phase" in one[1]] == [
        (0, "segment 0, phase 0", 1.0, 1.3), (0, "segment 2, phase 0", 1.3, 1.9),
        (1, "segment 1, phase 0", 1.1, 1.5)]
    assert reduced_by_kind([record])[ALLREDUCE] == pytest.approx(0.1 + 0.1 + 0.1)


def test_lanes_have_a_line_each():
    record = record_of(moment(1.0, Activity.WAITING, 0), moment(1.1, Activity.WAITING, 1),
                       moment(1.2, Activity.OVER, 1), moment(1.4, Activity.OVER, 0),
                       programs=[[[0, [0], [2]], [1, [2], [0]]]])
    assert shown(record) == [
        (0, "phase 0", 1.0, 1.4), (0, "waiting for rank 2", 1.0, 1.4),
        (1, "phase 1", 1.1, 1.2), (1, "waiting for rank 0", 1.1, 1.2)]


def test_who_only_sends_waits_for_those_it_sends_to():
    record = record_of(moment(1.0, Activity.WAITING), programs=[[[0, [0, 2], []]]])
    assert shown(record)[1][1] == "waiting for ranks 0, 2"


def test_the_first_call_of_a_full_ring_may_have_lost_its_beginning(monkeypatch):
    record = record_of(moment(1.8, Activity.WAITING), moment(3.1, Activity.COPYING))
    assert len(shown(record)) == 4
    monkeypatch.setattr(phases, "KEPT", 2)
    assert shown(record) == [(0, "phase 0", 3.1, 4.0), (0, "copying", 3.1, 4.0)]


def test_calls_may_be_noted_in_another_order():
    """A wait for a request is noted when it is over, and so may be a call before it."""
    record = record_of(moment(1.5, Activity.REDUCING), moment(3.5, Activity.COPYING),
                       calls=((SCAN, 3.0, 4.0), (ALLREDUCE, 1.0, 2.0)))
    assert reduced_by_kind([record]) == pytest.approx({ALLREDUCE: 0.5, SCAN: 0.0})
    assert activities(record.communicators[0]).calls.tolist() == [0, 1]
