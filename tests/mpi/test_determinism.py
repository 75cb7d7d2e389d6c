"""Determinism on real ranks: digests of the bits of sums that every order rounds otherwise."""

import hashlib

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
alone = pytest.mark.skipif(WORLD.size == 1, reason="one rank has no order")
#: Different sums in neighbouring elements; they repeat, as :func:`digest` expects.
LANES = 16
COUNTS = (1, 60, 5000)


def terms(count, rank=WORLD.rank):
    random = numpy.random.default_rng(rank)
    lanes = random.standard_normal(LANES) * 10.0 ** random.integers(-3, 4, LANES)
    return numpy.resize(lanes.astype("f4"), count * LANES)


def digest(array):
    """The bits of the lanes; all elements of one lane must have the same."""
    bits = array.view("u4")
    assert (bits == numpy.resize(bits[:LANES], bits.size)).all()
    return hashlib.sha256(bits[:LANES].tobytes()).hexdigest()


def everything(comm, count):
    """Digests of every reduction, in place and not, once and again."""
    x, size = terms(count), comm.size
    for _ in range(4):
        y = numpy.empty_like(x)
        comm.Allreduce(x, y)
        z = x.copy()
        comm.Allreduce(MPI.IN_PLACE, z)
        yield "allreduce", digest(y)
        yield "allreduce", digest(z)
    out = numpy.empty_like(x)
    comm.Reduce(x, out if comm.rank == size - 1 else None, MPI.SUM, size - 1)
    if comm.rank == size - 1:
        yield "reduce", digest(out)
    block = numpy.empty_like(x)
    comm.Reduce_scatter_block(numpy.resize(x, x.size * size), block)
    yield "reduce_scatter", digest(block)
    counts = [LANES * (count + rank % 2) for rank in range(size)]
    block = numpy.empty(counts[comm.rank], "f4")
    comm.Reduce_scatter(numpy.resize(x, sum(counts)), block, counts)
    yield "reduce_scatter", digest(block)
    comm.Scan(x, out)
    yield f"scan {comm.rank}", digest(out)
    comm.Exscan(x, out)
    if comm.rank:
        yield f"exscan {comm.rank}", digest(out)


def digests(comm, counts=COUNTS):
    """All digests of all ranks, by collective."""
    found = {}
    for count in counts:
        for name, value in everything(comm, count):
            found.setdefault(name, set()).add(value)
    merged = {}
    for mine in WORLD.allgather(found):
        for name, values in mine.items():
            merged.setdefault(name, set()).update(values)
    return merged


def layouts(size):
    yield str(size)
    yield ",".join("1" * size)
    if size > 2:
        yield f"1,{size - 1}"
    if size % 2 == 0:
        yield f"2x{size // 2}"


@alone
def test_size_and_layout(monkeypatch):
    """One digest for a collective, whatever the size, the memory, the cuts and the nodes."""
    seen = []
    for number, layout in enumerate(layouts(WORLD.size)):
        monkeypatch.setenv("HPCCOLL_SHARED_MEMORY", "no" if number % 2 else "yes")
        monkeypatch.setenv("HPCCOLL_SEGMENT_BYTES", "4K" if number % 2 else "1M")
        comm = hpccoll.Comm(WORLD.Dup(), layout, determinism="layout" if number % 2 else "size")
        found = digests(comm)
        assert all(len(values) == 1 for values in found.values()), found
        seen.append(found)
        comm.Free()
    assert all(found == seen[0] for found in seen)


@alone
def test_run():
    """The same digests again on other communicators; ours serve, whatever the size."""
    seen = []
    for _ in range(2):
        comm = hpccoll.Comm(WORLD.Dup(), determinism="run")
        found = []
        for count in COUNTS:
            x, y = numpy.random.default_rng(comm.rank).random(count, "f4"), numpy.empty(count, "f4")
            for _ in range(4):
                comm.Allreduce(x, y)
                found.append(hashlib.sha256(y.tobytes()).hexdigest())
        assert len(set(found)) == len(COUNTS)
        assert len(set(map(str, WORLD.allgather(found)))) == 1
        seen.append(found)
        assert "native" not in comm.explain("allreduce", 8).splitlines()[0]
        comm.Free()
    assert seen[0] == seen[1]


@alone
def test_the_environment_asks_too(monkeypatch):
    monkeypatch.setenv("HPCCOLL_DETERMINISM", "layout")
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "allreduce=ring;bcast=native")
    comm = hpccoll.Comm(WORLD.Dup())
    assert all(len(values) == 1 for values in digests(comm, COUNTS[:2]).values())
    assert "ring was requested, but" in comm.explain("allreduce", 64)
    comm.Free()


@alone
@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs THREAD_MULTIPLE")
def test_nonblocking_and_persistent_keep_it():
    comm = hpccoll.Comm(WORLD.Dup(), determinism="size")
    found = set()
    for count in COUNTS:
        x = terms(count)
        ys = [numpy.empty_like(x) for _ in range(3)]
        comm.Allreduce(x, ys[0])
        comm.Iallreduce(x, ys[1]).Wait()
        request = comm.Allreduce_init(x, ys[2])
        request.Start()
        request.Wait()
        request.Free()
        found |= {digest(y) for y in ys}
    assert len(found) == 1
    comm.Free()


@alone
def test_what_cannot_be_kept_is_refused():
    comm = hpccoll.Comm(WORLD.Dup(), determinism="run")
    x = numpy.zeros(4, "f4")
    vector = MPI.FLOAT.Create_vector(2, 1, 2).Commit()
    with pytest.raises(ArgumentError, match="determinism: .*'run'.*allreduce"):
        comm.Allreduce([x, 1, vector], [x.copy(), 1, vector])
    with pytest.raises(ArgumentError, match="native"), comm.using(allreduce="native"):
        comm.Allreduce(x, x.copy())
    comm.Bcast([x, 1, vector], 0)
    vector.Free()
    comm.Free()


def test_classes_are_checked():
    with pytest.raises(ArgumentError, match="'runs'.*'run'"):
        hpccoll.Comm(WORLD, determinism="runs")
