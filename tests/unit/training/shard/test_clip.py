"""Norms of vectors that are spread over ranks, against NumPy on the whole."""

import math

import numpy
import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.shard.clip import CHUNK, Clip, clip_shards, global_norm, power_sum
from support.threads import run_ranks

RANKS = (1, 2, 3, 5, 7, 8)
ORDERS = (1, 2, 3, 0.5, math.inf)


def shard(rank, size, count=23, dtype="f4"):
    values = numpy.random.default_rng(3).standard_normal(count).astype(dtype)
    return numpy.array_split(values, size)[rank].copy()


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("dtype", ("f2", "f4", "f8"))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", RANKS)
def test_the_norm_is_that_of_the_whole(size, order, dtype):
    whole = shard(0, 1, dtype=dtype).astype("f8")
    wanted = numpy.linalg.norm(numpy.append(whole, [2.0, -3.0]), order)
    found = run_ranks(size, lambda comm: global_norm(
        comm, [shard(comm.rank, size, dtype=dtype)], order,
        replicated=[numpy.array([2, -3], dtype)]))
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(wanted, rel=1e-14 if dtype == "f8" else 1e-7)


@pytest.mark.parametrize("count", (0, 1, 4))
def test_more_ranks_than_elements(count):
    found = run_ranks(5, lambda comm: global_norm(comm, [shard(comm.rank, 5, count)]))
    assert found == [pytest.approx(numpy.linalg.norm(shard(0, 1, count).astype("f8")))] * 5


@pytest.mark.parametrize("value", (math.inf, -math.inf, math.nan))
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_not_finite_is_known_everywhere(order, value):
    def work(comm):
        mine = shard(comm.rank, 3)
        if comm.rank == 1:
            mine[-1] = value
        before = mine.copy()
        norm = clip_shards(comm, [mine], 0.1, order)
        assert mine.tobytes() == before.tobytes()
        return norm

    assert all(math.isnan(norm) for norm in run_ranks(3, work))


@pytest.mark.parametrize("order", ORDERS)
def test_clipping(order):
    def work(comm):
        mine, same = [shard(comm.rank, 3), shard(comm.rank, 3, 5)], numpy.ones(2, "f4")
        norm = clip_shards(comm, mine, 0.5, order, replicated=[same])
        return norm, mine, same

    found = run_ranks(3, work)
    whole = numpy.concatenate([shard(0, 1), shard(0, 1, 5), numpy.ones(2)])
    for norm, _, same in found:
        factor = 0.5 / (norm + 1e-6)
        assert norm == pytest.approx(numpy.linalg.norm(whole.astype("f8"), order), rel=1e-6)
        assert same == pytest.approx(factor, rel=1e-6)
    clipped = numpy.concatenate([vector for _, mine, _ in found for vector in mine] + [found[0][2]])
    assert numpy.linalg.norm(clipped.astype("f8"), order) == pytest.approx(0.5, rel=1e-5)


def test_short_gradients_keep_their_bits():
    def work(comm):
        mine = shard(comm.rank, 2)
        clip_shards(comm, [mine], 1e6)
        assert mine.tobytes() == shard(comm.rank, 2).tobytes()

    run_ranks(2, work)


def test_large_numbers_do_not_overflow():
    x = numpy.full(3, 3e38, "f4")
    assert run_ranks(2, lambda comm: global_norm(comm, [x]))[0] == pytest.approx(
        6 ** 0.5 * 3e38, rel=1e-6)


def test_the_same_values_have_the_same_power_wherever_they_lie():
    values = numpy.random.default_rng(0).standard_normal(2 * CHUNK + 77).astype("f4")
    assert len({power_sum(numpy.append(numpy.zeros(k, "f4"), values)[k:], 2)
                for k in range(9)}) == 1


@pytest.mark.parametrize("order", (0, -1, math.nan))
def test_orders_that_are_none(order):
    with pytest.raises(ArgumentError, match="order: .*positive"):
        Clip(1.0, order)
    with pytest.raises(ArgumentError, match="order"):
        run_ranks(1, lambda comm: global_norm(comm, [], order))


def test_a_norm_that_is_none():
    with pytest.raises(ArgumentError, match="max_norm: .*positive.*-1"):
        Clip(-1)
    with pytest.raises(ArgumentTypeError, match="max_norm: .*'1'"):
        Clip("1")
    with pytest.raises(ArgumentTypeError, match="order: .*inf"):
        Clip(1, "inf")


def test_what_is_no_communicator_and_no_list_of_vectors():
    with pytest.raises(ArgumentTypeError, match="comm: .*communicator"):
        global_norm(None, [])
    with pytest.raises(ArgumentTypeError, match="shards: .*arrays.*5"):
        run_ranks(1, lambda comm: global_norm(comm, 5))
