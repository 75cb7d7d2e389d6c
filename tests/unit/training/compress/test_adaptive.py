"""Adaptive: every choice is tried, all ranks decide alike, and only what pays is taken."""

import threading
from collections import defaultdict

import numpy
import pytest
from unit.training.compress.runs import drifting

from hpccoll.training.compress import adaptive
from hpccoll.training.compress.adaptive import Adaptive
from hpccoll.training.compress.bf16 import Bf16
from hpccoll.training.compress.int8 import Int8
from hpccoll.training.compress.onebit import OneBit
from hpccoll.training.compress.powersgd import PowerSgd
from support.threads import run_ranks

COUNT = 541


def test_the_plan_of_trials():
    scheme = Adaptive((Bf16(), PowerSgd(dense_steps=4)), trials=2)
    assert [scheme.turns(one) for one in scheme.candidates] == [3, 3, 7]
    assert scheme.settling == 13


@pytest.mark.parametrize("seconds, margin, best", [
    ([10, 9, 3, 5], 0.05, 2), ([10, 9.8, 11, 12], 0.05, 0), ([10, 9.8, 11, 12], 0, 1),
    ([1, 2, 3, 4], 0, 0), ([10, 9, 9, 12], 0, 1)])
def test_what_pays(seconds, margin, best):
    def work(comm):
        mine = Adaptive(margin=margin).start(comm, [(9,)])
        mine.times[0], mine.times[1] = numpy.array(seconds) / 4, -0.75 * numpy.array(seconds)
        return mine.best()

    assert run_ranks(1, work) == [best]


class Clocks:
    """Stands in for ``time``: one clock for every thread, that is, rank."""

    def __init__(self):
        self.now = defaultdict(float)

    def perf_counter(self):
        return self.now[threading.get_ident()]

    def pass_by(self, seconds):
        self.now[threading.get_ident()] += seconds


@pytest.fixture
def clocks(monkeypatch):
    found = Clocks()
    monkeypatch.setattr(adaptive, "time", found)
    return found


class Tardy(OneBit):
    """1-bit whose coding takes a second for every rank before this one, on a clock."""

    clocks = None

    def generator(self, step, count, rank, phase):
        self.clocks.pass_by(float(rank))


@pytest.mark.parametrize("link, chosen", [
    (1.0, "onebit"), (0.004, "onebit"), (0.002, "none"), (1e-4, "none")])
def test_slow_links_want_fewer_bytes_and_fast_ones_no_work(clocks, monkeypatch, link, chosen):
    """Flight takes so long a byte, and on the ranks that come early longer; work takes 2, 4 s."""
    monkeypatch.setattr(Tardy, "clocks", clocks)
    scheme = Adaptive((Tardy(block=32),), trials=2)

    def work(comm):
        mine = scheme.start(comm, [(COUNT,)])
        given, out, seen = 0, 0, []
        for step in range(scheme.settling + 3):
            values = drifting(comm.rank, step, COUNT)
            given = given + values
            seen.append((mine.current.scheme.name, mine.chosen is None))
            nbytes = mine.current.wire_bytes()
            for request in mine.reduce(values):
                request.Wait()
                clocks.pass_by(link * nbytes / 2 + 5.0 * (2 - comm.rank))
            out = out + values
        held = mine.held()
        return mine.chosen.name, seen, given, out, 0 if held is None else held

    ran = run_ranks(3, work)
    for one in ran:
        assert one[0] == chosen
        assert one[1] == [("none", True)] * 3 + [("onebit", True)] * 3 + [(chosen, False)] * 3
    given, held = (sum(one[place] for one in ran) / 3 for place in (2, 4))
    assert numpy.abs(given - ran[0][3] - held).max() < 1e-6
    assert (numpy.abs(held).max() > 0) == (chosen == "onebit")


def test_a_state_keeps_what_is_held_back_and_trials_begin_anew():
    scheme = Adaptive((OneBit(block=32), Int8()), trials=1)

    def work(comm):
        first, second = (scheme.start(comm, [(COUNT,)]) for _ in range(2))
        given, out = 0, 0
        for step in range(12):
            mine = first if step < 4 else second
            if step == 4:
                state = first.state()
                second.load(state)
                assert list(state) == ["error"] and second.tried == 0
            values = drifting(comm.rank, step, COUNT)
            given = given + values
            for request in mine.reduce(values):
                request.Wait()
            out = out + values
        assert second.tried == 3
        held = second.held()
        return given, out, 0 if held is None else held

    ran = run_ranks(3, work)
    given, held = (sum(one[place] for one in ran) / 3 for place in (0, 2))
    # int8, which may have been chosen or tried, loses up to half a step for good.
    steps = 2 * 840 * 60 / 127 * 12
    assert numpy.abs(given - ran[0][1] - held).max() < steps < numpy.abs(given).max()


def test_a_choice_that_has_settled_does_not_settle_again(monkeypatch):
    scheme = Adaptive((PowerSgd(dense_steps=3), Int8()), trials=1)
    monkeypatch.setattr(adaptive._AdaptiveReduction, "best", lambda self: 1)

    def work(comm):
        mine = scheme.start(comm, [(30, 40)])
        for step in range(scheme.settling):
            for request in mine.reduce(drifting(comm.rank, step, 1200)):
                request.Wait()
        return mine.chosen, mine.wire_bytes()

    chosen = PowerSgd(dense_steps=3)
    assert run_ranks(2, work) == [(chosen, chosen.wire_bytes([(30, 40)], 2))] * 2
