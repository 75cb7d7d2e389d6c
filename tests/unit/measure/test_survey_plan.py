"""The points of a survey."""

import pytest

from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.measure.survey_plan import FULL, PROBE, QUICK, SurveyPlan, points


def test_points_rise_and_come_once():
    plan = SurveyPlan(("allreduce", "barrier"), (64, 8, 8), thorough=False)
    found = list(points(plan, 4))
    assert [(p.case.collective, p.case.nbytes) for p in found] == [
        ("allreduce", 8), ("barrier", 0), ("allreduce", 64)]
    assert all(p.commutes for p in found)
    assert found[1].weight < found[0].weight < found[2].weight


def test_a_thorough_survey_has_operators_that_do_not_commute():
    found = list(points(SurveyPlan(("reduce_scatter", "bcast"), (4096,)), 4))
    assert [p.kind for p in found] == [
        ("reduce_scatter", True), ("reduce_scatter", False), ("bcast", True)]
    assert found[0].case.collective == "reduce_scatter_block"


@pytest.mark.parametrize("sizes", [QUICK, FULL, PROBE.sizes])
def test_sizes_rise(sizes):
    assert list(sizes) == sorted(set(sizes))
    kinds = {p.kind for p in points(SurveyPlan(sizes=sizes, thorough=False), 3)}
    assert kinds == {(name, True) for name in COLLECTIVES}
