"""1-bit Adam: its two stages written out, its law, restarts, bad numbers, masks."""

from dataclasses import replace

import numpy
import pytest

from hpccoll.errors import NonFiniteError
from hpccoll.training.compress import finish, parse
from hpccoll.training.optimizers import OneBitAdam
from support.threads import run_ranks

COUNT = 101
SETTINGS = OneBitAdam(rate=0.01, beta2=0.9, epsilon=1e-3, weight_decay=0.1, freeze_step=4)


def gradient(rank, step):
    return numpy.random.default_rng([rank, step]).standard_normal(COUNT) + numpy.sin(step / 5)


def walk(comm, optimizer, first, last, parameters, run=None):
    run = run or optimizer.start(comm, COUNT)
    for step in range(first, last):
        finish(run.step(parameters, gradient(comm.rank, step)))
    return run


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_with_no_compression_it_is_adam_with_a_frozen_variance(size):
    x, m, v = numpy.ones(COUNT), 0, 0
    for step in range(9):
        g = sum(gradient(rank, step) for rank in range(size)) / size
        m = 0.9 * m + 0.1 * g
        v = 0.9 * v + 0.1 * g ** 2 if step < 4 else v
        x = x - 0.01 * (m / (numpy.sqrt(v) + 1e-3) + 0.1 * x)
    optimizer = replace(SETTINGS, compress=parse("none"))

    def work(comm):
        parameters = numpy.ones(COUNT)
        walk(comm, optimizer, 0, 9, parameters)
        return parameters

    for found in run_ranks(size, work):
        assert found == pytest.approx(x, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_momentum_that_is_held_back_keeps_the_law(size):
    """What the ranks gave is beta1 times the momentum of before and their gradients' share."""
    def work(comm):
        parameters, given, out = numpy.ones(COUNT), 0, 0
        run = walk(comm, SETTINGS, 0, 4, parameters)
        for step in range(4, 60):
            given = given + 0.9 * run.mean + 0.1 * gradient(comm.rank, step)
            walk(comm, SETTINGS, step, step + 1, parameters, run)
            out = out + run.mean
        return given, out, run.compressed.residual(), parameters, comm.sent_bytes

    ran = run_ranks(size, work)
    given, held = (sum(one[place] for one in ran) / size for place in (0, 2))
    assert numpy.abs(given - ran[0][1] - held).max() < 1e-12 and numpy.abs(held).max() > 0
    assert len({one[3].tobytes() for one in ran}) == 1
    wire = sum(SETTINGS.wire_bytes(COUNT, size, step) for step in range(60))
    doubles = 4 * SETTINGS.wire_bytes(COUNT, size, 0)  # the dense steps carry float64
    assert sum(one[4] for one in ran) / size == pytest.approx(wire + doubles)


def test_a_restart_goes_on_to_the_bit():
    def work(comm, stop):
        parameters = numpy.ones(COUNT)
        run = walk(comm, SETTINGS, 0, stop, parameters)
        again = SETTINGS.start(comm, COUNT)
        again.load(run.state())
        walk(comm, SETTINGS, stop, 12, parameters, again)
        return parameters

    for one, other in zip(run_ranks(3, lambda comm: work(comm, 7)),
                          run_ranks(3, lambda comm: work(comm, 12))):
        assert (one == other).all()


@pytest.mark.parametrize("step", [2, 6])
def test_bad_gradients_change_nothing_on_any_rank(step):
    def work(comm):
        parameters = numpy.ones(COUNT)
        run = walk(comm, SETTINGS, 0, step, parameters)
        bad = gradient(comm.rank, step)
        if comm.rank == 1:
            bad[3] = numpy.nan
        before = parameters.copy(), run.mean.copy()
        with pytest.raises(NonFiniteError, match=r"ranks? 1"):
            finish(run.step(parameters, bad))
        assert (parameters == before[0]).all() and (run.mean == before[1]).all()
        assert run.steps == step
        walk(comm, SETTINGS, step, 12, parameters, run)
        straight = numpy.ones(COUNT)
        walk(comm, SETTINGS, 0, 12, straight)
        assert (parameters == straight).all()

    run_ranks(3, work)


def test_elements_without_gradients_stay():
    """One bit cannot say zero, and their variance is zero."""
    def work(comm):
        parameters = numpy.ones(COUNT)
        run = replace(SETTINGS, weight_decay=0, epsilon=1e-8).start(comm, COUNT)
        for step in range(8):
            finish(run.step(parameters, gradient(comm.rank, step) * (numpy.arange(COUNT) % 2)))
        return run.mean, parameters

    mean, parameters = run_ranks(2, work)[0]
    assert not mean[::2].any() and (parameters[::2] == 1).all()
    assert mean[1::2].all() and (parameters[1::2] != 1).all()
