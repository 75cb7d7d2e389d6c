"""Sharded training: the same steps as without, and the bytes that they move."""

import gc
import tracemalloc
from pathlib import Path

import numpy
import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.runtime.progress.task_queue import TaskQueue
from hpccoll.training import shard
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.clip import LossScale, Scale
from hpccoll.training.shard.memory_model import (
    footprint,
    scattered_bytes,
    sent_bytes,
)
from hpccoll.training.shard.partition import WHOLE, check_units, plan_groups
from hpccoll.training.shard.shard_state import MOST_SPARE, MappedFiles, VectorPool
from hpccoll.training.shard.weights import Fetching
from support.shards import SHAPES, UNITS, adam, make, one_pass, plain, same, weights, whole
from support.threads import run_ranks

# Sharded training against plain training: same bits at every stage, whatever the ranks
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


# What a stage sends and holds is its closed form
COUNT = sum(array.size for array in weights())
#: The allreduce of three numbers of float64, in which ranks agree.
AGREEMENT = 24
SHARD = str(Path(shard.__file__).parent / "*")


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("stage, persistent", [(0, 0), (1, 0), (2, 0), (3, 0), (3, 6)])
def test_a_step_sends_what_its_closed_form_says(stage, persistent, size):
    def work(comm):
        options = {"fetching": Fetching(persistent=persistent, reuse=0)} if stage == 3 else {}
        sharded = make(comm, stage, Sgd(), **options)
        sent = []
        for number in (1, 2, 3):
            before = comm.sent_bytes
            one_pass(sharded, number)
            sharded.step()
            sent.append(comm.sent_bytes - before)
        return sent

    small = sum(array.size for array in weights() if array.size < persistent)
    wanted = sent_bytes(stage, COUNT, size, 4, small) * size + 2 * AGREEMENT * (size - 1)
    for sent in zip(*run_ranks(size, work)):
        assert sum(sent) == pytest.approx(wanted, rel=1e-12)


def test_what_the_backward_pass_begins_with_is_not_gathered_twice():
    """From the second step on: the first one does not know what comes."""
    def work(comm):
        sharded = make(comm, 3, Sgd(), fetching=Fetching(persistent=0))
        sent = []
        for number in (1, 2):
            before = comm.sent_bytes
            one_pass(sharded, number)
            sharded.step()
            sent.append(comm.sent_bytes - before)
        return sent

    first, second = (sum(sent) for sent in zip(*run_ranks(2, work)))
    assert first - second == 4 * sum(weights()[index].size for index in UNITS[-1])


@pytest.mark.long(every=3)
@pytest.mark.slow
@pytest.mark.parametrize("stage, size", [
    *((stage, size) for stage in (0, 1, 2) for size in (3, 8)), (3, 1), (3, 2), (3, 3), (3, 8)])
def test_memory_is_within_five_percent_of_its_closed_form(stage, size):
    shapes = [(300, 200), (200,), (200, 301), (301,)]
    arrays = [numpy.ones(shape, "f4") for shape in shapes]
    count = sum(array.size for array in arrays)

    def work(comm):
        options = {"units": [[0, 1], [2, 3]], "fetching": Fetching(persistent=0, reuse=0)} \
            if stage == 3 else {"bucket_bytes": 40_000}
        sharded = make(comm, stage, adam(), arrays, **options)
        one_pass(sharded, 1)
        sharded.step()
        comm.Barrier()
        return sharded

    gc.collect()
    tracemalloc.start()
    held = run_ranks(size, work)
    gc.collect()
    # What threads need to be communicators is not meant.
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, SHARD)])
    tracemalloc.stop()
    measured = sum(trace.size for trace in ours.traces) / size
    wanted = footprint(stage, count, size)
    for sharded in held:
        for kind, nbytes in wanted._asdict().items():
            assert getattr(sharded.footprint, kind) == pytest.approx(nbytes, rel=0.001)
    assert measured == pytest.approx(wanted.total, rel=0.05)


def test_buffers_of_gradients_are_few():
    """At stage 2 no more than two groups are whole at a time, and none after the step."""
    arrays = [numpy.ones(1000, "f4") for _ in range(8)]

    def work(comm):
        sharded = make(comm, 2, Sgd(), arrays, bucket_bytes=0, first_bucket_bytes=0)
        most = 0
        for index in reversed(range(8)):
            sharded.ready(index, numpy.ones(1000, "f4"))
            most = max(most, sharded.footprint.gradients)
        sharded.step()
        return most, sharded.footprint.gradients

    for most, after in run_ranks(2, work):
        assert after == 8 * 4000 / 2
        assert most <= after + 2 * 4000


# Loss scales follow the gradients as PyTorch's GradScaler does
def test_the_defaults_are_pytorchs():
    assert LossScale() == LossScale(65536.0, 2.0, 0.5, 2000)


@pytest.mark.parametrize("interval, finite, wanted", [
    (3, (1, 1, 0, 1, 1, 1, 1, 0, 0),
     [(4, 1), (4, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (2, 0), (1, 0)]),
    (0, [1] * 3000, [(4, step) for step in range(1, 3001)])])
def test_growth_wants_finite_steps_in_a_row_and_an_interval(interval, finite, wanted):
    rule, scale, seen = LossScale(4.0, interval=interval), Scale(4.0), []
    for one in finite:
        scale = rule.next_scale(scale, bool(one))
        seen.append(scale)
    assert seen == wanted


@pytest.mark.parametrize("wrong, error", [
    *(({name: value}, ArgumentError) for name, value in (
        ("initial", 0), ("growth", 0.5), ("backoff", 0), ("backoff", 2), ("interval", -1))),
    ({"initial": "8"}, ArgumentTypeError)], ids=str)
def test_numbers_that_cannot_work(wrong, error):
    with pytest.raises(error, match="loss_scale"):
        LossScale(**wrong)


# Generators of requests are resumed in their order, whichever request is done first
class Request:
    def __init__(self):
        self.done = self.waited = False
        self.tests = 0

    def Test(self):
        self.tests += 1
        return self.done

    def Wait(self):
        self.waited = self.done = True


def flight(log, name, requests):
    for number, request in enumerate(requests):
        log.append(f"{name}{number}")
        yield request
    log.append(f"{name} over")


def test_a_later_one_is_not_resumed_before_an_earlier_one_is_over():
    log, first, second = [], [Request(), Request()], [Request(), Request()]
    flights = TaskQueue(overlap=True)
    flights.submit(flight(log, "a", first), lambda: log.append("a landed"))
    flights.submit(flight(log, "b", second), lambda: log.append("b landed"))
    second[0].done = True
    flights.progress()
    assert log == ["a0", "b0"]
    # MPI moves a transfer on when somebody looks at it.
    assert (first[0].tests, second[0].tests) == (1, 1)
    first[0].done = True
    flights.progress()
    assert log == ["a0", "b0", "a1"]
    first[1].done = True
    flights.progress()
    assert log == ["a0", "b0", "a1", "a over", "a landed", "b1"] and len(flights) == 1
    flights.wait()
    assert log[-2:] == ["b over", "b landed"] and len(flights) == 0 and second[1].waited


def test_memory_is_used_again_where_it_fits():
    buffers = VectorPool()
    vector = buffers.get(100, "f4")
    place = vector.ctypes.data
    buffers.put(vector)
    assert buffers.get(30, "f4").ctypes.data != place  # much too large
    again = buffers.get(40, "f8")
    assert again.ctypes.data == place and again.shape == (40,)
    for _ in range(5):
        buffers.put(buffers.get(10, "f4").copy())
    assert len(buffers._spare) <= MOST_SPARE
    buffers.clear()
    assert not buffers._spare


# The closed forms, against the table of the ZeRO paper and against messages that are made
@pytest.mark.parametrize("stage, each", [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_the_figures_of_the_paper(stage, each):
    """7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    total = footprint(stage, 7_500_000_000, 64, itemsize=2, state_bytes=12).total
    assert total == pytest.approx(7.5e9 * each)
    assert total / 1e9 == pytest.approx([120, 31.4, 16.6, 1.9][stage], abs=0.05)


def test_a_quarter_of_the_gradients_crosses_nodes():
    """ZeRO++: int4 of half-precision gradients, a node of Y ranks sends 1/4 of their bytes."""
    across = scattered_bytes(1 << 20, 1, 1 << 10, 4, 1 << 19)
    assert across == pytest.approx((1 << 20) * 2 / 4, rel=2e-3)


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="storage: .*file"):
        MappedFiles(tmp_path / "file")


def test_a_disk_that_is_full_is_an_error_at_once(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        MappedFiles(tmp_path).zeros(10, "f4")


# Who owns what: every element has one owner, and shards are as equal as can be
SPECS = [ArraySpec(f"a{i}", shape) for i, shape in enumerate(
    [(3, 5), (), (0,), (2,), (41,), (1,), (8, 8)])]


@pytest.mark.parametrize("specs, units, options, wanted", [
    # From the last unit to the first; small arrays come at the end.
    (SPECS, [[0, 1, 2], [3], [4, 5, 6]], {"persistent": 3},
     [(2, (6, 4)), (0, (0,)), (WHOLE, (5, 3, 2, 1))]),
    # Arrays of different types share no group.
    ([ArraySpec("a", (4,)), ArraySpec("b", (4,), "float16", 2), ArraySpec("c", (4,))],
     [[0, 1, 2]], {}, [(0, (2, 0)), (0, (1,))])])
def test_units_are_groups(specs, units, options, wanted):
    groups = plan_groups(specs, 2, 0, 0, units, **options)
    assert [(group.unit, group.bucket.members) for group in groups] == wanted


@pytest.mark.parametrize("units, odd", [([[0, 1]], "2, 3, 4, 5, 6"), ([list(range(8))], "7"),
                                        ([list(range(7)), [3]], "3"), ([[*range(6), -1]], "-1, 6")])
def test_units_that_are_none(units, odd):
    with pytest.raises(ArgumentError, match=f"units: arrays {odd} "):
        check_units(units, len(SPECS))
