"""Train a small network on scikit-learn's digits, with its state cut over the ranks.

    mpiexec -n 4 python examples/train_zero.py --stage 3

Stage 0 cuts nothing, 1 the optimizer's state, 2 gradients too, 3 weights too. Every rank sees its
share of every batch; the loop is the same at every stage. Needs pip install
scikit-learn.
"""
import argparse
import sys

import numpy
from mpi4py import MPI
from sklearn.datasets import load_digits

import hpccoll
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard import Fetching, Sharded

EPOCHS, BATCH = 30, 120
options = argparse.ArgumentParser()
options.add_argument("--stage", type=int, choices=range(4), default=2)
stage = options.parse_args().stage
comm = hpccoll.Comm(MPI.COMM_WORLD)

images, labels = load_digits(return_X_y=True)
images, random = (images / 16).astype("f4"), numpy.random.default_rng(seed=1)
order = random.permutation(len(images))
train, test = order[:1500], order[1500:]
start = [random.normal(0, 0.1, (64, 48)), numpy.zeros(48), random.normal(0, 0.1, (48, 10)),
         numpy.zeros(10)]

# A unit is a layer: stage 3 has its weights only where they are fetched.
sharded = Sharded(comm, [array.astype("f4") for array in start],
                  Sgd(rate=0.05, momentum=0.9), stage=stage,
                  units=[[0, 1], [2, 3]], clip=5.0,
                  fetching=Fetching(persistent=32) if stage == 3 else None)


def forward(x):
    """The hidden layer, and the probability of every digit."""
    with sharded.fetched(0) as layer:
        hidden = numpy.maximum(x @ layer[0] + layer[1], 0)
    with sharded.fetched(1) as layer:
        scores = numpy.exp(hidden @ layer[2] + layer[3])
    return hidden, scores / scores.sum(axis=1, keepdims=True)


for _ in range(EPOCHS):
    for batch in numpy.array_split(random.permutation(train), len(train) // BATCH):
        mine = numpy.array_split(batch, comm.size)[comm.rank]
        hidden, error = forward(images[mine])
        error[numpy.arange(len(mine)), labels[mine]] -= 1
        # A share may have one image more: the mean over ranks must be that over the batch.
        error *= comm.size / len(batch)
        with sharded.fetched(1) as layer:
            sharded.ready(3, error.sum(axis=0))
            sharded.ready(2, hidden.T @ error)
            error = error @ layer[2].T * (hidden > 0)
        sharded.ready(1, error.sum(axis=0))
        sharded.ready(0, images[mine].T @ error)
        sharded.step()

right = (forward(images[test])[1].argmax(axis=1) == labels[test]).mean()
held = sharded.footprint
if comm.rank == 0:
    print(f"{comm.size} rank{'s' * (comm.size > 1)}, "
          f"stage {stage}: {right:.1%} of unseen digits are right; weights, "
          f"gradients and state take {held.total / 1024:.1f} KiB a rank")
if right < 0.95:
    sys.exit("too few")
