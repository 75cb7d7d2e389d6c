"""Tuning on real ranks: one table for all, the same error for all, and what it changes."""

import os

import numpy
import pytest
from mpi.cases import works
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.cli import main
from hpccoll.errors import TuningError
from hpccoll.ir.schedule import Program
from hpccoll.ir.topology import Topology
from hpccoll.measure import shortlist, survey, survey_plan
from hpccoll.runtime.context import existing
from hpccoll.tune.fingerprint import here
from hpccoll.tune.online import MOST_TRIALS
from hpccoll.tune.table import Candidate, read, render, sealed, write

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
alone = pytest.mark.skipif(WORLD.size == 1, reason="one rank has nothing to choose")
NATIVE, RING = Candidate("native"), Candidate("ring")


@pytest.fixture
def path(tmp_path):
    """A file that all ranks know of."""
    return WORLD.bcast(str(tmp_path / "table.json"))


def machine():
    """What the tests run on."""
    comm = hpccoll.Comm(WORLD.Dup())
    assert comm.topology.size == WORLD.size
    context = existing(comm)
    found = here(context.topology, context.oversubscribed)
    comm.Free()
    return found


def on_rank_0(work, *args):
    if WORLD.rank == 0:
        work(*args)
    WORLD.Barrier()


def put(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def tuned_comm(monkeypatch, setting):
    monkeypatch.setenv("HPCCOLL_TUNING", setting)
    return hpccoll.Comm(WORLD.Dup())


def errors_of(comm, calls=2):
    """What every rank is told; the same at every call."""
    for _ in range(calls):
        with pytest.raises(TuningError) as caught:
            works(comm)
        texts = WORLD.allgather(str(caught.value))
        assert len(set(texts)) == 1
    return texts[0]


CURVES = {("allreduce", True): ((8, {NATIVE: 1.0, RING: 2.0}), (4000, {NATIVE: 2.0, RING: 1.0}))}


@alone
def test_a_table_decides(monkeypatch, path):
    mine = machine()
    on_rank_0(write, path, {mine: CURVES, mine._replace(ranks=mine.ranks + 1): {}})
    comm = tuned_comm(monkeypatch, path)
    assert "looked for at the first collective" in comm.explain("allreduce", 4000)
    for _ in range(4):
        works(comm)
        works(comm, 2)
    plans = [key[1] for key in existing(comm).choices]
    assert plans == ["ring"]
    text = comm.explain("allreduce", 4000)
    assert f"ring (measured: 1 s in {path})" in text and f"from {path}" in text
    # Another wrapper of the same communicator knows it too, and a wish wins.
    with hpccoll.Comm(comm).using(allreduce="recursive_doubling") as other:
        works(other)
    assert "recursive_doubling" in [key[1] for key in existing(comm).choices]
    comm.Free()


@alone
def test_a_table_for_others_is_not_used(monkeypatch, path):
    mine = machine()
    for changed, reason in (
            (mine._replace(mpi="Another 1.0"), "measured elsewhere: mpi is 'Another 1.0' there"),
            (mine._replace(ranks=mine.ranks + 1), f"no measurements for {mine.ranks} ranks"),
            (mine._replace(oversubscribed=not mine.oversubscribed),
             "measured elsewhere: oversubscribed is")):
        on_rank_0(write, path, {changed: CURVES})
        comm = tuned_comm(monkeypatch, path)
        works(comm)
        text = comm.explain("allreduce", 4000)
        assert f"none; {path} is not used: it " in text and reason in text
        assert "rule" in text.splitlines()[0]
        comm.Free()
        WORLD.Barrier()


@alone
def test_nothing_is_looked_for_when_tuning_is_off(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hpccoll").mkdir()
    put(tmp_path / "hpccoll" / "tuning.json", "broken")
    comm = tuned_comm(monkeypatch, "off")
    works(comm)
    comm.Free()
    monkeypatch.delenv("HPCCOLL_TUNING")
    comm = hpccoll.Comm(WORLD.Dup())
    assert "tuning.json: is damaged" in errors_of(comm)
    comm.Free()


@alone
@pytest.mark.parametrize("abuse, reason", [
    ("missing", "No such file"), ("directory", "is a directory"), ("empty", "is empty"),
    ("cut off", "is damaged or cut off"), ("flipped", "checksum does not fit"),
    ("algorithm", "unknown algorithm: allreduce 'rong'"), ("newer", "a newer hpccoll"),
    ("nan", "no number: NaN"), ("negative", "not positive")])
def test_every_abuse_is_the_same_error_on_all_ranks(monkeypatch, path, abuse, reason):
    text = render({machine(): CURVES})
    body = text[:text.index('"checksum"')]
    texts = {"empty": "", "cut off": text[:-20], "flipped": text.replace("4000", "5000"),
             "algorithm": sealed(body.replace("ring", "rong")),
             "newer": sealed(body.replace('"format": 1', '"format": 2')),
             "nan": sealed(body.replace('"ring": 1.0', '"ring": NaN')),
             "negative": sealed(body.replace('"ring": 1.0', '"ring": -1.0'))}
    if abuse in texts:
        on_rank_0(put, path, texts[abuse])
    elif abuse == "directory":
        on_rank_0(os.mkdir, path)
    comm = tuned_comm(monkeypatch, path)
    told = errors_of(comm)
    assert path in told and reason in told
    # Once the file is mended, the communicator works.
    if abuse in texts:
        on_rank_0(put, path, text)
        works(comm)
    comm.Free()


@alone
def test_settings_that_differ_are_named(monkeypatch, path):
    on_rank_0(write, path, {})
    for first, last in ((path, "off"), ("off", path), (path, f"{path}2"), ("online", "off")):
        comm = tuned_comm(monkeypatch, last if WORLD.rank == WORLD.size - 1 else first)
        told = errors_of(comm, calls=1)
        assert (f"HPCCOLL_TUNING differs between ranks: it is {first!r} on rank 0 and {last!r} on "
                f"rank {WORLD.size - 1}") in told
        comm.Free()


def test_one_rank_needs_no_table(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TUNING", "/nonexistent.json")
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup())
    works(comm)
    comm.Free()


def tune(*words):
    return CliRunner().invoke(main, ["tune", *words])


@alone
def test_the_command_measures_writes_and_shows(monkeypatch, path):
    monkeypatch.setattr(survey, "LONGEST", 0.01)

    def run(collectives):
        ran = tune("--quick", "--collective", collectives, "-m", "64:1K", "--seconds", "60",
                   "-o", path)
        assert ran.exit_code == 0, ran.output
        return ran

    ran = run("allreduce,barrier")
    if WORLD.rank:
        assert ran.output == ""
    else:
        assert "allreduce" in ran.output and f"written to {path}" in ran.output
    WORLD.Barrier()
    run("bcast")
    table = read(path)
    assert list(table) == [machine()]
    (curves,) = table.values()
    assert {(kind, tuple(nbytes for nbytes, _ in curve)) for kind, curve in curves.items()} == {
        (("allreduce", True), (64, 512, 1024)), (("bcast", True), (64, 512, 1024)),
        (("barrier", True), (0,))}
    for curve in curves.values():
        for _, times in curve:
            assert NATIVE in times and len(times) > 1
    comm = tuned_comm(monkeypatch, path)
    works(comm)
    assert "(measured: " in comm.explain("allreduce", 64)
    comm.Free()
    WORLD.Barrier()
    again = tune("--quick", "--collective", "bcast", "-m", "64:64", "--seconds", "20", "-o", path)
    assert again.exit_code == 0, again.output
    (both,) = read(path).values()
    assert [nbytes for nbytes, _ in both["bcast", True]] == [64, 512, 1024]
    WORLD.Barrier()
    anew = tune("--quick", "--collective", "bcast", "-m", "64:64", "--seconds", "20", "-o", path,
                "--anew")
    assert anew.exit_code == 0, anew.output
    (only,) = read(path).values()
    assert [nbytes for nbytes, _ in only["bcast", True]] == [64] and len(only) == 3


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
    outcome = measured(survey_plan.SurveyPlan(("bcast",), (8, 64, 512), 20.0, thorough=False))
    assert begun == [0, 1, 2, *busy] and not outcome.interrupted
    if WORLD.rank == 0:
        (curve,) = outcome.curves.values()
        assert [nbytes for nbytes, _ in curve] == [8, 64, 512]


def test_a_later_go_on_a_busy_machine_does_not_count(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(survey, "CLOSE", 1e6)
    monkeypatch.setattr(survey.Surveyor, "_barrier", barrier := FakeBarrier((None,)))
    resumed, resume = [], survey.Surveyor.resume

    def watched(surveyor, numbers, part):
        barrier.number = None if len(resumed) % 2 else -1
        before = len(surveyor.rounds.get(numbers[0], ()))
        resume(surveyor, numbers, part)
        resumed.append(len(surveyor.rounds.get(numbers[0], ())) - before)

    monkeypatch.setattr(survey.Surveyor, "resume", watched)
    barrier.number = -1
    measured(survey_plan.SurveyPlan(("bcast",), (8,), 20.0, thorough=False))
    assert resumed == ([1, 0, 1, 0] if WORLD.rank == 0 else [0] * survey.MORE)


@pytest.mark.skipif(WORLD.size % 2 or WORLD.size < 4, reason="two nodes of several ranks")
@pytest.mark.parametrize("nodes, thorough, expected", [
    (1, False, ()), (1, True, shortlist.SEGMENTS), (2, False, shortlist.BETWEEN)])
def test_segments_depend_on_time_and_nodes(monkeypatch, nodes, thorough, expected):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    layout = Topology.parse(f"2x{WORLD.size // 2}", WORLD.size) if nodes == 2 else None
    plan = survey_plan.SurveyPlan(("allreduce",), (shortlist.SEGMENTED,), 20.0, thorough)
    outcome = measured(plan, topology=layout)
    if WORLD.rank == 0:
        ((_, times),) = outcome.curves["allreduce", True]
        assert {candidate.segment_bytes for candidate in times} == {0, *expected}


class FakeBarrier:
    """Stands for a barrier, which takes long while the number of the point is one of ``busy``."""

    def __init__(self, busy):
        self.busy, self.number = busy, None

    def __get__(self, surveyor, _):
        surveyor.quiet = 1e-6
        return lambda: 1.0 if self.number in self.busy else 1e-6


@alone
def test_an_old_table_that_is_broken_is_not_overwritten(path):
    on_rank_0(put, path, "precious")
    ran = tune("--quick", "-o", path)
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ("is damaged or cut off" in ran.stderr) == (WORLD.rank == 0)
    with open(path, encoding="utf-8") as file:
        assert file.read() == "precious"


@alone
def test_what_cannot_be_written_is_known_before_anything_is_measured(monkeypatch, path):
    monkeypatch.setattr(survey, "survey", None)
    on_rank_0(put, path, "")
    ran = tune("--quick", "-o", f"{path}/table.json")
    assert ran.exit_code == 2 and ("cannot be written" in ran.stderr) == (WORLD.rank == 0)


@alone
def test_a_table_of_nothing_is_not_written(path, monkeypatch):
    nothing = survey.Survey(machine(), {}, {}, False)
    monkeypatch.setattr(survey, "survey", lambda *_: nothing)
    ran = tune("-o", path)
    assert ran.exit_code == 2 and not os.path.exists(path)
    assert ("too short to measure anything" in ran.stderr) == (WORLD.rank == 0)


@pytest.mark.parametrize("words", [["--collective", "nonsense"], ["-m", "x"], ["--seconds", "0"],
                                   ["--seconds", "nan"],
                                   ["nonsense"]])
def test_rank_0_alone_complains(words):
    ran = tune(*words)
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ran.stderr.count("\n") == (WORLD.rank == 0)


@alone
def test_a_survey_ends_when_its_time_is_spent():
    plan = survey_plan.SurveyPlan(("allreduce", "bcast"), (8, 64, 512), 1e-9, True)
    outcome = measured(plan)
    assert not outcome.interrupted and outcome.curves == {} and outcome.failures == {}
    assert outcome.machine == machine()


@alone
def test_candidates_that_are_wrong_are_left_out(monkeypatch):
    broken = ALGORITHMS["allreduce"]["ring"]._replace(build=lambda rank, size: Program(()))
    monkeypatch.setitem(ALGORITHMS["allreduce"], "ring", broken)
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    outcome = measured(survey_plan.SurveyPlan(("allreduce",), (64,), 20.0, False))
    assert outcome.failures["allreduce", RING] > 0
    if WORLD.rank == 0:
        ((_, times),) = outcome.curves["allreduce", True]
        assert NATIVE in times and RING not in times


@alone
def test_parameters_and_segments_are_tried_too(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(survey, "NEAR", 1e9)  # whoever is fast today
    plan = survey_plan.SurveyPlan(("bcast",), (64, 2 << 20), 60.0, True)
    outcome = measured(plan)
    if WORLD.rank == 0:
        (_, small), (_, large) = outcome.curves["bcast", True]
        assert Candidate("knomial", (("k", 2),)) in small
        assert any(candidate.segment_bytes for candidate in large)
        assert not any(candidate.segment_bytes for candidate in small)


@alone
def test_operators_that_do_not_commute_have_times_of_their_own(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    outcome = measured(survey_plan.SurveyPlan(("allreduce", "reduce", "bcast"), (64,), 60.0, True))
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
    plan = survey_plan.SurveyPlan(("allreduce",), (8, 64), 1.0, False)
    outcome = measured(plan, stopped=lambda: WORLD.rank == 0)
    assert outcome.interrupted and outcome.curves == {}


# -- online --------------------------------------------------------------------------------
def verdicts(comm):
    """What online tuning has found, the same on every rank: method, bytes, turns, winner."""
    found = [(key[0], key[1], trial.turn, trial.verdict and trial.verdict.label)
             for key, trial in comm._life.tuned.trials.items()]
    assert len(set(map(str, WORLD.allgather(found)))) == 1
    return found


@alone
def test_online_tuning_is_right_at_every_call_and_agreed(monkeypatch):
    comm = tuned_comm(monkeypatch, "online")
    for call in range(60):
        works(comm, 1000 + call % 2)
        root = call % comm.size
        data = numpy.full(300, root if comm.rank == root else -1, "i8")
        comm.Bcast(data, root)
        assert (data == root).all()
        rows = numpy.empty((comm.size, 5), "f4") if comm.rank == root else None
        comm.Gather(numpy.full(5, comm.rank, "f4"), rows, root)
        assert rows is None or numpy.array_equal(rows[:, 0], numpy.arange(comm.size))
    found = {name: (turns, winner) for name, nbytes, turns, winner in verdicts(comm)
             if (name, nbytes) != ("allreduce", 4004)}
    assert set(found) == {"allreduce", "bcast", "gather"}
    for turns, winner in found.values():
        assert winner is None or turns
    assert found["gather"][1] is not None
    before = found["gather"]
    for _ in range(20):
        comm.Gather(numpy.full(5, comm.rank, "f4"), numpy.empty((comm.size, 5), "f4"), 0)
    assert ("gather", 20 * comm.size, *before) in verdicts(comm)
    assert "online, in this job" in comm.explain("gather", 20 * comm.size)
    comm.Free()


@alone
def test_online_tuning_decides_once_for_many_arrays_and_wrappers(monkeypatch):
    comm = tuned_comm(monkeypatch, "online")
    other = hpccoll.Comm(comm)
    assert "not decided yet" in comm.explain("allreduce", 64) or comm._life.tuned is None
    for call in range(70):
        works((comm, other)[call % 2], 16)
    ((name, nbytes, turns, winner),) = verdicts(comm)
    assert (name, nbytes) == ("allreduce", 64) and winner is not None and turns <= 70
    with comm.using(allreduce="ring"):
        works(comm, 17)  # a wish is no trial
    assert len(verdicts(comm)) == 1
    comm.Free()


@alone
def test_online_tuning_keeps_to_what_can_serve(monkeypatch):
    comm = tuned_comm(monkeypatch, "online")
    left = MPI.Op.Create(lambda one, two, datatype: None, commute=False)
    right = MPI.Op.Create(lambda one, two, datatype: two.__setitem__(
        slice(None), bytes(one)), commute=False)
    for _ in range(60):
        for op, expected in ((left, comm.size - 1), (right, 0)):
            result = numpy.full(6, -1, "i4")
            comm.Allreduce(numpy.full(6, comm.rank, "i4"), result, op)
            assert (result == expected).all()
    # Both operators have the same properties, so their calls are of one shape.
    ((_, _, _, winner),) = verdicts(comm)
    assert winner is not None
    left.Free()
    right.Free()
    comm.Free()


@alone
def test_a_rank_that_does_not_come_to_a_trial_is_reported(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.3")
    comm = tuned_comm(monkeypatch, "online")
    works(comm)
    if comm.rank:
        with pytest.raises(hpccoll.errors.CollectiveTimeout, match="online tuning on rank"):
            works(comm)
    else:
        with pytest.raises(hpccoll.errors.ArgumentError):
            comm.Allreduce(numpy.zeros(1000, "f4"), numpy.zeros(999, "f4"))
    # The barrier of the others is still open: this communicator is left alone.
    WORLD.Barrier()


@alone
def test_online_tuning_tries_only_so_many_shapes(monkeypatch):
    comm = tuned_comm(monkeypatch, "online")
    works(comm, 1)
    if comm.rank == 0:
        for nbytes in range(4000, 4400):
            comm.explain("allreduce", nbytes)  # what one rank asks for counts for nothing
    for count in range(1, MOST_TRIALS + 10):
        works(comm, count)
    turns = [trial.turn for trial in comm._life.tuned.trials.values()]
    assert sum(turn > 0 for turn in turns) == MOST_TRIALS
    assert "(rule: " in comm.explain("bcast", 64).splitlines()[0]
    comm.Free()


@alone
def test_what_is_measured_by_name_promises_nothing(monkeypatch):
    monkeypatch.setenv("HPCCOLL_DETERMINISM", "size")
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    outcome = measured(survey_plan.SurveyPlan(("allreduce",), (64,), 20.0, False))
    if WORLD.rank == 0:
        ((_, times),) = outcome.curves["allreduce", True]
        assert {NATIVE, RING} <= set(times)


@alone
def test_what_is_close_is_measured_again_in_later_rounds(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(survey, "NEAR", 1e9)  # whoever is fast today
    monkeypatch.setattr(survey, "CLOSE", 1e9)
    monkeypatch.setattr(survey, "BUSY", 1e9)  # as it may be while tests run
    visits, resume = [], survey.Surveyor.resume

    def noted(surveyor, numbers, part):
        before = len(surveyor.rounds.get(numbers[0], ()))
        resume(surveyor, numbers, part)
        visits.append((numbers[0], len(surveyor.rounds.get(numbers[0], ())) - before))

    monkeypatch.setattr(survey.Surveyor, "resume", noted)
    outcome = measured(survey_plan.SurveyPlan(("allreduce",), (64, 512), 60.0, False))
    assert outcome.failures == {} and not outcome.interrupted
    # All points of a round before the next one, and results on rank 0.
    assert visits == [(0, WORLD.rank == 0), (1, WORLD.rank == 0)] * survey.MORE


@alone
def test_where_nothing_is_close_there_are_no_later_rounds(monkeypatch):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    monkeypatch.setattr(survey, "CLOSE", 0.0)
    monkeypatch.setattr(survey.Surveyor, "resume", None)
    outcome = measured(survey_plan.SurveyPlan(("allreduce",), (64,), 60.0, False))
    assert outcome.failures == {} and not outcome.interrupted
