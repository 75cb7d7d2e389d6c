"""16-bit floats: the same bits on all ranks, one rounding in a chain, what cannot be reduced."""

import hashlib

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

pytestmark = pytest.mark.mpi
#: Elements: in slots; larger than a block of the kernel; in several segments.
COUNTS = (3, 700, 150_000, 1_500_000)
TYPES = [("f2", 2.0 ** -9), *[(bfloat16, 2.0 ** -6)] * (bfloat16 is not None)]
needs_bfloat16 = pytest.mark.skipif(bfloat16 is None, reason="ml_dtypes is not installed")
alone = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank combines nothing")


def terms(count, rank, dtype="f2"):
    return numpy.random.default_rng(rank).standard_normal(count).astype(dtype)


@pytest.mark.parametrize("name, counts", [("auto", COUNTS[1:3]), *(
    (name, (3, 700, 150_000) if name in ("ring", "allpairs", "recursive_multiplying") else (700,))
    for name, entry in ALGORITHMS["allreduce"].items() if not entry.exact_only)])
@pytest.mark.parametrize("dtype, error", TYPES, ids=["float16", "bfloat16"][:len(TYPES)])
@pytest.mark.parametrize("registered", [False, True])
def test_all_ranks_hold_the_same_bits(world, name, counts, dtype, error, registered):
    if name == "auto" and dtype == "f2":
        pytest.skip("the MPI library may round as it likes")
    for count in counts:
        mine, out = [(world.empty if registered else numpy.empty)(count, dtype) for _ in range(2)]
        mine[:], found = terms(count, world.rank, dtype), set()
        with world.using(allreduce=name):
            try:
                for sink in out, out, out, mine:  # the later ones are prepared; the last in place
                    world.Allreduce(MPI.IN_PLACE if sink is mine else mine, sink)
                    found |= set(world.allgather(hashlib.sha256(sink.tobytes()).hexdigest()))
            except ArgumentError as refused:
                assert "rank order" in str(refused) or "requires" in str(refused)
                return
        assert len(found) == 1
        exact = sum(terms(count, rank, dtype).astype("f8") for rank in range(world.size))
        assert numpy.abs(out.astype("f8") - exact).max() <= world.size * error


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


@alone
@needs_bfloat16
def test_bfloat16_is_never_reduced_by_the_mpi_library(world, monkeypatch):
    """Not by a variable, either; by name the request is an error, as operators without meaning."""
    x, y = numpy.ones(4, bfloat16), numpy.ones(4, bfloat16)
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
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "allreduce=native;scan=native")
    comm = hpccoll.Comm(world.Dup())
    for _ in range(3):
        comm.Allreduce(x, y)
        assert (y == comm.size).all()
        comm.Scan(x, y)
        assert (y == comm.rank + 1).all()
    comm.Free()


@needs_bfloat16
def test_specifications_and_operators_of_the_program(world):
    x, y = numpy.full(8, 2, bfloat16), numpy.zeros(8, bfloat16)
    world.Allreduce([x, 3], [y, 3])
    assert (y[:3] == 2 * world.size).all() and not y[3:].any()
    for _ in range(3):
        for spec in [x, MPI.BYTE], [x, 8], x.reshape(2, 4):
            world.Bcast(spec, 0)
    assert (x == 2).all()

    def last(one, two, datatype):
        assert datatype.Get_size() == 2

    op = MPI.Op.Create(last, commute=False)
    world.Allreduce(numpy.full(8, world.rank, bfloat16), y, op)
    assert (y == world.size - 1).all()
    op.Free()
