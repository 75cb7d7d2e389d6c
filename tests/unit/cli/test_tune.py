"""``hpccoll tune`` and algorithms of one's own: which are measured, shown, and noted."""

from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from hpccoll.cli import tune
from hpccoll.cli.options import parse_algorithm
from hpccoll.errors import ArgumentError
from hpccoll.measure.survey import Survey
from hpccoll.measure.survey_plan import SurveyPlan
from hpccoll.tools import tuning_report
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate, Fingerprint, read

TORUS = str(Path(__file__).resolve().parents[3] / "examples" / "torus.py") + ":TORUS"
MACHINE = Fingerprint("MPI 1", "host", 4, "4", False)


def test_ones_own_are_planned_for_their_collective():
    plan = tune._add_algorithms(SurveyPlan(), (parse_algorithm(f"{TORUS}:x=2"),), {"y": 2, "z": 1},
                                4, False)
    assert plan.collectives == ("allreduce",)
    assert plan.brought == {"allreduce": (Candidate(TORUS, (("x", 2), ("y", 2), ("z", 1))),)}
    assert tune._add_algorithms(SurveyPlan(), (), {}, 4, False) == SurveyPlan()


@pytest.mark.parametrize("words, params, message", [
    ((TORUS,), {}, "x, y, z"), ((TORUS,), {"x": 2, "y": 2, "z": 2}, "support 4"),
    (("ring",), {}, "user-defined"), ((), {"x": 2}, "requires")])
def test_mistakes_are_found_before_anything_is_measured(words, params, message):
    with pytest.raises(ArgumentError, match=message):
        tune._add_algorithms(SurveyPlan(), tuple(map(parse_algorithm, words)), params, 4, False)


def test_ones_own_are_shown_but_not_noted(tmp_path):
    """A table is data: a job that reads it runs no code that it names."""
    path, own = tmp_path / "table.json", Candidate(TORUS, (("x", 4),))
    times = {Candidate("native"): 3e-6, Candidate("ring"): 2e-6, own: 4e-6}
    outcome = Survey(MACHINE, {("allreduce", True): ((64, times),)}, {}, False)
    shown, stayed = tune._add(str(path), MACHINE, outcome, False)
    assert not stayed
    assert shown[("allreduce", True)][0][1][own] == 4e-6
    assert "torus" not in path.read_text() and set(read(path)[MACHINE]) == {("allreduce", True)}
    lines = tuning_report.lines(MACHINE, tuning_report.fastest_candidates(shown, JobTimes(shown)),
                                ())
    assert "ratio  torus.py:TORUS" in lines[1] and lines[2].endswith("1.50            4 us")
    assert "# torus.py:TORUS: its time, which is not saved" in lines
