"""The first calls of a communicator go to the MPI library; a later one sets it up.

The first call only in most tests: ``conftest.py``.
"""

import gc
import json
import os
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms.flat import recursive_doubling
from hpccoll.comm import first_calls
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout, HpccollError
from hpccoll.errors.contract import ContractError
from hpccoll.errors.mpi import OperatorError, RootError
from hpccoll.guard import opening
from hpccoll.ir.schedule import Program
from hpccoll.runtime import ranks
from hpccoll.runtime.attributes import existing_context

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
ODD = SIZE - 1
pytestmark = pytest.mark.mpi(min_size=2)


def new(**options):
    return hpccoll.Comm(MPI.Intracomm(RAW).Dup(), **options)


def total(comm, count=4, **using):
    found = numpy.zeros(count)
    with comm.using(**using):
        comm.Allreduce(numpy.ones(count), found)
    assert (found == comm.size).all()


def shared_memory():
    """The bytes that this process has mapped of files without a name, as communicators have."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        ends = [line.split()[0].split("-") for line in maps if "/dev/shm/#" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ends)


def test_one_call_takes_nothing():
    new().Free()  # the log of the process is made with its first one
    gc.collect()  # of what other tests have mapped
    RAW.Barrier()
    before, files = shared_memory(), len(os.listdir("/proc/self/fd"))
    kept = [new() for _ in range(40)]
    for comm in kept:
        total(comm)
        assert existing_context(comm) is None and "not looked at yet" in repr(comm)
    RAW.Barrier()
    assert shared_memory() <= before
    assert len(os.listdir("/proc/self/fd")) < files + 10
    before = shared_memory()
    total(kept[0])
    assert shared_memory() > before
    for comm in kept:
        comm.Free()


def test_the_second_call_sets_up():
    comm = new()
    total(comm)
    comm.Barrier()
    assert existing_context(comm) is not None
    total(comm, 100)
    comm.Free()


def test_the_ninth_call_sets_up(monkeypatch):
    """Of both kinds; what is asked for by name sets up at once."""
    monkeypatch.setattr(first_calls, "FIRST_CALLS", 8)
    comm = new()
    for _ in range(4):
        total(comm)
        assert comm.allreduce(RANK) == sum(range(SIZE))
    assert existing_context(comm) is None
    assert comm.bcast(RANK, ODD) == ODD
    assert existing_context(comm) is not None
    comm.Free()
    comm = new()
    total(comm)
    total(comm, allreduce="ring")
    assert existing_context(comm) is not None
    comm.Free()


class Point:
    """An object of a user; two are added."""

    def __init__(self, x):
        self.x = x

    def __add__(self, other):
        return Point(self.x + other.x)

    def __eq__(self, other):
        return self.x == other.x


OBJECTS = {"number": 3.5, "none": None, "text": "a" * 500, "nested": [{"a": (1, 2)}, {3}],
           "own": Point(3), "array": numpy.arange(12.0).reshape(3, 4),
           "large": numpy.arange(60_000, dtype="c16").reshape(-1, 2), "empty": numpy.empty(0, "f4"),
           "scalar": numpy.float32(2.5), "strided": numpy.arange(20)[::2]}
#: What each lower-case method is called with, of an object and the root.
LOWER = {"bcast": lambda c, o, r: c.bcast(o if RANK == r else None, r),
         "gather": lambda c, o, r: c.gather(o, r),
         "scatter": lambda c, o, r: c.scatter([o] * SIZE if RANK == r else None, r),
         "allgather": lambda c, o, r: c.allgather(o),
         "alltoall": lambda c, o, r: c.alltoall([o] * SIZE)}
SUMS = {"reduce": lambda c, o, r: c.reduce(o, MPI.SUM, r), "allreduce": lambda c, o, r:
        c.allreduce(o), "scan": lambda c, o, r: c.scan(o), "exscan": lambda c, o, r: c.exscan(o)}


def same(one, two):
    if isinstance(one, (list, numpy.ndarray)) and not isinstance(one, str):
        return type(one) is type(two) and len(one) == len(two) and (
            numpy.array_equal(one, two) and one.dtype == two.dtype
            if isinstance(one, numpy.ndarray) else all(map(same, one, two)))
    return type(one) is type(two) and bool(one == two)


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("name", [*LOWER, *SUMS])
def test_lower_case_methods_give_what_mpi4py_gives(name, kind):
    obj = OBJECTS[kind]
    if name in SUMS and kind in ("none", "nested"):
        pytest.skip("cannot be added")
    comm, call = new(), {**LOWER, **SUMS}[name]
    assert same(call(comm, obj, ODD), call(RAW, obj, ODD))
    assert existing_context(comm) is None
    comm.Free()


@pytest.mark.parametrize("name", [*LOWER, *SUMS])
def test_what_cannot_be_pickled_on_one_rank_is_an_error_there_and_where_it_is_due(name):
    comm, obj = new(), (lambda: None) if RANK == ODD else 1
    if name in ("gather", "scatter"):
        pytest.skip("pickled before the call, which the other ranks wait for")
    waits = {"bcast": True, "scan": RANK == ODD, "exscan": RANK == ODD, "reduce": RANK == ODD}
    call = {**LOWER, **SUMS}[name]
    if waits.get(name, True):
        with pytest.raises(Exception, match="pickle|lambda|Can't get"):
            call(comm, obj, ODD)
    else:
        call(comm, obj, ODD)
    assert comm.allgather(RANK) == list(range(SIZE))
    comm.Free()


def test_an_operator_that_fails_on_one_rank_fails_the_call_on_all():
    def add(one, two):
        raise ValueError("no sum of these")
    comm = new()
    with pytest.raises(ValueError, match="no sum of these"):
        comm.allreduce(RANK, add)
    total(comm)
    comm.Free()


@pytest.mark.parametrize("way", ["method", "operator", "root"])
def test_ranks_that_disagree_about_objects_are_named(way):
    comm, odd = new(), RANK == ODD
    calls = {"method": lambda: comm.bcast(1) if odd else comm.gather(1),
             "operator": lambda: comm.allreduce(1, MPI.MAX if odd else MPI.SUM),
             "root": lambda: comm.bcast(1, int(odd))}
    with pytest.raises(ContractError, match=f"rank {ODD}|ranks") as caught:
        calls[way]()
    assert {"method": "collective"}.get(way, way) in caught.value.fields
    comm.Free()


def test_a_pickle_without_bytes_sets_up(monkeypatch):
    monkeypatch.setattr(MPI, "pickle", type("Json", (), {
        "dumps": staticmethod(lambda obj: json.dumps(obj).encode()),
        "loads": staticmethod(json.loads)}))
    comm = new()
    assert comm.bcast([1, 2], 0) == [1, 2]
    assert existing_context(comm) is not None
    comm.Free()


def test_wrappers_of_one_communicator_count_together():
    """Whichever of them a rank calls."""
    comm = new()
    other = hpccoll.Comm(comm)
    total(comm if RANK else other)
    total(other if RANK else comm)
    assert existing_context(comm) is existing_context(other) is not None
    comm.Free()


@pytest.mark.parametrize("options", [
    {"determinism": "run"}, {"checksums": True}, {"contract": "always"}, {"layout": f"1x{SIZE}"}],
    ids=lambda options: next(iter(options)))
def test_what_is_requested_holds_from_the_first_call_on(options):
    comm = new(**options)
    total(comm)
    assert existing_context(comm) is not None
    comm.Free()


def test_an_algorithm_by_name_is_used_at_once():
    comm = new()
    total(comm, allreduce="ring")
    assert existing_context(comm) is not None
    comm.Free()


def test_every_method_comes_first_once():
    one, many, counts = numpy.ones(3), numpy.zeros(3 * SIZE), [3] * SIZE
    places, kinds = [24 * rank for rank in range(SIZE)], [MPI.DOUBLE] * SIZE
    for call in (
            lambda c: c.Barrier(), lambda c: c.Bcast(one), lambda c: c.Reduce(one, many[:3]),
            lambda c: c.Scan(one, many[:3]), lambda c: c.Exscan(one, many[:3]),
            lambda c: c.Reduce_scatter_block(numpy.ones(3 * SIZE), one),
            lambda c: c.Reduce_scatter(numpy.ones(3 * SIZE), one, counts),
            lambda c: c.Allgather(one, many), lambda c: c.Allgatherv(one, [many, counts]),
            lambda c: c.Gather(one, many), lambda c: c.Gatherv(one, [many, counts]),
            lambda c: c.Scatter(many, one), lambda c: c.Scatterv([many, counts], one),
            lambda c: c.Alltoall(many, numpy.ones(3 * SIZE)),
            lambda c: c.Alltoallv([many, counts], [numpy.ones(3 * SIZE), counts]),
            lambda c: c.Alltoallw([many, (counts, places), kinds],
                                  [numpy.ones(3 * SIZE), (counts, places), kinds]),
            lambda c: c.Allreduce(MPI.IN_PLACE, one)):
        comm = new()
        call(comm)
        assert existing_context(comm) is None
        comm.Free()


@pytest.mark.parametrize("way", ["method", "count", "operator", "root", "dtype"])
def test_ranks_that_disagree_are_named(way):
    comm, odd, found = new(), RANK == ODD, numpy.zeros(8)
    calls = {"method": lambda: comm.Barrier() if odd else comm.Bcast(found),
             "count": lambda: comm.Allreduce(numpy.ones(4 + odd), found[:4 + odd]),
             "operator": lambda: comm.Allreduce(numpy.ones(4), found[:4],
                                                MPI.MAX if odd else MPI.SUM),
             "root": lambda: comm.Bcast(found, int(odd)),
             "dtype": lambda: comm.Allreduce(numpy.ones(4, "f4" if odd else "f8"),
                                             numpy.ones(4, "f4" if odd else "f8"))}
    with pytest.raises(ContractError) as caught:
        calls[way]()
    assert {"method": "collective", "count": "count"}.get(way, way) in caught.value.fields
    assert f"test_first_call.py:{calls[way].__code__.co_firstlineno}"[:-1] in str(caught.value)
    with pytest.raises(BrokenCommunicatorError):
        comm.Barrier()
    comm.Free()


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "1")
    comm, start = new(), time.monotonic()
    if RANK != ODD:
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)) as caught:
            total(comm)
        assert 0.9 < time.monotonic() - start < 10 and f"rank {ODD}" in str(caught.value)
    RAW.Barrier()
    if RANK == ODD:
        with pytest.raises(BrokenCommunicatorError):
            total(comm)
    # Else the failure is the last call of this rank, and would pass for the next such call.
    new().Barrier()


@pytest.mark.parametrize("way", ["first", "set-up", "split"])
def test_duplicates_in_flight(way):
    """Open MPI confuses their messages with those of a nonblocking collective."""
    for _ in range(4):
        comm = new()
        if way == "set-up":
            total(comm)
        part = comm.Split(0, -RANK)
        made = [comm.Idup() for _ in range(5)]
        if way == "split":
            comm.Split(0, RANK).Free()
        total(comm)
        for duplicate, request in made:
            request.Wait()
            total(duplicate)
            duplicate.Free()
        part.Free()
        comm.Free()


def test_a_rank_that_does_not_come_is_named_beside_duplicates(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "1")
    comm = new()
    if RANK != ODD:
        _, request = comm.Idup()
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError), match=f"rank {ODD}"):
            total(comm)
    RAW.Barrier()
    if RANK == ODD:
        _, request = comm.Idup()
    request.Wait()
    new().Barrier()  # else the failure is the last call of a rank, as above


def unfinished(rank, size):
    """A builder that leaves out a contribution."""
    return Program(recursive_doubling.allreduce(rank, size).rounds[:-1])


@pytest.mark.parametrize("form", ["{}", "{}_init"])
@pytest.mark.parametrize("name, preference, problem", [
    ("Bcast", ("knomial", {"kk": 3}), "kk"), ("Bcast", ("knomial", {"k": "4"}), "4"),
    ("Allreduce", "ring", "rank order|splits"), ("Allreduce", unfinished, "unfinished")])
def test_a_choice_that_one_rank_refuses_is_no_call(name, preference, problem, form):
    """It is refused before set-up, in which the others would find another call."""
    comm, mine, found = new(), numpy.ones(240), numpy.zeros(240)
    own = MPI.Op.Create(lambda one, two, datatype: None, commute=False)
    if RANK == ODD:
        args = (found, 0) if name == "Bcast" else (mine, found) + (own,) * (preference == "ring")
        with comm.using(**{name.lower(): preference}):
            with pytest.raises((HpccollError, ValueError, TypeError), match=problem) as caught:
                getattr(comm, form.format(name))(*args)
        assert not isinstance(caught.value, (ContractError, BrokenCommunicatorError))
    for _ in range(3):
        total(comm, 240)
    own.Free()
    comm.Free()


def test_wrong_arguments_are_no_call():
    comm = new()
    for _ in range(2):
        with pytest.raises(RootError):
            comm.Bcast(numpy.ones(3), SIZE)
    total(comm)
    assert existing_context(comm) is None
    total(comm)
    comm.Free()


def test_an_error_of_the_library_on_all_ranks_is_no_failure():
    """A late rank gets the error too, not that another one has failed."""
    for turn in range(5):
        comm, pair = new(), MPI.DOUBLE.Create_contiguous(2)
        pair.Commit()
        time.sleep(0.003 * (RANK == turn % SIZE))
        with pytest.raises(OperatorError):
            comm.Allreduce([numpy.ones(4), 2, pair], [numpy.ones(4), 2, pair])
        total(comm)
        pair.Free()
        comm.Free()


def test_parts_with_the_same_ranks_are_not_confused():
    """One is made, used once and freed after the other; some ranks are late."""
    for turn in range(8):
        time.sleep(0.002 * (RANK == turn % SIZE))
        first, second = new(), new()
        total(first, 3)
        total(second, 5)
        first.Free()
        total(second, 7)
        second.Free()


def test_a_part_of_a_communicator(world):
    part = world.Split(RANK % 2, RANK)
    total(part)
    assert existing_context(part) is None
    total(part)
    part.Free()


def test_nonblocking_calls_do_not_count():
    """They wait for nobody, and a rank may begin any number of them before it comes."""
    comm = new()
    for _ in range(3):
        comm.Ibarrier().Wait()
    total(comm)
    assert existing_context(comm) is None
    comm.Free()


def test_the_world_is_set_up_at_once():
    comm = hpccoll.Comm(RAW)
    total(comm)
    assert existing_context(comm) is not None


def test_without_communicators_for_set_up_the_library_runs_all(monkeypatch):
    """The library raises the error on all ranks; a request that it cannot meet is refused."""
    def full(*args):
        raise MPI.Exception(MPI.ERR_OTHER)

    comm = new()
    monkeypatch.setattr(opening, "Ranks", full)
    total(comm)
    with pytest.warns(RuntimeWarning, match="cannot be set up: .*; free communicators"):
        total(comm, 5)
    for count in (5, 6):  # without another warning
        total(comm, count)
    with pytest.raises(MPI.Exception):
        total(comm, allreduce="ring")
    monkeypatch.undo()
    total(comm, allreduce="ring")
    comm.Free()


@pytest.mark.parametrize("step", ["layout", pytest.param("context", marks=pytest.mark.slow)])
def test_a_set_up_that_the_library_ends_leaves_no_communicator(monkeypatch, step):
    """MPICH has 2048 of them."""
    def full(*args):
        raise MPI.Exception(MPI.ERR_OTHER)

    comm = new()
    module, name = {"layout": (ranks, "on_one_node"), "context": (opening, "Context")}[step]
    monkeypatch.setattr(module, name, full)
    for _ in range(2100):
        with pytest.raises(MPI.Exception):
            opening.context_of(comm, comm._config, None, lambda raise_failure: None, None)
    monkeypatch.undo()
    total(comm)
    total(comm)
    comm.Free()


def test_a_communicator_that_is_revoked_before_its_first_call(world):
    comm = world.Dup()
    try:
        comm.Revoke()
    except NotImplementedError:
        pytest.skip("the library has no ULFM")
    with pytest.raises(MPI.Exception) as caught:
        comm.Barrier()
    assert caught.value.Get_error_class() == MPI.ERR_REVOKED
    with pytest.raises((MPI.Exception, BrokenCommunicatorError)):
        comm.Barrier()
    comm.Free()
