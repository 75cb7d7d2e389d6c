"""Adam against its paper written out, with both kinds of weight decay."""

import numpy
import pytest

from hpccoll.training.optimizers import Adam


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
