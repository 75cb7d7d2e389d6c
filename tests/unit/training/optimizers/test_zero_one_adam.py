"""0/1 Adam: which steps exchange what, its stages written out, restarts, bad numbers."""

from dataclasses import replace

import numpy
import pytest

from hpccoll.errors import NonFiniteError
from hpccoll.training.compress import finish, parse
from hpccoll.training.optimizers import ZeroOneAdam
from support.threads import run_ranks

COUNT = 67
SETTINGS = ZeroOneAdam(rate=0.01, beta2=0.9, epsilon=1e-2, freeze_step=10, variance_doubling=2,
                       local_doubling=3, most_local=4)
EXACT = replace(SETTINGS, compress=parse("none"))


def gradient(rank, step):
    return numpy.random.default_rng([rank, step]).standard_normal(COUNT)


def walk(comm, settings, stop, run=None, parameters=None):
    run = run or settings.start(comm, COUNT)
    parameters = numpy.ones(COUNT) if parameters is None else parameters
    sent, together = [], []
    for step in range(run.steps, stop):
        before = comm.sent_bytes
        finish(run.step(parameters, gradient(comm.rank, step)))
        sent.append(comm.sent_bytes - before)
        together.append(run.is_synchronized)
    return run, parameters, sent, together


def test_which_steps_exchange_what():
    """Intervals of the variance are 1, 2, 4; those of exchanges 1 and 2 and at most 4."""
    _, _, sent, together = run_ranks(2, lambda comm: walk(comm, SETTINGS, 30))[0]
    dense, bits = 8 * COUNT, parse("onebit").wire_bytes([(COUNT,)], 2)
    assert bits == 24
    text = "".join({dense: "D", bits: "1", 0: "-"}[one] for one in sent)
    assert text == "DDD1D111D1" + "1111-1-1---1---1---1"
    assert together == [one != "-" for one in text]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_stages_written_out(size):
    xs, m, v = [numpy.ones(COUNT)] * size, [numpy.zeros(COUNT)] * size, numpy.zeros(COUNT)
    us, rates, interval, counted = [numpy.zeros(COUNT)] * size, 0, 1, 0
    for step in range(24):
        if step == 10:
            interval, counted = 1, 0
        gs = [gradient(rank, step) for rank in range(size)]
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
            m, us, rates = [-mean / rates] * size, [numpy.zeros(COUNT)] * size, 0
        counted += 1
        if counted == 3:
            interval, counted = min(2 * interval, 4), 0
    for rank, (run, found, _, _) in enumerate(run_ranks(size, lambda comm: walk(comm, EXACT, 24))):
        assert found == pytest.approx(xs[rank], rel=1e-11)
        assert run.vectors["mean"] == pytest.approx(m[rank], rel=1e-9, abs=1e-12)


def test_ranks_are_together_behind_every_exchange():
    ran = run_ranks(3, lambda comm: walk(comm, SETTINGS, 30)[1:])
    assert len({tuple(one[2]) for one in ran}) == 1
    for stop in (10, 13, 20, 30):
        ended = run_ranks(3, lambda comm, stop=stop: walk(comm, SETTINGS, stop))
        same = max(numpy.abs(one[1] - ended[0][1]).max() for one in ended) < 1e-12
        assert same == ended[0][0].is_synchronized


@pytest.mark.parametrize("stop", [3, 10, 16])
def test_a_restart_goes_on_to_the_bit(stop):
    def work(comm):
        run, parameters, *_ = walk(comm, SETTINGS, stop)
        again = SETTINGS.start(comm, COUNT)
        again.load(run.state())
        walk(comm, SETTINGS, 24, again, parameters)
        return parameters

    for one, other in zip(run_ranks(3, work), run_ranks(3, lambda comm: walk(comm, SETTINGS, 24))):
        assert (one == other[1]).all()


@pytest.mark.parametrize("step", [1, 5, 12, 18])
def test_bad_gradients_are_refused_on_all_ranks_and_poison_nothing(step):
    def work(comm):
        run, parameters, *_ = walk(comm, SETTINGS, step)
        refused = []
        for number in range(step, step + 10):
            values = gradient(comm.rank, number)
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
