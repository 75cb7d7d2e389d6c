"""Moments inside of calls: noted by the interpreter in order, in a ring, as what plans say."""

import time
import weakref

import numpy
import pytest
from unit.runtime.execution.test_tracks import TWO_WAYS

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import ALLREDUCE
from hpccoll.runtime.events import phase_events
from hpccoll.runtime.events.phase_events import (
    PHASE_BITS,
    PLAN_BITS,
    Activity,
    Moments,
    PhaseRecorder,
)
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.execution.compiled_plan import Instruction
from hpccoll.testing.loopback_direct import Direct
from hpccoll.testing.world import Problem, Seat, interleave
from hpccoll.transport.loopback import Loopback


def noted(name, size, segment=0, world=Loopback, repeated=False):
    """What each rank of an allreduce notes: phase by phase, by segment; and its phase_events."""
    made, world = schedule("allreduce", name, size), world(size)
    seats = [Seat(made, Problem(ALLREDUCE, size, [8]), rank, segment=segment)
             for rank in range(size)]
    executions = [seat.execution(world.endpoint(seat.rank), repeated) for seat in seats]
    found = [Moments() for _ in seats]
    for seat, execution, one in zip(seats, executions, found):
        seat.fill()
        execution.binder.noting = one.of(execution.plan)
    interleave(executions, 1)
    assert not [fault for seat in seats for fault in seat.faults()]
    told = []
    for one in found:
        steps = {}
        for where, what, _ in one.rows().tolist():
            steps.setdefault(where & (1 << PLAN_BITS) - 1, []).append(
                (what >> PHASE_BITS, PhaseRecorder.activity(what).name))
        told.append(steps)
    return told, found


def test_the_interpreter_notes_what_it_goes_over_to():
    told, found = noted("recursive_doubling", 2)
    for steps in told:
        assert steps == {0: [(0, "SENDING"), (0, "WAITING"), (0, "REDUCING"), (0, "OVER")]}
    for one in found:
        times = one.rows()[:, 2]
        assert (numpy.diff(times) >= 0).all() and times[0] > 0


def test_reductions_amid_a_wait_are_noted_too():
    told, _ = noted("recursive_doubling", 2, world=Direct)
    for steps in told:
        assert steps == {0: [(0, "SENDING"), (0, "WAITING"), (0, "REDUCING"), (0, "WAITING"),
                             (0, "OVER")]}


@pytest.mark.parametrize("repeated", [False, True])
def test_segments_and_phases_are_told_apart(repeated):
    told, found = noted("ring", 3, segment=1, repeated=repeated)
    for steps, one in zip(told, found):
        plan, = one.plans
        assert sorted(steps) == list(range(len(plan.segments))) and len(plan.segments) > 1
        for number, moments_ in steps.items():
            phases = [phase for phase, _ in moments_]
            assert phases == sorted(phases) and moments_[-1][1] == "OVER"
            assert set(phases) == set(range(len(plan.segments[number].program.phases)))


def test_every_lane_says_where_it_ends():
    told, found = noted(TWO_WAYS, 3)
    for steps, one in zip(told, found):
        [program] = one.as_json()["plans"][0]["programs"]
        assert {phase[0] for phase in program} == {0, 1}
        assert [kind for _, kind in steps[0]].count("OVER") == len(program)


@pytest.mark.parametrize("built", [False, True])
def test_the_last_rows_are_kept(monkeypatch, built):
    if not built:
        monkeypatch.setattr(phase_events, "_executor", None)
    one = Moments(4)
    for number in range(3):
        one.moment(0, number)()
    assert one.rows()[:, 1].tolist() == [0, 1, 2]
    for number in range(3, 11):
        one.moment(number, number)()
    assert one.rows()[:, 1].tolist() == [7, 8, 9, 10]
    assert (numpy.diff(one.rows()[:, 2]) >= 0).all()


@pytest.mark.parametrize("built", [False, True])
def test_what_is_done_amid_a_wait_is_noted_around_it(monkeypatch, built):
    if not built:
        monkeypatch.setattr(phase_events, "_executor", None)
    one, seen = Moments(4), []

    def function(*operands):
        seen.append((operands, len(one.rows())))
        if not operands:
            raise KeyError("no operands")
        return False

    call = PhaseRecorder(one, 3).around(function, (5, 2), Activity.REDUCING)
    assert call(1, "b") is None and seen == [((1, "b"), 1)]
    assert one.rows()[:, :2].tolist() == [
        list(PhaseRecorder(one, 3).words(5, 2, kind)) for kind in (Activity.REDUCING,
                                                                   Activity.WAITING)]
    with pytest.raises(KeyError, match="operands"):
        call()
    assert len(one.rows()) == 3


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
def test_what_notes_keeps_its_ring():
    one = Moments(1 << 10)
    ring, note = weakref.ref(one), one.moment(1, 2)
    del one
    assert ring() is not None
    note()
    assert ring().rows()[0, :2].tolist() == [1, 2]
    del note
    assert ring() is None


def test_plans_have_numbers_until_there_are_too_many(monkeypatch):
    monkeypatch.setattr(phase_events, "MOST_PLANS", 2)
    _, (found, *_) = noted("ring", 2)
    plan, one = found.plans[0], Moments(1)
    others = [plan._replace(depth=depth) for depth in (2, 3)]
    assert [one.of(each).plan for each in (plan, others[0], plan)] == [0, 1, 0]
    assert one.of(others[1]) is None and one.of(plan) is not None


def test_plain_data_says_what_numbers_mean():
    _, (one, *_) = noted("ring", 3)
    data = one.as_json()
    assert data["plans"] == [{"title": "allreduce ring size=3 nblocks=3", "depth": 1,
                              "segments": [0], "programs": [[[0, [1], [2]]] * 4]}]
    assert len(data["rows"]) == 3 * len(one.rows())
    words = one.of(one.plans[0]).words(5, 7, Activity.COPYING)
    assert words == (5, 7 << PHASE_BITS | Activity.COPYING)


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
def test_machine_code_notes_in_the_same_ring():
    from unit.runtime.execution.test_compiled import (  # it is skipped as a whole elsewhere
        compiled_plan,
        words,
    )
    code = words(*((Instruction.NOTE, 0, number, 10 * number) for number in range(6)),
                 (Instruction.END, 0))
    one, before = Moments(4), time.perf_counter_ns()
    one.moment(0, 7)()
    compiled_plan(code, moments=one.memory).run(0, 0)
    rows = one.rows()
    assert rows[:, 0].tolist() == [2, 3, 4, 5] and rows[:, 1].tolist() == [20, 30, 40, 50]
    assert before <= rows[0, 2] and (numpy.diff(rows[:, 2]) >= 0).all()
    assert rows[-1, 2] <= time.perf_counter_ns()


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
def test_machine_code_needs_a_ring():
    from unit.runtime.execution.test_compiled import compiled_plan, words
    code = words((Instruction.NOTE, 0, 1, 2), (Instruction.END, 0))
    with pytest.raises(ValueError, match="moment"):
        compiled_plan(code)
    for made in (phase_events._executor.moment, phase_events._executor.amid):
        numbers = (0, 3, *range(2 + (made is phase_events._executor.amid)))
        function = (print,) * (made is phase_events._executor.amid)
        with pytest.raises(ValueError, match="power"):
            made(*numbers, *function, None)
    for numbers in (3, 12, 16):
        with pytest.raises(ValueError, match="power"):
            compiled_plan(code, moments=numpy.zeros(numbers, "q"))
