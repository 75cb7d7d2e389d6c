"""Measurements while a job runs: where there are no rules, and where the user asks for them."""

import warnings

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm import online as checks
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout
from hpccoll.measure import probe
from hpccoll.measure.survey import Survey
from hpccoll.runtime.attributes import existing_context
from hpccoll.runtime.execution.built import BUILT
from hpccoll.tune import choose, online
from hpccoll.tune.cost_model import plausible_algorithms
from hpccoll.tune.table import Candidate, fingerprint, read

pytestmark = pytest.mark.mpi(min_size=2)
compiled = pytest.mark.skipif(not BUILT, reason="calls are counted by machine code")
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


@pytest.fixture
def unruled(monkeypatch, tmp_path):
    """A place without rules, in a job that has time; returns the path of its table."""
    cache, place = WORLD.bcast(tmp_path), hpccoll.Comm(WORLD.Dup())
    assert place.layout
    context = existing_context(place)
    machine = fingerprint(context.topology, context.place.oversubscribed)
    place.Free()

    def survey(comm, plan, wrap, topology):
        (collective,), (nbytes,) = plan.collectives, plan.sizes
        comm.Barrier()
        names = plausible_algorithms(collective, SIZE, nbytes, False)[:plan.most]
        times = {Candidate(name): 1e-5 / (place + 1)
                 for place, name in enumerate(["native", *names])}
        curves = {(collective, True): ((nbytes, times),)} if RANK == 0 else {}
        return Survey(machine, curves, {}, False)
    monkeypatch.setattr(probe, "survey", survey)
    monkeypatch.setattr(checks, "is_measured", lambda size, place: False)
    monkeypatch.setattr(choose, "RULES", ())
    monkeypatch.setattr(online, "SHARE", 1e9)
    monkeypatch.setenv("HPCCOLL_TUNING", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "hpccoll" / "tuning.json"


@pytest.fixture
def comm():
    made = hpccoll.Comm(WORLD.Dup())
    yield made
    made.Free()


def adds(comm, count, dtype="i4"):
    result = numpy.empty(count, dtype)
    comm.Allreduce(numpy.full(count, RANK + 1, dtype), result)
    assert (result == SIZE * (SIZE + 1) // 2).all()


def sends(comm, count, root):
    data = numpy.full(count, root if RANK == root else -1, "i8")
    comm.Bcast(data, root)
    assert (data == root).all()


def tried(comm):
    """What has been measured: collective, class of size, winner; the same on every rank."""
    found = [(*key, curve and min(curve[0][1], key=curve[0][1].get).label)
             for key, curve in comm.tuned.tried.items()]
    assert len(set(map(str, WORLD.allgather(found)))) == 1
    return found


def kinds(comm):
    return {kind[:2] for kind in tried(comm)}


@compiled
def test_calls_without_rules_are_measured_behind_the_64th(unruled, comm):
    for call in range(online.FIRST - 2):
        sends(comm, 100, call % SIZE)
    assert not tried(comm)
    for call in range(4):
        sends(comm, 100, call % SIZE)
    ((name, size, winner),) = tried(comm)
    assert (name, size) == ("bcast", online.size_class(800))
    assert "of a few candidates, by a job while it ran" in comm.explain("bcast", 800)
    sends(comm, 100, 0)
    # The next job knows it from the start, for sizes nearby.
    if RANK == 0:
        ((machine, curves),) = read(unruled).items()
        assert machine.online and list(curves) == [("bcast", True)]
    WORLD.Barrier()
    other = hpccoll.Comm(WORLD.Dup())
    sends(other, 90, 0)
    sends(other, 90, 1)
    assert tried(other) == [(name, size, winner)]
    assert f"{winner} (measured: " in other.explain("bcast", 720)
    assert "measured" not in other.explain("bcast", 1600).splitlines()[0]
    other.Free()


@compiled
def test_results_that_a_clock_could_change_are_left_to_the_rules(unruled, comm):
    for _ in range(200):
        adds(comm, 10, "f8")
    assert not tried(comm)
    for _ in range(300):
        adds(comm, 10, "i8")
    assert kinds(comm) == {("allreduce", online.size_class(80))}
    assert "native (rule" in comm.explain("allreduce", 80)  # of a sum of floats


@compiled
def test_ranks_that_spell_a_call_differently_measure_together(unruled, comm):
    """Keywords, types, in place, and a memory of its own in every call."""
    data = numpy.arange(50.0)
    for call in range(120):
        root = call % SIZE
        mine = numpy.full(50, float(RANK))
        spelling = (RANK + call) % 3
        if spelling == 0:
            comm.Bcast(buf=[data, MPI.DOUBLE], root=root)
        elif spelling == 1:
            comm.Bcast(data, root=root)
        else:
            comm.Bcast((memoryview(data), 50, MPI.DOUBLE), root)
        rows = numpy.full((SIZE, 50), float(RANK)) if RANK == root else None
        comm.Gather(MPI.IN_PLACE if RANK == root else mine, rows, root=root)
        assert rows is None or (rows == numpy.arange(SIZE)[:, None]).all()
    assert tried(comm)


@compiled
def test_only_blocking_calls_are_followed_by_a_measurement(unruled, comm):
    sends(comm, 1, 0)
    sends(comm, 1, 0)
    for _ in range(100):
        requests = [comm.Ibcast(numpy.zeros(10), root) for root in range(2)]
        MPI.Request.Waitall(requests)
    assert not tried(comm)
    with comm.using(bcast="native"):
        for _ in range(50):
            sends(comm, 100, 0)  # as the user wants it, whatever is faster
    assert not tried(comm)


@compiled
@pytest.mark.parametrize("setting", ["", "off", "measured", "determinism"])
def test_where_rules_or_the_user_decide_nothing_is_measured(monkeypatch, unruled, setting):
    if setting == "measured":
        monkeypatch.setattr(checks, "is_measured", lambda size, place: True)
    if setting == "determinism":
        monkeypatch.setenv("HPCCOLL_DETERMINISM", "size")
    monkeypatch.setenv("HPCCOLL_TUNING", setting if setting == "off" else "")
    comm = hpccoll.Comm(WORLD.Dup())
    for _ in range(2):
        sends(comm, 1, 0)
    check = existing_context(comm).library.check
    assert bool(check) is (not setting)
    comm.Free()


@compiled
def test_a_job_without_time_measures_nothing(monkeypatch, unruled, comm):
    monkeypatch.setattr(online, "SHARE", 1e-9)
    for _ in range(300):
        sends(comm, 100, 0)
    assert not tried(comm)


@compiled
def test_a_disturbed_measurement_is_repeated(monkeypatch, unruled, comm):
    real, calls = probe.measure_call, []

    def measure(*args):
        calls.append(args[1:3])
        return real(*args) if len(calls) > 1 else ()
    monkeypatch.setattr(probe, "measure_call", measure)
    for _ in range(200):
        sends(comm, 100, 0)
    assert len(calls) >= 2 and set(calls) == {("bcast", 800)} and tried(comm)


@compiled
def test_a_table_that_cannot_be_written_is_no_fault_of_the_job(unruled, comm):
    if RANK == 0:
        unruled.parent.parent.joinpath("hpccoll").write_text("a file where the folder would be")
    WORLD.Barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(100):
            sends(comm, 100, 0)
    assert tried(comm)


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(probe, "SECONDS", 0.01)
    monkeypatch.setenv("HPCCOLL_TUNING", "online")


def test_asked_for_every_kind_is_measured_at_its_first_call(asked, comm):
    assert "online, at the first call" in comm.explain("allreduce", 64) or comm.tuned is None
    other = hpccoll.Comm(comm)
    sends(comm, 1, 0)  # which the library runs before there is anything
    for call in range(20):
        adds((comm, other)[call % 2], 1000 + call % 2, "f4")
        sends(comm, 300, call % SIZE)
        rows = numpy.empty((SIZE, 5), "f4") if RANK == call % SIZE else None
        comm.Gather(numpy.full(5, RANK, "f4"), rows, call % SIZE)
        assert rows is None or numpy.array_equal(rows[:, 0], numpy.arange(SIZE))
    assert kinds(comm) == {("allreduce", 12), ("bcast", 12),
                           ("gather", online.size_class(20 * SIZE))}
    # On a busy machine a measurement may come to nothing; then the rules decide.
    found = comm.tuned.tried["gather", online.size_class(20 * SIZE)]
    assert ("online, in this job" in comm.explain("gather", 20 * SIZE)) is bool(found)
    with comm.using(allreduce="ring"):
        adds(comm, 100_000, "f4")  # a preference needs no times
    assert len(tried(comm)) == 3


def test_asked_for_operators_that_do_not_commute_keep_their_order(asked, comm):
    left = MPI.Op.Create(lambda one, two, datatype: None, commute=False)
    right = MPI.Op.Create(lambda one, two, datatype: two.__setitem__(
        slice(None), bytes(one)), commute=False)
    for _ in range(10):
        for op, expected in ((left, SIZE - 1), (right, 0)):
            result = numpy.full(6, -1, "i4")
            comm.Allreduce(numpy.full(6, RANK, "i4"), result, op)
            assert (result == expected).all()
    left.Free()
    right.Free()


def test_a_rank_that_does_not_come_to_a_measurement_is_reported(asked, monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.3")
    comm = hpccoll.Comm(WORLD.Dup())
    sends(comm, 1, 0)
    if RANK:
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError), match="online tuning"):
            adds(comm, 1000, "f4")
    else:
        with pytest.raises(hpccoll.errors.ArgumentError):
            comm.Allreduce(numpy.zeros(1000, "f4"), numpy.zeros(999, "f4"))
    # The broadcast of the others is still open: this communicator is left alone.
    WORLD.Barrier()
