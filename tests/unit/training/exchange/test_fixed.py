"""Fixed order, with ranks as threads: whatever the order in which arrays come."""

import random
import weakref
from dataclasses import replace

import numpy
import pytest

from hpccoll.errors import ArgumentError, ExchangeError, ExchangeMismatch
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.exchange import Exchange, ExchangeOptions
from support.threads import run_ranks

SHAPES = (7,), (3, 5), (), (0,), (11, 13), (1,)
NONBLOCKING = ExchangeOptions(transfer="nonblocking")


def arrays_of(rank, step=0, dtype="f8", shapes=SHAPES):
    """Different on every rank; their sums are exact."""
    return [numpy.full(shape, (index + 1) * 4.0 ** rank + step, dtype)
            for index, shape in enumerate(shapes)]


def expected(size, step=0, op="average", index=0):
    values = [(index + 1) * 4.0 ** rank + step for rank in range(size)]
    return {"average": sum(values) / size, "sum": sum(values), "min": min(values),
            "max": max(values)}[op]


def exchanged(size, function, **options):
    """``function(exchange, rank)`` on every rank."""
    def rank(comm):
        settings = {"progress": "calls", "timeout_seconds": 20, **options}
        like = settings.pop("like", None) or [ArraySpec(str(index), shape, "float64", 8)
                                              for index, shape in enumerate(SHAPES)]
        with Exchange(comm, like, **settings) as exchange:
            return function(exchange, comm.Get_rank())

    return run_ranks(size, rank)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("options", [
    {}, {"bucket_bytes": 0, "first_bucket_bytes": 0}, {"bucket_bytes": 200, "op": "sum"},
    {"op": "min"}, {"op": "max", "options": ExchangeOptions(overlap=False)},
    {"options": ExchangeOptions(partition_bytes=64)},
    {"bucket_bytes": 100, "first_bucket_bytes": 10, "options": NONBLOCKING},
    {"bucket_bytes": 0, "first_bucket_bytes": 0,
     "options": replace(NONBLOCKING, lanes=3)}],
    ids=str)
def test_arrays_come_in_any_order(size, options):
    def steps(exchange, rank):
        for step in range(3):
            arrays, order = arrays_of(rank, step), list(range(len(SHAPES)))
            random.Random(10 * rank + step).shuffle(order)
            for index in order:
                exchange.ready(index, arrays[index])
            results = exchange.wait()
            for index, (array, result) in enumerate(zip(arrays, results)):
                assert result is array
                wanted = expected(size, step, options.get("op", "average"), index)
                assert (result == wanted).all(), (step, index)

    exchanged(size, steps, **options)


@pytest.mark.parametrize("size", [2, 3])
def test_a_list_at_once_and_views_give_the_same(size):
    def lists(exchange, rank):
        arrays = arrays_of(rank)
        views = exchange.views()
        for view, array in zip(views, arrays):
            view[...] = array
        for result, view in zip(exchange.reduce(views), views):
            assert result is view
        kept = [view.tobytes() for view in views]
        exchange.reduce(arrays)
        assert [array.tobytes() for array in arrays] == kept
        assert (arrays[4] == expected(size, index=4)).all()

    exchanged(size, lists)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("op, anew", [("sum", True), ("average", False)])
def test_the_same_list_again(size, op, anew):
    """It is known by then, whatever was done to its arrays meanwhile."""
    def lists(exchange, rank):
        arrays = arrays_of(rank)
        for step in range(4):
            arrays[1].flags.writeable = True
            for array, fresh in zip(arrays, arrays_of(rank, step)):
                array[...] = fresh
            # One may only be read now, and be another one of the same form in the next step.
            arrays[1].flags.writeable = step != 2
            arrays[4] = arrays[4].copy() if step == 3 else arrays[4]
            results = exchange.reduce(arrays)
            for index, (array, result) in enumerate(zip(arrays, results)):
                assert (result == expected(size, step, op, index)).all(), (step, index)
                assert (result is array) == (array.flags.writeable)
            assert (arrays[1] == arrays_of(rank, step)[1]).all() or step != 2
        with pytest.raises(ExchangeMismatch, match=r"'4'.*\(13, 11\)"):
            if anew:
                arrays[4] = arrays[4].reshape(13, 11)
            else:
                arrays[4].shape = 13, 11
            exchange.reduce(arrays)

    exchanged(size, lists, op=op)


def test_a_list_is_not_kept_alive():
    def lists(exchange, rank):
        arrays = arrays_of(rank)
        gone = weakref.ref(arrays[0])
        exchange.reduce(arrays)
        exchange.reduce(arrays_of(rank))  # what was given last are results still
        del arrays
        assert gone() is None

    exchanged(2, lists)


def test_immutable_and_strided_arrays():
    def step(exchange, rank):
        fixed = numpy.arange(6.0) * (rank + 1)
        fixed.flags.writeable = False
        strided = numpy.zeros((6, 2))[:, 0]
        strided[...] = rank
        exchange.ready("fixed", fixed)
        exchange.ready("strided", strided)
        first, second = exchange.wait()
        assert first is not fixed and first.tolist() == [0, 3, 6, 9, 12, 15]
        assert fixed[1] == rank + 1
        assert second is strided and strided.tolist() == [1] * 6

    exchanged(2, step, like=[ArraySpec("fixed", (6,), "float64", 8),
                             ArraySpec("strided", (6,), "float64", 8)],
              names=["fixed", "strided"], op="sum")


def test_scales_are_applied_before_and_after():
    def step(exchange, rank):
        assert exchange.reduce([numpy.full(3, 4.0 ** rank)])[0].tolist() == [
            (1 + 4 + 16) * 0.5 / 3 * 8] * 3
        exchange.ready(0, numpy.full(3, 4.0 ** rank))
        assert exchange.wait()[0].tolist() == [(1 + 4 + 16) * 0.5 / 3 * 8] * 3

    exchanged(3, step, like=[numpy.zeros(3)], prescale=0.5, postscale=8.0)


def test_buckets_are_cut_anew_in_the_order_of_rank_0():
    def steps(exchange, rank):
        plans = []
        for _ in range(2):
            for index in (2, 0, 5, 1, 3, 4) if rank == 0 else range(6):
                exchange.ready(index, arrays_of(rank)[index])
            exchange.wait()
            plans.append(exchange._order.order)
        assert plans[1] == [2, 0, 5, 1, 3, 4]
        return plans

    exchanged(2, steps)

    def pinned(exchange, rank):
        if rank:
            exchange.views()
        for index in range(6):
            exchange.ready(index, arrays_of(rank)[index])
        exchange.wait()
        assert exchange._order.order == [5, 4, 3, 2, 1, 0]

    exchanged(2, pinned)


def test_no_barrier_between_steps():
    """The first array of the next step is brought while the last one of this step is awaited."""
    def steps(exchange, rank):
        arrays = [numpy.full(3, 4.0 ** rank), numpy.full(3, 4.0 ** rank)]
        exchange.ready(1, arrays[1])
        exchange.ready(0, arrays[0])
        for _ in range(3):
            for index in (0, 1):
                assert exchange.wait_for(index) is arrays[index]
                assert (arrays[index] == 5).all()
                arrays[index][...] = 4.0 ** rank
                exchange.ready(index, arrays[index])
        exchange.wait()

    exchanged(2, steps, like=[numpy.zeros(3)] * 2, op="sum", bucket_bytes=0, first_bucket_bytes=0)


@pytest.mark.parametrize("order", ["fixed", "negotiated"])
def test_a_step_ends_without_what_was_brought_for_the_next_one(order):
    def steps(exchange, rank):
        for step in range(3):
            first, second = numpy.full(3, 4.0 ** rank), numpy.full(3, 4.0 ** rank)
            if not step:
                exchange.ready(0, first)
            exchange.ready(1, second)
            early = exchange.wait_for(0)
            exchange.ready(0, numpy.full(3, 4.0 ** rank))
            results = exchange.wait()
            assert results[0] is early and results[1] is second
            assert early.tolist() == second.tolist() == [5] * 3
        exchange.ready(1, numpy.zeros(3))
        exchange.wait()

    exchanged(2, steps, like=[numpy.zeros(3)] * 2, op="sum", order=order)


def test_ranks_that_run_out_of_data():
    def steps(exchange, rank):
        for step in range(2 * rank):
            arrays = [numpy.ones(3), numpy.ones(2)]
            if step % 2:
                exchange.reduce(arrays)
            else:
                exchange.ready(0, arrays[0])
                exchange.ready(1, arrays[1])
                exchange.wait()
            assert (arrays[0] == sum(2 * other > step for other in range(3))).all()
        assert exchange.join() == 2
        assert exchange.reduce([numpy.ones(3), numpy.ones(2)])[1].tolist() == [3, 3]

    exchanged(3, steps, like=[numpy.zeros(3), numpy.zeros(2)], uneven=True, op="sum")


def test_zeros_stand_for_what_is_missing():
    def step(exchange, rank):
        if rank:
            exchange.ready("a", numpy.full(3, 8.0))
        exchange.ready("b", numpy.full(2, 2.0))
        assert [result.tolist() for result in exchange.wait()] == [[4, 4, 4], [2, 2]]

    exchanged(2, step, like=[numpy.zeros(3), numpy.zeros(2)], names=["a", "b"], missing="zeros")


def test_pausing_accumulates():
    def steps(exchange, rank):
        total = numpy.zeros(3)
        with exchange.paused():
            total += 4.0 ** rank
            exchange.ready(0, total)
            assert exchange.wait() == []
            assert exchange.reduce([total])[0] is total and (total == 4.0 ** rank).all()
        total += 4.0 ** rank
        exchange.ready(0, total)
        exchange.wait()
        assert total.tolist() == [10.0] * 3

    exchanged(2, steps, like=[numpy.zeros(3)], op="sum")


@pytest.mark.parametrize("wrong, said", [
    (lambda e: (e.ready(0, numpy.zeros(3)), e.ready(0, numpy.zeros(3))), "twice"),
    (lambda e: e.ready(0, numpy.zeros(4)), "shape"),
    (lambda e: e.ready(0, numpy.zeros(3, "f4")), "float32"),
    (lambda e: e.ready("unknown", numpy.zeros(3)), "unknown"),
    (lambda e: e.wait(), "array"),
    (lambda e: (e.ready(0, numpy.zeros(3)), e.reduce([numpy.zeros(3)])), "during a step"),
    (lambda e: e.reduce([]), "0 arrays"),
])
def test_what_is_wrong_on_one_rank_is_an_error_on_all(wrong, said):
    def rank(comm):
        with pytest.raises(ExchangeError, match=said) as raised:
            with Exchange(comm, [numpy.zeros(3)], progress="calls", timeout_seconds=20) as exchange:
                if comm.Get_rank() == 1:
                    wrong(exchange)
                exchange.ready(0, numpy.zeros(3))
                exchange.wait()
        if comm.Get_rank() != 1:
            assert raised.value.ranks == (1,) and "rank 1" in str(raised.value)

    run_ranks(3, rank)


def test_different_arrays_are_an_error_that_names_array_and_ranks():
    def rank(comm):
        odd = comm.Get_rank() == 2
        with pytest.raises(ExchangeMismatch) as raised:
            Exchange(comm, [numpy.zeros(3), numpy.zeros(4 + odd)], names=["bias", "weight"])
        assert raised.value.arrays == ("weight",) and raised.value.ranks == (2,)
        with pytest.raises(ExchangeMismatch, match="settings"):
            Exchange(comm, [numpy.zeros(3)], op="sum" if odd else "max")

    run_ranks(3, rank)


def test_whole_numbers_are_not_averaged():
    def rank(comm):
        with pytest.raises(ArgumentError, match="counts"):
            Exchange(comm, [numpy.zeros(3, int)], names=["counts"])
        with Exchange(comm, [numpy.zeros(3, int)], op="sum", progress="calls") as exchange:
            assert exchange.reduce([numpy.arange(3)])[0].tolist() == [0, 2, 4]

    run_ranks(2, rank)
