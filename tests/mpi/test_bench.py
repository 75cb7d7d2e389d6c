"""The benchmark on real ranks: every collective is right, what is wrong is found, all end alike."""

import json
import os

import numpy
import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import hpccoll
from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.algorithms.flat import ring
from hpccoll.cli import main
from hpccoll.ir.methods import METHODS
from hpccoll.ir.schedule import Program
from hpccoll.measure import candidates
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.call_forms import FORMS
from hpccoll.measure.cases import UNEVEN, make
from hpccoll.measure.timing import Settings, World
from hpccoll.tools.bench import session, torch_groups
from hpccoll.tools.bench.session import Options

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
#: Four calls of every candidate: hpccoll serves the third from what it has prepared.
QUICK = Settings(warmup=1, iterations=1)


class Course(list):
    """A report that notes what it is told."""

    def begin(self, environment):
        self.append("begin")

    def begin_collective(self, name, labels):
        self.append(name)

    def group(self, results, refused):
        self.append(len(results))

    def end(self, groups, interrupted):
        self.append("interrupted" if interrupted else "end")


def measured(collectives, algorithm, sizes=(4, 5000 * WORLD.size), dtype="f4", **given):
    options = Options(collectives, sizes, numpy.dtype(dtype),
                      wanted=candidates.parse(algorithm), **{"settings": QUICK, **given})
    session.check(options, WORLD.size)
    return session.run(WORLD, options, [])


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


@pytest.mark.long(every=3)
@pytest.mark.parametrize("in_place", [False, True], ids=["", "in place"])
@pytest.mark.parametrize("collective", METHODS)
def test_every_candidate_is_right(collective, in_place):
    outcome = measured([collective], "native,auto,all", in_place=in_place, root=WORLD.size - 1)
    assert outcome.failures == 0, [(r.candidate, r.nbytes, r.wrong, r.changed)
                                   for group in outcome.groups for r in group if r.failures]
    if WORLD.rank == 0:
        assert {len(r.seconds) for group in outcome.groups for r in group} == {1}
        assert {len(r.rank_mean_seconds) for group in outcome.groups for r in group} == {
            WORLD.size}


@pytest.mark.parametrize("collective", UNEVEN)
def test_uneven_blocks(collective):
    assert measured([collective], "native,auto,all", uneven=True).failures == 0


@pytest.mark.parametrize("dtype, op", [("f2", "sum"), ("F", "prod"), ("?", "lxor"), ("i8", "band"),
                                       ("d", "min")])
def test_types_and_operators(dtype, op):
    assert measured(["allreduce", "scan"], "native,all", dtype=dtype, op=op).failures == 0


def test_bfloat16():
    pytest.importorskip("ml_dtypes")
    outcome = measured(METHODS, "native,auto,all", dtype="bfloat16", root=WORLD.size - 1)
    assert outcome.failures == 0
    if WORLD.rank == 0:  # which has its types given by whoever calls it
        assert {r.collective for group in outcome.groups for r in group
                if r.candidate == "native"} == {"barrier", "alltoallw"}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("form", ["persistent", "nonblocking"])
@pytest.mark.parametrize("collective", METHODS)
def test_calls_that_begin_and_end(collective, form):
    """Each set of buffers has a persistent request of its own."""
    settings = QUICK._replace(form=FORMS[form], rotate=2)
    outcome = measured([collective], "native,auto,all", settings=settings, root=WORLD.size - 1)
    assert outcome.failures == 0
    if WORLD.rank == 0:
        served = {r.candidate: r.serves for group in outcome.groups for r in group}
        assert served["auto"] == "native" and len(served) > 2


@pytest.mark.long(every=3)
@pytest.mark.parametrize("collective", FORMS["lower-case"].collectives)
@pytest.mark.parametrize("dtype", ["f4", "d", "i8", "F"])
def test_calls_on_objects(collective, dtype):
    """The smallest case is one number, the other one an array."""
    settings = QUICK._replace(form=FORMS["lower-case"])
    outcome = measured([collective], "", dtype=dtype, settings=settings, root=WORLD.size - 1)
    assert outcome.failures == 0
    if WORLD.rank == 0:
        assert [(r.count, r.candidate) for group in outcome.groups for r in group] == [
            (count, name) for count in sorted({r.count for g in outcome.groups for r in g})
            for name in ("native", "auto")]


def test_the_method_of_each_form_is_called(monkeypatch):
    called = []

    def noting(name, method):
        def noted(comm, *args):
            called.append(name)
            return method(comm, *args)
        return noted

    for name in ("Allreduce", "Iallreduce", "Allreduce_init", "allreduce"):
        monkeypatch.setattr(hpccoll.Comm, name, noting(name, getattr(hpccoll.Comm, name)))
    for word, name in (("blocking", "Allreduce"), ("nonblocking", "Iallreduce"),
                       ("persistent", "Allreduce_init"), ("lower-case", "allreduce")):
        called.clear()
        measured(["allreduce"], "auto", settings=QUICK._replace(form=FORMS[word]))
        assert set(called) == {name}
        # Prepared once for each size; otherwise called every time, with both checks.
        assert len(called) == (2 if word == "persistent" else 8)


class Idle:
    """A request that does nothing."""

    def __init__(self, *args):
        self.Start = self.Wait = self.Free = lambda: None


@pytest.mark.parametrize("form, name, broken", [
    ("persistent", "Allreduce_init", Idle),
    ("lower-case", "allreduce", lambda comm, value, op: 2 * value + 1)])
def test_wrong_results_of_each_form_are_found(monkeypatch, form, name, broken):
    monkeypatch.setattr(hpccoll.Comm, name, broken)
    outcome = measured(["allreduce"], "native,auto", settings=QUICK._replace(form=FORMS[form]))
    assert outcome.failures
    if WORLD.rank == 0:
        assert {r.candidate for g in outcome.groups for r in g if r.failures} == {"auto"}


@pytest.mark.parametrize("in_place", [False, True], ids=["", "in place"])
def test_peers(in_place):
    """PyTorch's collectives get the same buffers and are held to the same results."""
    pytest.importorskip("torch")
    outcome = measured(METHODS, "native", peers=True, in_place=in_place, root=WORLD.size - 1)
    assert outcome.failures == 0, outcome.groups
    if WORLD.rank == 0:
        for name in torch_groups.BACKENDS:
            served = {r.collective for group in outcome.groups for r in group
                      if r.candidate == name}
            assert served == ({"allreduce", "reduce", "bcast", "barrier"} if in_place else {
                *torch_groups.COLLECTIVES})
            assert outcome.environment["peers"][name]


def swept(stops_after=None, sweeps=3, iterations=7):
    """What a report is told, and the outcome, where rank 0 asks to stop after so many questions."""
    asked, course = iter(range(10 ** 6)), Course()
    options = Options(["allreduce", "bcast"], (4, 64), numpy.dtype("f4"),
                      wanted=candidates.parse("native,ring"), sweeps=sweeps,
                      settings=QUICK._replace(iterations=iterations))
    outcome = session.run(WORLD, options, [course],
                          lambda: stops_after is not None and next(asked) >= stops_after)
    return course, outcome


def test_sweeps_that_are_interrupted_tell_what_they_have():
    """Rank 0 is asked before each case, and before each repetition of it but the first."""
    for stops_after in range(7):
        course, outcome = swept(stops_after, sweeps=2, iterations=2)
        assert outcome.interrupted and outcome.failures == 0
        if WORLD.rank == 0:
            told = [entry for entry in course if isinstance(entry, int)]
            assert (course[0], course[-1]) == ("begin", "interrupted")
            assert len(told) == len(outcome.groups) == min((stops_after + 1) // 2, 4)
            assert {entry for entry in course if isinstance(entry, str)} <= {
                "begin", "allreduce", "bcast", "interrupted"}


def idle(rank, size):
    """Do nothing, and leave the output as it was."""
    return Program(())


def lossy(rank, size):
    """A ring that forgets the last message."""
    program = ring.allreduce(rank, size)
    return Program(program.rounds[:-1], program.scratch)


@pytest.mark.parametrize("broken", [idle, lossy])
def test_what_is_wrong_is_found(monkeypatch, broken):
    entry = Algorithm(broken, blocks=lambda p: p)
    monkeypatch.setitem(ALGORITHMS["allreduce"], "broken", entry)
    outcome = measured(["allreduce"], "native,broken", sizes=[4096])
    if broken is idle or WORLD.size > 1:
        # A ring without its last message lacks one of p blocks on every rank.
        each = 1024 if broken is idle else 1024 // WORLD.size
        assert outcome.failures >= 2 * each * WORLD.size - 2 * WORLD.size
    if WORLD.rank == 0:
        native, _ = outcome.groups[0]
        assert native.failures == 0


def test_a_changed_input_is_found(monkeypatch):
    class Careless(CaseBuffers):
        def wrong(self, iteration):
            self.send[3] += 1
            return super().wrong(iteration)

    monkeypatch.setattr(session, "CaseBuffers", Careless)
    outcome = measured(["allreduce"], "native", sizes=[64])
    assert outcome.failures == 2 * WORLD.size
    if WORLD.rank == 0:
        (only,), = outcome.groups
        assert (only.wrong, only.changed) == (0, 2 * WORLD.size)


def test_all_ranks_stop_together():
    """Rank 0 wants to stop after the first case; nobody waits for it in the second."""
    course = Course()
    options = Options(["allreduce", "bcast"], [8, 64], numpy.dtype("f4"), settings=QUICK)
    outcome = session.run(WORLD, options, [course],
                          stopped=lambda: WORLD.rank == 0 and 3 in course)
    assert outcome.interrupted
    if WORLD.rank == 0:
        assert course == ["begin", "allreduce", 3, "interrupted"]
    else:
        assert course == []


def test_rank_0_alone_writes(tmp_path):
    path = str(tmp_path / "record.json")
    ran = bench("allreduce", "alltoallv", "-m", "64", "-i", "3", "--json", path)
    assert ran.exit_code == 0, ran.output
    if WORLD.rank:
        assert ran.output == ""
        return
    assert "wrong elements: 0" in ran.output
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    assert record["environment"]["ranks"] == WORLD.size
    assert sum(record["environment"]["hosts"].values()) == WORLD.size
    known = WORLD.size == 2 and os.cpu_count() > 1
    assert (record["environment"]["shared_cache"] is not None) == known


def test_every_rank_knows_that_something_was_wrong(monkeypatch):
    monkeypatch.setitem(ALGORITHMS["allreduce"], "ring", Algorithm(idle))
    assert bench("allreduce", "-m", "8", "-i", "1", "--algorithm", "ring").exit_code == 1


@pytest.mark.parametrize("collective", METHODS)
def test_ranks_agree_on_the_candidates(collective):
    case = make(collective, WORLD.size, 4096, numpy.dtype("f4"))
    chosen = candidates.select(candidates.parse("all"), case, CaseBuffers(case, WORLD.rank), False)
    assert len(set(map(str, WORLD.allgather(chosen)))) == 1


@pytest.mark.parametrize("name, forwarded, ours", [
    ("native", False, False), ("native", True, True), ("forwarded", False, True)])
def test_the_native_method_is_measured_as_asked(name, forwarded, ours):
    world = World(MPI.COMM_WORLD, Settings(), hpccoll.Comm, forwarded)
    try:
        with world.method(candidates.Candidate(name), "allreduce") as method:
            assert isinstance(method.__self__, hpccoll.Comm) is ours
            found = numpy.empty(3)
            method(numpy.ones(3), found)
            assert (found == world.size).all()
    finally:
        world.free()
