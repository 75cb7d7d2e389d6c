"""Phases of calls: recorded by the interpreter in order, in the ring of events, as plans say."""

import time

import numpy
import pytest
from unit.runtime.execution.test_tracks import TWO_WAYS

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import ALLREDUCE
from hpccoll.runtime.events import phase_events, ring
from hpccoll.runtime.events.phase_events import (
    PHASE_BITS,
    PLAN_BITS,
    Activity,
    PhaseRecorder,
    Phases,
)
from hpccoll.runtime.events.ring import CALL, PHASE, SPAN, EventRing, events
from hpccoll.runtime.execution.built import BUILT
from hpccoll.runtime.execution.compiled_plan import Instruction
from hpccoll.testing.loopback_direct import Direct
from hpccoll.testing.world import Problem, Seat, interleave
from hpccoll.transport.loopback import Loopback


@pytest.fixture(autouse=True)
def forgotten():
    """A ring of a test is not that of the process."""
    yield
    events.cache_clear()


def noted(name, size, segment=0, world=Loopback, repeated=False):
    """What each rank of an allreduce records: phase by phase, by segment; and its phases."""
    events.cache_clear()
    made, world = schedule("allreduce", name, size), world(size)
    seats = [Seat(made, Problem(ALLREDUCE, size, [8]), rank, segment=segment)
             for rank in range(size)]
    executions = [seat.execution(world.endpoint(seat.rank), repeated) for seat in seats]
    found = [Phases() for _ in seats]
    for seat, execution, one in zip(seats, executions, found):
        seat.fill()
        execution.binder.noting = one.of(execution.plan)
    interleave(executions, 1)
    assert not [fault for seat in seats for fault in seat.faults()]
    told = []
    for one in found:
        steps = {}
        for where, what in numpy.array(one.as_json()["rows"]).reshape(-1, 3)[:, :2].tolist():
            steps.setdefault(where & (1 << PLAN_BITS) - 1, []).append(
                (what >> PHASE_BITS, Activity(what & (1 << PHASE_BITS) - 1).name))
        told.append(steps)
    return told, found


def test_the_interpreter_notes_what_it_goes_over_to():
    told, found = noted("recursive_doubling", 2)
    for steps in told:
        assert steps == {0: [(0, "SENDING"), (0, "WAITING"), (0, "REDUCING"), (0, "OVER")]}
    for one in found:
        times = numpy.array(one.as_json()["rows"])[2::3]
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
        [(_, plan)] = one.plans.values()
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


def written(number=0):
    """The numbers of a plan and of what it does, event by event, of a plan's number on."""
    found = events().events(PHASE)
    return [(int(event["what"]), int(event["detail"])) for event in found
            if event["what"] >> PLAN_BITS >= number]


def python_ring(monkeypatch, built):
    """A new ring, written by Python alone if it is not built."""
    events.cache_clear()
    if not built:
        monkeypatch.setattr(ring, "_executor", None)


@pytest.mark.parametrize("built", [False, True])
def test_the_last_events_are_kept(monkeypatch, built):
    if not built:
        monkeypatch.setattr(ring, "_executor", None)
    one = EventRing(4)
    for number in range(3):
        one.phase(0, number)()
    assert one.events(PHASE)["detail"].tolist() == [0, 1, 2] and not one.is_full
    for number in range(3, 11):
        one.phase(number, number)()
    found = one.events(PHASE)
    assert found["detail"].tolist() == [7, 8, 9, 10] and one.is_full
    assert (numpy.diff(found["start"]) >= 0).all() and not len(one.events(CALL))


@pytest.mark.parametrize("built", [False, True])
def test_all_fields_are_kept(monkeypatch, built):
    if not built:
        monkeypatch.setattr(ring, "_executor", None)
    one = EventRing(2)
    one.add(SPAN, 1, 2, 3, 4, 5, 6, 1 << 40, 0.5)
    assert one.events(SPAN).tolist() == [(1, 2, SPAN, 3, 4, 5, 6, 1 << 40, 0.5)]
    assert one.kind("a") == one.kind("a") == 1 and one.kind("b") == 2


@pytest.mark.parametrize("built", [False, True])
def test_what_is_done_amid_a_wait_is_recorded_around_it(monkeypatch, built):
    python_ring(monkeypatch, built)
    seen = []

    def function(*operands):
        seen.append((operands, len(written())))
        if not operands:
            raise KeyError("no operands")
        return False

    recorder = PhaseRecorder(3)
    call = recorder.around(function, (5, 2), Activity.REDUCING)
    assert call(1, "b") is None and seen == [((1, "b"), 1)]
    assert written() == [recorder.words(5, 2, kind)
                         for kind in (Activity.REDUCING, Activity.WAITING)]
    with pytest.raises(KeyError, match="operands"):
        call()
    assert len(written()) == 3


def test_plans_have_numbers_until_there_are_too_many(monkeypatch):
    monkeypatch.setattr(phase_events, "MOST_PLANS", 2)
    _, (found, *_) = noted("ring", 2)
    [(_, plan)], one = found.plans.values(), Phases()
    others = [plan._replace(depth=depth) for depth in (2, 3)]
    first, second, again = (one.of(each).plan for each in (plan, others[0], plan))
    assert again == first < second
    assert one.of(others[1]) is None and one.of(plan) is not None


def test_plain_data_says_what_numbers_mean():
    _, (one, other, _) = noted("ring", 3)
    data = one.as_json()
    assert data["plans"] == [{"title": "allreduce ring size=3 nblocks=3", "depth": 1,
                              "segments": [0], "programs": [[[0, [1], [2]]] * 4]}]
    rows = numpy.array(data["rows"]).reshape(-1, 3)
    assert len(rows) and set(rows[:, 0].tolist()) == {0} and data["whole"]
    assert len(rows) + len(other.as_json()["rows"]) // 3 < len(events().events(PHASE))
    number = one.of(next(iter(one.plans.values()))[1]).plan
    words = PhaseRecorder(number).words(5, 7, Activity.COPYING)
    assert words == (number << PLAN_BITS | 5, 7 << PHASE_BITS | Activity.COPYING)


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
def test_machine_code_writes_to_the_same_ring():
    from unit.runtime.execution.test_compiled import (  # it is skipped as a whole elsewhere
        compiled_plan,
        words,
    )
    code = words(*((Instruction.NOTE, 0, number, 10 * number) for number in range(6)),
                 (Instruction.END, 0))
    one, before = EventRing(4), time.perf_counter_ns()
    one.phase(0, 7)()
    compiled_plan(code).run(0, 0)
    rows = one.events(PHASE)
    assert rows["what"].tolist() == [2, 3, 4, 5] and rows["detail"].tolist() == [20, 30, 40, 50]
    assert before <= rows["start"][0] and (numpy.diff(rows["start"]) >= 0).all()
    assert rows["start"][-1] <= time.perf_counter_ns()


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
@pytest.mark.parametrize("nbytes", [0, 64, 4 * 64, 2 * 64 + 8])
def test_machine_code_checks_its_ring(nbytes):
    other = numpy.zeros(8, "q")
    with pytest.raises(ValueError, match="power"):
        ring._executor.set_ring(numpy.zeros(nbytes, "u1"), other, other)
