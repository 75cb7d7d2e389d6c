"""Late ranks, noise and work between rounds, by closed forms."""

from random import Random
from statistics import mean, median

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ArgumentError
from hpccoll.simulator import simulate
from hpccoll.simulator.conditions import SimulatedConditions, delays, work_after_rounds
from hpccoll.simulator.machine_model import Level, Machine

FLAT = Machine("flat", (Level("network", 1e-6, 1e-9),), 1e-10)
PLAIN = {name: simulate(schedule("allreduce", name, 8), 8000, FLAT).seconds
         for name in ("ring", "recursive_doubling")}
ROUNDS = {"ring": 14, "recursive_doubling": 3}


def timed(name="ring", size=8, **conditions):
    return simulate(schedule("allreduce", name, size), 8000, FLAT,
                    conditions=SimulatedConditions(**conditions))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("rank", [0, 3, 7])
def test_all_wait_for_one(name, rank):
    """Nobody is done before the last one came and did all of its rounds."""
    found = timed(name, late=f"one:{rank}:500us")
    assert found.seconds == pytest.approx(5e-4 + PLAIN[name])
    assert (found.late_seconds, found.last_came) == (5e-4, 5e-4)
    assert "coming late  500 us" in found.as_text()
    assert "the last rank starts after 500 us" in found.as_text()


def test_who_comes_before_its_message_delays_nobody():
    made = schedule("bcast", "chain", 4)
    plain = simulate(made, 8000, FLAT)
    late = SimulatedConditions(late="list:0,0,0,15us")
    assert simulate(made, 8000, FLAT, conditions=late).seconds == plain.seconds
    later = SimulatedConditions(late="list:0,0,0,1ms")
    assert simulate(made, 8000, FLAT, conditions=later).seconds == pytest.approx(1e-3 + 9e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_noise_of_one_size_is_latency(name):
    for what in ("noise", "compute_noise"):
        found = timed(name, **{what: "uniform:3us:3us"})
        assert found.seconds == pytest.approx(PLAIN[name] + ROUNDS[name] * 3e-6)
    assert timed(name, noise="uniform:3us:3us").critical[0].latency == pytest.approx(
        ROUNDS[name] * 4e-6)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("fold", [True, False])
def test_work_after_rounds(name, fold):
    bytes_received = 2 * 7 * 1000 if name == "ring" else 3 * 8000
    found = simulate(schedule("allreduce", name, 8), 8000, FLAT, fold=fold,
                     conditions=SimulatedConditions(round_seconds=2e-6, byte_seconds=1e-9))
    assert found.seconds == pytest.approx(
        PLAIN[name] + ROUNDS[name] * 2e-6 + bytes_received * 1e-9)
    assert "8 ranks in 1 class" in found.folding or not fold


def test_the_critical_path_adds_up():
    found = timed(late="exponential:5us", noise="normal:3us:2us", compute_noise="uniform:1us",
                  round_seconds=1e-6)
    spent = sum(c.posting + c.latency + c.transfer + c.sharing for c in found.critical)
    assert spent + found.local_seconds + found.late_seconds == pytest.approx(found.seconds)


def test_draws_follow_from_the_seed():
    wild = dict(late="exponential:50us", noise="exponential:5us")
    assert timed(seed=1, **wild).seconds == timed(seed=1, **wild).seconds
    assert timed(seed=1, **wild).seconds != timed(seed=2, **wild).seconds
    # The same ranks come late by as much, whatever they are to do.
    assert timed("ring", **wild).last_came == timed("recursive_doubling", **wild).last_came


@pytest.mark.parametrize("repeat", [4, 5])
def test_repeats_give_the_median(repeat):
    wild = dict(late="exponential:50us", noise="exponential:5us")
    found = timed(repeat=repeat, seed=3, **wild)
    single = sorted(timed(seed=3 + number, **wild).seconds for number in range(repeat))
    assert list(found.repeats) == single
    assert found.seconds == single[(repeat - 1) // 2]
    assert found.seconds == median(single) or repeat % 2 == 0
    assert f"the median of {repeat} repeats" in found.as_text()
    assert f"seeds 3 to {2 + repeat}" in found.as_text()


@pytest.mark.parametrize(("text", "low", "middle", "high"), [
    ("uniform:20us", 0, 10e-6, 20e-6), ("uniform:5us:7us", 5e-6, 6e-6, 7e-6),
    ("normal:10us:1us", 0, 10e-6, 20e-6), ("exponential:10us", 0, 10e-6, 1),
    ("exponential:0", 0, 0, 0)])
def test_distributions(text, low, middle, high):
    drawn = delays("late", text).of_ranks(4000, Random(1))
    assert low <= min(drawn) and max(drawn) <= high
    assert mean(drawn) == pytest.approx(middle, rel=0.05)


def test_lists_and_single_ranks():
    assert delays("late", "list:0,5us,1ms", True).of_ranks(3, Random()) == [0, 5e-6, 1e-3]
    assert delays("late", "one:2:5us", True).of_ranks(4, Random()) == [0, 0, 5e-6, 0]
    assert work_after_rounds("--compute", "5us,2ns/B") == (5e-6, 2e-9)


@pytest.mark.parametrize(("conditions", "problem"), [
    (dict(late="often"), "late: .*'often'"),
    (dict(late="unifrom:2us"), "'uniform'"),
    (dict(late="uniform"), "late: .*parse"), (dict(late="one:x:2us"), "late: .*parse"),
    (dict(late="uniform:1us:2us:3us"), "late: .*parse"),
    (dict(late="uniform:2us:1us"), "above"),
    (dict(late="exponential:-1us"), "late: .*'-1us'"),
    (dict(late="exponential:1e400s"), "has no end"), (dict(late=3), "late: .*distrib"),
    (dict(noise="one:3:2us"), "noise: .*'one:3:2us'.*exponential:10us$"),
    (dict(compute_noise="list:1,2"), "compute_noise: .*parse"),
    (dict(round_seconds=-1), "round_seconds: .*seconds"),
    (dict(byte_seconds=True), "byte_seconds: .*seconds"),
    (dict(seed=1.5), "seed: .*integer"), (dict(repeat=0), "repeat: .*num"),
    (dict(repeat=2), "repeat: .*random"),
    (dict(late="one:1:2us", repeat=2), "random")])
def test_bad_conditions(conditions, problem):
    with pytest.raises(ArgumentError, match=problem):
        SimulatedConditions(**conditions)


def test_delays_for_other_ranks():
    with pytest.raises(ArgumentError, match="rank 8.*8 ranks"):
        timed(late="one:8:1us")
    with pytest.raises(ArgumentError, match="2 delays.*8 ranks"):
        timed(late="list:1,2")
    with pytest.raises(ArgumentError, match="conditions: .*SimulatedConditions"):
        simulate(schedule("allreduce", "ring", 8), 8, FLAT, conditions="late")
