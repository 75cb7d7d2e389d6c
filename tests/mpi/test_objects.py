"""Lower-case methods: results exactly mpi4py's, and no rank left waiting when something fails."""

import functools
import pickle

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.objects.exchange import MOST_FORMS, SHARED
from hpccoll.comm.objects.wire import FRAME
from hpccoll.errors import CollectiveTimeout, HpccollError

pytestmark = pytest.mark.mpi
RAW = MPI.COMM_WORLD
REDUCTIONS = ("reduce", "allreduce", "scan", "exscan")


class Number:
    """A class of a user's own; sums remember the order in which they were made."""

    def __init__(self, text):
        self.text = text

    def __add__(self, other):
        return Number(f"({self.text}{other.text})")

    def __eq__(self, other):
        return type(other) is Number and self.text == other.text


class Unpicklable:
    def __reduce__(self):
        raise ValueError("this cannot travel")


class OneWay(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def array(dtype, *shape):
    numbers = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape)
    return lambda r: (numbers + r + 1).astype(dtype)


#: What rank r contributes.
VALUES = {
    "int": lambda r: r - 3, "bool": lambda r: r % 2 == 0, "float": lambda r: 0.1 * (r + 1),
    "huge int": lambda r: 10 ** 40 + r, "complex": lambda r: 1j ** r,
    "str": lambda r: "abc"[r % 3],
    "long str": lambda r: "abc"[r % 3] * 5000, "bytes": lambda r: bytes([r]),
    "tuple": lambda r: (r,),
    "list": lambda r: [r, [r]], "Number": lambda r: Number(str(r)), "None": lambda r: None,
    "f8": array("f8", 5), "f4": array("f4", 2, 3), "f2": array("f2", 4), "i1": array("i1", 300),
    "?": lambda r: numpy.array([True, r % 2 == 0, False]), "c16": array("c16", 3),
    "large f8": array("f8", 40_000), "large i4": array("i4", 3, 20_000), "empty": array("f8", 0, 4),
    "0-d": array("f8"), "g": array("g", 4), "big endian": array(">f8", 4),
    "strided": lambda r: array("f8", 8)(r)[::2], "Fortran": lambda r: array("f8", 3, 4)(r).T,
    "shapes that broadcast": lambda r: array("f8", 1 + 2 * (r % 2))(r),
    "types that differ": lambda r: array("f8" if r else "i4", 3)(r),
    "array and number": lambda r: array("f8", 3)(r) if r else 2.5,
    "np.float64": lambda r: numpy.float64(0.1 * (r + 1)),
    "np.float32": lambda r: numpy.float32(r + .5),
    "np.int8": lambda r: numpy.int8(r), "np.bool": lambda r: numpy.bool_(r % 2),
    "structured": lambda r: numpy.array([(r, 2.)], [("a", "i4"), ("b", "f8")]),
    "objects": lambda r: numpy.array([r, "x"], object),
    "matrix of a subclass": lambda r: numpy.ma.array(
        [1., 2.], mask=[r % 2, 0])}
OPS = {"SUM": MPI.SUM, "PROD": MPI.PROD, "MAX": MPI.MAX, "MIN": MPI.MIN, "BAND": MPI.BAND,
       "BOR": MPI.BOR, "BXOR": MPI.BXOR, "LAND": MPI.LAND, "LOR": MPI.LOR, "MINLOC": MPI.MINLOC,
       "pair": lambda a, b: (a, b), "left": lambda a, b: a, "right": lambda a, b: b,
       "max": max, "numpy.add": numpy.add}


def same(one, other):
    """Equal in type, content and, for arrays, dtype, shape, order and whether one may write."""
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray):
        flags = [(a.flags.c_contiguous, a.flags.f_contiguous, a.flags.writeable)
                 for a in (one, other)]
        return (one.dtype == other.dtype and one.shape == other.shape and flags[0] == flags[1]
                and all(same(a, b) for a, b in zip(one.ravel().tolist(), other.ravel().tolist())))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, (float, complex)) else bool(one == other)


def outcome(call):
    """What a call of all ranks together would return or raise, worked out here alone."""
    try:
        return call()
    except Exception as error:
        return error


def tree(values, op):
    """Combine as mpi4py's binomial tree does."""
    step = 1
    values = list(values)
    while step < len(values):
        for i in range(0, len(values) - step, 2 * step):
            values[i] = op(values[i], values[i + step])
        step *= 2
    return values[0]


def prefixes(values, op, inclusive):
    """Combine as mpi4py's recursive doubling does, on every rank."""
    size = len(values)
    totals, results = list(values), list(values) if inclusive else [None] * size
    started, distance = [inclusive] * size, 1
    while distance < size:
        before = list(totals)
        for rank in range(size):
            partner = rank ^ distance
            if partner >= size:
                continue
            if rank > partner:
                totals[rank] = op(before[partner], before[rank])
                results[rank] = (op(before[partner], results[rank]) if started[rank]
                                 else before[partner])
                started[rank] = True
            else:
                totals[rank] = op(before[rank], before[partner])
        distance *= 2
    return results


@pytest.mark.parametrize("name", VALUES)
def test_broadcast(world, name):
    for root in {0, world.size - 1}:
        value = VALUES[name](root)
        for sent in (value, [value, {"key": value}]):
            found = world.bcast(sent if world.rank == root else "ignored", root)
            wanted = RAW.bcast(sent if world.rank == root else "ignored", root)
            assert type(found) is type(wanted)
            assert same(found if type(sent) is not list else found[0],
                        wanted if type(sent) is not list else wanted[0])
            assert found is not sent or not isinstance(sent, (list, numpy.ndarray))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", VALUES)
def test_reductions_are_those_of_mpi4py(world, name, op):
    rank, size, combine = world.rank, world.size, OPS[op]
    values = [MPI.pickle.loads(MPI.pickle.dumps(VALUES[name](r))) for r in range(size)]
    mine, before = VALUES[name](rank), VALUES[name](rank)
    wanted = outcome(lambda: tree(values, combine))
    if isinstance(wanted, Exception):
        with pytest.raises(type(wanted)):
            world.allreduce(mine, combine)
        assert world.allreduce(1) == size
        return
    found = world.allreduce(mine, combine)
    assert same(found, wanted if size > 1 else RAW.allreduce(mine, combine)), (found, wanted)
    for root in {0, size - 1}:
        found = world.reduce(mine, combine, root)
        assert same(found, wanted) or size == 1 if rank == root else found is None
    for method, inclusive in (("scan", True), ("exscan", False)):
        results = outcome(lambda: prefixes(values, combine, inclusive))
        if not isinstance(results, Exception):
            found = getattr(world, method)(mine, combine)
            assert same(found, results[rank]) or size == 1, (method, found, results[rank])
    assert same(mine, before)


@pytest.mark.parametrize("name", ["float", "tuple", "f8", "large f8", "Number"])
def test_the_oracle_is_right_about_mpi4py(world, name):
    mine, op = VALUES[name](world.rank), lambda a, b: a + b
    values = [VALUES[name](r) for r in range(world.size)]
    assert same(RAW.allreduce(mine, op), tree(values, op))
    assert same(RAW.scan(mine, op), prefixes(values, op, True)[world.rank])
    assert same(RAW.exscan(mine, op), prefixes(values, op, False)[world.rank])


@pytest.mark.parametrize("nbytes", [FRAME - 40, FRAME - 4, FRAME - 3, FRAME - 2, FRAME - 1, FRAME,
                                    FRAME + 1, 3 * FRAME, 100_000])
def test_sizes_around_that_of_a_frame(world, nbytes):
    for make in (lambda n: b"x" * n, lambda n: numpy.full(n, 7, "u1")):
        value = make(nbytes)
        assert same(world.bcast(value), value)
        found = world.allreduce(value, lambda a, b: a if len(a) == len(b) else None)
        assert same(found, value)


def test_what_a_rank_passes_is_never_changed_or_handed_back(world):
    def grow(a, b):
        a += b
        return a

    def grow_right(a, b):
        b[:0] = a
        return b

    for op in (grow, grow_right, lambda a, b: a, lambda a, b: b, MPI.MAX):
        mine = [world.rank]
        for method in REDUCTIONS:
            found = getattr(world, method)(mine, op)
            assert mine == [world.rank] and (found is not mine)
    wanted = list(range(world.size))
    for op in (grow, grow_right):
        assert world.allreduce([world.rank], op) == wanted
        assert world.scan([world.rank], op) == wanted[:world.rank + 1] or world.size == 1
        assert world.exscan([world.rank], op) == (wanted[:world.rank] or None)
    ones = numpy.ones(3)
    found = world.allreduce(ones, grow)
    assert (ones == 1).all() and (found == world.size).all() and found is not ones
    one = numpy.ones(1)
    assert world.allreduce(one, MPI.MAX) is not one


def test_results_are_the_same_bits_on_every_rank(world):
    value = numpy.random.default_rng(world.rank).random(1000)
    found = world.allreduce(value)
    assert RAW.allgather(found.tobytes()) == [found.tobytes()] * world.size


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


def test_the_other_lower_case_methods(world):
    rank, size = world.rank, world.size
    world.barrier()
    assert world.allgather((rank,)) == [(r,) for r in range(size)]
    assert world.gather(rank, size - 1) == (list(range(size)) if rank == size - 1 else None)
    assert world.scatter([10 * r for r in range(size)] if rank == 0 else None) == 10 * rank
    assert world.alltoall([(rank, r) for r in range(size)]) == [(r, rank) for r in range(size)]


def test_keyword_names(world):
    assert world.bcast(obj=3, root=0) == 3
    assert world.reduce(sendobj=1, op=MPI.SUM, root=0) == (world.size if world.rank == 0 else None)
    assert world.allreduce(sendobj=1, op=MPI.SUM) == world.size
    assert world.scan(sendobj=1, op=MPI.SUM) == world.rank + 1
    assert world.exscan(sendobj=1, op=MPI.SUM) == (world.rank or None)


def test_other_picklers(world):
    used = []
    try:
        MPI.pickle.__init__(lambda obj: b"!" + pickle.dumps(obj),
                            lambda data: used.append(data) or pickle.loads(bytes(data)[1:]))
        assert world.allreduce([world.rank]) == list(range(world.size))
        assert world.bcast({"a": "x" * 500}) == {"a": "x" * 500}
        assert used
    finally:
        MPI.pickle.__init__()
    assert world.bcast((1, 2)) == (1, 2)


@pytest.mark.mpi(min_size=2)
def test_waiting_for_a_rank_that_does_not_come_ends(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.2")
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    assert comm.allreduce(1) == comm.size
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeout, match="allreduce of objects.*rank 0.* 1;"):
            comm.allreduce(1)
    RAW.Barrier()


def test_interleaved_with_everything_else(world):
    out = numpy.zeros(1)
    for i in range(50):
        assert world.allreduce(i) == i * world.size
        assert world.bcast([i] * i, i % world.size) == [i] * i
        with world.using(allreduce="ring"):
            world.Allreduce(numpy.full(1, float(i)), out)
        assert out == i * world.size
        assert world.exscan(i, op=functools.partial(max)) == (i if world.rank else None)


def test_user_messages_are_not_disturbed(world):
    box = bytearray(64)
    request = world.Irecv(box, MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert world.allreduce(1) == world.size and world.scan(1) == world.rank + 1
    with world.using(allreduce="ring"):
        world.Allreduce(numpy.ones(1000), numpy.empty(1000))
    assert not request.Test()
    MPI.COMM_WORLD.Barrier()  # before anybody sends what may arrive
    world.Send(b"from a user", (world.rank + 1) % world.size)
    request.Wait()
    assert box.startswith(b"from a user")


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
        for count in range(20, 20 + 2 * MOST_FORMS):
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
