"""How near ``auto`` comes to the best candidate."""


import numpy
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from unit.bench_results import result

from hpccoll.tools.bench import regret


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
