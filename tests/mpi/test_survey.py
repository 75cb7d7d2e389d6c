"""A survey of all candidates: what is tried, repeated, left out, and when it ends."""

from dataclasses import replace

import pytest
from mpi.cases import believe
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.ir.schedule import Program
from hpccoll.ir.topology import Topology
from hpccoll.measure import rounds, survey
from hpccoll.runtime.attributes import existing_context
from hpccoll.tune.table import Candidate, fingerprint

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
alone = pytest.mark.skipif(WORLD.size == 1, reason="one rank has nothing to choose")
NATIVE, RING = Candidate("native"), Candidate("ring")


@pytest.fixture(autouse=True)
def believed(monkeypatch):
    """On a busy machine a point may have times that are not believed, and be left out."""
    believe(monkeypatch)


def machine():
    """What the tests run on."""
    comm = hpccoll.Comm(WORLD.Dup())
    assert comm.layout.size == WORLD.size
    context = existing_context(comm)
    found = fingerprint(context.topology, context.place.oversubscribed)
    comm.Free()
    return found


def measured(plan, **given):
    """A survey of ``hpccoll.Comm``."""
    return survey.survey(WORLD, plan, hpccoll.Comm, **given)


@pytest.mark.parametrize("busy", [(), (0,), (1, 2)])
def test_what_was_measured_on_a_busy_machine_is_measured_again(monkeypatch, busy):
    """Around the points of these numbers, when they are begun first, barriers take long."""
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(survey.Surveyor, "_barrier", barrier := FakeBarrier(busy))
    begun, begin = [], survey.Surveyor.begin

    def counted(surveyor, numbers, part):
        begun.append(numbers[0])
        barrier.number = numbers[0] if numbers[0] not in begun[:-1] else None
        begin(surveyor, numbers, part)

    monkeypatch.setattr(survey.Surveyor, "begin", counted)
    outcome = measured(rounds.SurveyPlan(("bcast",), (8, 64, 512), 20.0, thorough=False))
    assert begun == [0, 1, 2, *busy] and not outcome.interrupted
    if WORLD.rank == 0:
        (curve,) = outcome.curves.values()
        assert [nbytes for nbytes, _ in curve] == [8, 64, 512]


def test_a_later_round_on_a_busy_machine_does_not_count(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(rounds, "CLOSE", 1e6)
    monkeypatch.setattr(survey.Surveyor, "_barrier", barrier := FakeBarrier((None,)))
    resumed, resume = [], survey.Surveyor.resume

    def watched(surveyor, numbers, part):
        barrier.number = None if len(resumed) % 2 else -1
        before = len(surveyor.rounds.get(numbers[0], ()))
        resume(surveyor, numbers, part)
        resumed.append(len(surveyor.rounds.get(numbers[0], ())) - before)

    monkeypatch.setattr(survey.Surveyor, "resume", watched)
    barrier.number = -1
    measured(rounds.SurveyPlan(("bcast",), (8,), 20.0, thorough=False))
    assert resumed == ([1, 0, 1, 0] if WORLD.rank == 0 else [0] * survey.MORE)


@alone
def test_a_size_that_took_longer_than_a_larger_one_is_measured_again(monkeypatch):
    """Native was late at the second size; at the first another was, which is no reason."""
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(survey.Surveyor, "_barrier", FakeBarrier(()))
    monkeypatch.setattr(survey, "late", lambda found: [{"ring": 5.0}, {"native": 4.0}, {}][
        :len(found)])
    begun, begin = [], survey.Surveyor.begin
    monkeypatch.setattr(survey.Surveyor, "begin", lambda surveyor, numbers, part: (
        begun.append(numbers[0]), begin(surveyor, numbers, part)))
    measured(rounds.SurveyPlan(("bcast",), (8, 64, 512), 20.0, thorough=False))
    assert begun == [0, 1, 2, 1]


@pytest.mark.skipif(WORLD.size % 2 or WORLD.size < 4, reason="two nodes of several ranks")
@pytest.mark.parametrize("nodes, thorough, expected", [
    (1, False, ()), (1, True, rounds.SEGMENTS), (2, False, rounds.BETWEEN)])
def test_segments_depend_on_time_and_nodes(monkeypatch, nodes, thorough, expected):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    layout = Topology.parse(f"2x{WORLD.size // 2}", WORLD.size) if nodes == 2 else None
    plan = rounds.SurveyPlan(("allreduce",), (rounds.SEGMENTED,), 20.0, thorough)
    outcome = measured(plan, topology=layout)
    if WORLD.rank == 0:
        ((_, times),) = outcome.curves["allreduce", True]
        assert {candidate.segment_bytes for candidate in times} == {0, *expected}


class FakeBarrier:
    """Stands for a barrier, which takes long while the number of the point is one of ``busy``."""

    def __init__(self, busy):
        self.busy, self.number = busy, None

    def __get__(self, surveyor, _):
        surveyor.fastest_barrier = 1e-6
        return lambda: 1.0 if self.number in self.busy else 1e-6


@alone
def test_a_survey_ends_when_its_time_is_spent():
    plan = rounds.SurveyPlan(("allreduce", "bcast"), (8, 64, 512), 1e-9, True)
    outcome = measured(plan)
    assert not outcome.interrupted and outcome.curves == {} and outcome.failures == {}
    assert outcome.machine == machine()


@alone
def test_candidates_that_are_wrong_are_left_out(monkeypatch):
    broken = replace(ALGORITHMS["allreduce"]["ring"], build=lambda rank, size: Program(()))
    monkeypatch.setitem(ALGORITHMS["allreduce"], "ring", broken)
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    outcome = measured(rounds.SurveyPlan(("allreduce",), (64,), 20.0, False))
    assert outcome.failures["allreduce", RING] > 0
    if WORLD.rank == 0:
        ((_, times),) = outcome.curves["allreduce", True]
        assert NATIVE in times and RING not in times


@alone
def test_parameters_and_segments_are_tried_too(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(rounds, "NEAR", 1e9)  # whoever is fast today
    plan = rounds.SurveyPlan(("bcast",), (64, 2 << 20), 60.0, True)
    outcome = measured(plan)
    if WORLD.rank == 0:
        (_, small), (_, large) = outcome.curves["bcast", True]
        assert Candidate("knomial", (("k", 2),)) in small
        assert any(candidate.segment_bytes for candidate in large)
        assert not any(candidate.segment_bytes for candidate in small)


@alone
def test_operators_that_do_not_commute_have_times_of_their_own(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    outcome = measured(rounds.SurveyPlan(("allreduce", "reduce", "bcast"), (64,), 60.0, True))
    assert outcome.failures == {}
    if WORLD.rank == 0:
        assert set(outcome.curves) == {("allreduce", True), ("allreduce", False), ("reduce", True),
                                       ("reduce", False), ("bcast", True)}
        for collective in ("allreduce", "reduce"):
            ((_, times),) = outcome.curves[collective, False]
            assert NATIVE in times and len(times) > 2
            assert all(c.name == "native" or ALGORITHMS[collective][c.name].rank_order
                       for c in times)


@alone
def test_a_survey_that_is_stopped_ends_on_all_ranks():
    plan = rounds.SurveyPlan(("allreduce",), (8, 64), 1.0, False)
    outcome = measured(plan, stopped=lambda: WORLD.rank == 0)
    assert outcome.interrupted and outcome.curves == {}


@alone
def test_what_is_close_is_measured_again_in_later_rounds(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(rounds, "NEAR", 1e9)  # whoever is fast today
    monkeypatch.setattr(rounds, "CLOSE", 1e9)
    monkeypatch.setattr(survey, "BUSY", 1e9)  # as it may be while tests run
    visits, resume = [], survey.Surveyor.resume

    def noted(surveyor, numbers, part):
        before = len(surveyor.rounds.get(numbers[0], ()))
        resume(surveyor, numbers, part)
        visits.append((numbers[0], len(surveyor.rounds.get(numbers[0], ())) - before))

    monkeypatch.setattr(survey.Surveyor, "resume", noted)
    outcome = measured(rounds.SurveyPlan(("allreduce",), (64, 512), 60.0, False))
    assert outcome.failures == {} and not outcome.interrupted
    # All points of a round before the next one, and results on rank 0.
    assert visits == [(0, WORLD.rank == 0), (1, WORLD.rank == 0)] * survey.MORE
