"""16-bit floats on real ranks: the same bits on all of them, and one rounding in a chain."""

import hashlib

import numpy
import pytest
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError

pytestmark = pytest.mark.mpi
#: Elements: in slots; larger than a block of the kernel; in several segments.
COUNTS = (3, 700, 150_000, 1_500_000)


def terms(count, rank):
    return numpy.random.default_rng(rank).standard_normal(count).astype("f2")


def digests(comm, array):
    return set(comm.allgather(hashlib.sha256(array.tobytes()).hexdigest()))


@pytest.mark.parametrize("name, count", [
    *((name, COUNTS[1]) for name, entry in ALGORITHMS["allreduce"].items() if not entry.exact_only),
    *((name, count) for name in ("ring", "allpairs", "recursive_multiplying")
      for count in (COUNTS[0], COUNTS[2]))])
def test_all_ranks_hold_the_same_bits(world, name, count):
    mine, out = terms(count, world.rank), numpy.empty(count, "f2")
    with world.using(allreduce=name):
        try:
            world.Allreduce(mine, out)
        except ArgumentError as error:
            assert "rank order" in str(error) or "requires" in str(error)
            return
        found = digests(world, out)
        assert len(found) == 1
        for _ in range(3):  # the later ones are prepared
            world.Allreduce(mine, out)
            assert digests(world, out) == found
        world.Allreduce(MPI.IN_PLACE, mine)
        assert digests(world, mine) == found
    exact = sum(terms(count, rank).astype("f8") for rank in range(world.size))
    assert numpy.abs(out - exact).max() <= world.size * 2.0 ** -9


@pytest.mark.parametrize("shared", ["yes", "no"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_chain_is_rounded_once(world, monkeypatch, shared, count):
    """The owner of a block adds all others' to its own; in which memory, makes no difference."""
    monkeypatch.setenv("HPCCOLL_SHARED_MEMORY", shared)
    comm, size = type(world)(world.Dup()), world.size
    out = numpy.empty(count, "f2")
    with comm.using(allreduce="allpairs"):
        for _ in range(3):
            comm.Allreduce(terms(count, world.rank), out)
    comm.Free()
    wide = [terms(count, rank).astype("f4") for rank in range(size)]
    for owner, part in enumerate(numpy.array_split(numpy.arange(count), size)):
        total = wide[owner][part]
        for rank in (*range(owner + 1, size), *range(owner - 1, -1, -1)):
            total = total + wide[rank][part]
        assert (out[part].view("u2") == total.astype("f2").view("u2")).all()


@pytest.mark.parametrize("op, function", [("PROD", numpy.multiply), ("MAX", numpy.maximum),
                                          ("MIN", numpy.minimum)])
def test_other_operators(world, op, function):
    count = 9000
    out = numpy.empty(count, "f2")
    with world.using(allreduce="allpairs"):
        world.Allreduce(terms(count, world.rank), out, getattr(MPI, op))
    wanted = function.reduce([terms(count, rank).astype("f4") for rank in range(world.size)])
    assert numpy.allclose(out, wanted, rtol=2e-3, atol=1e-6)
    assert op == "PROD" or (out == wanted).all()
