"""Measured times: clocks, rounds, noise, load of other processes, results."""

import os
import threading

import numpy
import pytest
from mpi4py import MPI
from unit.bench_results import result

from hpccoll.measure import clocks, load, noise, results, rounds, timing
from hpccoll.measure.cases import make
from hpccoll.measure.rounds import SurveyPlan, points
from hpccoll.measure.samples import in_turn
from hpccoll.tune.table import Candidate
from support.threads import run_ranks


# Pace and turns of candidates
def batches(settings, pace):
    done, spent, found = 0, 0.0, []
    while batch := timing.next_batch(settings, done, spent):
        found.append(batch)
        done += batch
        spent += batch * pace(done)
    return found, spent


def test_pace_keeps_the_budget():
    settings = timing.Settings(seconds=0.5)
    found, spent = batches(settings, lambda done: 1e-5)
    assert sum(found) == timing.MOST and len(found) >= timing.REPETITIONS
    found, spent = batches(settings, lambda done: 1e-3)
    assert 0.4 < spent < 0.6
    found, spent = batches(settings, lambda done: 1.0)
    assert sum(found) == timing.LEAST
    # The first iteration was lucky, the others are slow.
    found, spent = batches(settings, lambda done: 1e-6 if done < 2 else 0.05)
    assert sum(found) <= 2 * timing.LEAST


def test_candidates_take_turns_in_changing_order():
    names = list("abcd")
    orders = [in_turn(names, repetition) for repetition in range(40)]
    assert all(sorted(order) == names for order in orders)
    assert orders == [in_turn(names, repetition) for repetition in range(40)]
    after = {(one, two) for order in orders for one, two in zip(order, order[1:])}
    assert len(after) == 12 and {order[0] for order in orders} == set(names)


# Clocks of nodes, compared by messages
ask = clocks._ask


def test_one_rank_of_every_other_node_asks_and_all_its_ranks_know(monkeypatch):
    asked = []
    monkeypatch.setattr(clocks, "clock_name",
                        lambda: "aabb"[int(threading.current_thread().name.split()[-1])])
    monkeypatch.setattr(clocks, "_ask", lambda comm, stamp: asked.append(ask(comm, stamp)) or 7.0)
    assert run_ranks(4, clocks.seconds_ahead) == [0.0, 0.0, 7.0, 7.0]
    [found] = asked
    assert abs(found) < 1  # threads of one process read one clock


# Which candidates of a survey get another round
FLOAT = numpy.dtype("f4")


def test_one_disturbed_iteration_keeps_nobody_out():
    rough = [result("native", [9, 9, 9]), result("ring", [5, 99, 99]), result("linear", [30, 9, 9]),
             result("pat", [1, 1, 1], wrong=1)]
    case = make("allreduce", 4, 1024, FLOAT)
    near = rounds.nearby_candidates(rough, case, rounds.SurveyPlan())
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


def test_what_moves_together_is_not_noise():
    """Candidates take turns: a machine that slows down does so to all."""
    slower = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0]
    found = noise.spread(slower, [2 * t for t in slower])
    assert found == (0.5, 0.5) and not found.noisy
    assert noise.spread(slower, [1.0] * 10).noisy


@pytest.mark.parametrize("native, other, found", [
    ([877] * 10, [9.4] * 10, 877 / 9.4),               # as a busy machine once said
    ([20] * 10, [1] * 10, 0),                          # a true one: eager messages, shared cores
    ([3, 3, 5, 5, 16, 16, 25, 25, 40, 40], [1] * 10, 16.6),  # native itself moved
    ([2] * 10, [1] * 10, 0)])
def test_ratios_that_are_not_believed(native, other, found):
    assert noise.absurd([result("native", native), result("ring", other)]) == pytest.approx(
        found, rel=0.15)


@pytest.mark.parametrize("times, found", [
    ([(64, 385), (512, 385), (4 << 10, 95), (256 << 10, 95)], [385 / 95, 385 / 95, 0, 0]),
    ([(8, 29), (64, 10), (512, 30)], [0, 0, 0]),   # another protocol, or where turns are taken
    ([(8, 90), (16, 10)], [0, 0]),                 # a little more than 8 bytes says less
    ([(8, 110), (16, 10)], [11, 0]),
    ([(512, 10), (8, 40)], [4, 0][::-1]),          # in whatever order
    ([(8, 5), (64, 0)], [0, 0]), ([(0, 5)], [0]), ([], [])])
def test_a_size_that_took_much_longer_than_a_larger_one(times, found):
    assert noise.implausible_ratios(times) == pytest.approx(found)


# The share of the cores that other processes use, from texts of /proc/stat
STAT = "cpu  1 1 1 1\ncpu0 {busy} 0 0 500 0 7 7 0 0 0\ncpu1 0 0 0 900 0 0 0 0 0 0\nintr 5\n"


@pytest.fixture
def share(monkeypatch):
    """What is measured in 10 s on two cores, of which others keep some seconds busy."""
    def measured(before, after, own, elapsed=10.0):
        texts, used = iter((before, after)), iter((0.0, own))
        # Looked at when it starts, before it sleeps, and when it ends.
        clock = iter((5.0, 5.0 + elapsed, 5.0 + elapsed))
        monkeypatch.setattr(load, "_read",
                            lambda path: next(texts) if path == load._STAT else "1234-5678")
        monkeypatch.setattr(load, "monotonic", lambda: next(clock))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        monkeypatch.setattr(os, "sysconf", lambda _: 100)
        monkeypatch.setattr(os, "times", lambda: (next(used), 0.0, 0.0, 0.0, 0.0))
        return load.OtherLoad(MPI.COMM_SELF).share()
    return measured


def stat(seconds):
    return STAT.format(busy=round(100 * seconds))


def test_other_processes_are_what_ranks_did_not_use(share):
    assert share(stat(50), stat(58), own=2.0) == pytest.approx(6 / 20)


def test_ranks_that_fill_the_cores_are_no_others(share):
    assert share(stat(50), stat(60), own=10.0) == 0
    assert share(stat(50), stat(60), own=10.1) == 0  # times are rounded to ticks


# What of a survey is believed: times that cannot be are not in the table, and said
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
    found = noise.filter_times(measured("alltoall", native=[385, 385, 95, 95, 95],
                                  pairwise=[385 / 14.23, 385 / 14.23, 30, 40, 90]))
    assert found.doubtful == (("alltoall", 64, 0, pytest.approx(385 / 95), ""),
                              ("alltoall", 512, 0, pytest.approx(385 / 95), ""))
    (curve,) = found.curves.values()
    assert [nbytes for nbytes, _ in curve] == list(SIZES[2:]) and not found.failures


def test_only_what_was_late_is_left_out():
    found = noise.filter_times(measured("allreduce", native=[5, 6, 10, 30, 200],
                                  ring=[7, 80, 9, 20, 100]))
    assert found.doubtful == (("allreduce", 512, 0, pytest.approx(80 / 9), "ring"),)
    ((_, curve),) = found.curves.items()
    assert [set(times) for _, times in curve] == [{NATIVE, RING}, {NATIVE}] + 3 * [{NATIVE, RING}]


def test_one_that_was_not_tried_or_was_wrong_condemns_nobody():
    """A wrong result may have come too early."""
    survey = measured("allreduce", native=[50, 50, 60, 60, 70], ring=[50, 0, 1, 0, 50])
    survey[2][1][1] = survey[2][1][1]._replace(wrong=3)
    found = noise.filter_times(survey)
    assert not found.doubtful and found.failures == {("allreduce", RING): 3}
    assert all(NATIVE in times for curve in found.curves.values() for _, times in curve)


# Statistics of results
def test_statistics():
    one = result("native", [4, 1, 2, 3, 90])
    assert one.median == pytest.approx(3e-6)
    assert one.mean == pytest.approx(20e-6)
    assert one.algorithm_bandwidth(1e-3) == 1024e3
    assert one.bus_bandwidth(1e-3) == 1.5 * 1024e3
    assert results.ratios([one, result("ring", [6])]) == pytest.approx({"native": 1, "ring": 0.5})
    groups = [[result("native", [4]), result("ring", [2])],
              [result("native", [1]), result("ring", [8])]]
    assert results.mean_ratios(groups)["ring"] == pytest.approx((0.5, 2))
    assert results.ratios([result("ring", [1])]) == {}


def test_times_in_two_heaps_have_a_time_between_them():
    """As calls have that find the other ranks running, or have to wait for them."""
    rng = numpy.random.default_rng(1)
    runs = [rng.choice([2.0, 9.0], 400) + rng.normal(0, 0.1, 400) for _ in range(50)]
    medians, means = (numpy.array([measure(run) for run in runs])
                      for measure in (numpy.median, results.trimmed_mean))
    assert medians.max() > 4 * medians.min() and means.max() < 1.3 * means.min()
    assert means.mean() == pytest.approx(5.5, abs=0.2)


@pytest.mark.parametrize("seconds, mean", [
    ([3], 3), ([3, 5], 4), ([3, 99, 4], 4), ([0, 4, 5, 6, 99], 5), ([9, 1, 2, 3], 2.5),
    ([*range(20)], 9.5), ([0, 0, *[5] * 16, 99, 999], 5)])
def test_extremes_do_not_count(seconds, mean):
    assert results.trimmed_mean(seconds) == result("native",
                                                   [s * 1e6 for s in seconds]).trimmed_seconds == (
        pytest.approx(mean))
