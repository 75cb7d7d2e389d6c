"""Gradient descent against PyTorch's formulas written out, whole and in shards."""

import numpy
import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.optimizers import Adam, OneBitAdam, Sgd, ZeroOneAdam

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


def test_gradients_may_be_of_another_type():
    assert walk(Sgd(momentum=0.5), dtype="f4", gradient_dtype="f2").dtype == "f4"
    assert walk(Adam(), dtype="f4", gradient_dtype="f2").dtype == "f4"


def test_state():
    assert Sgd().start(3) == {}
    assert [one.dtype for one in Sgd(momentum=0.5).start(3).values()] == ["f4"]
    assert {name: one.size for name, one in Adam().start(0).items()} == {"mean": 0, "square": 0}
    for optimizer in (Sgd(momentum=0.9), Adam()):
        optimizer.step(numpy.empty(0, "f4"), numpy.empty(0, "f4"), optimizer.start(0), 1)


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


def test_numbers_of_other_packages_and_endless_warmups_will_do():
    assert Adam(rate=numpy.float32(0.5)).rate == 0.5
    assert OneBitAdam(freeze_step=1e3).freeze_step == 1000
    assert ZeroOneAdam(freeze_step=float("inf")).start


@pytest.mark.parametrize("kind", [OneBitAdam, ZeroOneAdam])
def test_schemes_are_read_as_everywhere(kind):
    assert kind(compress="onebit") == kind()
    with pytest.raises(ArgumentError, match="compress: .*'onebti'"):
        kind(compress="onebti")
    with pytest.raises(ArgumentTypeError, match="compress: .*scheme"):
        kind(compress=5)
