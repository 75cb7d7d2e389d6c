"""Negotiated order, with ranks as threads: any names in any order, and few votes."""

import random

import numpy
import pytest

from hpccoll.errors import ArgumentError, ExchangeError, ExchangeMismatch
from hpccoll.training.exchange import Exchange, ExchangeOptions
from support.threads import run_ranks


def exchanged(size, function, like=(), **options):
    def rank(comm):
        settings = {"progress": "calls", "timeout_seconds": 20, "order": "negotiated",
                    "op": "sum", **options}
        with Exchange(comm, like, **settings) as exchange:
            return function(exchange, comm.Get_rank())

    return run_ranks(size, rank)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("options", [
    {}, {"bucket_bytes": 40},
    {"order": "priority", "options": ExchangeOptions(partition_bytes=32, credit_bytes=48)}],
    ids=str)
def test_arrays_come_in_any_order(size, options):
    def steps(exchange, rank):
        for step in range(4):
            names = ["a", "b", "c", "d"] + ["grown"] * (step > 1)
            random.Random(10 * rank + step).shuffle(names)
            handles = {name: exchange.submit(name, numpy.full(ord(name[0]) - 90, 4.0**rank + step))
                       for name in names}
            for name in random.Random(rank).sample(names, len(names)):
                result = handles[name].wait()
                assert len(result) == ord(name[0]) - 90
                assert (result == sum(4.0 ** other + step for other in range(size))).all()
                assert handles[name].done()

    exchanged(size, steps, **options)


def test_one_vote_a_step_once_the_names_are_known():
    def steps(exchange, rank):
        votes = []
        for step in range(5):
            before = exchange._order.vote_count
            indices = list(range(20))
            random.Random(rank + step).shuffle(indices)
            arrays = [numpy.full(7, 4.0 ** rank) for _ in indices]
            for index in indices:
                exchange.ready(index, arrays[index])
            exchange.wait()
            assert all((array == 5).all() for array in arrays)
            votes.append(exchange._order.vote_count - before)
        assert votes[1:] == [1] * 4

    exchanged(2, steps, like=[numpy.zeros(7)] * 20)


def test_a_group_travels_together_and_has_results_of_its_own():
    def step(exchange, rank):
        group = [numpy.full(3, 4.0 ** rank), numpy.full((2, 2), 2.0 * 4 ** rank), numpy.zeros(0)]
        results = exchange.submit("group", group, op="average").wait()
        assert [result is array for result, array in zip(results, group)] == [True] * 3
        assert results[0].tolist() == [2.5] * 3 and results[1].tolist() == [[5, 5], [5, 5]]
        alone = exchange.submit("scaled", numpy.full(2, 4.0 ** rank), prescale=2.0, postscale=0.5)
        assert alone.wait().tolist() == [5, 5]

    exchanged(2, step)


def test_each_array_has_its_operator():
    def step(exchange, rank):
        handles = [exchange.submit(op, numpy.full(3, 4.0 ** rank), op=op)
                   for op in ("sum", "min", "max", "average", "adasum")]
        values = [handle.wait()[0] for handle in handles]
        assert values[:4] == [5, 1, 4, 2.5] and abs(values[4] - 2.5) < 1e-12

    exchanged(2, step)


def test_ranks_run_out_of_data():
    def steps(exchange, rank):
        for step in range(2 * rank):
            result = exchange.submit("a", numpy.ones(5)).wait()
            assert (result == sum(2 * other > step for other in range(3))).all()
        assert exchange.join() == 2
        assert exchange.submit("a", numpy.ones(5)).wait().tolist() == [3] * 5
        assert exchange.join() in range(3)

    exchanged(3, steps)


@pytest.mark.parametrize("odd, said", [
    (numpy.zeros(4), "shapes"), (numpy.zeros(3, "f4"), "dtype")])
def test_a_disagreement_is_an_error_on_all_ranks(odd, said):
    def rank(comm):
        me = comm.Get_rank()
        with pytest.raises(ExchangeMismatch, match=said) as raised:
            with Exchange(comm, order="negotiated", progress="calls") as exchange:
                exchange.submit("w", numpy.zeros(3)).wait()
                exchange.submit("w", odd if me == 1 else numpy.zeros(3)).wait()
        assert "'w'" in str(raised.value) and "rank 1" in str(raised.value)
        assert raised.value.arrays == ("w",)

    run_ranks(3, rank)


def test_a_new_shape_everywhere_is_no_disagreement():
    def steps(exchange, rank):
        for count in (3, 5, 5, 2):
            assert exchange.submit("w", numpy.ones(count)).wait().tolist() == [2] * count

    exchanged(2, steps)


def test_a_name_that_comes_twice():
    def rank(comm):
        with pytest.raises(ExchangeError, match="twice: 'w'"):
            with Exchange(comm, order="negotiated", progress="calls") as exchange:
                exchange.submit("w", numpy.zeros(3))
                if comm.Get_rank() == 0:
                    exchange.submit("w", numpy.zeros(3))
                exchange.submit("never", numpy.zeros(3)).wait()

    run_ranks(2, rank)


def test_fixed_order_has_no_place_for_new_names():
    def rank(comm):
        with Exchange(comm, [numpy.zeros(1)], progress="calls") as exchange:
            with pytest.raises(ArgumentError, match="negotiated"):
                exchange.submit("new", numpy.zeros(3))
        with Exchange(comm, order="negotiated", progress="calls") as exchange:
            with pytest.raises(ArgumentError, match="fixed"):
                exchange.views()

    run_ranks(2, rank)
