"""Messages of the lower-case methods: inside a frame, behind it, exchanged; nothing is shared."""

import numpy
import pytest
from mpi.object_model import same, tree
from mpi4py import MPI

from hpccoll.comm.objects.exchange import MOST_SHAPES, SHARED, ObjectExchange
from hpccoll.comm.objects.wire import FRAME

pytestmark = pytest.mark.mpi
RAW = MPI.COMM_WORLD


@pytest.mark.parametrize("nbytes", [FRAME - 40, FRAME - 4, FRAME - 3, FRAME - 2, FRAME - 1, FRAME,
                                    FRAME + 1, 3 * FRAME, 100_000])
def test_sizes_around_that_of_a_frame(world, nbytes):
    for make in (lambda n: b"x" * n, lambda n: numpy.full(n, 7, "u1")):
        value = make(nbytes)
        assert same(world.bcast(value), value)
        found = world.allreduce(value, lambda a, b: a if len(a) == len(b) else None)
        assert same(found, value)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, SHARED // 8 - 1, SHARED // 8,
                                   SHARED // 8 + 1])
def test_arrays_of_every_length(world, count):
    """Inside a frame, exchanged, and too long for that; earlier results are nobody's buffers."""
    results, mine = [], numpy.arange(count) + 1000.0 * world.rank
    kept = mine.copy()
    for turn in range(4):
        results.append(world.allreduce(mine + turn))
    sums = world.size * numpy.arange(count) + 500.0 * world.size * (world.size - 1)
    assert all((found == sums + turn * world.size).all() for turn, found in enumerate(results))
    assert (mine == kept).all() and results[0] is not mine


def test_many_forms_of_arrays(world):
    for turn in range(2):
        for count in range(20, 20 + 2 * MOST_SHAPES):
            for form in ((count,), (2, count)):
                for dtype in ("f8", "i4", "c16"):
                    found = world.allreduce(numpy.full(form, world.rank + turn, dtype))
                    assert found.shape == form and found.dtype == dtype
                    assert (found == world.size * (world.size - 1) // 2 + world.size * turn).all()


def test_ranks_pass_arrays_of_different_forms(world):
    for forms in (((30,), (1,)), ((1,), (30,)), ((20,), (3, 20)), ((64, 1), (64,))):
        form = forms[world.rank % 2]
        assert numpy.array_equal(world.allreduce(numpy.ones(form)), RAW.allreduce(numpy.ones(form)))
    mixed = numpy.ones(40, ("f4", "f8", "i2")[world.rank % 3])
    assert world.allreduce(mixed).dtype == RAW.allreduce(mixed).dtype
    odd = [numpy.ones(40), [1.0] * 40][world.rank % 2]
    assert numpy.array_equal(world.allreduce(odd), RAW.allreduce(odd))


def test_what_containers_hold_is_not_shared(world):
    inner = [world.rank]
    found = world.allreduce([inner])
    assert found == [[rank] for rank in range(world.size)]
    assert all(part is not inner for part in found)
    found[world.rank].append(None)
    assert inner == [world.rank] and world.allreduce((inner,))[world.rank] == inner


@pytest.mark.parametrize("value", [
    0.0, -0.0, float("inf"), float("nan"), 5e-324, 2**63 - 1, 2**63, -2**63, -2**63 - 1, 10**400,
    True, 1 + 2j, "x" * 70, b"x" * 200], ids=str)
def test_numbers_and_texts_arrive_as_they_are(world, value):
    for op in (lambda a, b: b, MPI.SUM if type(value) is complex else MPI.MAX):
        wanted, found = RAW.allreduce(value, op), world.allreduce(value, op)
        assert type(found) is type(wanted) and repr(found) == repr(wanted)
        assert repr(world.bcast(value, world.size - 1)) == repr(value)


@pytest.mark.skipif(RAW.Get_size() & (RAW.Get_size() - 1) != 0, reason="for powers of two")
@pytest.mark.parametrize("value", [
    lambda r: 0.1 * (r + 1), lambda r: [r, "x" * (50 * r)], lambda r: numpy.arange(5.0) + r,
    lambda r: numpy.arange(1000.0) + r, lambda r: numpy.arange(SHARED // 8 + 1.0) + r,
    lambda r: {r} if r == 1 else frozenset({r}), lambda r: "ab"[r % 2] * 200])
def test_recursive_doubling_where_ranks_share_processors(world, value):
    """Where they do not, ``allreduce`` uses it by itself."""
    if world.size == 1:
        return
    for _ in range(3):
        exchange, op = world._private().service(ObjectExchange), MPI.BOR if isinstance(
            value(1), set) else MPI.SUM
        exchange.select("allreduce", op)
        result, everywhere = exchange.doubling_allreduce(value(world.rank), op)
        wanted = tree([value(r) for r in range(world.size)], op)
        assert len(set(RAW.allgather(everywhere))) == 1
        if everywhere or world.rank == 0:
            assert same(result, wanted) or isinstance(result, (set, frozenset)) and result == wanted


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("op", [MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.LAND],
                         ids=["sum", "prod", "max", "min", "land"])
def test_numbers_that_are_not_alike(world, op):
    """What begins in machine code goes on in Python where something else turns up."""
    native, big = MPI.Intracomm(world), 1 << 62
    alike = [(1.5, -2.25, 3e300, 0.1), (1, 2, 3, 4), (1, 2.5, 3, 4.5), (True, 2, 0.5, 3),
             (big, big, big, big), (big, 3, -big, 5), (1, 1 << 70, 2, 3),
             (float("nan"), 1., 2., 3.), (1., 2., 3., float("nan")), (0.0, -0.0, 0.0, -0.0),
             (numpy.float64(2), 3., 4., 5.)]
    if op in (MPI.SUM, MPI.PROD):  # which are those that arrays have
        alike.append((1., numpy.ones(3), 2., numpy.ones(3)))
    for values in alike:
        for shift in range(world.size):
            mine = values[(world.rank + shift) % 4]
            for _ in range(2):
                theirs, ours = native.allreduce(mine, op), world.allreduce(mine, op=op)
                assert type(ours) is type(theirs) and repr(ours) == repr(theirs)
