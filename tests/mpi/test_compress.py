"""Compression on real ranks: the law, the same bits on all of them, refused steps, restarts."""

import hashlib

import numpy
import pytest

from hpccoll.errors import NonFiniteError
from hpccoll.training import compress
from hpccoll.training.compress import states
from hpccoll.training.optimizers import OneBitAdam

pytestmark = pytest.mark.mpi
FORMS = ["none", "fp16", "bf16", "int8", "onebit:block=32", "onebit", "dithering",
         "topk:density=0.05", "topk:density=0.05,method=sampled,momentum=0.5", "randomk",
         "csc:density=0.2,chunk=16", "powersgd:dense_steps=2"]
KEEPING = [form for form in FORMS if form.startswith(("onebit", "randomk", "powersgd")) or
           form in ("topk:density=0.05", "csc:density=0.2,chunk=16")]
SHAPES = [(16, 20), (3,), (30, 7), (8,)]
COUNT = 541


def gradient(rank, step, count=COUNT):
    random = numpy.random.default_rng([rank, step])
    return numpy.rint(random.normal(numpy.sin(step / 9) * 3, 8, count)) * 60


def same_on_all(comm, values):
    return len(set(comm.allgather(hashlib.sha256(values.tobytes()).hexdigest()))) == 1


def mean(comm, values):
    return sum(comm.allgather(values)) / comm.size


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [COUNT, 0, 1, 2, 7])
def test_all_ranks_hold_the_same_bits(world, form, count):
    if form == "bf16":
        pytest.importorskip("ml_dtypes")
    mine = compress.parse(form).start(world, SHAPES if count == COUNT else [(count,)])
    for step in range((6 if count == COUNT else 3) + mine.scheme.warmup_steps):
        values = gradient(world.rank, step, count).astype("f4")
        given = values.copy()
        compress.finish(mine.reduce(values))
        assert same_on_all(world, values)
    if mine.scheme.dense:
        lag = numpy.abs(values - mean(world, given)).max(initial=0)
        assert lag <= 60 * 40 / 256 * world.size


@pytest.mark.parametrize("form", KEEPING)
def test_what_is_not_sent_is_held_back_through_refused_steps_and_restarts(world, form):
    scheme = compress.parse(form)
    mine, again = (scheme.start(world, SHAPES) for _ in range(2))
    given, out = 0, 0
    for step in range(50):
        values = gradient(world.rank, step)
        given = given + values
        compress.finish(mine.reduce(values))
        out = out + values
    lag = mean(world, given) - out - mean(world, mine.residual())
    assert numpy.abs(lag).max() <= 1e-9 and numpy.abs(mine.residual()).max() > 0
    bad = gradient(world.rank, 4)
    if world.rank == world.size - 1:
        bad[99] = numpy.nan
    with pytest.raises(NonFiniteError) as caught:
        compress.finish(mine.reduce(bad))
    assert caught.value.ranks == (world.size - 1,)
    again.load(states.join_states(states.split_state(mine.state(), [320, 3, 210, 8]),
                                  [320, 3, 210, 8]))
    values, wanted = gradient(world.rank, 5), gradient(world.rank, 5)
    compress.finish(again.reduce(values))
    compress.finish(mine.reduce(wanted))
    assert (values == wanted).all()


@pytest.mark.parametrize("form", ["onebit", "int8", "topk", "powersgd:dense_steps=0", "fp16"])
def test_reductions_may_be_under_way_together(world, form):
    """Two buckets on two communicators, driven in turns, as an exchange does."""
    comms = [world.Dup(), world.Dup()]
    mine = [compress.parse(form).start(comm, [(40, 50), (9,)]) for comm in comms]
    alone = [compress.parse(form).start(comm, [(40, 50), (9,)]) for comm in comms]
    for step in range(3):
        values = [gradient(world.rank, 2 * step + place, 2009) for place in range(2)]
        wanted = [one.copy() for one in values]
        running = [one.reduce(value) for one, value in zip(mine, values)]
        pending = [next(one) for one in running]
        while any(pending):
            for place, request in enumerate(pending):
                if request:
                    request.Wait()
                    pending[place] = next(running[place], None)
        for one, value in zip(alone, wanted):
            compress.finish(one.reduce(value))
        assert all((one == other).all() for one, other in zip(values, wanted))
    for comm in comms:
        comm.Free()


def test_one_bit_adam_keeps_parameters_the_same(world):
    run, parameters = OneBitAdam(freeze_step=3, epsilon=1e-3).start(world, COUNT), numpy.ones(COUNT)
    for step in range(8):
        compress.finish(run.step(parameters, gradient(world.rank, step)))
    assert same_on_all(world, parameters) and (parameters != 1).all()
