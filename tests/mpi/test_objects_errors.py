"""Lower-case methods: no rank is left waiting when something fails on another one."""

import numpy
import pytest
from mpi.disagreeing import check
from mpi.object_model import outcome
from mpi4py import MPI

import hpccoll
from hpccoll.errors import CollectiveTimeout, HpccollError
from hpccoll.errors.contract import ContractError
from hpccoll.runtime.execution.built import BUILT

pytestmark = pytest.mark.mpi
RAW = MPI.COMM_WORLD


class Unpicklable:
    def __reduce__(self):
        raise ValueError("this cannot travel")


class OneWay(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def rejecting(rank_of_failure, error):
    """An operator that raises when it meets the value of one rank."""
    def op(a, b):
        for operand in (a, b):
            if rank_of_failure in operand:
                raise error
        return a + b
    return op


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("error, seen", [
    (KeyError("no such thing"), KeyError), (OneWay(1, 2), (OneWay, HpccollError)),
    (type("Local", (Exception,), {})("not importable"), Exception)])
def test_a_failing_operator_is_heard_of_on_every_rank(world, error, seen):
    for culprit in range(world.size):
        op = rejecting(culprit, error)
        with pytest.raises(seen) as caught:
            world.allreduce((world.rank,), op)
        if type(caught.value) is not type(error):
            assert type(error).__name__ in str(caught.value)
        if world.rank == 0:
            with pytest.raises(seen):
                world.reduce((world.rank,), op)
        else:
            outcome(lambda: world.reduce((world.rank,), op))
        for method in ("scan", "exscan"):
            found = outcome(lambda: getattr(world, method)((world.rank,), op))
            if world.rank >= culprit + (method == "exscan" and world.rank - culprit > 0) + (
                    world.rank == 0) and world.rank > culprit:
                assert isinstance(found, Exception) or method == "exscan"
        assert world.allreduce(1) == world.size


@pytest.mark.mpi(min_size=2)
def test_the_error_says_where_it_comes_from(world):
    with pytest.raises(TypeError) as caught:
        world.allreduce({world.rank}, lambda a, b: a + b)  # sets have no +
    if world.rank == 1:
        assert "raised on rank" in str(caught.value.__cause__)


@pytest.mark.mpi(min_size=2)
def test_objects_that_cannot_be_pickled(world):
    for culprit in range(world.size):
        mine = Unpicklable() if world.rank == culprit else 1
        with pytest.raises(ValueError, match="travel"):
            world.allreduce(mine, lambda a, b: 1)
        with pytest.raises(ValueError, match="travel"):
            world.bcast(mine, culprit)
        found = outcome(lambda: world.reduce(mine, lambda a, b: 1))
        assert isinstance(found, ValueError) == (world.rank in (0, culprit)) or world.size > 2
        assert world.allreduce(1) == world.size


def test_a_container_that_cannot_be_pickled(world):
    value = [lambda: None] if world.rank == 0 else [1]
    if world.size > 1:
        with pytest.raises(Exception, match="pickle|lambda"):
            world.allreduce(value)
    assert world.allreduce(1) == world.size


class Homesick:
    """Can be unpickled everywhere but on one rank."""

    away = MPI.COMM_WORLD.Get_size() - 1

    def __reduce__(self):
        return arrive, (self.away,)


def arrive(away):
    if RAW.Get_rank() == away:
        raise ValueError("not here")
    return Homesick()


@pytest.mark.parametrize("long", [1, 40])
def test_a_container_that_cannot_be_unpickled_on_one_rank(world, long):
    """Whose result depends on it hears of it; nobody is left waiting."""
    for _ in range(3):
        outcome = "fine"
        try:
            world.allreduce([Homesick()] * long)
        except Exception as error:
            outcome = str(error)
        if world.size > 1:
            assert (world.rank < Homesick.away or "not here" in outcome)
            assert outcome == "fine" or "not here" in outcome
    assert world.allreduce(1) == world.size
    with pytest.raises(TypeError, match="unsupported"):
        world.allreduce({world.rank}) if world.size > 1 else {1} + {2}
    assert world.allreduce([world.rank]) == list(range(world.size))


@pytest.mark.mpi(min_size=2)
def test_waiting_for_a_rank_that_does_not_come_ends(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.2")
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    assert comm.allreduce(1) == comm.size
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeout, match="rank [12].*rank 0"):
            comm.allreduce(1)
    RAW.Barrier()


#: Lower-case calls with an operator and a root: on numbers, objects, arrays, short and long ones.
VALUES = {"number": 2, "float": 0.5, "object": ("x",), "array": numpy.ones(50),
          "long object": "x" * 5000, "long array": numpy.ones(20_000)}
REDUCED = ("number", "float", "array", "long array")
CALLS = {
    "bcast": lambda c, value, op, root: c.bcast(value, root),
    "reduce": lambda c, value, op, root: c.reduce(value, op, root),
    "allreduce": lambda c, value, op, root: c.allreduce(value, op),
    "scan": lambda c, value, op, root: c.scan(value, op),
    "exscan": lambda c, value, op, root: c.exscan(value, op),
    "gather": lambda c, value, op, root: c.gather(value, root),
    "scatter": lambda c, value, op, root: c.scatter([value] * c.size, root),
    "allgather": lambda c, value, op, root: c.allgather(value),
    "alltoall": lambda c, value, op, root: c.alltoall([value] * c.size)}
#: (field, method, method of the odd rank, value)
WAYS = [*(("operator", name, name, value) for name in ("reduce", "allreduce", "scan", "exscan")
          for value in REDUCED),
        *(("root", "reduce", "reduce", value) for value in REDUCED),
        *(("root", name, name, value) for name in ("bcast", "gather", "scatter")
          for value in VALUES),
        *(("collective", *pair, "object") for pair in (
            ("scan", "exscan"), ("bcast", "gather"), ("scatter", "bcast"))),
        ("collective", "allreduce", "reduce", "number")]
#: What mpi4py serves on some ranks is found before; else it may end the process.
NATIVE_WAYS = [("collective", "allgather", "bcast", "number"),
               ("collective", "alltoall", "allgather", "number")]
ODD = RAW.Get_size() - 1


def differ(comm, way, before=0):
    """Make the call of a way, as the odd rank does it on that; the error, of it or the next one."""
    field, usual, unusual, value = way
    odd, value = comm.rank == ODD, VALUES[value]
    name = unusual if odd else usual
    for _ in range(before):
        CALLS[usual](comm, value, MPI.SUM, 0)
    op, root = MPI.MAX if odd and field == "operator" else MPI.SUM, int(odd and field == "root")
    try:
        CALLS[name](comm, value, op, root)
    except HpccollError as error:
        return error
    with pytest.raises(ContractError) as caught:
        comm.allreduce(1)
    return caught.value


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_ranks_that_disagree(monkeypatch, way):
    """Every rank gets the same error, in the call or, where it only sent, in the next one."""
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "20")
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    error = differ(comm, way)
    field, *names, _ = way
    check(error, field, *(f"{name} of objects" for name in names), ODD)
    RAW.Barrier()
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shared, executor", [
    *[("yes", "compiled")] * BUILT, ("yes", "python"), ("no", "python")])
@pytest.mark.parametrize("way", [way for way in WAYS if way[1:3] == ("allreduce", "allreduce")
                                 or way[0] == "root" and way[3] == "number"], ids="-".join)
def test_ranks_that_disagree_after_good_calls(monkeypatch, way, shared, executor):
    """Also where machine code combines numbers, and where no memory is shared."""
    if shared == "no" and way[0] == "root" and way[1] != "reduce":
        pytest.skip("a rank waits where no message comes from, until the deadline")
    for name, value in ("EXECUTOR", executor), ("SHARED_MEMORY", shared), ("TIMEOUT", "20"):
        monkeypatch.setenv(f"HPCCOLL_{name}", value)
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    check(differ(comm, way, before=100), way[0], *[f"{way[1]} of objects"] * 2, ODD)
    RAW.Barrier()
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", [
    *(way for way in WAYS if way[3] == "number"), *NATIVE_WAYS], ids="-".join)
def test_ranks_that_disagree_are_found_before(way):
    """Where every call is compared before it begins."""
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup(), contract="always")
    error = differ(comm, way, before=2)
    check(error, way[0], *(f"{name} of objects" for name in way[1:3]), ODD)
    comm.Free()


@pytest.mark.mpi(min_size=3)
def test_a_new_communicator_gets_no_message_that_was_never_received(monkeypatch):
    """The MPI library may give the number of a freed communicator to the next one."""
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "20")
    value = VALUES["long object"]
    for turn in range(4):
        comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
        differ(comm, ("root", "bcast", "bcast", "long object"))
        RAW.Barrier()
        comm.Free()
        comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
        other = value.replace("x", str(turn))
        assert comm.bcast(other) == other
        comm.Free()
