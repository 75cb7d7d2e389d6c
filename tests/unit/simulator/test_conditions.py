"""Runs of the simulator: conditions, events, symmetry and effort."""

from dataclasses import replace
from random import Random
from statistics import mean, median

import pytest

import hpccoll
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.schedule import Program, Schedule, at, copy, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.conditions import SimulatedConditions, delays
from hpccoll.simulator.effort import (
    ESTIMATE,
    MESSAGES,
    MOST,
    PROGRAMS,
    check,
    effort,
)
from hpccoll.simulator.machine_model import Level, Machine

# Late ranks, noise and work between rounds, by closed forms
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


# The event loop: processors, headers, messages that do not meet
A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
EVENT_LOOP_FLAT = Machine("flat", (Level("network", A, B),), G)


def test_overhead_keeps_the_processor():
    machine = Machine("m", (Level("network", A, B, overhead=1e-6),))
    found = simulate(schedule("gather", "linear", 5), 0 + 5e3, machine)
    # The root posts four receives, one after the other; the last message starts after them.
    assert found.seconds == pytest.approx(4e-6 + A + 1e3 * B, rel=0.2)
    assert sum(cost.posting for cost in found.critical) > 0


def test_headers_are_on_the_way_but_no_bytes_of_a_message():
    machine = Machine("m", (Level("network", A, B, link=1 / B, header=500), Level("node", A, B)))
    pairs = schedule("allgather", "rails", topology="2x4")  # first across, all four ranks of a node
    across, inside = 4 * (1e3 + 500) * B, 2 * A + 6 * 1e3 * B
    found = simulate(pairs, 8e3, machine)
    assert found.seconds == pytest.approx(A + across + inside)
    assert found.level_bytes == simulate(pairs, 8e3, replace(machine, levels=tuple(
        replace(level, header=0) for level in machine.levels))).level_bytes
    # A message of nothing else takes its time, too.
    barrier = simulate(schedule("barrier", "dissemination", 2), 0, machine, "2x1")
    assert barrier.seconds == pytest.approx(A + 500 * B)


def test_a_deadlock_is_named():
    def stuck(rank, size):
        return Program(((recv((rank + 1) % size, at(OUT, 0)),),))

    with pytest.raises(ScheduleError, match="rank 0.*round 0.*1 message"):
        simulate(schedule("allgather", stuck, 3), 8, EVENT_LOOP_FLAT)


def test_messages_of_unequal_size_are_named():
    def wrong(rank, size):
        return Program(((copy(at(OUT, 0), at(IN, 0)),),
                        (send(1, at(OUT, 0)),) if rank == 0 else (recv(0, at(OUT, 0, 2)),)))

    with pytest.raises(ScheduleError, match="rank 1.*8 bytes.*round 0.*4"):
        simulate(schedule("allgather", wrong, 2), 8, EVENT_LOOP_FLAT)


def test_rounds_that_cut_messages_differently():
    """One round sends two messages to a peer that receives them in two rounds."""
    def cut(rank, size):
        if rank == 0:
            return Program(((send(1, at(OUT, 0)), send(1, at(OUT, 1))),))
        return Program(((recv(0, at(OUT, 0)),), (recv(0, at(OUT, 1)),)))

    made = Schedule(COLLECTIVES["bcast"], "cut", 2, lambda rank: cut(rank, 2), nblocks=2)
    assert simulate(made, 2e6, EVENT_LOOP_FLAT).seconds == pytest.approx(2 * A + 2e6 * B)


@pytest.mark.slow
def test_what_would_never_end_is_refused():
    made = schedule("alltoall", "pairwise", 30_000)
    with pytest.raises(ArgumentError, match=r"30,000 .*1,799,\d+,\d+"):
        check(effort(Workload(made, 1000), 30_000), made.title)
    assert MOST < 1_799_000_000


def test_it_is_told_how_far_it_is():
    told = []
    simulate(schedule("allreduce", "recursive_doubling", 300), 1e6, "hdr", "100,120,80",
             progress=lambda *words: told.append(words))
    stages = list(dict.fromkeys(stage for stage, *_ in told))
    assert stages[:2] == [ESTIMATE, PROGRAMS] and set(stages) <= {ESTIMATE, PROGRAMS, MESSAGES}
    parts = [part for stage, part, _ in told if stage != ESTIMATE]
    assert all(0 <= part <= 1 for part in parts)


# Symmetries: what is found, and that folding changes nothing
A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
SYMMETRY_FLAT = Machine("flat", (Level("network", A, B),), G)
#: Two levels; the link of a node lets one rank out at full speed, and a bus slows the inside.
SHARED = Machine("shared", (Level("network", 2e-6, 1 / 10e9, link=13e9, bus=70e9, overhead=3e-7),
                            Level("node", 5e-7, 1 / 6e9, link=40e9, bus=17e9),
                            Level("socket", 3e-7, 1 / 9e9, overhead=1e-7)), G, 1 / 15e9)

#: The same, but no processor is busy with posting.
AT_ONCE = Machine("at once", tuple(replace(level, overhead=0.0) for level in SHARED.levels),
                  G, 1 / 15e9)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("layout", ["6", "2x4", "3x4", "2x2x2", "3x2x3", "3,5"])
@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_folding_changes_nothing(collective, layout):
    """On a machine where everything is shared and slow, so that any wrong count shows."""
    topology = Topology.parse(layout)
    for name, entry in ALGORITHMS[collective].items():
        made = (schedule(collective, name, topology=topology) if entry.hierarchical
                else schedule(collective, name, topology.size))
        folded = simulate(made, 3e5, SHARED, topology)
        alone = simulate(made, 3e5, SHARED, topology, fold=False)
        assert folded.seconds == pytest.approx(alone.seconds, rel=1e-9), made.title
        assert folded.level_bytes == pytest.approx(alone.level_bytes)
        assert folded.messages == alone.messages
        assert folded.idle[:3] == pytest.approx(alone.idle[:3], rel=1e-6, abs=1e-12)
        for load, other in zip(sorted(folded.busiest), sorted(alone.busiest)):
            assert load.utilisation == pytest.approx(other.utilisation)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["6", "2x4", "3x4", "5x8"])
@pytest.mark.parametrize(("collective", "name"), [
    ("reduce_scatter", "linear"), ("allreduce", "allpairs"), ("alltoall", "linear")])
def test_messages_posted_at_once_may_be_in_any_order(collective, name, layout):
    made = schedule(collective, name, Topology.parse(layout).size)
    for machine in (SYMMETRY_FLAT, AT_ONCE, "hdr", "dgx-h100"):
        folded = simulate(made, 3e5, machine, layout)
        assert "in 1 class " in folded.folding
        assert folded.seconds == simulate(made, 3e5, machine, layout, fold=False).seconds


def test_messages_posted_in_turn_are_in_order():
    made = schedule("allreduce", "allpairs", 8)
    assert SHARED.posts_in_turn and not AT_ONCE.posts_in_turn
    folded = simulate(made, 3e5, SHARED, "2x4")
    assert "each timed on its own" in folded.folding
    assert folded.seconds == simulate(made, 3e5, SHARED, "2x4", fold=False).seconds


@pytest.mark.parametrize(("collective", "name", "layout", "symmetry"), [
    ("allreduce", "ring", "12", "12+"), ("allreduce", "ring", "4x3", "4+x3"),
    ("allreduce", "recursive_doubling", "4x4", "4^x4^"),
    ("allreduce", "rails", "6x2x4", "6+x2+x4+"), ("allreduce", "multi_leader", "5x4", "5+x4"),
    ("allreduce", "leader", "8x3", "8^x3"), ("alltoall", "two_phase", "5x4", "5+x4^"),
    ("allgather", "rails", "5x4", "5+x4+"), ("barrier", "dissemination", "3x5", "3+x5")])
def test_symmetries_that_are_found(collective, name, layout, symmetry):
    made = (schedule(collective, name, topology=layout)
            if ALGORITHMS[collective][name].hierarchical
            else schedule(collective, name, Topology.parse(layout).size))
    assert f"symmetry {symmetry}, checked on all ranks" in simulate(
        made, 4096, SHARED, layout).folding


def test_one_rank_that_does_something_else_is_not_folded():
    def ring_but_one(rank, size):
        program = hpccoll.schedule("allgather", "ring", size).program(rank)
        extra = ((send(1, at(OUT, 0)),) if rank == 0 else (recv(0, at(OUT, 0)),)
                 if rank == 1 else ())
        return program._replace(rounds=(*program.rounds, extra))

    found = simulate(schedule("allgather", ring_but_one, 6), 6e4, SYMMETRY_FLAT)
    assert "each timed on its own" in found.folding
    assert found.seconds == pytest.approx(6 * (A + 1e4 * B))
