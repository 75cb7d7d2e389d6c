"""Train a small network on handwritten digits with JAX and optax, each rank on its own examples.

    mpiexec -n 2 python examples/train_jax.py [SCHEME]

Gradients are averaged inside of the compiled step, compressed by SCHEME if one is given, such as
bf16. The digits are scikit-learn's: 1,797 pictures of 8 x 8 pixels. Needs
pip install -e '.[jax]' scikit-learn.
"""
import argparse
import sys

import jax
import numpy
import optax
from jax import numpy as jnp
from sklearn.datasets import load_digits

import hpccoll.jax
from hpccoll.training.compress import parse

parser = argparse.ArgumentParser()
parser.add_argument("scheme", nargs="?", default="none", help="such as bf16, topk:density=0.05")
scheme = parser.parse_args().scheme
try:
    parse(scheme)
except ValueError as error:
    parser.error(str(error))

comm = hpccoll.jax.world()
x, y = load_digits(return_X_y=True)
mixed = numpy.random.default_rng(0).permutation(len(x))
x, y = (x[mixed] / 16).astype("float32"), y[mixed]
test, train = slice(0, 360), slice(360 + comm.rank, None, comm.size)  # every size-th example
batch = 128 // comm.size
steps = len(x[360:]) // comm.size // batch  # the same number on all ranks


def predict(params, x):
    """Return the logits of a network of dense layers."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, y):
    """Return the mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, x), y).mean()


sizes, random = [64, 64, 10], numpy.random.default_rng(comm.rank)
params = [(jnp.asarray(random.normal(0, (2 / n) ** 0.5, (n, m)), jnp.float32), jnp.zeros(m))
          for n, m in zip(sizes, sizes[1:])]
params = hpccoll.jax.broadcast_parameters(params)  # ranks began with values of their own
optimizer = hpccoll.jax.distributed(optax.adam(5e-3), compress=scheme)
state = optimizer.init(params)


@jax.jit
def step(params, state, x, y):
    """Return parameters, optimizer state and loss after a step."""
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


for _ in range(20):
    order = random.permutation(len(x[train]))
    for i in range(steps):
        chosen = order[i * batch:(i + 1) * batch]
        params, state, value = step(params, state, x[train][chosen], y[train][chosen])

accuracy = float((predict(params, x[test]).argmax(axis=1) == y[test]).mean())
same = hpccoll.jax.allgather(params[0][0])
if comm.rank == 0:
    print(f"{comm.size} rank{'s' * (comm.size > 1)}: {accuracy:.1%} of the test pictures are right")
if not (accuracy >= 0.95 and bool((same == same[0]).all())):
    sys.exit(f"rank {comm.rank}: wrong answer")
