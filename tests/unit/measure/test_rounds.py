"""Which candidates of a survey get another round."""

import numpy
from unit.bench_results import result

from hpccoll.measure import rounds, survey_plan
from hpccoll.measure.cases import make

FLOAT = numpy.dtype("f4")


def test_one_disturbed_iteration_keeps_nobody_out():
    rough = [result("native", [9, 9, 9]), result("ring", [5, 99, 99]), result("linear", [30, 9, 9]),
             result("pat", [1, 1, 1], wrong=1)]
    case = make("allreduce", 4, 1024, FLOAT)
    near = rounds.nearby_candidates(rough, case, survey_plan.SurveyPlan())
    assert [c.name for c in near] == ["native", "ring"]  # native always


def test_only_what_is_close_gets_a_third_round():
    fine = [result("native", [8]), result("ring", [5]), result("linear", [5.7]),
            result("pat", [1], wrong=1)]
    assert [c.name for c in rounds.close(fine)] == ["ring", "linear"]
    assert rounds.close(fine[:2]) == []


def test_rounds_are_joined():
    joined = rounds.of_all_rounds(
        [result("native", [9]), result("ring", [9], wrong=1), result("pat", [9])],
        [result("native", [2]), result("ring", [3]), result("ring:segment=64", [4])],
        [result("ring", [5], changed=2)])
    found = {r.candidate: (tuple(round(1e6 * s) for s in r.seconds), r.failures) for r in joined}
    assert found == {"native": ((2,), 0), "ring": ((3, 5), 3), "pat": ((9,), 0),
                     "ring:segment=64": ((4,), 0)}


def test_what_a_candidate_may_cost_grows_with_its_calls_only():
    latest = rounds.LatestTimes(64, idle=5.0, busy=1.0, order=())
    assert latest.seconds(64) == 6 and latest.seconds(640) == 15
    assert latest.seconds(8) == 6 and latest._replace(nbytes=0).seconds(2) == 7
