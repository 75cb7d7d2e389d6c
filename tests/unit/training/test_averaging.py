"""Averages instead of exchange: when, over whom, and that no gradient is lost."""

import numpy
import pytest

from hpccoll.errors import ArgumentError, ShardError
from hpccoll.training.averaging import NODE, LateExchange, ModelAverager
from support.threads import run_ranks

RANKS = (1, 2, 3, 5, 7, 8)


def arrays(rank=0):
    """Integers, so that sums are exact in any order."""
    return [numpy.full((2, 3), 4.0 + rank, "f4"), numpy.full(5, 1.0, "f8") * (rank + 1),
            numpy.zeros(0, "f4"), numpy.full((), 3.0 - rank, "f4")]


@pytest.mark.parametrize("size", RANKS)
def test_local_sgd_averages_every_h_steps(size):
    def work(comm):
        mine = arrays()
        averager, averaged = ModelAverager(comm, mine, 3), []
        for step in range(1, 8):
            for array in mine:
                array += comm.rank * step
            averaged.append(averager.step())
        return averaged, mine

    for rank, (averaged, mine) in enumerate(run_ranks(size, work)):
        assert averaged == [0, 0, size, 0, 0, size, 0]
        mean = (size - 1) / 2
        for array, start in zip(mine, arrays()):
            numpy.testing.assert_allclose(array, start + mean * sum(range(1, 7)) + rank * 7,
                                          rtol=1e-6)


def test_averages_are_exact_and_the_same_on_all_ranks():
    def work(comm):
        mine = arrays()
        averager = ModelAverager(comm, mine, 1)
        for array in mine:
            array += 8 * comm.rank
        averager.step()
        return mine

    for mine in run_ranks(4, work):
        for array, start in zip(mine, arrays()):
            assert (array == start + 12).all() and array.dtype == start.dtype


def test_rank_0_decides_how_it_begins():
    for mine in run_ranks(3, lambda comm: ModelAverager(comm, arrays(comm.rank + 5)).arrays):
        assert all((array == first).all() for array, first in zip(mine, arrays(5)))


def test_post_local_sgd_exchanges_gradients_first():
    def work(comm):
        averager, log = ModelAverager(comm, arrays(), 2, after=3), []
        for _ in range(8):
            exchanging = averager.exchanging
            log.append((exchanging, averager.step()))
        return log

    for log in run_ranks(2, work):
        assert log == [(True, 0)] * 3 + [(False, 0), (False, 2)] * 2 + [(False, 0)]


@pytest.mark.parametrize("layout, every", [
    ("2x4", {2: 2, 4: 4, 8: 8}), ("2x4", {2: 2, 4: NODE, 8: 8}), ("8", {2: 2, 4: 4, 8: 8})])
def test_the_largest_period_decides(layout, every):
    def work(comm):
        mine = [numpy.array([float(comm.rank)])]
        averager, log = ModelAverager(comm, mine, every), []
        for _ in range(8):
            mine[0][:] = comm.rank
            log.append((averager.step(), float(mine[0][0])))
        averager.close()
        return log

    for rank, log in enumerate(run_ranks(8, work, layout=layout)):
        pair, four = rank // 2 * 2 + 0.5, rank // 4 * 4 + 1.5
        assert log == [(0, rank), (2, pair), (0, rank), (4, four), (0, rank), (2, pair), (0, rank),
                       (8, 3.5)]


@pytest.mark.parametrize("layout", ("3,2", "2x2@0,2,1,3"))
def test_groups_are_the_nodes_of_the_layout(layout):
    def work(comm):
        mine = [numpy.zeros(1)]
        averager = ModelAverager(comm, mine, {1: NODE, 2: comm.size})
        mine[0][:] = comm.rank
        averager.step()
        node = next(ranks for ranks in comm.layout.groups() if comm.rank in ranks)
        assert mine[0] == sum(node) / len(node)
        averager.step()
        assert mine[0] == pytest.approx((comm.size - 1) / 2)

    run_ranks(5 if "," in layout[:3] else 4, work, layout=layout)


def test_finish_averages_over_all_ranks_whatever_the_step():
    def work(comm):
        mine = [numpy.zeros(1)]
        averager = ModelAverager(comm, mine, 100)
        mine[0][:] = comm.rank
        averager.finish()
        return float(mine[0][0])

    assert run_ranks(3, work) == [1.0] * 3


def test_local_sgd_with_a_period_of_one_is_plain_sgd():
    """The mean of steps is the step of the mean, for integers."""
    def work(comm):
        mine, same = [numpy.zeros(3)], numpy.zeros(3)
        averager = ModelAverager(comm, mine, 1)
        for step in range(4):
            gradient = numpy.arange(3.0) * (comm.rank + 1) * 2 + step
            mine[0] -= gradient
            averager.step()
            comm.Allreduce(gradient.copy(), gradient)
            same -= gradient / comm.size
        assert (mine[0] == same).all()

    run_ranks(2, work)


@pytest.mark.parametrize("every, message", [
    (0, "periods.*1"), ({}, "periods"), ({2: 3, 4: 8}, "3 ranks"),
    ({2: 4, 4: 2}, "2 ranks.*4"), ({2: 2}, "average"),
    ({1: "rack", 2: 8}, "'rack'.*'node'"),
    ({2: 16}, "16 ranks")], ids=str)
def test_periods_that_cannot_serve(every, message):
    with pytest.raises(ArgumentError, match=message):
        run_ranks(8, lambda comm: ModelAverager(comm, arrays(), every))


def test_arrays_that_cannot_serve():
    fixed = numpy.zeros(3)
    fixed.flags.writeable = False
    for array in fixed, numpy.zeros((4, 4)).T[1:3]:
        with pytest.raises(ArgumentError, match="array 0"):
            run_ranks(1, lambda comm: ModelAverager(comm, [array]))


def test_ranks_that_differ_are_told():
    def work(comm):
        with pytest.raises(ShardError, match="rank 1: options"):
            ModelAverager(comm, arrays(), 2 + comm.rank)
        with pytest.raises(ShardError, match="rank 1: array 0"):
            LateExchange(comm, [numpy.zeros(2 + comm.rank)])

    run_ranks(2, work)


def gradients(rank, step):
    return [numpy.full((2, 3), float(4 * rank + step), "f4"), numpy.arange(5.0) * (rank - step)]


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("late", (1, 2, 3))
@pytest.mark.parametrize("size", RANKS)
def test_every_mean_comes_once_and_late(size, late):
    def wanted(step):
        return [sum(gradients(rank, step)[k] for rank in range(size)) / size for k in (0, 1)]

    def work(comm):
        exchange, steps = LateExchange(comm, gradients(0, 0), late), 5
        for step in range(steps):
            mine = gradients(comm.rank, step)
            found = exchange.exchange(mine)
            for array in mine:
                array[...] = numpy.nan  # a backward pass may write the next ones there
            if step < late:
                assert found is None
            else:
                check(found, step - late)
        rest = 0
        for found, step in zip(exchange.finish(), range(max(steps - late, 0), steps)):
            check(found, step)
            rest += 1
        assert rest == late and not list(exchange.finish())
        exchange.exchange(gradients(comm.rank, 7))
        check(next(exchange.finish()), 7)

    def check(found, step):
        for array, right in zip(found, wanted(step)):
            numpy.testing.assert_allclose(array, right, rtol=1e-6)

    run_ranks(size, work)


def test_a_late_exchange_does_not_wait_for_ranks_that_compute():
    """Nobody takes part in the other's first exchange yet, and both go on."""
    def work(comm):
        exchange = LateExchange(comm, gradients(0, 0))
        if comm.rank == 0:
            assert exchange.exchange(gradients(0, 0)) is None
            comm.send("begun", 1)
        else:
            comm.recv(source=0)
            assert exchange.exchange(gradients(1, 0)) is None
        assert exchange.exchange(gradients(comm.rank, 1))[0][0, 0] == 2

    run_ranks(2, work)


def test_gradients_of_other_shapes():
    def work(comm):
        exchange = LateExchange(comm, [numpy.zeros(3)])
        for wrong in ([numpy.zeros(4)], [numpy.zeros(3, "f4")], []):
            with pytest.raises(ArgumentError, match="gradients: .*shapes"):
                exchange.exchange(wrong)
        with pytest.raises(ArgumentError, match="late: .*1.*0"):
            LateExchange(comm, [], 0)

    run_ranks(1, work)
