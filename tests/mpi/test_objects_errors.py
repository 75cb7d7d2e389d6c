"""Lower-case methods: no rank is left waiting when something fails on another one."""

import pytest
from mpi.object_model import outcome
from mpi4py import MPI

import hpccoll
from hpccoll.errors import CollectiveTimeout, HpccollError
from hpccoll.errors.contract import ContractError

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
        with pytest.raises(ValueError, match="cannot travel"):
            world.allreduce(mine, lambda a, b: 1)
        with pytest.raises(ValueError, match="cannot travel"):
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
    with pytest.raises(TypeError, match="unsupported operand"):
        world.allreduce({world.rank}) if world.size > 1 else {1} + {2}
    assert world.allreduce([world.rank]) == list(range(world.size))


@pytest.mark.mpi(min_size=2)
def test_waiting_for_a_rank_that_does_not_come_ends(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.2")
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    assert comm.allreduce(1) == comm.size
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeout, match="rank 1 is.*objects timed out on rank 0"):
            comm.allreduce(1)
    RAW.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_other_roots_are_found_before(name):
    """Where every call is compared; rank 1 has its own root."""
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup(), contract="always")
    values = list(range(comm.size))
    for _ in range(2):  # the second is like the first
        assert getattr(comm, name)(values) is not None or comm.rank
    with pytest.raises(ContractError) as caught:
        getattr(comm, name)(values, int(comm.rank == 1))
    assert caught.value.field == "root" and caught.value.ranks == ((1,) if comm.size > 2 else ())


@pytest.mark.parametrize("root", [-1, "size", 1.5, None])
def test_a_root_that_is_none_is_no_call(world, root):
    root = world.size if root == "size" else root
    for _ in range(2):
        with pytest.raises(HpccollError, match="root"):
            world.gather(1, root)
        with pytest.raises(HpccollError, match="root"):
            world.scatter([1] * world.size, root)
    assert world.allgather(world.rank) == list(range(world.size))
