"""Lower-case methods: results exactly mpi4py's."""

import enum
import itertools
import json
import operator
import pickle
from random import Random

import numpy
import pytest
from mpi.object_model import outcome, prefixes, same, tree
from mpi4py import MPI

import hpccoll
from hpccoll.comm.objects import methods

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


@pytest.mark.slow(every=10)
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


def in_place(one, other):
    one += other
    return one


@pytest.mark.parametrize("op", [lambda one, other: f"({one}{other})", operator.add, MPI.SUM,
                                in_place], ids=["text", "add", "SUM", "in place"])
@pytest.mark.parametrize("value", [str, lambda r: [r], lambda r: numpy.full(9, 0.1 ** r),
                                   lambda r: (1.0, 1e16, -1e16, 1.0)[r % 4]])
def test_reductions_one_after_another_without_fast_reduce(world, monkeypatch, op, value):
    """The sums of floats are those of one process. mpi4py reads ``rc`` when MPI is imported."""
    monkeypatch.setattr(methods, "SERIAL", True)
    rank, size = world.rank, world.size
    wanted = list(itertools.accumulate((value(r) for r in range(size)), lambda one, other: op(
        MPI.pickle.loads(MPI.pickle.dumps(one)), other)))
    mine, before = value(rank), value(rank)
    for _ in range(3):
        assert same(world.allreduce(mine, op), wanted[-1])
        for root in range(size):
            found = world.reduce(mine, op, root)
            assert same(found, wanted[-1]) if rank == root else found is None
        assert same(world.scan(mine, op), wanted[rank])
        assert same(world.exscan(mine, op), wanted[rank - 1] if rank else None)
    assert same(mine, before)
    for name in REDUCTIONS:
        failure = outcome(lambda: getattr(world, name)(1, lambda one, other: other // 0))
        assert type(failure) is ZeroDivisionError or size == 1 or name != "allreduce"
    assert world.allreduce(1) == size


class Colour(enum.Enum):
    RED = 1


class Interned:
    """A class with one object for each name."""

    known: dict = {}

    def __new__(cls, name):
        return cls.known.setdefault(name, super().__new__(cls))

    def __reduce__(self):
        return Interned, ("one",)


#: Objects that unpickle to the very object that was sent.
SINGLETONS = {"Enum": Colour.RED, "class": Colour, "function": numpy.linalg.norm,
              "built-in": len, "type": numpy.float32,
              "interned": Interned("one"), "Ellipsis": ..., "NotImplemented": NotImplemented,
              "None": None, "masked": numpy.ma.masked}
#: Every lower-case method that moves objects, on an object and a root.
MOVES = {"bcast": lambda c, obj, root: c.bcast(obj, root),
         "reduce": lambda c, obj, root: c.reduce(obj, lambda a, b: (b, a), root),
         "allreduce": lambda c, obj, root: c.allreduce(obj, lambda a, b: (b, a)),
         "scan": lambda c, obj, root: c.scan(obj, lambda a, b: (b, a)),
         "exscan": lambda c, obj, root: c.exscan(obj, lambda a, b: (b, a)),
         "gather": lambda c, obj, root: c.gather(obj, root),
         "scatter": lambda c, obj, root: c.scatter([obj] * c.size, root),
         "allgather": lambda c, obj, root: c.allgather(obj),
         "alltoall": lambda c, obj, root: c.alltoall([obj] * c.size)}


@pytest.mark.parametrize("method", MOVES)
def test_objects_that_unpickle_to_themselves(world, method):
    for thing in SINGLETONS.values():
        for root in {0, world.size - 1}:
            for sent in (thing, [thing, "x" * 500]):
                found, wanted = (MOVES[method](comm, sent, root) for comm in (world, RAW))
                assert flat(found) == flat(wanted)


def flat(result):
    """The objects of a result by identity, other than containers and texts."""
    if isinstance(result, (list, tuple)):
        return [type(result), *map(flat, result)]
    return result if isinstance(result, str) else id(result)


def some_object(random, depth=0):
    """An object made by chance, the same on all ranks that have drawn the same before."""
    kind = random.choice(["value", "singleton", "list", "tuple", "dict"][:5 if depth < 3 else 2])
    if kind == "value":
        return VALUES[random.choice(sorted(VALUES))](random.randrange(4))
    if kind == "singleton":
        return SINGLETONS[random.choice(sorted(SINGLETONS))]
    parts = [some_object(random, depth + 1) for _ in range(random.randrange(4))]
    return dict(enumerate(parts)) if kind == "dict" else parts if kind == "list" else tuple(parts)


def alike(one, other):
    """Equal in type and content, dictionaries by their items."""
    if type(one) is type(other) and isinstance(one, (dict, list, tuple)):
        pairs = zip(one.items(), other.items()) if isinstance(one, dict) else zip(one, other)
        return len(one) == len(other) and all(alike(*pair) for pair in pairs)
    return one is other or same(one, other)


@pytest.mark.parametrize("method", MOVES)
def test_any_object_arrives_as_with_mpi4py(world, method):
    random = Random(method)
    for turn in range(40):
        objects = [some_object(random) for _ in range(world.size)]
        found, wanted = (MOVES[method](comm, objects[world.rank], turn % world.size)
                         for comm in (world, RAW))
        assert alike(found, wanted), (turn, found, wanted)


@pytest.mark.parametrize("nbytes", [1, 200, (64 << 10) - 100, 65 << 10, 200_000])
def test_gather_and_scatter_of_sizes_that_differ(world, nbytes):
    """Short objects travel along a tree, long ones straight to the root or from it."""
    rank, size = world.rank, world.size
    every = [bytes([one]) * (nbytes if one % 2 else 3) for one in range(size)]
    for root in range(size):
        assert world.gather(every[rank], root) == (every if rank == root else None)
        assert world.scatter(every if rank == root else None, root) == every[rank]


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


@pytest.mark.parametrize("known", [False, True])
def test_messages_of_our_own_do_not_go_through_the_pickler_of_the_program(known):
    """JSON knows no bytes and no exceptions, and turns a tuple into a list."""
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup(), tuning="off")
    rank, size = comm.rank, comm.size
    if known:
        assert comm.allreduce(1) == comm.allreduce(1) == size
    MPI.pickle.__init__(lambda obj: json.dumps(obj).encode(), lambda data: json.loads(bytes(data)))
    try:
        x = numpy.ones(3)
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, x)
        assert (x == size ** 3).all() and comm.layout and comm.empty(3).size == 3
        every = [{"rank": r, "text": "x" * (100_000 * (r % 2))} for r in range(size)]
        for root in range(size):
            assert comm.bcast(every[1:] if rank == root else None, root) == every[1:]
            assert comm.gather(every[rank], root) == (every if rank == root else None)
            assert comm.scatter(every if rank == root else None, root) == every[rank]
        assert comm.allreduce([rank]) == list(range(size)) and comm.allgather((rank,)) == [
            [r] for r in range(size)]
        with pytest.raises(TypeError, match="JSON"):
            comm.bcast(object() if rank == size - 1 else None, size - 1)
        with pytest.raises(ZeroDivisionError):
            comm.allreduce([rank], lambda one, other: 1 // 0) if size > 1 else 1 // 0
        comm.Free()
    finally:
        MPI.pickle.__init__()
