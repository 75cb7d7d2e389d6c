"""What of a survey is believed: times that cannot be are not in the table, and said."""

import pytest
from unit.bench_results import result

from hpccoll.measure import recording
from hpccoll.measure.survey_plan import SurveyPlan, points
from hpccoll.tune.table import Candidate

NATIVE, RING = Candidate("native"), Candidate("ring")
SIZES = (64, 512, 4 << 10, 32 << 10, 256 << 10)


def measured(collective, **microseconds):
    """A survey with so many microseconds of each candidate, by size; 0 where it was not tried."""
    plan = SurveyPlan((collective,), SIZES, thorough=False)
    return [(point, [result(name, [times[number]] * 10, point.case.nbytes, collective)
                     for name, times in microseconds.items() if times[number]])
            for number, point in enumerate(points(plan, 4))]


def test_small_messages_that_took_longer_than_much_larger_ones_are_left_out():
    """As a busy machine once said: a ratio of 14.23, which no bound of one size forbids."""
    found = recording.filter_times(measured("alltoall", native=[385, 385, 95, 95, 95],
                                  pairwise=[385 / 14.23, 385 / 14.23, 30, 40, 90]))
    assert found.doubtful == (("alltoall", 64, 0, pytest.approx(385 / 95), ""),
                              ("alltoall", 512, 0, pytest.approx(385 / 95), ""))
    (curve,) = found.curves.values()
    assert [nbytes for nbytes, _ in curve] == list(SIZES[2:]) and not found.failures


def test_only_what_was_late_is_left_out():
    found = recording.filter_times(measured("allreduce", native=[5, 6, 10, 30, 200],
                                  ring=[7, 80, 9, 20, 100]))
    assert found.doubtful == (("allreduce", 512, 0, pytest.approx(80 / 9), "ring"),)
    ((_, curve),) = found.curves.items()
    assert [set(times) for _, times in curve] == [{NATIVE, RING}, {NATIVE}] + 3 * [{NATIVE, RING}]


def test_one_that_was_not_tried_or_was_wrong_condemns_nobody():
    """A wrong result may have come too early."""
    survey = measured("allreduce", native=[50, 50, 60, 60, 70], ring=[50, 0, 1, 0, 50])
    survey[2][1][1] = survey[2][1][1]._replace(wrong=3)
    found = recording.filter_times(survey)
    assert not found.doubtful and found.failures == {("allreduce", RING): 3}
    assert all(NATIVE in times for curve in found.curves.values() for _, times in curve)


def test_collectives_and_candidates_are_told_apart():
    survey = (measured("allreduce", native=[300] * 5, ring=[20] * 5)
              + measured("bcast", native=[20] * 5, ring=[300] * 5))
    assert recording.late(survey) == 10 * [{}]


def test_a_ratio_of_one_size_that_no_algorithm_reaches():
    found = recording.filter_times(measured("bcast", native=[93, 93, 0, 0, 0],
                                            ring=[1, 9, 0, 0, 0]))
    assert [tuple(doubt) for doubt in found.doubtful] == [("bcast", 64, pytest.approx(93), 0, "")]
