"""How near ``auto`` comes to the best candidate."""

import io
import json
from contextlib import nullcontext

import numpy
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from rich.console import Console
from unit.bench_results import result, written

from hpccoll.tools.bench import formats, regret, report


def auto(serves, microseconds, **changes):
    return result("auto", microseconds, serves=serves, **changes)


def test_auto_is_the_algorithm_that_it_runs():
    near = regret.regret_of([auto("ring", [5, 6, 5, 6]), result("ring", [4, 4, 4, 4]),
                              result("native", [4.8] * 4)])
    # Together 4.7, and the best but for noise; alone it would be 1.38 times slower.
    assert near[:4] == ("allreduce", 1024, "ring", pytest.approx(28e-6 / 6))
    assert near.again == pytest.approx(5.5 / 4)
    assert near.ratio == pytest.approx(1, abs=0.12)
    best = regret.regret_of([auto("ring", [2, 3] * 4), result("ring", [2, 2] * 4),
                              result("native", [9] * 8)])
    assert (best.best, best.ratio) == ("ring", 1.0)


def test_auto_pays_for_its_way_to_native():
    near = regret.regret_of([auto("native", [3] * 6), result("native", [2] * 6),
                              result("ring", [4] * 6)])
    assert near.ratio == pytest.approx(1.5) and near.best == "native" and near.again is None
    assert near.is_within(0.5) and not near.is_within(0.49)


def test_the_choice_is_judged_by_native_forwarded():
    group = [auto("native", [3, 5] * 3), result("native", [1] * 6), result("forwarded", [4] * 6),
             result("ring", [6] * 6)]
    near = regret.regret_of(group)
    assert near[2:6] == ("native", pytest.approx(4e-6), "native", 1.0)
    assert near.again == pytest.approx(1)
    # Forwarded, native is what auto could have had.
    lost = regret.regret_of([auto("ring", [6] * 6), *group[1:]])
    assert lost.best == "native" and lost.ratio == pytest.approx(1.5)
    # Two candidates that count are needed.
    assert regret.regret_of(group[:3]) is None


def test_the_best_is_found_and_timed_by_different_iterations():
    rng = numpy.random.default_rng(1)
    ratios = []
    for _ in range(60):
        noisy = {name: rng.lognormal(0, 0.3, 40) for name in ("auto", *"abcdefgh")}
        group = [result(name, times, serves="a" if name == "auto" else name)
                 for name, times in noisy.items()]
        ratios.append(regret.regret_of(group).ratio)
    # All are equally fast; compared with the smallest median, auto would lose by far.
    assert numpy.exp(numpy.mean(numpy.log(ratios))) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("group", [
    [], [result("native", [1, 1]), result("ring", [2, 2])],
    [auto("ring", [1, 1]), result("ring", [2, 2])],
    [auto("ring", [1, 1]), result("native", [1, 1]), result("gloo", [2, 2])],
    [auto("ring", [1, 1]), result("native", [1, 1]), result("ring", [2, 2], wrong=1)],
    [result("auto", [1, 1], serves="ring", wrong=1), result("native", [1, 1]),
     result("ring", [2, 2])],
    [auto("ring", [1]), result("native", [1]), result("ring", [2])]])
def test_what_is_no_point(group):
    assert regret.regret_of(group) is None
    assert regret.summary([group], 0.1) is None and regret.lines([group], 0.1) == []


def test_points_that_were_missed_are_named():
    groups = [[auto("ring", [2] * 4, nbytes=nbytes), result("ring", [2] * 4, nbytes=nbytes),
               result("native", [native] * 4, nbytes=nbytes)]
              for nbytes, native in ((8, 1), (16, 1.9), (32, 3))]
    found = regret.summary(groups, 0.1)
    assert (found["points"], found["within"], len(found["missed"])) == (3, 2, 1)
    assert found["missed"][0]["nbytes"] == 8 and found["missed"][0]["ratio"] == pytest.approx(2)
    assert (found["same"], found["same_within"]) == (3, 3)
    said = ["auto within 10 % of the best candidate at 2 of 3 points",
            "noise: the same algorithm, as auto and by name, agreed within that at 3 of 3 points",
            "exception: allreduce, 8 bytes: auto (ring) takes 2.00 times as long as native"]
    assert regret.lines(groups, 0.1) == said
    output, record = io.StringIO(), io.StringIO()
    written(report.TableReport(Console(file=output, width=200)), groups)
    assert all(f"# {line}\n" in output.getvalue() for line in said)
    written(formats.Json(lambda: nullcontext(record), {}, 1.5), groups)
    assert json.loads(record.getvalue())["auto"] == {
        "tolerance": 1.5, "points": 3, "within": 3, "same": 3, "same_within": 3, "missed": []}
