"""Norms of sharded gradients: clipping, and norms of groups."""

import math

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.clip import CHUNK, Clip, LossScale, clip_shards, global_norm, power_sum
from support.shards import SHAPES, adam, gradient, make, one_pass, plain, same, weights, whole
from support.threads import run_ranks

# Clipping and loss scales of shards are those of the whole, at every stage
STAGES = (0, 1, 2, 3)


def mean_gradient(comm, number=1):
    """All elements of the mean over ranks, in float64."""
    return numpy.concatenate([
        sum(gradient(index, array, rank, number).astype("f8") for rank in range(comm.size)
            ).reshape(-1) / comm.size for index, array in enumerate(weights())])


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("order", (1, 2, 3.5, math.inf))
@pytest.mark.parametrize("size", (1, 2, 3, 7))
def test_the_norm_and_the_clipped_step(size, order):
    def work(comm):
        wanted = float(numpy.linalg.norm(mean_gradient(comm), order))
        found = []
        for stage in STAGES:
            sharded = make(comm, stage, Sgd(1.0), clip=Clip(wanted / 4, order))
            one_pass(sharded, 1)
            update = sharded.step()
            assert update.norm == pytest.approx(wanted, rel=1e-6)
            found.append(whole(sharded))
            moved = numpy.concatenate([(old - new).reshape(-1).astype("f8")
                                       for old, new in zip(weights(), found[-1])])
            assert numpy.linalg.norm(moved, order) == pytest.approx(wanted / 4, rel=1e-4)
        assert all(same(one, found[0]) for one in found)

    run_ranks(size, work, determinism="size")


def test_clipped_training_is_that_without_shards():
    """Up to the rounding of the norm to float32, of which one bit may differ."""
    def work(comm):
        wanted = plain(comm, Sgd(), factor_of=lambda norm: min(1.0, 2 / (norm + 1e-6)))
        for stage in STAGES:
            sharded = make(comm, stage, Sgd(), clip=2.0)
            for number in (1, 2, 3):
                one_pass(sharded, number)
                sharded.step()
            for found, array in zip(whole(sharded), wanted):
                numpy.testing.assert_allclose(found, array, rtol=1e-6, atol=1e-7)

    run_ranks(3, work, determinism="size")


@pytest.mark.parametrize("order", (2, math.inf))
def test_replicated_arrays_are_counted_once(order):
    """Two parts of a model, two replicas of each; array 1 is the same in both parts."""
    def work(comm):
        data = comm.Split(comm.rank % 2, comm.rank)
        model = comm.Split(comm.rank // 2, comm.rank)
        part = comm.rank % 2
        own, shared = numpy.full(5, 1.0 + part, "f4"), numpy.full(3, 7.0, "f4")
        found = []
        for stage in STAGES:
            sharded = make(data, stage, Sgd(), [own, shared], clip=Clip(1.0, order),
                           model_comm=model, replicated=[1])
            for unit in (0, 1):
                sharded.fetch(unit)
            sharded.ready(1, shared)
            sharded.ready(0, own)
            found.append(sharded.step().norm)
        return found

    whole_model = numpy.array([1.0] * 5 + [2.0] * 5 + [7.0] * 3)
    wanted = float(numpy.float32(numpy.linalg.norm(whole_model, order)))
    assert run_ranks(4, work) == [[pytest.approx(wanted, rel=1e-7)] * 4] * 4


@pytest.mark.parametrize("stage", STAGES)
def test_a_loss_scale_is_followed_by_all_ranks(stage):
    def work(comm):
        sharded = make(comm, stage, adam(), loss_scale=LossScale(8.0, interval=2))
        scales = []
        for good in (True, False, True, True, False):
            for unit in range(len(sharded.units)):
                with sharded.fetched(unit):
                    pass
            for index, shape in enumerate(SHAPES):
                array = numpy.full(shape, sharded.scale, "f4")
                if not good and comm.rank == 1 and index == 6:
                    array[0] = numpy.inf
                sharded.ready(index, array)
            update = sharded.step()
            assert update.applied == good
            assert update.norm == pytest.approx(math.sqrt(80)) if good else math.isnan(update.norm)
            scales.append(sharded.scale)
        assert scales == [8, 4, 4, 8, 4] and sharded.number == 3

    run_ranks(2, work)


@pytest.mark.parametrize("stage", STAGES)
def test_a_scaled_loss_makes_the_same_step(stage):
    """A power of two changes no bit; the norm is that of gradients as they are."""
    def work(comm):
        found = []
        for scale in (1.0, 1024.0):
            sharded = make(comm, stage, Sgd(1.0), loss_scale=LossScale(scale), clip=0.5)
            sharded.fetch(0)
            for index, array in enumerate(weights()):
                sharded.ready(index, gradient(index, array, comm.rank, 1) * numpy.float32(scale))
            found.append((sharded.step().norm, whole(sharded)))
        assert found[0][0] == found[1][0] and same(found[0][1], found[1][1])

    run_ranks(3, work, determinism="size")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("f2", "bfloat16"))
@pytest.mark.parametrize("size", (1, 3))
def test_weights_of_two_bytes_are_stepped_in_four(size, dtype):
    """Steps that two bytes cannot show must add up in the exact weights."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = numpy.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)

    def work(comm):
        for stage in STAGES:
            arrays = [numpy.ones(shape, dtype) for shape in SHAPES]
            sharded = make(comm, stage, Sgd(2.0 ** -12), arrays)
            for _ in range(16):
                for unit in range(len(sharded.units)):
                    with sharded.fetched(unit) as found:
                        assert all(array.dtype == dtype for array in found.values())
                for index, shape in enumerate(SHAPES):
                    sharded.ready(index, numpy.ones(shape, dtype))
                sharded.step()
            assert all((array == 1 - 2.0 ** -8).all() and array.dtype == "f4"
                       for array in whole(sharded))
            if stage < 3:
                assert all((array == dtype.type(1 - 2.0 ** -8)).all()
                           for array in sharded.parameters)

    run_ranks(size, work)


def test_the_sum_of_large_numbers_of_two_bytes_stays_finite():
    def work(comm):
        sharded = make(comm, 1, Sgd(1.0), [numpy.zeros(9, "f2")])
        sharded.ready(0, numpy.full(9, 16384.0, "f2"))
        assert sharded.step().applied
        assert (sharded.parameters[0] == -16384).all()

    run_ranks(5, work)


ORDERS = (1, 2, 3, 0.5, math.inf)


def shard(rank, size, count=23, dtype="f4"):
    values = numpy.random.default_rng(3).standard_normal(count).astype(dtype)
    return numpy.array_split(values, size)[rank].copy()


@pytest.mark.parametrize("order", ORDERS)
def test_clipping(order):
    def work(comm):
        mine, same = [shard(comm.rank, 3), shard(comm.rank, 3, 5)], numpy.ones(2, "f4")
        norm = clip_shards(comm, mine, 0.5, order, replicated=[same])
        return norm, mine, same

    found = run_ranks(3, work)
    whole = numpy.concatenate([shard(0, 1), shard(0, 1, 5), numpy.ones(2)])
    for norm, _, alike in found:
        factor = 0.5 / (norm + 1e-6)
        assert norm == pytest.approx(numpy.linalg.norm(whole.astype("f8"), order), rel=1e-6)
        assert alike == pytest.approx(factor, rel=1e-6)
    clipped = numpy.concatenate([vector for _, mine, _ in found for vector in mine] + [found[0][2]])
    assert numpy.linalg.norm(clipped.astype("f8"), order) == pytest.approx(0.5, rel=1e-5)


def test_large_numbers_do_not_overflow():
    x = numpy.full(3, 3e38, "f4")
    assert run_ranks(2, lambda comm: global_norm(comm, [x]))[0] == pytest.approx(
        6 ** 0.5 * 3e38, rel=1e-6)


def test_the_same_values_have_the_same_power_wherever_they_lie():
    values = numpy.random.default_rng(0).standard_normal(2 * CHUNK + 77).astype("f4")
    assert len({power_sum(numpy.append(numpy.zeros(k, "f4"), values)[k:], 2)
                for k in range(9)}) == 1


@pytest.mark.parametrize("arguments, error, problem", [
    ((1.0, 0), ArgumentError, "order: .*positive"), ((1.0, -1), ArgumentError, "order: .*positive"),
    ((1.0, math.nan), ArgumentError, "order: .*positive"),
    ((-1,), ArgumentError, "max_norm: .*positive.*-1"),
    (("1",), ArgumentTypeError, "max_norm: .*'1'"),
    ((1, "inf"), ArgumentTypeError, "order: .*inf")])
def test_clips_that_are_none(arguments, error, problem):
    with pytest.raises(error, match=problem):
        Clip(*arguments)


@pytest.mark.parametrize("comm, arguments, error, problem", [
    (None, ([],), ArgumentTypeError, "comm: .*communicator"),
    (MPI.COMM_SELF, (5,), ArgumentTypeError, "shards: .*arrays.*5"),
    (MPI.COMM_SELF, ([], 0), ArgumentError, "order")])
def test_norms_of_what_has_none(comm, arguments, error, problem):
    with pytest.raises(error, match=problem):
        global_norm(comm, *arguments)
