"""Optimizers: SGD, Adam, and Adam with compressed gradients."""

from dataclasses import replace

import numpy
import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError, NonFiniteError
from hpccoll.training.compress import finish, parse
from hpccoll.training.optimizers import Adam, OneBitAdam, Sgd, ZeroOneAdam
from support.threads import run_ranks

# Gradient descent against PyTorch's formulas written out, whole and in shards
COUNT = 37


def walk(optimizer, steps=5, parts=1, dtype="f8", gradient_dtype="f8"):
    """Some steps of an optimizer, on the whole or on parts."""
    random = numpy.random.default_rng(0)
    parameters = random.standard_normal(COUNT).astype(dtype)
    places = numpy.array_split(numpy.arange(COUNT), parts)
    states = [optimizer.start(place.size, dtype) for place in places]
    for step in range(1, steps + 1):
        gradients = random.standard_normal(COUNT).astype(gradient_dtype)
        given = gradients.copy()
        for place, state in zip(places, states):
            part = parameters[place[0]:place[-1] + 1]
            optimizer.step(part, gradients[place[0]:place[-1] + 1], state, step)
        assert (gradients == given).all()
    return parameters


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum, decay", [(0, 0), (0.9, 0), (0.9, 0.1), (0, 0.1)])
def test_gradient_descent_written_out(momentum, decay, nesterov):
    random = numpy.random.default_rng(0)
    x, m = random.standard_normal(COUNT), 0
    for _ in range(5):
        g = random.standard_normal(COUNT) + decay * x
        m = momentum * m + g
        x = x - 0.1 * (g + momentum * m if nesterov else m)
    found = walk(Sgd(rate=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov))
    assert found == pytest.approx(x, rel=1e-13)


@pytest.mark.parametrize("optimizer", [
    Sgd(), Sgd(momentum=0.9, weight_decay=0.1), Adam(), Adam(weight_decay=0.1)], ids=str)
def test_shards_step_as_the_whole(optimizer):
    assert (walk(optimizer, parts=5) == walk(optimizer)).all()
    assert (walk(optimizer, dtype="f4", parts=3) == walk(optimizer, dtype="f4")).all()


@pytest.mark.parametrize("kind, field, value", [
    (Sgd, "rate", -1), (Sgd, "momentum", 1), (Sgd, "weight_decay", -0.1), (Adam, "beta1", 1.5),
    (Adam, "beta2", -0.1), (Adam, "epsilon", -1e-8), (OneBitAdam, "freeze_step", 0),
    (ZeroOneAdam, "most_local", 0), (ZeroOneAdam, "variance_doubling", 0),
    (OneBitAdam, "freeze_step", 1.5), (Sgd, "rate", float("nan"))])
def test_settings_that_make_no_sense(kind, field, value):
    with pytest.raises(ArgumentError, match=f"{kind.__name__}: {field}: .*{value}"):
        kind(**{field: value})


@pytest.mark.parametrize("kind", [Sgd, Adam, OneBitAdam, ZeroOneAdam])
@pytest.mark.parametrize("value", ["0.1", None, [0.1], 1j], ids=repr)
def test_rates_that_are_no_numbers(kind, value):
    with pytest.raises(ArgumentTypeError, match=f"{kind.__name__}: rate: "):
        kind(rate=value)


# Adam against its paper written out, with both kinds of weight decay
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("decay", [0, 0.1])
def test_adam_written_out(decay, decoupled):
    random = numpy.random.default_rng(1)
    x = random.standard_normal(23)
    found, m, v = x.copy(), 0, 0
    optimizer = Adam(rate=0.01, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=decay,
                     decoupled=decoupled)
    state = optimizer.start(23, "f8")
    for step in range(1, 8):
        gradients = random.standard_normal(23)
        optimizer.step(found, gradients, state, step)
        g = gradients + (0 if decoupled else decay * x)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g ** 2
        update = (m / (1 - 0.8 ** step)) / (numpy.sqrt(v / (1 - 0.95 ** step)) + 1e-6)
        x = x - 0.01 * (update + (decay * x if decoupled else 0))
        assert found == pytest.approx(x, rel=1e-12)


# 1-bit Adam: its two stages written out, its law, masks
COUNT = 101
SETTINGS = OneBitAdam(rate=0.01, beta2=0.9, epsilon=1e-3, weight_decay=0.1, freeze_step=4)


def gradient(rank, step):
    return numpy.random.default_rng([rank, step]).standard_normal(COUNT) + numpy.sin(step / 5)


def walk_onebit(comm, optimizer, first, last, parameters, run=None):
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
        walk_onebit(comm, optimizer, 0, 9, parameters)
        return parameters

    for found in run_ranks(size, work):
        assert found == pytest.approx(x, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_momentum_that_is_held_back_keeps_the_law(size):
    """What the ranks gave is beta1 times the momentum of before and their gradients' share."""
    def work(comm):
        parameters, given, out = numpy.ones(COUNT), 0, 0
        run = walk_onebit(comm, SETTINGS, 0, 4, parameters)
        for step in range(4, 60):
            given = given + 0.9 * run.vectors["mean"] + 0.1 * gradient(comm.rank, step)
            walk_onebit(comm, SETTINGS, step, step + 1, parameters, run)
            out = out + run.vectors["mean"]
        return given, out, run.compressed.residual(), parameters, comm.sent_bytes

    ran = run_ranks(size, work)
    given, held = (sum(one[place] for one in ran) / size for place in (0, 2))
    assert numpy.abs(given - ran[0][1] - held).max() < 1e-12 and numpy.abs(held).max() > 0
    assert len({one[3].tobytes() for one in ran}) == 1
    wire = sum(SETTINGS.wire_bytes(COUNT, size, step) for step in range(60))
    doubles = 4 * SETTINGS.wire_bytes(COUNT, size, 0)  # the dense steps carry float64
    assert sum(one[4] for one in ran) / size == pytest.approx(wire + doubles)


def test_elements_without_gradients_stay():
    """One bit cannot say zero, and their variance is zero."""
    def work(comm):
        parameters = numpy.ones(COUNT)
        run = replace(SETTINGS, weight_decay=0, epsilon=1e-8).start(comm, COUNT)
        for step in range(8):
            finish(run.step(parameters, gradient(comm.rank, step) * (numpy.arange(COUNT) % 2)))
        return run.vectors["mean"], parameters

    mean, parameters = run_ranks(2, work)[0]
    assert not mean[::2].any() and (parameters[::2] == 1).all()
    assert mean[1::2].all() and (parameters[1::2] != 1).all()


# 0/1 Adam: which steps exchange what, its stages written out; restarts and bad numbers of both
LENGTH = 67
ZERO_ONE = ZeroOneAdam(rate=0.01, beta2=0.9, epsilon=1e-2, freeze_step=10,
                       variance_doubling=2, local_doubling=3, most_local=4)
EXACT = replace(ZERO_ONE, compress=parse("none"))


def zero_one_gradient(rank, step):
    return numpy.random.default_rng([rank, step]).standard_normal(LENGTH)


def zero_one_walk(comm, settings, stop, run=None, parameters=None):
    run = run or settings.start(comm, LENGTH)
    parameters = numpy.ones(LENGTH) if parameters is None else parameters
    sent, together = [], []
    for step in range(run.steps, stop):
        before = comm.sent_bytes
        finish(run.step(parameters, zero_one_gradient(comm.rank, step)))
        sent.append(comm.sent_bytes - before)
        together.append(getattr(run, "is_synchronized", True))
    return run, parameters, sent, together


def test_which_steps_exchange_what():
    """Intervals of the variance are 1, 2, 4; those of exchanges 1 and 2 and at most 4."""
    _, _, sent, together = run_ranks(2, lambda comm: zero_one_walk(comm, ZERO_ONE, 30))[0]
    dense, bits = 8 * LENGTH, parse("onebit").wire_bytes([(LENGTH,)], 2)
    assert bits == 24
    text = "".join({dense: "D", bits: "1", 0: "-"}[one] for one in sent)
    assert text == "DDD1D111D1" + "1111-1-1---1---1---1"
    assert together == [one != "-" for one in text]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_stages_written_out(size):
    xs, m, v = [numpy.ones(LENGTH)] * size, [numpy.zeros(LENGTH)] * size, numpy.zeros(LENGTH)
    us, rates, interval, counted = [numpy.zeros(LENGTH)] * size, 0, 1, 0
    for step in range(24):
        if step == 10:
            interval, counted = 1, 0
        gs = [zero_one_gradient(rank, step) for rank in range(size)]
        if step < 10:
            g = sum(gs) / size
            m = [0.9 * m[0] + 0.1 * g] * size
            updates = step % interval == 0
            v = 0.9 * v + 0.1 * g ** 2 if updates else v
            xs = [xs[0] - 0.01 * m[0] / (numpy.sqrt(v) + 1e-2)] * size
            counted += updates
            if counted == 2:
                interval, counted = 2 * interval, 0
            continue
        scale = numpy.sqrt(v) + 1e-2
        m = [0.9 * old + 0.1 * g for old, g in zip(m, gs)]
        xs = [x - 0.01 * one / scale for x, one in zip(xs, m)]
        us = [u - 0.01 * one / scale for u, one in zip(us, m)]
        rates += 0.01
        if (step - 9) % interval == 0:
            mean = sum(u * scale for u in us) / size
            xs = [x - u + mean / scale for x, u in zip(xs, us)]
            m, us, rates = [-mean / rates] * size, [numpy.zeros(LENGTH)] * size, 0
        counted += 1
        if counted == 3:
            interval, counted = min(2 * interval, 4), 0
    for rank, (run, found, _, _) in enumerate(
            run_ranks(size, lambda comm: zero_one_walk(comm, EXACT, 24))):
        assert found == pytest.approx(xs[rank], rel=1e-11)
        assert run.vectors["mean"] == pytest.approx(m[rank], rel=1e-9, abs=1e-12)


def test_ranks_are_together_behind_every_exchange():
    ran = run_ranks(3, lambda comm: zero_one_walk(comm, ZERO_ONE, 30)[1:])
    assert len({tuple(one[2]) for one in ran}) == 1
    for stop in (10, 13, 20, 30):
        ended = run_ranks(3, lambda comm, stop=stop: zero_one_walk(comm, ZERO_ONE, stop))
        same = max(numpy.abs(one[1] - ended[0][1]).max() for one in ended) < 1e-12
        assert same == ended[0][0].is_synchronized


@pytest.mark.parametrize("settings, stop", [
    (SETTINGS, 2), (SETTINGS, 7), (ZERO_ONE, 3), (ZERO_ONE, 10), (ZERO_ONE, 16)])
def test_a_restart_goes_on_to_the_bit(settings, stop):
    def work(comm, stop):
        run, parameters, *_ = zero_one_walk(comm, settings, stop)
        again = settings.start(comm, LENGTH)
        again.load(run.state())
        zero_one_walk(comm, settings, 24, again, parameters)
        return parameters

    for one, other in zip(run_ranks(3, lambda comm: work(comm, stop)),
                          run_ranks(3, lambda comm: work(comm, 24))):
        assert (one == other).all()


@pytest.mark.parametrize("step", [2, 6])
def test_bad_gradients_change_nothing_on_any_rank(step):
    def work(comm):
        run, parameters, *_ = zero_one_walk(comm, SETTINGS, step)
        bad = zero_one_gradient(comm.rank, step)
        if comm.rank == 1:
            bad[3] = numpy.nan
        before = parameters.copy(), run.vectors["mean"].copy()
        with pytest.raises(NonFiniteError, match=r"ranks? 1"):
            finish(run.step(parameters, bad))
        assert (parameters == before[0]).all() and (run.vectors["mean"] == before[1]).all()
        assert run.steps == step
        zero_one_walk(comm, SETTINGS, 12, run, parameters)
        assert (parameters == zero_one_walk(comm, SETTINGS, 12)[1]).all()

    run_ranks(3, work)


@pytest.mark.parametrize("step", [1, 5, 12, 18])
def test_bad_gradients_are_refused_on_all_ranks_and_poison_nothing(step):
    def work(comm):
        run, parameters, *_ = zero_one_walk(comm, ZERO_ONE, step)
        refused = []
        for number in range(step, step + 10):
            values = zero_one_gradient(comm.rank, number)
            if comm.rank == 2 and number == step:
                values[0] = numpy.inf
            try:
                finish(run.step(parameters, values))
            except NonFiniteError as error:
                refused.append((number, error.ranks))
        assert numpy.isfinite(parameters).all() and numpy.isfinite(run.vectors["mean"]).all()
        return refused, run.steps

    ran = run_ranks(3, work)
    assert all(one == ran[0] for one in ran) and len(ran[0][0]) == 1
    assert ran[0][0][0][1] == (2,) and ran[0][1] == step + 9
