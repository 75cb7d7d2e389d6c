"""Shards are kept for any number of ranks, any stage and other groups."""

import json

import numpy
import pytest

from hpccoll.errors import ArgumentError, ShardError
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.clip import LossScale
from support.shards import adam, make, same, weights, whole
from support.threads import run_ranks

STEPS = 2



def trained(comm, stage, steps=STEPS, optimizer=None, **options):
    sharded = make(comm, stage, optimizer or adam(), **options)
    go_on(sharded, range(1, steps + 1))
    return sharded


def go_on(sharded, numbers):
    """Gradients that all ranks share, so that any number of them trains alike."""
    for number in numbers:
        for unit in range(len(sharded.units)):
            with sharded.fetched(unit):
                pass
        for index, spec in enumerate(sharded._specs):
            values = numpy.random.default_rng((index, number)).integers(-8, 8, spec.shape)
            sharded.ready(index, values.astype(spec.dtype))
        sharded.step()


def reference(steps):
    sharded, = run_ranks(1, lambda comm: trained(comm, 0, steps))
    return sharded.state()


def equal(left, right):
    return (left["number"], left["scale"]) == (right["number"], right["scale"]) and (
        left["vectors"].keys() == right["vectors"].keys()) and all(
            same(left["vectors"][name], right["vectors"][name]) for name in left["vectors"])


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("before, after", [(1, 2), (4, 2), (3, 5), (8, 7)])
@pytest.mark.parametrize("stages", [(1, 1), (2, 3), (3, 0), (0, 2)])
def test_training_goes_on_with_other_ranks_stages_and_groups(before, after, stages, tmp_path):
    """Powers of two of equal gradients have exact means; others are compared at equal ranks."""
    run_ranks(before, lambda comm: trained(comm, stages[0]).save(tmp_path))
    saved = run_ranks(before, lambda comm: trained(comm, stages[0]).state())[0]

    def resume(comm):
        options = {} if stages[1] == 3 else {"bucket_bytes": 64, "first_bucket_bytes": 8}
        sharded = make(comm, stages[1], adam(), [array * 0 for array in weights()], **options)
        sharded.restore(tmp_path)
        assert equal(sharded.state(), saved)
        again = make(comm, stages[1], adam(), **options)
        again.load(saved)
        assert equal(again.state(), saved)
        go_on(sharded, (3, 4))
        go_on(again, (3, 4))
        assert equal(sharded.state(), again.state())
        return sharded.state()

    found = run_ranks(after, resume)
    if {before, after} <= {1, 2, 4, 8}:
        assert equal(found[0], reference(4))


def test_weights_are_there_at_once(tmp_path):
    def work(comm):
        wanted = trained(comm, 2)
        wanted.save(tmp_path)
        for stage in (0, 1, 2):
            sharded = make(comm, stage, adam(), [array * 0 for array in weights()])
            sharded.restore(tmp_path)
            assert same(sharded.parameters, wanted.parameters)
        sharded = make(comm, 3, adam(), [array * 0 for array in weights()])
        sharded.fetch(1)
        sharded.restore(tmp_path)
        arrays = sharded.fetch(1)
        assert same(list(arrays.values()), [wanted.parameters[index] for index in arrays])

    run_ranks(3, work)


def test_weights_of_two_bytes_keep_their_exact_ones(tmp_path):
    def work(comm):
        arrays = [array.astype("f2") for array in weights()]
        first = trained(comm, 1, arrays=arrays, loss_scale=LossScale(8.0, interval=3))
        first.save(tmp_path)
        second = make(comm, 3, adam(), arrays, loss_scale=LossScale(8.0, interval=3))
        second.restore(tmp_path)
        assert second.state()["scale"] == (8.0, 2) and second.number == STEPS
        assert whole(second)[0].dtype == "f4" and same(whole(first), whole(second))
        go_on(second, [3])
        assert second.scale == 16

    run_ranks(2, work)


def test_saving_again_replaces_what_was_there(tmp_path):
    def work(comm):
        sharded = trained(comm, 1)
        for _ in range(3):
            sharded.save(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1 + 3 * comm.size

    run_ranks(4, work)
    run_ranks(2, lambda comm: trained(comm, 1, 1).save(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1 + 3 * 2
    assert json.loads((tmp_path / "index.json").read_text())["facts"]["number"] == 1


def test_a_rank_that_cannot_write_is_told_on_all_and_the_old_files_stay(tmp_path, monkeypatch):
    def work(comm):
        first = trained(comm, 1)
        first.save(tmp_path)
        monkeypatch.setattr("os.fsync", full)
        go_on(first, [3])
        with pytest.raises(ShardError, match="rank [01]: .*No space left"):
            first.save(tmp_path)
        comm.Barrier()
        monkeypatch.undo()
        comm.Barrier()
        first.restore(tmp_path)
        assert first.number == STEPS

    def full(_):
        raise OSError(28, "No space left on device")

    run_ranks(2, work)


def cut_off(folder):
    (folder / "0-1-mean").write_bytes(b"1234")


def gone(folder):
    (folder / "0-1-weights").unlink()


def damaged(folder):
    (folder / "index.json").write_text("{")


def newer(folder):
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "format": 9}))


@pytest.mark.parametrize("harm, message", [
    (cut_off, "0-1-mean.*4 bytes"), (gone, "0-1-weights"),
    (damaged, "read"), (newer, "format 9")])
def test_files_that_are_not_whole(harm, message, tmp_path):
    run_ranks(2, lambda comm: trained(comm, 1).save(tmp_path))
    harm(tmp_path)

    def work(comm):
        sharded = make(comm, 1, adam())
        with pytest.raises(ShardError, match=message):
            sharded.restore(tmp_path)
        assert same(sharded.parameters, weights())

    run_ranks(3, work)


def test_files_of_another_model_or_optimizer(tmp_path):
    run_ranks(2, lambda comm: trained(comm, 1).save(tmp_path))

    def work(comm):
        with pytest.raises(ShardError, match="shapes"):
            make(comm, 1, adam(), weights()[:3]).restore(tmp_path)
        with pytest.raises(ShardError, match="'mean'"):
            make(comm, 1, Sgd()).restore(tmp_path)
        with pytest.raises(ShardError, match="nowhere"):
            make(comm, 1, Sgd()).restore(tmp_path / "nowhere")

    run_ranks(2, work)


def test_a_state_of_another_model_or_optimizer():
    def work(comm):
        state = trained(comm, 1).state()
        with pytest.raises(ArgumentError, match="state: .*mean, square, weights"):
            make(comm, 1, Sgd()).load(state)
        with pytest.raises(ArgumentError, match="state: .*'.*'"):
            make(comm, 1, adam(), weights()[:3]).load(state)

    run_ranks(2, work)
