"""Calls of new sizes, which the compiled executor fits to its plans: paths, errors, the log."""

import time
from itertools import accumulate

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, BufferArgumentError
from hpccoll.errors.contract import ContractError
from hpccoll.runtime.events.call_log import NUMBER
from hpccoll.runtime.execution import compiled

pytestmark = pytest.mark.skipif(not compiled.BUILT or MPI.COMM_WORLD.Get_size() == 1,
                                reason="the compiled executor was not built, or has no peers")


def test_a_new_size_is_not_planned(world, monkeypatch):
    """After the first calls of a form, new sizes reach Python only behind the limit of a rule."""
    x, y = numpy.ones(600 * world.size), numpy.empty(600 * world.size)
    planned = []

    def run(n):
        world.Bcast(x[:n]), world.Allreduce(x[:n], y[:n])
        world.Allgather(x[:n], y[:n * world.size])
        counts = [n + rank for rank in range(world.size)]
        displs = [sum(counts[:rank]) for rank in range(world.size)]
        whole = y[:sum(counts)]
        world.Allgatherv(x[:n + world.rank], [whole, counts])
        world.Allgatherv(x[:n + world.rank], [whole, counts, displs, MPI.DOUBLE])
        world.Gatherv(x[:n + world.rank], [whole, counts] if not world.rank else None)
        world.Alltoallv([x, [n] * world.size], [y, [n] * world.size])

    for n in (200, 201):
        run(n)
    serve = type(world)._serve
    monkeypatch.setattr(type(world), "_serve", lambda comm, method, args: (
        planned.append(method.title), serve(comm, method, args)))
    for n in range(210, 400):
        run(n)
    assert len(planned) <= 12  # of 1330


def test_a_new_size_in_segments_is_not_planned(world, monkeypatch):
    """Calls with the same number of segments have a common plan; the lengths are any."""
    monkeypatch.setattr(world, "_serve", lambda *call: (
        planned.append(call[0].title), type(world)._serve(world, *call)), raising=False)
    segment, planned, random = 1 << 12, [], numpy.random.default_rng(5)
    x = numpy.arange(8.0 * segment) + world.rank
    y, whole = numpy.empty(8 * segment), numpy.empty(9 * segment * world.size)
    world.choose(bcast="chain", allreduce="ring", allgather="ring", allgatherv="ring",
                 reduce_scatter_block="ring", segment_bytes=8 * segment)

    def run(n):
        part, total = slice(n * world.rank, n * (world.rank + 1)), sum(range(world.size))
        y[:n] = x[:n]
        world.Bcast(y[:n])
        assert (y[:n] == numpy.arange(n)).all()
        world.Allreduce(x[:n], y[:n])
        assert (y[:n] == world.size * numpy.arange(n) + total).all()
        world.Allgather(x[:n], whole[:n * world.size])
        assert (whole[part] == x[:n]).all() and (whole[:n] == numpy.arange(n)).all()
        world.Reduce_scatter_block(whole[:n * world.size], y[:n])
        assert (y[:n] == world.size * x[:n]).all()
        counts = [n + 2 * rank for rank in range(world.size)]
        world.Allgatherv(x[:counts[world.rank]], [whole[:sum(counts)], counts])
        for rank, end in enumerate(accumulate(counts)):
            assert (whole[end - counts[rank]:end] == numpy.arange(counts[rank]) + rank).all()

    for n in (*range(segment - 1, 7 * segment, segment), *range(segment + 1, 7 * segment, segment)):
        run(n)  # from one to 7 segments
    planned.clear()
    for n in random.integers(segment // 2, 7 * segment, 60).tolist():
        if n % world.size == world.rank and n % 7 == 0:
            time.sleep(0.02)
        run(n)
    assert len(planned) <= 20  # of 300


def test_late_ranks_and_ranks_with_other_memory_take_part(world):
    """A size gets its plan when a call waits; a copy and its counts are accepted by Python only."""
    x, y, last = numpy.ones(2000), numpy.empty(900), world.size - 1
    for n in range(300, 330):
        if n % world.size == world.rank and 302 < n < 310:
            time.sleep(0.02)
        mine = x[:2 * n:2].copy() if world.rank else x[:n]
        if world.rank == last and n >= 310:
            world.Allreduce([mine, n, MPI.DOUBLE], [y[:n + 5], n, MPI.DOUBLE])
        else:
            world.Allreduce(mine, y[:n])
        assert numpy.array_equal(y[:n], numpy.full(n, world.size))


def test_one_array_for_all_sizes(world):
    """Only the counts differ from call to call, and the elements behind them stay."""
    x, y, z = numpy.ones(900), numpy.empty(900), numpy.empty(900 * world.size)
    for n in (*range(300, 330), *range(329, 300, -1)):
        x[:], y[:], z[:] = 1 + (world.rank == 0), -1, -1
        world.Allreduce([x, n, MPI.DOUBLE], [y, n, MPI.DOUBLE])
        assert (y[:n] == world.size + 1).all() and (y[n:] == -1).all()
        world.Bcast([x, n, MPI.DOUBLE])
        assert (x[:n] == 2).all() and (x[n:] == 1 + (world.rank == 0)).all()
        world.Allgather([y, n, MPI.DOUBLE], [z, n, MPI.DOUBLE])
        assert (z[:n * world.size] == world.size + 1).all() and (z[n * world.size:] == -1).all()


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
    read_only, n = numpy.empty(303), 303
    read_only.flags.writeable = False
    for known in (300, 301, 302):
        world.Allreduce(x[:known], y[:known])
        world.Allgatherv(x[:known], [y[:known * size], [known] * size])
        world.Gatherv(x[:known], [y[:known * size], [known] * size])
    both = ArgumentError, BufferArgumentError
    if world.rank == 0:  # before any error, which has forms forgotten
        with pytest.raises(both):
            world.Gatherv(x[:n], [y[:302 * size], [n] * size])
    world.Gatherv(x[:n], [y[:n * size], [n] * size])
    for method, sink, error in (
            ("Allreduce", y[:304], ArgumentError), ("Allreduce", x[1:304], BufferArgumentError),
            ("Allreduce", read_only, both),
            ("Allgatherv", [y[:n * size], [304] * size], ArgumentError),
            ("Allgatherv", [y[:302 * size], [n] * size], BufferArgumentError),
            ("Allgatherv", [y[:n * size], [-n] * size], ArgumentError)):
        with pytest.raises(error):
            getattr(world, method)(x[:n], sink)


def test_what_is_kept_for_sizes_is_bounded(world):
    x, y = numpy.ones(9000), numpy.empty(9000)
    for n in range(1, 9000, 2):
        world.Allreduce(x[:n], y[:n])
    context = world._private()
    assert len(context.plans.entries) <= 256 and len(world._calls) <= 2048
    for _ in range(3):  # a barrier has no size, and may run again after the cache was cleared
        world.Barrier()
        world._calls.clear()
