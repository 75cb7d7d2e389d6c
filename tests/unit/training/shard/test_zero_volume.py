"""What a stage sends and holds is its closed form."""

import gc
import tracemalloc
from pathlib import Path

import numpy
import pytest

from hpccoll.training import shard
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.memory_model import footprint, sent_bytes
from hpccoll.training.shard.weights import Fetching
from support.shards import UNITS, adam, make, one_pass, weights
from support.threads import run_ranks

RANKS = (1, 2, 3, 5, 7, 8)
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


def test_memory_of_weights_of_two_bytes():
    """16 bytes an element without shards, as DeepSpeed counts: 2 + 2 + 4 + 4 + 4."""
    arrays = [numpy.ones(1000, "f2"), numpy.ones(600, "f2")]

    def work(comm):
        options = {"units": [[0], [1]], "fetching": Fetching(persistent=0)}
        return [make(comm, stage, adam(), arrays, **(options if stage == 3 else {})).footprint
                for stage in range(4)]

    for stages in run_ranks(4, work):
        for stage, found in enumerate(stages):
            assert found == footprint(stage, 1600, 4, itemsize=2, state_bytes=12)
        assert stages[0].total == 16 * 1600


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
