"""Sharded training against plain training: same bits at every stage, whatever the ranks."""

import numpy
import pytest

from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.weights import Fetching
from support.shards import SHAPES, adam, make, one_pass, plain, same, weights, whole
from support.threads import run_ranks

RANKS = (1, 2, 3, 5, 7, 8)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_same_bits_as_plain_training(stage, size):
    def work(comm):
        sharded = make(comm, stage, adam())
        for number in (1, 2, 3):
            one_pass(sharded, number)
            assert sharded.step().number == number
        assert same(whole(sharded), plain(comm, adam()))
        if stage < 3:
            assert same(sharded.parameters, whole(sharded))
        sharded.close()

    run_ranks(size, work, determinism="size")


@pytest.mark.parametrize("options", [
    {"stage": 1, "bucket_bytes": 0, "first_bucket_bytes": 0}, {"stage": 2, "bucket_bytes": 1 << 20},
    {"stage": 3, "units": [[i] for i in range(7)]}, {"stage": 3, "fetching": None}], ids=str)
def test_groups_do_not_show(options):
    def work(comm):
        sharded = make(comm, optimizer=adam(), **options)
        for number in (1, 2, 3):
            one_pass(sharded, number)
            sharded.step()
        assert same(whole(sharded), plain(comm, adam()))

    run_ranks(3, work, determinism="size")


@pytest.mark.parametrize("stage", (0, 1, 2))
def test_arrays_come_in_another_order_on_every_rank(stage):
    def work(comm):
        sharded = make(comm, stage, adam())
        for number in (1, 2):
            order = numpy.random.default_rng((comm.rank, number)).permutation(7).tolist()
            one_pass(sharded, number, order)
            sharded.step()
        assert same(sharded.parameters, plain(comm, adam(), 2))

    run_ranks(3, work, determinism="size")


@pytest.mark.parametrize("stage", (0, 1))
def test_gradients_may_be_written_where_they_travel_from(stage):
    def work(comm):
        sharded = make(comm, stage, Sgd(0.1))
        for index, place in enumerate(sharded.gradients):
            place[...] = index + comm.rank
            sharded.ready(index)
        before = [array.copy() for array in sharded.parameters]
        sharded.step()
        for index, (array, old) in enumerate(zip(sharded.parameters, before)):
            mean = numpy.float32((2 * index + 1) / 2)
            assert (array == old - numpy.float32(0.1) * mean).all()

    run_ranks(2, work)


@pytest.mark.parametrize("accumulate", ("whole", "shards"))
@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_passes_add_up(stage, accumulate):
    """Integers, so that the order of additions does not matter."""
    def bring(sharded, factor):
        for unit in range(len(sharded.units)):
            with sharded.fetched(unit):
                pass
        for index, shape in enumerate(SHAPES):
            sharded.ready(index, numpy.full(shape, factor * (index + 1 + comm_rank(sharded)), "f4"))

    def work(comm):
        sharded = make(comm, stage, Sgd(1.0), op="sum", accumulate=accumulate)
        before = whole(sharded)
        for _ in range(2):
            sent = comm.sent_bytes
            for factor in (1, 10):
                with sharded.paused():
                    bring(sharded, factor)
            if accumulate == "whole" and stage < 3:
                assert comm.sent_bytes == sent
            bring(sharded, 100)
            sharded.step()
            for index, (array, old) in enumerate(zip(whole(sharded), before)):
                # Two steps one after the other round as they do here.
                before[index] = old - numpy.float32(111 * (2 * index + 3))
                assert (array == before[index]).all()

    run_ranks(2, work)


def comm_rank(sharded):
    return sharded.comm.Get_rank()


@pytest.mark.parametrize("stage", (1, 2, 3))
@pytest.mark.parametrize("shapes", ([(1,)], [(2,), (1,)], [(0,)], []), ids=str)
def test_more_ranks_than_elements(stage, shapes):
    def work(comm):
        arrays = weights(shapes)
        options = {"fetching": Fetching(persistent=0)} if stage == 3 else {}
        sharded = make(comm, stage, adam(), arrays, **options)
        one_pass(sharded, 1)
        sharded.step()
        assert same(whole(sharded), plain(comm, adam(), 1, weights(shapes)))

    run_ranks(5, work, determinism="size")


def test_the_weights_of_rank_0_count():
    def work(comm):
        arrays = [array + comm.rank for array in weights()]
        return [whole(make(comm, stage, Sgd(), arrays)) for stage in (0, 1, 2, 3)]

    for stages in run_ranks(3, work):
        assert all(same(found, weights()) for found in stages)


def test_the_optimizer_may_be_replaced():
    def work(comm):
        sharded = make(comm, 1, Sgd(0.5))
        before = whole(sharded)
        sharded.optimizer = Sgd(0.0)
        one_pass(sharded, 1)
        sharded.step()
        assert same(whole(sharded), before)

    run_ranks(2, work)


def test_state_in_files_has_the_same_bits(tmp_path):
    def work(comm):
        sharded = make(comm, 2, adam(), storage=tmp_path)
        for number in (1, 2, 3):
            one_pass(sharded, number)
            sharded.step()
        assert same(sharded.parameters, plain(comm, adam()))
        assert not list(tmp_path.iterdir())

    run_ranks(3, work, determinism="size")
