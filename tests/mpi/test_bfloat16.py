"""bfloat16 on real ranks: every collective, every way to call it, and what makes no sense."""

import hashlib

import numpy
import pytest
from mpi.cases import METHODS, REDUCTIONS, cases, reductions
from mpi.test_upper_case import blocking, nonblocking, persistent, serving, unless_refused
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError

BFLOAT16 = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)
pytestmark = pytest.mark.mpi
alone = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank combines nothing")


@pytest.mark.parametrize("way", [blocking, nonblocking, persistent])
@pytest.mark.parametrize("index", ["auto", 0, -1])
def test_every_method(world, way, index):
    preferences = {collective: index if isinstance(index, str) else serving(collective, index)
                   for collective in ALGORITHMS}
    seen = set()
    with world.using(**preferences):
        for count in (0, 1, 37):
            for case in cases(world.rank, world.size, BFLOAT16, count, world.size - 1):
                for _ in range(3 if way is blocking else 1):
                    unless_refused(way, world, case)
                seen.add(case.method)
    assert seen == set(METHODS)


@pytest.mark.parametrize("op", ["prod", "max", "min"])
def test_other_operators(world, op):
    for case in reductions(world.rank, world.size, BFLOAT16, 3000, 0, op, getattr(MPI, op.upper())):
        blocking(world, case)


@alone
def test_the_environment_cannot_ask_for_the_library(world, monkeypatch):
    monkeypatch.setenv("HPCCOLL_ALGORITHM", ";".join(f"{name}=native" for name in (
        "allreduce", "reduce", "scan", "exscan", "reduce_scatter", "allgather")))
    comm = hpccoll.Comm(world.Dup())
    for case in cases(world.rank, world.size, BFLOAT16, 5, 0):
        for _ in range(3):
            blocking(comm, case)
        if case.method in REDUCTIONS:
            persistent(comm, case)
    comm.Free()


@alone
def test_what_cannot_be_served(world):
    x, y = numpy.ones(4, BFLOAT16), numpy.ones(4, BFLOAT16)
    with world.using(allreduce="native"):
        for call in (world.Allreduce, world.Iallreduce, world.Allreduce_init):
            with pytest.raises(ArgumentError, match="reduce"):
                call(x, y)
    for op in (MPI.BAND, MPI.LOR, MPI.MAXLOC):
        with pytest.raises(ArgumentError, match="bfloat16"):
            world.Allreduce(x, y, op)
    with pytest.raises(ArgumentError, match="bfloat16.*float16"):
        world.Allreduce(x, y.astype("f2"))
    assert (x == 1).all() and (y == 1).all()


def test_specifications(world):
    x, y = numpy.full(8, 2, BFLOAT16), numpy.zeros(8, BFLOAT16)
    world.Allreduce([x, 3], [y, 3])
    assert (y[:3] == 2 * world.size).all() and not y[3:].any()
    for _ in range(3):
        world.Bcast([x, MPI.BYTE], 0)
        world.Bcast([x, 8], 0)
        world.Bcast(x.reshape(2, 4), 0)
    assert (x == 2).all()


def test_a_users_operator(world):
    def last(one, two, datatype):
        assert datatype.Get_size() == 2

    op = MPI.Op.Create(last, commute=False)
    out = numpy.zeros(5, BFLOAT16)
    world.Allreduce(numpy.full(5, world.rank, BFLOAT16), out, op)
    assert (out == world.size - 1).all()
    op.Free()


@pytest.mark.parametrize("algorithm", ["auto", "allpairs", "ring", "recursive_multiplying"])
def test_all_ranks_hold_the_same_bits_of_registered_memory(world, algorithm):
    for count in (5, 70_000, 1_000_000):
        x, y = world.empty(count, BFLOAT16), world.zeros(count, BFLOAT16)
        assert x.dtype == BFLOAT16 and not y.astype("f4").any()
        terms = [numpy.random.default_rng(rank).standard_normal(count).astype(BFLOAT16)
                 for rank in range(world.size)]
        x[:] = terms[world.rank]
        seen = set()
        with world.using(allreduce=algorithm):
            for _ in range(3):
                world.Allreduce(x, y)
                seen |= set(world.allgather(hashlib.sha256(y.tobytes()).hexdigest()))
        assert len(seen) == 1
        exact = sum(term.astype("f8") for term in terms)
        assert numpy.abs(y.astype("f8") - exact).max() <= world.size * 2.0 ** -6
