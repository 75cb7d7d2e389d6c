"""Calls of sizes that were not seen before, which the compiled executor fits to its plans."""

import random
import time

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, BufferArgumentError
from hpccoll.errors.contract import ContractError
from hpccoll.runtime.events.call_log import NUMBER
from hpccoll.runtime.execution import compiled

pytestmark = pytest.mark.skipif(not compiled.BUILT or MPI.COMM_WORLD.Get_size() == 1,
                                reason="the compiled executor was not built, or has no peers")
#: Algorithms whose blocks are cut in different ways.
WISHES = {"allreduce": ("recursive_doubling", "ring", "allpairs", "rabenseifner"),
          "bcast": ("binomial", "scatter_allgather", "chain"), "reduce": ("binomial", "circulant"),
          "allgather": ("ring", "bruck", "recursive_doubling"), "scan": ("linear", "census"),
          "exscan": ("linear",), "reduce_scatter": ("pairwise", "circulant", "linear"),
          "alltoall": ("pairwise", "bruck", "linear"), "gather": ("linear", "binomial"),
          "scatter": ("linear", "binomial"), "alltoallv": ("auto",)}
TYPES = {"f8": MPI.DOUBLE, "f4": MPI.FLOAT, "i8": MPI.INT64_T, "i4": MPI.INT32_T}


def calls(comm, n, counts, dtype, form):
    """Calls of every method as functions of a communicator, and the arrays they write.

    ``form`` selects how the buffers are given: arrays, with types, or with counts and types.
    """
    size, rank, root, kind = comm.size, comm.rank, n % comm.size, TYPES[dtype]
    total, own = sum(counts), counts[rank]

    def filled(count):
        return (numpy.arange(count) % 7 + rank).astype(dtype)

    def spec(array, blocks=1):
        count = array.size // blocks
        return array if form == 0 else [array, kind] if form == 1 else [array, count, kind]

    def counted(array, displs=None):
        parts = [array, counts if form < 2 else numpy.array(counts)]
        return [*parts, *([displs] if displs is not None else []), kind]

    def at_root(one):
        return one if rank == root else None

    one, whole = filled(n), filled(n * size)
    vector, uneven = filled(own), filled(total)
    gaps = [sum(counts[:i]) + i for i in range(size)]
    yield "Bcast", lambda c: c.Bcast(spec(one), root), one
    for method in ("Allreduce", "Scan", "Exscan"):
        into = filled(n)
        yield method, lambda c, m=method, i=into: getattr(c, m)(spec(one), spec(i)), into
        twice = filled(n)
        yield f"{method} in place", lambda c, m=method, i=twice: getattr(c, m)(
            MPI.IN_PLACE, spec(i), MPI.MAX), twice
    into = filled(n)
    yield "Reduce", lambda c: c.Reduce(spec(one), at_root(spec(into)), root=root), into
    every, part, mixed = filled(n * size), filled(n), filled(n * size)
    yield "Allgather", lambda c: c.Allgather(spec(one), spec(every, size)), every
    yield "Allgather in place", lambda c: c.Allgather(MPI.IN_PLACE, spec(mixed, size)), mixed
    pairs, rooted, block = filled(n * size), filled(n * size), filled(n)
    yield "Alltoall", lambda c: c.Alltoall(spec(whole, size), spec(pairs, size)), pairs
    yield "Reduce_scatter_block", lambda c: c.Reduce_scatter_block(
        spec(whole, size), spec(part)), part
    yield "Gather", lambda c: c.Gather(spec(one), at_root(spec(rooted, size)), root), rooted
    yield "Scatter", lambda c: c.Scatter(at_root(spec(whole, size)), spec(block), root), block
    placed, taken = filled(n * size), filled(n * size)
    yield "Gather in place", lambda c: c.Gather(
        MPI.IN_PLACE if rank == root else spec(one), at_root(spec(placed, size)), root), placed
    yield "Scatter in place", lambda c: c.Scatter(
        at_root(spec(taken, size)), MPI.IN_PLACE if rank == root else spec(block), root), block
    joined, piece = filled(total), filled(own)
    yield "Allgatherv", lambda c: c.Allgatherv(spec(vector), counted(joined)), joined
    yield "Reduce_scatter", lambda c: c.Reduce_scatter(spec(uneven), spec(piece), counts), piece
    together, starts = filled(total), [sum(counts[:i]) for i in range(size)]
    yield "Allgatherv with displacements", lambda c: c.Allgatherv(
        spec(vector), counted(together, starts)), together
    wide = filled(total + size)
    yield "Allgatherv with gaps", lambda c: c.Allgatherv(spec(vector), counted(wide, gaps)), wide
    rooted_v, piece_v, spread = filled(total), filled(own), filled(total + size)
    yield "Gatherv", lambda c: c.Gatherv(spec(vector), at_root(counted(rooted_v)), root), rooted_v
    yield "Gatherv with gaps", lambda c: c.Gatherv(
        spec(vector), at_root(counted(spread, gaps)), root), spread
    yield "Scatterv", lambda c: c.Scatterv(at_root(counted(uneven)), spec(piece_v), root), piece_v
    sent = [1 + (rank + other + n) % 5 for other in range(size)]
    apart = filled(sum(sent))
    yield "Alltoallv", lambda c: c.Alltoallv([filled(sum(sent)), sent, kind],
                                             [apart, sent, kind]), apart


def check_round(comm, native, n, counts, dtype, form):
    pairs = zip(calls(comm, n, counts, dtype, form), calls(native, n, counts, dtype, form))
    for (name, call, found), (_, same, expected) in pairs:
        call(comm)
        same(native)
        if name != "Exscan" or comm.rank:
            assert numpy.array_equal(found, expected), (name, n, counts, dtype, form)


def sizes_for(number, size, most):
    """Sizes and counts, the same on every rank, of which many are alike."""
    source = random.Random(number)
    for _ in range(40):
        n = source.choice((1, 2, size, source.randrange(1, 200), source.randrange(1, most)))
        counts = [source.randrange(1, 90) for _ in range(size)]
        yield n, counts if source.random() < 0.7 else [n] * size


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", range(3), ids=["arrays", "types", "counts"])
def test_results_are_the_librarys(world, dtype, form):
    native = MPI.Intracomm(world)
    for n, counts in sizes_for(form, world.size, 3000):
        check_round(world, native, n, counts, dtype, form)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("mixed", [False, True], ids=["compiled", "both executors"])
def test_every_cut_by_name(world, number, mixed):
    """Ranks with the interpreter, which knows the size only, agree with fitted compiled plans."""
    native = MPI.Intracomm(world)
    if mixed and world.rank % 2:
        world._calls = None
    with world.using(**{name: found[number % len(found)] for name, found in WISHES.items()}):
        for n, counts in sizes_for(10 + number, world.size, 20_000):
            check_round(world, native, n, counts, "f8", number % 3)


def test_a_new_size_is_not_planned(world, monkeypatch):
    """After the first calls of a form, new sizes reach Python only behind the limit of a rule."""
    x, y = numpy.ones(600 * world.size), numpy.empty(600 * world.size)
    planned = []

    def run(n):
        world.Bcast(x[:n]), world.Allreduce(x[:n], y[:n])
        world.Allgather(x[:n], y[:n * world.size])
        counts = [n + rank for rank in range(world.size)]
        world.Allgatherv(x[:n + world.rank], [y[:sum(counts)], counts])
        world.Allgatherv(x[:n + world.rank], [y[:sum(counts)], counts, [
            sum(counts[:rank]) for rank in range(world.size)], MPI.DOUBLE])
        world.Gatherv(x[:n + world.rank], [y[:sum(counts)], counts] if not world.rank else None)
        world.Alltoallv([x, [n] * world.size], [y, [n] * world.size])

    for n in (200, 201):
        run(n)
    serve = type(world)._serve_blocking
    monkeypatch.setattr(type(world), "_serve_blocking", lambda comm, method, args: (
        planned.append(method.title), serve(comm, method, args)))
    for n in range(210, 400):
        run(n)
    assert len(planned) <= 12  # of 1330


def test_a_late_rank_is_waited_for(world):
    """The plan of a size is made when a call of that size waits for long."""
    x, y = numpy.ones(900), numpy.empty(900)
    for n in range(300, 320):
        if n % world.size == world.rank and n > 302:
            time.sleep(0.02)
        world.Allreduce(x[:n], y[:n])
        assert numpy.array_equal(y[:n], numpy.full(n, world.size))


def test_a_rank_with_other_memory_takes_part(world):
    """A strided array, which only Python accepts, meets fitted plans of the other ranks."""
    x, y = numpy.ones(2000), numpy.empty(900)
    for n in range(300, 330):
        mine = x[:2 * n:2].copy() if world.rank else x[:n]
        if world.rank == world.size - 1:
            world.Allreduce([mine, n, MPI.DOUBLE], [y[:n + 5], n, MPI.DOUBLE])
        else:
            world.Allreduce(mine, y[:n])
        assert numpy.array_equal(y[:n], numpy.full(n, world.size))


@pytest.mark.parametrize("preference", ["auto", "recursive_doubling"])
def test_ranks_that_disagree_are_named(world, preference):
    """The description of a size that was not planned says how much data the call has."""
    world.choose(allreduce=preference)
    x, y = numpy.ones(900), numpy.empty(900)
    for n in range(300, 310):
        world.Allreduce(x[:n], y[:n])
    n = 320 + (world.rank == 0)
    with pytest.raises(ContractError) as caught:
        world.Allreduce(x[:n], y[:n])
    assert {group.fields["count"] for group in caught.value.groups} == {"320", "321"}


@pytest.mark.parametrize("preference", ["native", "recursive_doubling"])
def test_the_log_has_the_amount_of_every_call(world, preference):
    world.choose(allreduce=preference, bcast="native")
    x, y = numpy.ones(900), numpy.empty(900)
    for n in range(300, 310):
        world.Allreduce(x[:n], y[:n]), world.Bcast(x[:n])
    log = world._private().guard.logs.mine
    last = [log.description(log.words[NUMBER] - back) for back in range(20)]
    assert [one.count for one in last[::2]] == [f"{8 * n} bytes" for n in range(309, 299, -1)]
    assert [one.count for one in last[1::2]] == [str(n) for n in range(309, 299, -1)]


def test_wrong_arguments_raise_as_before(world):
    """They do not fit a compiled plan; Python checks them, before any message."""
    x, y, size = numpy.ones(900), numpy.empty(900 * world.size), world.size
    for n in (300, 301, 302):
        world.Allreduce(x[:n], y[:n])
        world.Allgatherv(x[:n], [y[:n * size], [n] * size])
        world.Gatherv(x[:n], [y[:n * size], [n] * size])
    with pytest.raises(ArgumentError):
        world.Allreduce(x[:303], y[:304])
    with pytest.raises(ArgumentError):
        world.Allgatherv(x[:303], [y[:303 * size], [304] * size])
    with pytest.raises(BufferArgumentError):
        world.Allgatherv(x[:303], [y[:302 * size], [303] * size])
    with pytest.raises(ArgumentError):
        world.Allgatherv(x[:303], [y[:303 * size], [-303] * size])
    if not world.rank:
        with pytest.raises((ArgumentError, BufferArgumentError)):
            world.Gatherv(x[:303], [y[:302 * size], [303] * size])
    with pytest.raises(BufferArgumentError):
        world.Allreduce(x[:303], x[1:304])
    read_only = numpy.empty(303)
    read_only.flags.writeable = False
    with pytest.raises((ArgumentError, BufferArgumentError)):
        world.Allreduce(x[:303], read_only)


def test_counts_of_zero_and_gaps(world):
    """Empty blocks have plans of their own, and gaps too."""
    native, size = MPI.Intracomm(world), world.size
    for n in range(2, 12):
        counts = [(n + rank) % 3 for rank in range(size)]
        gaps = [sum(counts[:rank]) + rank for rank in range(size)]
        mine = numpy.full(counts[world.rank], float(world.rank))
        found, expected = numpy.zeros(4 * size), numpy.zeros(4 * size)
        for displs in (None, gaps):
            world.Allgatherv(mine, [found, counts, displs, MPI.DOUBLE])
            native.Allgatherv(mine, [expected, counts, displs, MPI.DOUBLE])
            world.Gatherv(mine, [found, counts, displs, MPI.DOUBLE])
            native.Gatherv(mine, [expected, counts, displs, MPI.DOUBLE])
            assert numpy.array_equal(found, expected)


def test_many_sizes_do_not_grow(world):
    """What is kept for sizes is bounded."""
    x, y = numpy.ones(9000), numpy.empty(9000)
    for n in range(1, 9000, 2):
        world.Allreduce(x[:n], y[:n])
    context = world._private()
    assert len(context.plans.entries) <= 256 and len(world._calls) <= 2048


def test_calls_without_elements_have_no_sizes(world):
    """A barrier may run again after the cache of calls was full, and cleared."""
    for _ in range(3):
        world.Barrier()
        world._calls.clear()
